//! A rate: the two requests of a call, and the meaning of their answers.
//!
//! The row has one number, the time at which the next call is due if calls come evenly. Each call moves it on by one interval, so
//! the calls get their times in the order in which they reach the row. This is the generic cell rate algorithm (ITU-T
//! Recommendation I.371, annex A, "virtual scheduling"), with a burst as its tolerance.
//!
//! An update cannot take the later of two times. So there are two requests: one follows the calls before it, and one begins anew
//! because no call is due any more. A refusal returns the row, which says which of the two requests to send.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;
use tokio::time::timeout;

use super::attribute::number_at;
use super::expression::{Attribute as _, To, Update, all, any, count, text};
use super::names::{DUE, EXPIRATION, LATEST_MICROS, RATE, STATUS};
use super::operation::TRIES;
use super::table::Table;
use super::write::{Answer, Write};
use crate::client::SdkAttempts;
use crate::clock::{Deadline, Moment, micros, millis_up, seconds_up};
use crate::error::{Cause, Error};
use crate::holder::{Holder, HolderKind};
use crate::limits::REQUEST_TIMEOUT;

/// How often a key may be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The time that the call takes of the key: the next one comes that much later, if calls come evenly.
    pub(crate) interval: Duration,
    /// How much earlier than due the call may be.
    pub(crate) tolerance: Duration,
}

/// The answer of the row to an update of a rate. Each number says when the next call was due.
enum Met {
    /// It has changed the row. A new row had no number.
    Moved(Option<u64>),
    /// The row is another one than the update asks for, or was deleted meanwhile.
    Other(Option<u64>),
}

impl Table {
    /// Takes the next call of a rate. Returns its time, which is at most `wait` from now, and not before the request. One
    /// request, or two if `is_idle`, which says what the last answer showed, is wrong by now; three if other clients call
    /// meanwhile.
    pub(crate) async fn call(
        &self,
        key: &str,
        pace: Pace,
        wait: Duration,
        is_idle: &AtomicBool,
        clock: impl Fn() -> Moment,
    ) -> Result<Deadline, Error> {
        // A call that cannot wait can only begin anew.
        let mut begins = is_idle.load(Ordering::Relaxed) || wait.saturating_add(pace.tolerance).is_zero();
        let mut now = clock();
        for _ in 0..TRIES {
            let next = now.wall.saturating_add(pace.interval);
            let update = if begins {
                self.begin_calls(key, micros(now.wall), next)
            } else {
                self.follow_calls(key, pace, wait, now)
            };
            let own =
                |was_due: Option<u64>| Duration::from_micros(was_due.filter(|_| !begins).unwrap_or(micros(now.wall)));
            let due = match self.move_on(key, update, now, |was_due| own(was_due).saturating_add(pace.interval)).await?
            {
                Met::Moved(was_due) => {
                    let own = own(was_due);
                    is_idle.store(own <= now.wall, Ordering::Relaxed);
                    let left = own.saturating_sub(pace.tolerance).saturating_sub(now.wall);
                    // A deadline has whole milliseconds, and the call may not be early.
                    let left = if left.is_zero() { left } else { left + Duration::from_millis(1) };
                    return Ok(now.deadline_after(left));
                }
                Met::Other(None) => continue,
                Met::Other(Some(due)) => Duration::from_micros(due),
            };
            // By the microseconds of the requests.
            let is_over = due < Duration::from_micros(micros(now.wall));
            is_idle.store(is_over, Ordering::Relaxed);
            if is_over {
                (begins, now) = (true, clock());
                continue;
            }
            // The next call is due then or later, so that this call follows by the same reading of the clock.
            begins = false;
            let may_come_at = due.saturating_sub(pace.tolerance).saturating_sub(wait);
            if may_come_at > now.wall {
                let number = Some(micros(due));
                let refusal =
                    Holder { number, until: millis_up(may_come_at), ..Holder::unknown(HolderKind::Rate, now.millis()) };
                return Err(Error::new(Cause::Held(refusal), self.place(), key));
            }
        }
        Err(Error::new(Cause::Conflict, self.place(), key))
    }

    /// Lets no call pass before `at`. A row whose next call is due later stays as it is. One request.
    pub(crate) async fn pause_calls(&self, key: &str, at: Duration, now: Moment) -> Result<(), Error> {
        let update = self.begin_calls(key, micros(at), at);
        self.move_on(key, update, now, |_| at).await.map(drop)
    }

    /// Sends an update that sets when the next call is due: to `due`, a function of when it was due before. A wrong clock takes
    /// its update back.
    async fn move_on(
        &self,
        key: &str,
        update: Update<'_>,
        now: Moment,
        due: impl Fn(Option<u64>) -> Duration,
    ) -> Result<Met, Error> {
        let (write, attempts) = (Write::from(update), SdkAttempts::default());
        let answer = timeout(REQUEST_TIMEOUT, Box::pin(attempts.record(self.write_once(&write)))).await;
        let answer =
            answer.map_err(|elapsed| Error::new(Cause::Unavailable, self.place(), key).with_source(elapsed))?;
        let wrong_clock = attempts.wrong_clock(self.clock_skew);
        let met = match (answer, wrong_clock) {
            (Ok(Answer::Applied(before)), _) => {
                Met::Moved(number_at(&before, DUE, LATEST_MICROS).map_err(|why| self.malformed(key, why))?)
            }
            (_, Some(_)) => Met::Other(None),
            (Err(error), None) => return Err(error),
            (Ok(Answer::Refused(refused)), None) => match refused.into_row(self, now)? {
                None => Met::Other(None),
                Some(row) if row.kind == HolderKind::Rate => Met::Other(Some(row.number.unwrap_or_default())),
                Some(row) => {
                    let cause = Cause::WrongKind { is: row.kind_name(), not: "a rate" };
                    return Err(Error::new(cause, self.place(), key));
                }
            },
        };
        let Some(offset) = wrong_clock else { return Ok(met) };
        if let Met::Moved(was_due) = met {
            let given_back = set_due(key, micros(due(was_due)), was_due.unwrap_or_default());
            let _the_clock_is_wrong_all_the_same = self.write(given_back, &SdkAttempts::leaving_prevented()).await;
        }
        Err(Error::new(Cause::ClockSkew(offset, self.clock_skew), self.place(), key))
    }

    /// Follows the calls before this one, of which the last is not due yet. Also takes the first call of a new row.
    fn follow_calls<'a>(&self, key: &'a str, pace: Pace, wait: Duration, now: Moment) -> Update<'a> {
        let latest = now.wall.saturating_add(pace.tolerance).saturating_add(wait);
        let is_due = all([
            STATUS.is(text("rate", RATE)),
            DUE.between(count("now", micros(now.wall)), count("latest", micros(latest))),
        ]);
        let due = To::plus(DUE, count("now", micros(now.wall)), count("interval", micros(pace.interval)));
        self.take_call(key, latest.saturating_add(pace.interval))
            .when(any([self.key_path().missing(), is_due]))
            .set(DUE, due)
    }

    /// Makes the next call due at this time, if none is due at these microseconds or later.
    fn begin_calls<'a>(&self, key: &'a str, over: u64, due: Duration) -> Update<'a> {
        let just_before = count("just_before", over.saturating_sub(1));
        let is_over = all([STATUS.is(text("rate", RATE)), DUE.between(count("zero", 0_u8), just_before)]);
        self.take_call(key, due).when(any([self.key_path().missing(), is_over])).set(DUE, count("due", micros(due)))
    }

    /// Lets the next call pass at once, if no call has moved the row on since it was `seen`. Returns `false` if a call has, or
    /// if the row was deleted. One request.
    pub(super) async fn free_calls(&self, key: &str, seen: &Holder, now: Moment) -> Result<bool, Error> {
        let update = set_due(key, seen.number.unwrap_or_default(), 0);
        let Answer::Refused(refused) = self.write(update, &SdkAttempts::leaving_prevented()).await? else {
            return Ok(true);
        };
        // An earlier attempt of this request was applied; its answer was lost.
        Ok(refused.into_row(self, now)?.is_some_and(|row| row.kind == HolderKind::Rate && row.number == Some(0)))
    }

    /// TTL deletes the row when it says nothing any more.
    fn take_call<'a>(&self, key: &'a str, latest: Duration) -> Update<'a> {
        Update::new(key)
            .returning(ReturnValue::AllOld)
            .set(STATUS, text("rate", RATE))
            .set(EXPIRATION, count("expiration", seconds_up(self.kept_after(latest.saturating_add(self.clock_skew)))))
    }
}

/// Sets when the next call is due, if no call has followed the call that was seen.
fn set_due(key: &str, seen: u64, due: u64) -> Update<'_> {
    let is_unchanged = all([STATUS.is(text("rate", RATE)), DUE.is(count("seen", seen))]);
    Update::new(key).when(is_unchanged).set(DUE, count("due", due))
}
