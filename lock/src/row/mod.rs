//! The row: its attributes, the requests that write it, and how a refused request is read.
//!
//! Only this folder knows attributes and expressions. Each write is one conditional `UpdateItem`, or one transaction for
//! several keys; a failed condition returns the row. A run can also be completed in the caller's own transaction.
//!
//! The times of a lock's row, by the clock of each reader:
//!
//! ```text
//!   acquired_at          holder's deadline   in_progress_expiration          expiration
//!        |------- valid for the holder ------|-- clock skew --|--- retention ----|
//!        |------------------ held for everyone else ----------|------ free ------|-- deleted by TTL, some time later
//! ```
//!
//! The times of an idempotency record:
//!
//! ```text
//!   acquired_at                completed                                    expiration
//!        |-------- in progress ----|------ window: its result is replayed -------|------ free ------
//! ```

mod attribute;
mod claim;
mod join;
mod names;
mod permit;
mod probe;
mod read;
#[cfg(feature = "idempotency")]
mod record;
mod release;
mod resume;
mod semaphore;
mod several;
mod table;
mod withdraw;

pub(crate) use claim::{Claim, ClaimExtension, Claimed, Courtesy};
pub(crate) use join::Joined;
pub(crate) use names::{DEFAULT_PARTITION_KEY, EXPIRATION, is_reserved};
pub(crate) use probe::probe_key;
pub(crate) use read::{Cursor, Page};
#[cfg(feature = "idempotency")]
pub(crate) use record::{Completed, Outcome, RecordClaim};
pub(crate) use release::Step;
pub(crate) use resume::{Resumed, TicketStep};
pub(crate) use semaphore::Semaphore;
pub(crate) use several::Fences;
pub(crate) use table::{Table, in_time};
