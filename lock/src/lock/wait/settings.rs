//! `Wait`: the settings of a wait.

use std::time::Duration;

use super::backoff::Backoff;
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
    /// The delays of a waiter that takes no turns.
    pub(super) backoff: Option<Backoff>,
    pub(super) budget: Duration,
    pub(super) max_attempts: u32,
}

impl Wait {
    /// Waits in turn, for up to 10 s.
    ///
    /// Waiters take turns in the order of arrival, which is not guaranteed. [Waiting](crate::docs::reference::waiting)
    /// describes who asks when. A place in the queue costs one `UpdateItem` (IAM action `dynamodb:UpdateItem`), and does not
    /// count as an attempt.
    ///
    /// A waiter for several keys ([`Locks::acquire_all`](crate::Locks::acquire_all)) takes a place with each key that refuses
    /// it, and may [reserve](crate::Locks::acquire_all) its keys.
    #[must_use]
    pub const fn in_turn() -> Self {
        Self::new(None)
    }

    /// Waits with the random delays of plain backoff, for up to 10 s. The waiter takes no place in the queue. Each attempt is
    /// one `UpdateItem` (IAM action `dynamodb:UpdateItem`).
    #[must_use]
    pub const fn backoff(backoff: Backoff) -> Self {
        Self::new(Some(backoff))
    }

    const fn new(backoff: Option<Backoff>) -> Self {
        Self { backoff, budget: Duration::from_secs(10), max_attempts: u32::MAX }
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
        self.backoff.is_none() && self.is_repeated()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.backoff {
            Some(backoff) if !self.budget.is_zero() => backoff.check(),
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
