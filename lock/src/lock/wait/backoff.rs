//! The delays of plain exponential backoff.

use std::time::Duration;

use crate::error::Error;
use crate::limits::{DAY, check_duration};
use crate::random;

/// More delays than a backoff needs to reach its cap.
const MAX_SKIPPED: u32 = 1000;

/// The delays of plain exponential backoff, for a [`Wait`](crate::Wait) that takes no turns, and for the messages that
/// `SqsConsumer::back_off` returns to their queue.
///
/// ```
/// use std::time::Duration;
/// use lambda_lock::{Backoff, Wait};
///
/// let seldom = Backoff::new().base(Duration::from_secs(1)).cap(Duration::from_secs(30));
/// let wait = Wait::backoff(seldom).up_to(Duration::from_mins(10));
/// # let _ = wait;
/// ```
///
/// | setting | default |
/// | --- | --- |
/// | [`base`](Self::base) | 100 ms |
/// | [`factor`](Self::factor) | 2 |
/// | [`cap`](Self::cap) | 5 s |
/// | [`jitter`](Self::jitter) | [`Jitter::Full`] |
///
/// The delay before attempt *n* + 1 is `base × factorⁿ⁻¹`, limited to the cap, then spread by the [`Jitter`], and never
/// longer than the cap. An attempt that DynamoDB throttles counts as three, so that the holder can release. A delay ends at
/// most one base delay after the end of the holder's lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    base: Duration,
    factor: f64,
    cap: Duration,
    jitter: Jitter,
}

/// The random spread of the delays of a [`Backoff`], so that waiters do not all retry at once.
///
/// ```
/// use lambda_lock::{Backoff, Jitter};
///
/// let steady = Backoff::new().jitter(Jitter::None);
/// # let _ = steady;
/// ```
///
/// Full jitter follows the AWS Architecture Blog, "Exponential Backoff And Jitter". *d* is the exponential delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// Between zero and *d*.
    Full,
    /// Exactly *d*.
    None,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl Backoff {
    /// Creates the delays with the defaults above.
    #[must_use]
    pub const fn new() -> Self {
        Self { base: Duration::from_millis(100), factor: 2.0, cap: Duration::from_secs(5), jitter: Jitter::Full }
    }

    /// Sets the first delay, from 1 ms to a day; 100 ms by default.
    #[must_use]
    pub const fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets the factor from one delay to the next, at least 1; 2 by default.
    #[must_use]
    pub const fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Sets the longest delay, from 1 ms to a day; 5 s by default.
    #[must_use]
    pub const fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Sets the spread of the delays; [`Jitter::Full`] by default.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        for (what, delay) in [("base of the backoff", self.base), ("cap of the backoff", self.cap)] {
            check_duration(what, delay, Duration::from_millis(1), DAY)?;
        }
        Ok(())
    }

    /// Returns the delay after so many attempts.
    #[cfg(feature = "sqs")]
    pub(crate) fn after(self, attempts: u32) -> Duration {
        let mut delays = self.delays();
        delays.skip(attempts.saturating_sub(1));
        delays.next(None)
    }

    /// Starts with the first delay.
    pub(crate) fn delays(self) -> Delays {
        Delays { backoff: self, exponential: self.base }
    }
}

/// The delays of one wait, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Delays {
    backoff: Backoff,
    exponential: Duration,
}

impl Delays {
    /// Leaves out so many delays.
    pub(crate) fn skip(&mut self, delays: u32) {
        for _ in 0..delays.min(MAX_SKIPPED) {
            self.next(None);
        }
    }

    /// Returns the delay before the next attempt. `holder_remaining` is the time that is left of the holder's lease, if
    /// there is a holder.
    pub(crate) fn next(&mut self, holder_remaining: Option<Duration>) -> Duration {
        let backoff = self.backoff;
        let exponential = self.exponential.min(backoff.cap);
        self.exponential = times(exponential, backoff.factor.max(1.0));
        let delay = match backoff.jitter {
            Jitter::Full => times(exponential, random::unit()),
            Jitter::None => exponential,
        };
        // The holder usually releases before its lease ends, so this only shortens a delay.
        let past_lease = holder_remaining
            .map_or(Duration::MAX, |remaining| remaining.saturating_add(times(backoff.base, random::unit())));
        delay.min(past_lease)
    }
}

/// Multiplies like `Duration::mul_f64`, but saturates instead of panicking.
fn times(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_jitter_the_delays_double_up_to_the_cap() {
        let mut delays = Backoff::new().jitter(Jitter::None).delays();
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            assert_eq!(delays.next(None), Duration::from_millis(expected));
        }
    }

    #[test]
    fn jittered_delays_differ_from_wait_to_wait() {
        let delays = || {
            let mut delays = Backoff::new().delays();
            [(); 6].map(|()| delays.next(None))
        };
        assert_ne!(delays(), delays());
    }

    #[test]
    fn a_delay_ends_at_most_one_base_delay_after_the_holders_lease() {
        for _ in 0..100 {
            let delay = Backoff::new().jitter(Jitter::None).delays().next(Some(Duration::from_millis(7)));
            assert!((7..=107).contains(&delay.as_millis()), "{delay:?}");
        }
    }

    #[test]
    fn absurd_settings_do_not_panic() {
        for factor in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
            Backoff::new().factor(factor).cap(Duration::MAX).base(Duration::MAX).delays().skip(5);
        }
    }
}
