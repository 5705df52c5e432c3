//! The release by an operator, and the completion.

use super::expression::{Attribute as _, Update, all, any, count, text};
use super::key::has_no_later;
use super::names::{COMPLETED, DATA, EXPIRATION, FENCE, HOLDER, IN_PROGRESS, LEASE_END, OWNER, RELEASED, STATUS};
use super::table::Table;
use super::write::Answer;
use crate::clock::{Moment, seconds_up};
use crate::error::Error;
use crate::holder::{Data, Holder, HolderKind};

impl Table {
    /// Frees what was `seen`, for the operator `by`, so that its holder finds it lost. Returns `false` if the row has changed
    /// since it was seen. One request; for permits another one each time that one of them was released meanwhile.
    pub(crate) async fn force_release(&self, key: &str, by: &str, seen: &Holder, now: Moment) -> Result<bool, Error> {
        match seen.kind {
            HolderKind::Key => self.force_release_key(key, by, seen, now).await,
            HolderKind::Semaphore | HolderKind::Permit => self.force_release_permits(key, by, seen, now).await,
        }
    }

    /// Takes the key for an owner of the operator's, and releases it at once.
    async fn force_release_key(&self, key: &str, by: &str, seen: &Holder, now: Moment) -> Result<bool, Error> {
        let owner = self.nonce(key)?;
        let release = forced(key, &owner, by, seen, now)
            .set(EXPIRATION, count("expiration", seconds_up(self.kept_after(now.wall))));
        let Answer::Refused(refused) = self.write(release, None).await? else { return Ok(true) };
        Ok(refused.into_row(self)?.is_some_and(|row| {
            let is_released = |owner: &str| row.is_owned_by(owner) && row.is_released_by(owner);
            let by_holder = !row.completed && seen.owner.as_deref().is_some_and(is_released);
            // An earlier attempt of this request was applied; its answer was lost.
            let by_this_request = row.is_released_by(&owner);
            by_holder || by_this_request
        }))
    }

    /// Stores the result of the run that was `seen`, for the operator `by`, until this time in seconds since the epoch. Returns
    /// `false` if the row has changed since it was seen. One request.
    pub(crate) async fn force_complete(
        &self,
        key: &str,
        by: &str,
        seen: &Holder,
        now: Moment,
        until: u64,
        result: Option<&Data>,
    ) -> Result<bool, Error> {
        let owner = self.nonce(key)?;
        let completion = forced(key, &owner, by, seen, now)
            .set(STATUS, text("completed", COMPLETED))
            .set(EXPIRATION, count("expiration", until));
        let completion = if result.is_some() { completion.set_data(result) } else { completion.remove(DATA) };
        let Answer::Refused(refused) = self.write(completion, None).await? else { return Ok(true) };
        // An earlier attempt of this request was applied; its answer was lost.
        Ok(refused.into_row(self)?.is_some_and(|row| row.is_completed_by(&owner)))
    }
}

/// Begins the update that takes what was `seen` for this owner, an operator's, as if it had released it.
fn forced<'a>(key: &'a str, owner: &'a str, by: &'a str, seen: &'a Holder, now: Moment) -> Update<'a> {
    // Not after the end of the lease, even if this clock is ahead; and after the request that began the lease, so that
    // a duplicate of it is refused.
    let end = now.millis().min(seen.until).max(seen.since.map_or(0, |since| since + 1));
    let is_unchanged = match &seen.owner {
        // A row that its owner released is not changed, so that a retry of that release recognises it.
        Some(seen) => all([
            OWNER.is(text("seen", seen)),
            any([RELEASED.differs_from(text("seen", seen)), LEASE_END.above(count("now", now.millis()))]),
        ]),
        // A row that another library wrote has no owner. Its end tells one acquisition from the next.
        None => all([
            OWNER.missing(),
            any([
                LEASE_END.is(count("seen", seen.until)),
                all([LEASE_END.missing(), EXPIRATION.is(count("seen_seconds", seen.until / 1000))]),
            ]),
        ]),
    };
    Update::new(key)
        .when(STATUS.is(text("in_progress", IN_PROGRESS)))
        .when(is_unchanged)
        .when_some(has_no_later(FENCE.into(), seen.fence))
        .set(OWNER, text("owner", owner))
        .set(RELEASED, text("owner", owner))
        .set(HOLDER, text("holder", by))
        .set(LEASE_END, count("end", end))
}
