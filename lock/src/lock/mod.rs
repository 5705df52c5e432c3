//! The lock: its settings, the acquire with its waiting, and the lock that is held.

mod acquire;
pub(crate) mod asking;
mod attempt;
mod background;
mod coalesce;
mod complete;
mod held;
mod holding;
mod identity;
mod locks;
mod rate;
mod register;
mod running;
mod semaphore;
mod telemetry;
pub(crate) mod wait;

pub use acquire::Acquire;
#[cfg(feature = "lambda")]
pub(crate) use acquire::hold_until;
pub(crate) use acquire::{AroundPause, in_time_to_answer, until_overrun};
pub use attempt::{Attempt, Turn};
pub use held::Lock;
#[cfg(feature = "model")]
pub(crate) use holding::Continuation;
pub use locks::{Locks, LocksBuilder};
pub use rate::Rate;
pub use semaphore::Semaphore;
#[cfg(feature = "lambda")]
pub(crate) use telemetry::count_refusal;
pub(crate) use telemetry::{log_refusal, record_refusal};
pub use wait::{Backoff, Jitter, Wait};
