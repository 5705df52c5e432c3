//! `Rate`: a key that may be called N times in a period.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::locks::Locks;
use super::telemetry::{record_call, record_refusal};
use crate::clock::{Deadline, Moment, micros};
use crate::error::{Cause, Error};
use crate::limits::{DAY, check_duration};
use crate::row::Pace;
use crate::text::printable;

/// The shortest time between two calls: DynamoDB writes a row about 1,000 times a second.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// How late a call may be at least. An answer of DynamoDB usually takes less, so a call whose time is the present passes.
const LATE: Duration = Duration::from_millis(100);
/// How often a call that was late asks for its time.
const TRIES: u32 = 3;
/// The longest sleep before a call looks at the clock again, because Lambda may have frozen this process.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl Locks {
    /// Returns the rate on `key`: `calls` in a `period`, spread evenly, from any number of functions and hosts. Sends no request.
    ///
    /// A period lasts up to a day, and a call takes at least 1 ms of it. A wrong number is an error of kind
    /// [`Invalid`](crate::ErrorKind::Invalid) when a call passes.
    pub fn rate(&self, key: impl Into<String>, calls: u32, period: Duration) -> Rate {
        let is_idle = Arc::new(AtomicBool::new(false));
        Rate { locks: self.clone(), key: key.into(), calls, period, burst: 1, weight: 1, is_idle }
    }
}

/// A key that may be called N times in a period, by any number of functions together.
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::{Error, Locks};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// // Ten calls of the bank a second, across all invocations.
/// let bank = locks.rate("bank-api", 10, Duration::from_secs(1));
/// bank.pass_within(Duration::from_secs(5)).await?; // sleeps until it is this call's turn
/// call_the_bank().await;
/// # Ok(())
/// # }
/// # async fn call_the_bank() {}
/// ```
///
/// Keep the `Rate` and clone it, instead of making a new `Rate` for each call: it remembers the last answer, which saves
/// requests.
///
/// A rate limits how often calls *start*. To limit how many run *at a time*, take a [`Semaphore`](crate::Semaphore). Nothing is
/// released after a call.
///
/// # Which calls pass
///
/// Calls are spread evenly: with ten a second, each is 100 ms after the one before. A [`burst`](Self::burst) lets some calls
/// come at once after a quiet time. A call that comes too early is refused, or [waits](Self::pass_within). A waiting call
/// reserves its time: one request tells it when it may go on, in the order in which the requests reach the row. It asks again only
/// if it is late for that time.
///
/// The times that calls are given are never nearer than the even interval, apart from the burst. A call may be late for its
/// time, because its answer came late or Lambda froze its environment. If it is late by more than an interval, and by more than
/// 100 ms, it has lost its time and asks for another one, so that it does not go together with later calls. So any period has at
/// most N + 2 calls, beside the burst; with more than ten calls a second, it has those of 100 ms more. If the clocks of two hosts
/// differ by 400 ms, it also has those of 400 ms more, because the host whose clock is behind lets its calls go later, together
/// with those of the other host. A call with a [`weight`](Self::weight) counts with it, also among the two. What your code does
/// between [`pass`](Self::pass) and the call counts as well, and so does the sleep after [`reserve`](Self::reserve), which this
/// type cannot see.
///
/// A host whose clock is ahead also moves the next time on by that much. So a host whose clock is behind can be refused each time,
/// even if only half of the calls are used, unless its calls wait for longer than clocks may differ, plus the time between two
/// calls. With ten a second and clocks that differ by 200 ms, `pass_within(300 ms)` passes, and [`pass`](Self::pass) may not.
///
/// # Requests
///
/// A call is one `UpdateItem`, also if it is refused or waits. A call that may wait, or has a burst, and does not know how busy
/// the key is, sends two requests, and three if other clients call meanwhile: the first call of a process after a quiet time,
/// or the first call after the key became busy or quiet. The IAM action is `dynamodb:UpdateItem`.
///
/// A call that is late for its time asks again, up to two times, and then fails with an error of kind
/// [`Unavailable`](crate::ErrorKind::Unavailable). The last time that it asks for is later than the present by as long as the
/// answers before took. The other calls come after that time, so the calls of other hosts that cannot wait for it are refused.
///
/// If an answer is lost and the SDK repeats the request, or if a waiting call is dropped, one call of the rate is lost: the
/// other calls come no earlier.
///
/// All calls of a key write the same row, so the key has the limit of a partition of DynamoDB: about 1,000 calls a second, the
/// refused ones included. For more, spread the calls over several keys, such as `bank#0` to `bank#3` with a quarter of the rate
/// each.
///
/// # Different numbers
///
/// Each caller's own numbers count. While a deployment changes ten a second to five, a call of the new version takes 200 ms,
/// and a call of the old version 100 ms.
///
/// A key is either a rate, a lock, a semaphore or a record of idempotency. A call of another kind fails with an error of kind
/// [`WrongKind`](crate::ErrorKind::WrongKind).
///
/// If a call with a wrong period or a wrong clock has moved the next time far ahead, correct the period or the clock, and then
/// [free the key by force](Locks::force_release), which lets the next call pass at once.
///
/// The algorithm is the generic cell rate algorithm of ITU-T Recommendation I.371.
#[derive(Clone, Debug)]
#[must_use = "a rate does nothing until a call passes"]
pub struct Rate {
    locks: Locks,
    key: String,
    calls: u32,
    period: Duration,
    burst: u32,
    weight: u32,
    /// Whether the last answer showed a key without calls that are still due.
    is_idle: Arc<AtomicBool>,
}

impl Rate {
    /// Sets how many calls may come at once after a quiet time: 1 by default, which spreads all calls evenly.
    ///
    /// With ten a second and a burst of ten, the first ten calls after a second without calls pass at once, and then one each
    /// 100 ms.
    pub fn burst(mut self, calls: u32) -> Self {
        self.burst = calls;
        self
    }

    /// Sets how many calls each call counts as: 1 by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Locks};
    /// # async fn example(locks: Locks) -> Result<(), Error> {
    /// // The shop gives back 50 points a second, and has up to 1,000 of them. This query costs 120.
    /// let shop = locks.rate("shop-api", 50, Duration::from_secs(1)).burst(1000);
    /// shop.clone().weight(120).pass_within(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The call comes when so many calls of the [burst](Self::burst) may come at once, so 120 points are there. A call that is
    /// heavier than the burst comes when no call is due any more, and the calls after it wait for its whole weight. One request
    /// asks for all of it, so a key can have more calls than the 1,000 requests a second of its partition.
    pub fn weight(mut self, calls: u32) -> Self {
        self.weight = calls;
        self
    }

    /// Lets no call pass for this long, up to a day, whoever calls: for example after the bank has answered 429 with
    /// `Retry-After: 30`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Rate};
    /// # async fn example(bank: Rate, retry_after: Duration) -> Result<(), Error> {
    /// bank.pause_for(retry_after).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Two callers that pause the rate at once do not add up: the later end counts. Then the calls come evenly again, without a
    /// burst. A call that waits already has its time, so it passes. One `UpdateItem`; IAM action `dynamodb:UpdateItem`.
    pub async fn pause_for(&self, pause: Duration) -> Result<(), Error> {
        check_duration("pause of a rate", pause, Duration::ZERO, DAY)?;
        let settings = &self.locks.0;
        let tolerance = Self { weight: 1, ..self.clone() }.pace()?.tolerance;
        self.locks.check_key(&self.key)?;
        if !settings.enabled {
            return Ok(());
        }
        let now = settings.clock.now();
        settings.table.pause_calls(&self.key, now.wall + pause + tolerance, now).await
    }

    /// Lets a call pass now, or fails with an error that [`is_held`](Error::is_held): its [holder](Error::holder) says until
    /// when. One request, or two ([requests](Self#requests)); IAM action `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use lambda_lock::{Error, Rate};
    /// # async fn example(bank: Rate) -> Result<(), Error> {
    /// match bank.pass().await {
    ///     Err(error) if error.is_held() => println!("later: {error}"),
    ///     passed => passed?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pass(&self) -> Result<(), Error> {
        self.pass_within(Duration::ZERO).await
    }

    /// Waits until the call may pass, for at most `wait`, up to a day. Fails at once with an error that
    /// [`is_held`](Error::is_held) if that would take longer. Choose a wait that is longer than [clocks may
    /// differ](Self#which-calls-pass). The requests are those of [`pass`](Self::pass).
    ///
    /// The call sleeps in this process, and a call that is dropped while it sleeps has used up its time. A call that is late for
    /// its time after the sleep [asks again](Self#requests), and is then refused if the rest of `wait` is too short.
    pub async fn pass_within(&self, wait: Duration) -> Result<(), Error> {
        let passed = self.pass_in_time(wait).await;
        match &passed {
            Ok(slept) => record_call(*slept),
            Err(error) => record_refusal(error),
        }
        passed.map(drop)
    }

    /// Passes at the time of a call. A call that is late for its time has lost it, and asks for another one. Returns how long the
    /// call has slept, or `None` if there is no rate because locking is disabled.
    async fn pass_in_time(&self, wait: Duration) -> Result<Option<Duration>, Error> {
        let (started, mut slept, mut ahead) = (self.now(), Duration::ZERO, Duration::ZERO);
        for tries in 1..=TRIES {
            let asked = self.now();
            let left = wait.saturating_sub(asked.since(started));
            let Some(time) = self.reserve_until(left, ahead).await? else { return Ok(None) };
            let answered = self.now();
            loop {
                let left = time.remaining(self.now());
                if left.is_zero() {
                    break;
                }
                slept += left.min(LONGEST_SLEEP);
                tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
            }
            if time.passed_since(self.now()) <= self.pace()?.interval.max(LATE) {
                return Ok(Some(slept));
            }
            tracing::debug!(key = &*printable(&self.key), "late for the time of a call");
            // The first answer takes long after a cold start. If the second one is late as well, all answers take long.
            if tries + 1 == TRIES {
                ahead = answered.since(asked);
            }
        }
        let error = Error::new(Cause::Unavailable, self.locks.0.table.place(), &self.key);
        Err(error.with_source("each answer came too late for the time that it gave the call"))
    }

    /// Reserves the next call, and returns how long to wait for it: at most `wait`, up to a day. For a workflow, which sleeps
    /// elsewhere: round the time up to the seconds of its wait. Fails as [`pass_within`](Self::pass_within) does before it sleeps.
    /// One request, two or three ([requests](Self#requests)), because nobody sees whether the call is late; IAM action
    /// `dynamodb:UpdateItem`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_lock::{Error, Rate};
    /// # async fn example(bank: Rate) -> Result<u64, Error> {
    /// let wait = bank.reserve(Duration::from_hours(1)).await?;
    /// Ok(wait.as_millis().div_ceil(1000) as u64) // the `SecondsPath` of a Wait state
    /// # }
    /// ```
    pub async fn reserve(&self, wait: Duration) -> Result<Duration, Error> {
        let time = self.reserve_until(wait, Duration::ZERO).await.inspect_err(record_refusal)?;
        let left = time.map(|time| time.remaining(self.now()));
        record_call(left);
        Ok(left.unwrap_or_default())
    }

    /// Returns the time of the call, at least `ahead` from now and otherwise at most `wait`, or `None` if there is no rate because
    /// locking is disabled.
    async fn reserve_until(&self, wait: Duration, ahead: Duration) -> Result<Option<Deadline>, Error> {
        let settings = &self.locks.0;
        let pace = self.pace()?;
        self.locks.check_key(&self.key)?;
        if !settings.enabled {
            return Ok(None);
        }
        let clock = || settings.clock.now().later(ahead);
        let wait = wait.min(DAY).saturating_sub(ahead);
        settings.table.call(&self.key, pace, wait, &self.is_idle, clock).await.map(Some)
    }

    /// Returns the rate with the same numbers on another key. The last answer counts for both.
    #[cfg(feature = "lambda")]
    pub(crate) fn on(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    fn now(&self) -> Moment {
        self.locks.0.clock.now()
    }

    fn pace(&self) -> Result<Pace, Error> {
        let Self { calls, period, burst, weight, .. } = *self;
        check_duration("period of a rate", period, MIN_INTERVAL, DAY)?;
        let interval = period.checked_div(calls).filter(|interval| *interval >= MIN_INTERVAL);
        // Whole microseconds, as in the row. Rounded up, so that N intervals are no shorter than the period.
        let whole = |interval: Duration| Duration::from_micros(micros(interval + Duration::from_nanos(999)));
        let Some(interval) = interval.map(whole) else {
            let period = humantime::format_duration(period);
            return Err(Error::invalid(format!(
                "the rate on key `{}` is {calls} calls in {period}, not between 1 call in the period and 1 call a millisecond: \
                 spread more calls over several keys",
                printable(&self.key)
            )));
        };
        for (name, number) in [("burst", burst), ("weight", weight)] {
            let more = number.checked_sub(1).and_then(|more| interval.checked_mul(more));
            if more.is_none_or(|more| more > DAY) {
                return Err(Error::invalid(format!(
                    "the {name} of the rate on key `{}` is {number}, not between 1 and the calls of a day",
                    printable(&self.key)
                )));
            }
        }
        Ok(Pace { interval: interval * weight, tolerance: interval * burst.saturating_sub(weight) })
    }
}
