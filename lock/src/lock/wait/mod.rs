//! How an acquire waits for a contended key, and for how long.
//!
//! | | |
//! | --- | --- |
//! | `turn` | what a waiter knows of one key, and when it asks next: all constants |
//! | `turns` | the same for each of several keys, and reservations |
//! | `backoff` | the delays of a waiter that takes no turns |

mod backoff;
mod turn;
mod turns;

use std::time::Duration;

pub use self::backoff::{Backoff, Jitter};
pub(crate) use self::turn::{Memory, elsewhere, excess};
pub(crate) use self::turns::{Step, Turns};
use crate::error::Error;

/// How an acquire waits for a contended key: in turn, or with plain backoff, and for how long.
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::{Backoff, Error, Locks, Wait};
/// # async fn example(locks: Locks) -> Result<(), Error> {
/// let first = locks.acquire("first").wait(Duration::from_secs(60)).await?;
/// let second = locks.acquire("second").wait(Wait::in_turn().max_attempts(3)).await?;
/// let third = locks.acquire("third").wait(Wait::backoff(Backoff::new().cap(Duration::from_secs(1)))).await?;
/// # drop((first, second, third));
/// # Ok(())
/// # }
/// ```
///
/// The wait ends with the budget, the number of attempts, or the deadline of the acquire, whichever comes first. The last
/// attempt is made when the budget ends. A [`Duration`] stands for [`in_turn`](Self::in_turn) with this budget, and a
/// [`Backoff`] for [`backoff`](Self::backoff) with the default budget.
///
/// | setting | default |
/// | --- | --- |
/// | [`up_to`](Self::up_to) | 10 s |
/// | [`max_attempts`](Self::max_attempts) | no limit |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    order: Order,
    budget: Duration,
    max_attempts: u32,
}

/// Which of several waiters asks next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    InTurn,
    Random(Backoff),
}

impl Wait {
    /// Waits in turn, for up to 10 s.
    ///
    /// Waiters take turns in the order of arrival, which is not guaranteed. [Waiting](crate::docs::reference::waiting) describes who asks
    /// when. A place in the queue costs one `UpdateItem` (IAM action `dynamodb:UpdateItem`), and does not count as an
    /// attempt.
    ///
    /// A waiter for several keys ([`Locks::acquire_all`](crate::Locks::acquire_all)) takes a place with each key that refuses
    /// it, and may [reserve](crate::Locks::acquire_all) its keys.
    #[must_use]
    pub const fn in_turn() -> Self {
        Self::new(Order::InTurn)
    }

    /// Waits with the random delays of plain backoff, for up to 10 s. The waiter takes no place in the queue. Each attempt is
    /// one `UpdateItem` (IAM action `dynamodb:UpdateItem`).
    #[must_use]
    pub const fn backoff(backoff: Backoff) -> Self {
        Self::new(Order::Random(backoff))
    }

    const fn new(order: Order) -> Self {
        Self { order, budget: Duration::from_secs(10), max_attempts: u32::MAX }
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

    /// Returns `true` if there can be more than one attempt.
    pub(crate) fn is_repeated(&self) -> bool {
        !self.budget.is_zero() && self.max_attempts > 1
    }

    #[cfg(feature = "lambda")]
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    pub(crate) fn takes_turns(&self) -> bool {
        self.order == Order::InTurn && self.is_repeated()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.order {
            Order::Random(backoff) if !self.budget.is_zero() => backoff.check(),
            _ => Ok(()),
        }
    }
}

/// Waits in turn for up to this time.
impl From<Duration> for Wait {
    fn from(budget: Duration) -> Self {
        Self::in_turn().up_to(budget)
    }
}

/// Waits with these delays for up to 10 s.
impl From<Backoff> for Wait {
    fn from(backoff: Backoff) -> Self {
        Self::backoff(backoff)
    }
}

/// The state of one wait, or of an acquire that does not wait.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    delays: backoff::Delays,
    budget: Duration,
    max_attempts: u32,
    attempts: u32,
}

impl Waiting {
    /// Starts a wait that ends with its budget, or after `limit` if that is earlier. No wait is one attempt.
    pub(crate) fn start(wait: Option<Wait>, limit: Option<Duration>) -> Self {
        let wait = wait.unwrap_or(Wait { budget: Duration::ZERO, max_attempts: 1, ..Wait::in_turn() });
        let backoff = match wait.order {
            Order::InTurn => Backoff::new(),
            Order::Random(backoff) => backoff,
        };
        Self {
            delays: backoff.delays(),
            budget: limit.map_or(wait.budget, |limit| wait.budget.min(limit)),
            max_attempts: wait.max_attempts,
            attempts: 0,
        }
    }

    /// Continues after so many attempts.
    pub(crate) fn go_on(&mut self, attempts: u32) {
        self.attempts = attempts;
        self.delays.skip(attempts);
    }

    /// Returns `true` if the next attempt is the last one.
    pub(crate) fn is_last(&self, waited: Duration) -> bool {
        self.is_over(waited) || self.attempts.saturating_add(1) >= self.max_attempts
    }

    /// Counts an attempt. Returns `false` if it was the last one. `waited` is the time since the first attempt started.
    pub(crate) fn count(&mut self, waited: Duration) -> bool {
        self.attempts = self.attempts.saturating_add(1);
        self.attempts < self.max_attempts && !self.is_over(waited)
    }

    /// Takes note that the last attempt was throttled: it counts as three, so that the requests of the holder are answered.
    pub(crate) fn throttled(&mut self) {
        self.delays.skip(2);
    }

    /// Returns the delay of plain backoff before the next attempt. `holder_remaining` is the time that is left of the
    /// holder's lease, if there is a holder.
    pub(crate) fn next(&mut self, holder_remaining: Option<Duration>) -> Duration {
        self.delays.next(holder_remaining)
    }

    /// Limits a delay, so that the last attempt comes when the budget ends, not after it. Returns `true` if the next attempt
    /// is the last one.
    pub(crate) fn limit(&self, delay: Duration, waited: Duration) -> (Duration, bool) {
        let left = self.left(waited);
        (delay.min(left), delay >= left || self.attempts.saturating_add(1) >= self.max_attempts)
    }

    /// Returns `true` if the budget is used up.
    pub(crate) fn is_over(&self, waited: Duration) -> bool {
        self.left(waited).is_zero()
    }

    /// Returns the rest of the budget.
    pub(crate) fn left(&self, waited: Duration) -> Duration {
        self.budget.saturating_sub(waited)
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    fn attempts(wait: Option<Wait>, most: u32) -> u32 {
        let mut waiting = Waiting::start(wait, None);
        while waiting.attempts() < most && waiting.count(Duration::ZERO) {}
        waiting.attempts()
    }

    #[test]
    fn attempts_end_the_wait() {
        assert_eq!(attempts(Some(Wait::in_turn().max_attempts(3)), 10), 3);
        assert_eq!(attempts(Some(Wait::in_turn().max_attempts(0)), 10), 1);
        assert_eq!(attempts(Some(Wait::backoff(Backoff::new()).up_to(LONG)), 10), 10);
    }

    #[test]
    fn no_wait_is_one_attempt() {
        assert_eq!(attempts(None, 10), 1);
    }

    #[test]
    fn the_last_attempt_is_made_when_the_budget_ends() {
        let ms = Duration::from_millis;
        let mut waiting = Waiting::start(Some(ms(150).into()), None);
        assert_eq!(waiting.limit(ms(100), ms(0)), (ms(100), false));
        assert_eq!(waiting.limit(ms(200), ms(100)), (ms(50), true));
        assert!(waiting.count(ms(149)));
        assert!(!waiting.count(ms(150)));
    }
}
