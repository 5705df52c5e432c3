//! The requests of an owner after its acquire: renew, release, and the withdrawal of an acquire that ended without the lock.

use std::borrow::Cow;
use std::time::Duration;

use aws_sdk_dynamodb::types::ConditionCheck;

use super::expression::{Attribute as _, Condition, Update, count};
use super::key::has_no_later;
use super::kind::Acquisition;
use super::names::EXPIRATION;
use super::read::Row;
use super::rules::{Field, Own, OwnRow, Release, TRIES, Trace};
use super::table::{Item, Table, in_time};
use super::write::{Answer, send};
use crate::clock::{Clock, Lease, Moment};
use crate::error::{Cause, Error};
use crate::holder::{Data, Holder};

/// How long a release waits for the removal of what is no longer needed.
const TIDYING_TIMEOUT: Duration = Duration::from_millis(200);

/// The effect of a renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Extended,
    Lost {
        error: Error,
        /// The owner still has other keys, which a release frees.
        has_others: bool,
    },
}

/// The effect of a release.
#[derive(Debug)]
pub(crate) enum Released {
    Freed,
    /// This owner had completed the record, in a request or a transaction whose answer was lost.
    Completed(Box<Holder>),
    /// There is no trace of the acquisition after an earlier attempt, also of an earlier call, that was not answered. Either
    /// that attempt was applied, or others have taken the permit after the end of the lease.
    NoTrace,
}

impl Table {
    /// Moves the end of the lease, if this owner holds all keys and the lease has not ended. One request.
    ///
    /// A duplicate that arrives after the release or the completion must not take the key again, and one that arrives
    /// after a later renewal must not move the end back. The conditions on the release and the number refuse both.
    pub(crate) async fn renew(
        &self,
        acquisition: &Acquisition,
        sequence: u64,
        now: Moment,
        lease: Lease,
        data: Option<&Data>,
    ) -> Result<Renewed, Error> {
        let (rules, owner) = (acquisition.rules(), acquisition.owner.as_str());
        let keys = rules.keys();
        let write = acquisition.write(keys, |key| {
            Update::new(key)
                .when(rules.is_held(owner, now.millis()))
                .when(rules.at(owner, Field::Sequence).below(count("sequence", sequence)))
                .set(rules.at(owner, Field::LeaseEnd), count("lease_end", lease.end))
                .set(EXPIRATION, count("expiration", lease.expiration))
                .set(rules.at(owner, Field::Sequence), count("sequence", sequence))
                .set_data(data)
        });
        let Answer::Refused(refused) = self.write(write, None).await? else {
            return Ok(Renewed::Extended);
        };
        // An earlier attempt of this renewal was applied to the others; its answer was lost.
        let is_renewed = |trace: &Trace| trace.held().is_some_and(|own| own.sequence == Some(sequence));
        let traces = refused.into_rows(self)?.into_iter();
        let traces = traces.map(|(key, row)| (key, rules.trace(row.as_ref(), owner, now)));
        let lost: Vec<_> = traces.filter(|(_, trace)| !is_renewed(trace)).collect();
        if lost.is_empty() {
            return Ok(Renewed::Extended);
        }
        let has_others = lost.len() < keys.len();
        Ok(Renewed::Lost { error: self.lost(lost), has_others })
    }

    /// Frees all keys that this owner holds, and keeps their rows. One request; a second one if some of several keys were
    /// lost, which the error names, and if a row is to be tidied up.
    pub(crate) async fn release(&self, acquisition: &Acquisition, release: &Release<'_>) -> Result<Released, Error> {
        let (mut released, mut lost) = (Released::Freed, Vec::new());
        for (key, row) in self.release_held(acquisition, release).await? {
            match acquisition.rules().trace(row.as_ref(), &acquisition.owner, release.now) {
                Trace::Own(Own { completed: Some(record), .. }) => released = Released::Completed(record),
                Trace::Own(Own { is_released: true, .. }) | Trace::Other { is_released: true, .. } => {}
                Trace::Gone if acquisition.has_unanswered_release() => released = Released::NoTrace,
                trace => lost.push((key, trace)),
            }
        }
        if lost.is_empty() { Ok(released) } else { Err(self.lost(lost)) }
    }

    /// Releases the keys that this owner holds. Returns the others with their rows.
    pub(super) async fn release_held(
        &self,
        acquisition: &Acquisition,
        release: &Release<'_>,
    ) -> Result<Vec<(String, Option<Row>)>, Error> {
        let (rules, owner) = (acquisition.rules(), acquisition.owner.as_str());
        let (mut keys, mut others, mut unreadable) = (Cow::Borrowed(rules.keys()), Vec::new(), None);
        let mut is_first = true;
        while !keys.is_empty() {
            let write = acquisition.write(&*keys, |key| {
                let has_no_later = has_no_later(rules.at(owner, Field::Fence), release.fence);
                rules.release(OwnRow { table: self, key, owner }, release, is_first).when_some(has_no_later)
            });
            let refused = match self.write(write, acquisition.release_attempts.as_ref()).await? {
                Answer::Applied(row) => {
                    self.tidy(acquisition, row, release.now).await;
                    break;
                }
                Answer::Refused(refused) => refused,
            };
            let mut again = refused.willing;
            for (key, row) in refused.rows {
                match row {
                    Ok(row) if is_first && rules.adapts(&rules.trace(row.as_ref(), owner, release.now), release) => {
                        again.push(key);
                    }
                    Ok(row) => others.push((key, row)),
                    // It does not keep the other keys.
                    Err(why) => unreadable = Some(why.into_error(self.place(), &key)),
                }
            }
            (keys, is_first) = (Cow::Owned(again), false);
        }
        unreadable.map_or(Ok(others), Err)
    }

    /// Removes what is no longer needed from the row that a release has left. One request, or none.
    async fn tidy(&self, acquisition: &Acquisition, row: Item, now: Moment) {
        let rules = acquisition.rules();
        if let [key] = rules.keys()
            && let Some(update) = rules.tidied(row, key, now)
        {
            let _a_later_release_tidies_up = in_time(TIDYING_TIMEOUT, send(self.request(&update), None)).await;
        }
    }

    /// Limits the time of an attempt to what the clock skew allows: this host's clock may have been set back since, from ahead
    /// of the others to behind them. A clock that was farther ahead does not block a key for so long.
    pub(crate) fn time_of_attempt(&self, asked_at: Duration, now: Moment) -> Duration {
        asked_at.min(now.wall.saturating_add(2 * self.clock_skew))
    }

    /// Frees the keys if this owner has them after all. Otherwise makes the row of one key refuse an attempt that arrives
    /// late, and so all that the attempt asks for. One request if the owner has the keys, two if not; up to six if others
    /// change the rows.
    ///
    /// `asked_at` is the latest time of an attempt. With `keeps`, keys that this owner has stay held: a takeover has them from
    /// its identity.
    pub(crate) async fn withdraw(
        &self,
        acquisition: &Acquisition,
        clock: &Clock,
        asked_at: Duration,
        keeps: bool,
    ) -> Result<(), Error> {
        let (rules, owner) = (acquisition.rules(), acquisition.owner.as_str());
        // No row accepts a release with the number 0. It answers with the row.
        let sequence = u64::from(!keeps);
        let moments = || {
            let now = clock.now();
            (now, self.time_of_attempt(asked_at, now))
        };
        for _ in 0..TRIES {
            // Here and below: Lambda may have frozen this process since the last request, and a row with an old TTL is deleted
            // too early. A request that `write` repeats keeps its time, as those of all holders do, for ten seconds at most.
            let (now, asked_at) = moments();
            let release = Release { sequence, now, fence: None, asked_at, hold_until: None, hold: None, data: None };
            let others = self.release_held(acquisition, &release).await?;
            // What others have freed refuses this owner only until the next release.
            let is_own = |row: &Option<Row>| match rules.trace(row.as_ref(), owner, now) {
                Trace::Own(own) => !own.is_freed_by_others(),
                _ => false,
            };
            let was_applied = others.len() < rules.keys().len() || others.iter().any(|(_, row)| is_own(row));
            let Some((key, row)) = others.first().filter(|_| !was_applied) else { return Ok(()) };
            let of = OwnRow { table: self, key, owner };
            let (now, asked_at) = moments();
            let withdrawal = rules.withdrawal(of, row.as_ref(), now.not_before(asked_at));
            let Some(withdrawal) = withdrawal else { return Ok(()) };
            match self.write(withdrawal, None).await? {
                Answer::Applied(_) => return Ok(()),
                // The row has changed meanwhile.
                Answer::Refused(refused) => refused.into_row(self).map(drop)?,
            }
        }
        Err(acquisition.error(Cause::Conflict, self))
    }

    /// Builds the check "this owner still holds the key" for a transaction, for each key. Without a lock, it always holds.
    pub(crate) fn condition_checks(
        &self,
        acquisition: &Acquisition,
        is_enforced: bool,
        now: Moment,
    ) -> Result<Vec<ConditionCheck>, Error> {
        let rules = acquisition.rules();
        let always = || {
            let key = || self.partition_key_path();
            Condition::Any(vec![key().exists(), key().missing()])
        };
        let condition = || if is_enforced { rules.is_held(&acquisition.owner, now.millis()) } else { always() };
        rules.keys().iter().map(|key| self.check(key, &condition())).collect()
    }

    fn lost(&self, lost: Vec<(String, Trace)>) -> Error {
        Error::lost_to(lost.into_iter().map(|(key, trace)| (key, trace.into_holder())).collect(), self.place())
    }
}
