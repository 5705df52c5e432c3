//! The row: its attributes, the requests that write it, and how a refused request is read.
//!
//! Only this folder knows attributes, expressions, and the kinds of rows. Each write is one conditional `UpdateItem`, or one
//! transaction for several keys; a failed condition returns the row. A run can also be completed in the caller's own
//! transaction.
//!
//! | file | what it has |
//! | --- | --- |
//! | `names`, `attribute`, `semaphore`, `read` | how a row is read |
//! | `key`, `permit`, `place` | the protocol: each condition and each update |
//! | `expression`, `rendered` | conditions and updates, and their texts |
//! | `table`, `write`, `repeat` | how a request is sent |
//! | `owner` | the nonce and the identity in an owner |
//! | `target`, `acquisition`, `claim`; `record_claim` and `record` for idempotency | the target, and one owner's acquisition |
//! | `acquire` | the attempts of an owner, and the meaning of their answers |
//! | `operation`; `renew`, `release`, `withdraw`, `coalesce`, `free` | every other operation: requests and answers |
//! | `mine` | how an owner reads a row |
//! | `rate` | the requests of a call, and the meaning of their answers |
//! | `join`, `reserve`, `expired`, `probe` | the requests of waiters, operators and checks |
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
mod acquisition;
mod attribute;
mod claim;
mod coalesce;
mod expired;
mod expression;
mod free;
mod join;
mod key;
mod mine;
mod names;
mod operation;
mod owner;
mod permit;
mod place;
mod probe;
mod rate;
mod read;
mod record;
mod record_claim;
mod release;
mod rendered;
mod renew;
mod repeat;
mod reserve;
mod semaphore;
mod table;
mod target;
mod withdraw;
mod write;

pub(crate) use acquisition::Acquisition;
pub(crate) use claim::{Claim, Claimed, Grant, LeavesTo, Rank};
pub(crate) use coalesce::Coalescing;
#[cfg(feature = "model")]
pub(crate) use free::Freeing;
pub(crate) use names::{DEFAULT_PARTITION_KEY, EXPIRATION, is_reserved};
#[cfg(feature = "model")]
pub(crate) use operation::Operation;
pub(crate) use owner::owner_of;
pub(crate) use place::{Hold, Release};
pub(crate) use probe::{PROBE_KEY, probe_key};
pub(crate) use rate::Pace;
pub(crate) use read::Page;
pub(crate) use record::{Completed, Completing, Outcome};
pub(crate) use record_claim::RecordClaim;
pub(crate) use release::{Released, Releasing};
pub(crate) use renew::{Renewed, Renewing};
pub(crate) use table::{Item, Table, in_time, is_same_table};
pub(crate) use target::Target;
pub(crate) use withdraw::Withdrawing;
#[cfg(feature = "model")]
pub(crate) use write::exchange;
pub(crate) use write::{Answer, Write};
