//! The waits between attempts to acquire a key.

use std::time::Duration;

use crate::error::Error;
use crate::limits::{DAY, check_duration};
use crate::random;

/// The waits of an acquire for a contended key, within a budget: waiters take turns, or use plain exponential backoff.
///
/// The wait ends with the budget, the number of attempts, or the deadline of the acquire, whichever comes first. The last
/// attempt is made when the budget ends.
///
/// | setting | default | switches to plain backoff |
/// | --- | --- | --- |
/// | [`up_to`](Self::up_to) | 10 s | no |
/// | [`max_attempts`](Self::max_attempts) | no limit | no |
/// | [`base`](Self::base) | 100 ms | yes |
/// | [`factor`](Self::factor) | 2 | yes |
/// | [`cap`](Self::cap) | 5 s | yes |
/// | [`jitter`](Self::jitter) | [`Jitter::Full`] | yes |
///
/// ```
/// use std::time::Duration;
/// use lambda_lock::{Backoff, Jitter};
///
/// let in_turn = Backoff::default().up_to(Duration::from_secs(60));
/// let plain = Backoff::default().cap(Duration::from_secs(30)).jitter(Jitter::Equal).up_to(Duration::from_mins(10));
/// # let _ = (in_turn, plain);
/// ```
///
/// # In turn
///
/// By default, waiters take turns in the order of arrival. A refused waiter takes a place in the key's queue. It computes
/// from its place and from the time of recent holds when its turn comes, and asks then. A place is a hint: whether an
/// acquire succeeds depends only on its condition, and the order is not guaranteed. [Concepts](crate::docs::concepts#wait)
/// describes who asks when.
///
/// A place costs one `UpdateItem` (IAM action `dynamodb:UpdateItem`), and does not count as an attempt. A waiter sends about
/// six requests, from its first attempt to its release. If a hold takes much longer than recent ones, or none is known, the
/// delays grow with the age of the hold. A delay is at most 5 s. It ends with the holder's lease at the latest, or later by
/// the turns of the waiters ahead. If a request is throttled or not answered, the next delay is that of plain backoff with
/// the defaults above.
///
/// # Plain backoff
///
/// With an explicit base, factor, cap or jitter, a waiter takes no place. Neither does a waiter for [several
/// keys](crate::Locks::acquire_all) or for a permit of a [semaphore](crate::Semaphore). The delay before attempt *n* + 1 is `base × factorⁿ⁻¹`, limited to the cap, then spread
/// by the [`Jitter`], and never longer than the cap. A delay ends at most one base delay after the end of the holder's lease.
/// Each attempt is one `UpdateItem`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    base: Duration,
    factor: f64,
    cap: Duration,
    jitter: Jitter,
    budget: Duration,
    max_attempts: u32,
    /// No delay was chosen, so waiters take turns.
    takes_turns: bool,
}

/// The random spread of the delays of plain [`Backoff`], so that waiters do not all retry at once.
///
/// Full, equal and decorrelated jitter follow the AWS Architecture Blog, "Exponential Backoff And Jitter". *d* is the
/// exponential delay.
///
/// ```
/// use lambda_lock::{Backoff, Jitter};
///
/// let ten_percent = Backoff::default().jitter(Jitter::Factor(0.1));
/// # let _ = ten_percent;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Jitter {
    /// Between zero and *d*.
    Full,
    /// Between half of *d* and *d*.
    Equal,
    /// Between the base and three times the previous delay.
    Decorrelated,
    /// *d* plus or minus this fraction of it, from 0 to 1.
    Factor(f64),
    /// Exactly *d*.
    None,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(100),
            factor: 2.0,
            cap: Duration::from_secs(5),
            jitter: Jitter::Full,
            budget: Duration::from_secs(10),
            max_attempts: u32::MAX,
            takes_turns: true,
        }
    }
}

impl Backoff {
    /// Sets the first delay, from 1 ms to a day, and switches to [plain backoff](Self#plain-backoff); 100 ms by default.
    #[must_use]
    pub const fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self.takes_turns = false;
        self
    }

    /// Sets the factor from one delay to the next, at least 1, and switches to [plain backoff](Self#plain-backoff); 2 by
    /// default.
    #[must_use]
    pub const fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self.takes_turns = false;
        self
    }

    /// Sets the longest delay, from 1 ms to a day, and switches to [plain backoff](Self#plain-backoff); 5 s by default.
    #[must_use]
    pub const fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self.takes_turns = false;
        self
    }

    /// Sets the spread of the delays, and switches to [plain backoff](Self#plain-backoff); [`Jitter::Full`] by default.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self.takes_turns = false;
        self
    }

    /// Sets the budget, the longest total wait: 10 s by default. Zero makes one attempt.
    #[must_use]
    pub const fn up_to(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the largest number of attempts: no limit by default. Zero counts as one. Taking a place is not an attempt.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// A single attempt.
    pub(crate) const NO_WAIT: Self = Self {
        base: Duration::ZERO,
        factor: 1.0,
        cap: Duration::ZERO,
        jitter: Jitter::None,
        budget: Duration::ZERO,
        max_attempts: 1,
        takes_turns: false,
    };

    /// Returns `true` if there can be more than one attempt.
    pub(crate) fn is_repeated(&self) -> bool {
        !self.budget.is_zero() && self.max_attempts > 1
    }

    pub(crate) fn takes_turns(&self) -> bool {
        self.takes_turns && self.is_repeated()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.budget.is_zero() {
            return Ok(());
        }
        for (what, delay) in [("base of the backoff", self.base), ("cap of the backoff", self.cap)] {
            check_duration(what, delay, Duration::from_millis(1), DAY)?;
        }
        Ok(())
    }

    /// Starts a wait that ends with the budget, or after `limit` if that is earlier.
    pub(crate) fn delays(self, limit: Option<Duration>) -> Delays {
        Delays {
            backoff: Self { budget: limit.map_or(self.budget, |limit| self.budget.min(limit)), ..self },
            attempts: 0,
            exponential: self.base,
            previous: self.base,
        }
    }
}

/// The state of one wait.
#[derive(Debug)]
pub(crate) struct Delays {
    backoff: Backoff,
    attempts: u32,
    exponential: Duration,
    previous: Duration,
}

impl Delays {
    /// Counts an attempt. Returns `false` if it was the last one. `waited` is the time since the first attempt started.
    pub(crate) fn count(&mut self, waited: Duration) -> bool {
        self.attempts += 1;
        self.attempts < self.backoff.max_attempts && !self.are_over(waited)
    }

    /// Returns the delay before the next attempt. `holder_remaining` is the time that is left of the holder's lease, if
    /// there is a holder.
    pub(crate) fn next(&mut self, holder_remaining: Option<Duration>) -> Duration {
        let backoff = self.backoff;
        let exponential = self.exponential.min(backoff.cap);
        self.exponential = times(exponential, backoff.factor.max(1.0));
        let delay = match backoff.jitter {
            Jitter::Full => times(exponential, random::unit()),
            Jitter::Equal => times(exponential, 0.5 + random::unit() / 2.0),
            Jitter::Decorrelated => {
                let spread = times(self.previous, 3.0).saturating_sub(backoff.base);
                backoff.base.saturating_add(times(spread, random::unit()))
            }
            Jitter::Factor(fraction) => {
                let fraction = fraction.clamp(0.0, 1.0);
                times(exponential, 1.0 - fraction + 2.0 * fraction * random::unit())
            }
            Jitter::None => exponential,
        }
        .min(backoff.cap);
        self.previous = delay;
        // The holder usually releases before its lease ends, so this only shortens a delay.
        let past_lease = holder_remaining
            .map_or(Duration::MAX, |remaining| remaining.saturating_add(times(backoff.base, random::unit())));
        delay.min(past_lease)
    }

    /// Limits a delay, so that the last attempt comes when the budget ends, not after it. Returns `true` if the next attempt
    /// is the last one.
    pub(crate) fn limit(&self, delay: Duration, waited: Duration) -> (Duration, bool) {
        let left = self.left(waited);
        (delay.min(left), delay >= left || self.attempts + 1 >= self.backoff.max_attempts)
    }

    /// Returns `true` if the budget is used up.
    pub(crate) fn are_over(&self, waited: Duration) -> bool {
        self.left(waited).is_zero()
    }

    /// Returns what is left of the budget.
    pub(crate) fn left(&self, waited: Duration) -> Duration {
        self.backoff.budget.saturating_sub(waited)
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// Multiplies like `Duration::mul_f64`, but saturates instead of panicking.
fn times(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    fn delays(backoff: Backoff, count: usize) -> Vec<Duration> {
        let mut delays = backoff.up_to(LONG).delays(None);
        (0..count).map_while(|_| delays.count(Duration::ZERO).then(|| delays.next(None))).collect()
    }

    // behaviour 32
    #[test]
    fn without_jitter_the_delays_double_up_to_the_cap() {
        let got = delays(Backoff::default().jitter(Jitter::None), 8);
        let expected = [100, 200, 400, 800, 1600, 3200, 5000, 5000].map(Duration::from_millis);
        assert_eq!(got, expected);
    }

    // behaviours 32, 55
    #[test]
    fn every_jitter_stays_within_its_bounds_and_under_the_cap() {
        let cap = Duration::from_secs(5);
        for _ in 0..200 {
            let plain = delays(Backoff::default().jitter(Jitter::None), 10);
            for (jitter, low, high) in [
                (Jitter::Full, 0.0, 1.0),
                (Jitter::Equal, 0.5, 1.0),
                (Jitter::Factor(0.25), 0.75, 1.25),
                (Jitter::Factor(9.0), 0.0, 2.0),
            ] {
                for (delay, plain) in delays(Backoff::default().jitter(jitter), 10).iter().zip(&plain) {
                    assert!(
                        *delay >= times(*plain, low) && *delay <= times(*plain, high).min(cap),
                        "{jitter:?} {delay:?}"
                    );
                }
            }
            let decorrelated = delays(Backoff::default().jitter(Jitter::Decorrelated), 10);
            assert!(decorrelated.iter().all(|delay| (Duration::from_millis(100)..=cap).contains(delay)));
            assert!(decorrelated.windows(2).all(|pair| pair[1] <= times(pair[0], 3.0)));
        }
    }

    // behaviour 55
    #[test]
    fn jittered_delays_differ_from_wait_to_wait() {
        let backoff = Backoff::default();
        assert_ne!(delays(backoff, 6), delays(backoff, 6));
    }

    #[test]
    fn attempts_end_the_wait() {
        assert_eq!(delays(Backoff::default().max_attempts(3), 10).len(), 2);
        assert_eq!(delays(Backoff::default().max_attempts(0), 10).len(), 0);
    }

    #[test]
    fn the_last_attempt_is_made_when_the_budget_ends() {
        let ms = Duration::from_millis;
        let mut delays = Backoff::default().up_to(ms(150)).delays(None);
        assert_eq!(delays.limit(ms(100), ms(0)), (ms(100), false));
        assert_eq!(delays.limit(ms(200), ms(100)), (ms(50), true));
        assert!(delays.count(ms(149)));
        assert!(!delays.count(ms(150)));
    }

    // behaviour 77
    #[test]
    fn a_delay_ends_at_most_one_base_delay_after_the_holders_lease() {
        for _ in 0..100 {
            let mut delays = Backoff::default().jitter(Jitter::None).base(LONG).cap(LONG).up_to(LONG).delays(None);
            let delay = delays.next(Some(Duration::ZERO));
            assert!(delay < LONG);
            let mut delays = Backoff::default().jitter(Jitter::None).up_to(LONG).delays(None);
            let delay = delays.next(Some(Duration::from_millis(7)));
            assert!((7..=107).contains(&delay.as_millis()), "{delay:?}");
        }
    }

    #[test]
    fn absurd_settings_do_not_panic() {
        for factor in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
            let backoff = Backoff::default()
                .factor(factor)
                .cap(Duration::MAX)
                .base(Duration::MAX)
                .jitter(Jitter::Factor(f64::NAN));
            assert_eq!(delays(backoff, 5).len(), 5);
        }
    }
}
