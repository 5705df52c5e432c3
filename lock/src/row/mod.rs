//! The row: its attributes, the requests that write it, and how a refused request is read.
//!
//! Only this folder knows attributes, expressions, and the kinds of rows. Each write is one conditional `UpdateItem`, or one
//! transaction for several keys; a failed condition returns the row. A run can also be completed in the caller's own
//! transaction.
//!
//! | file | what it has |
//! | --- | --- |
//! | [`acquire`], [`hold`], [`ticket`] | the requests of an owner, for all kinds |
//! | [`kind`] | what a kind says about its rows ([`Rules`](kind::Rules)), and which kinds there are |
//! | [`key`], [`keys`], [`permit`], [`record`] | the kinds |
//! | [`join`], [`force`], [`probe`] | requests of others: waiters, operators, checks |
//! | [`expression`], [`write`] | how a request is built and sent |
//! | [`read`], [`semaphore`], [`attribute`], [`names`] | how a row is read |
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

mod acquire;
mod attribute;
mod expression;
mod force;
mod hold;
mod join;
mod key;
mod keys;
mod kind;
mod names;
mod permit;
mod probe;
mod read;
#[cfg(feature = "idempotency")]
mod record;
mod semaphore;
mod table;
mod ticket;
mod write;

pub(crate) use acquire::{Claim, Claimed, LeavesTo, Rank};
pub(crate) use hold::{Hold, Release, Released, Renewed};
pub(crate) use join::Joined;
pub(crate) use kind::{Acquisition, Kind};
pub(crate) use names::{DEFAULT_PARTITION_KEY, EXPIRATION, is_reserved};
pub(crate) use probe::probe_key;
pub(crate) use read::{Cursor, Page};
#[cfg(feature = "idempotency")]
pub(crate) use record::{Completed, Outcome, RecordClaim};
pub(crate) use table::Table;
pub(crate) use ticket::{Handover, Resumed};
pub(crate) use write::in_time;
