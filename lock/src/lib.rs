//! One AWS Lambda invocation at a time does a piece of work, on nothing but a DynamoDB table.
//!
//! - [`Locks`] makes named locks from a DynamoDB client. [`Locks::acquire`] takes one, [`Acquire::run`] runs work under
//!   it, [`Lock`] is what is held.
//! - `LockLayer` (feature `lambda`) is a tower middleware that makes a `lambda_runtime` handler a
//!   singleton, without a change to the handler.
//! - `Idempotency` (feature `idempotency`) gives a duplicate the first run's result, for any async function;
//!   `IdempotentLayer` (feature `lambda`) does so for a handler.
//! - `SqsConsumer` (feature `lambda`) makes a consumer of SQS batches of a handler of one message: each message is done
//!   once, and exactly those that failed go back. With the feature `sqs`, one that is in progress elsewhere is hidden
//!   until that lease ends.
//! - [`Locks::check`] says whether table, clock and permissions are as they shall be; [`Locks::list`] and
//!   [`Locks::force_release`] show who holds what, and free it by hand. The program `lambda-lock` (feature `cli`) does
//!   all this from a shell, and runs commands under a lock.
//! - `metrics` (feature `metrics`) has the names of what is counted, for any exporter of the crate `metrics`. Each acquire
//!   is a [`tracing`] span, up to its release.
//! - `embedded` (feature `embedded`) is a DynamoDB in the test's process, with faults and clocks.
//!
//! ```
//! # use lambda_lock::{Error, Locks};
//! # async fn example(locks: Locks) -> Result<(), Error> {
//! let written = locks.acquire("nightly-report").run(async |lock| write_report(lock.fence()).await).await;
//! match written {
//!     Err(error) if error.is_held() => println!("skipped: {error}"),
//!     other => other?,
//! }
//! # Ok(())
//! # }
//! # async fn write_report(_: u64) {}
//! ```
//!
//! # Guarantees and limitations
//!
//! At most one holder believes to hold a key at any instant, as long as clocks differ by no more than
//! [the clock skew](LocksBuilder::clock_skew). Every acquisition of a key gets a larger [fence](Lock::fence) than all
//! earlier ones, also after the row was released, expired, or deleted by DynamoDB's TTL. A crashed holder blocks nobody
//! past its lease, and an acquire or a release whose response was lost recognises what it did.
//!
//! A lease cannot stop a process that is paused, or that blocks its thread: work that must not be written twice takes
//! the fence with it, or puts [`Lock::condition_check`] into its own transaction. Locks do not hold across the regions
//! of an eventually consistent global table, nor when rows are deleted by hand while they are held.
//!
//! # Cost
//!
//! | | requests | IAM action |
//! | --- | --- | --- |
//! | acquire, also when refused | 1 `UpdateItem` for each attempt | `dynamodb:UpdateItem` |
//! | release | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//! | renew | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//! | an idempotent run, a message that is done | 2 `UpdateItem` | `dynamodb:UpdateItem` |
//! | a duplicate | 1 `UpdateItem`; none from the cache | `dynamodb:UpdateItem` |
//! | a run that is completed in the caller's transaction | 1 `UpdateItem` and the transaction | `dynamodb:UpdateItem` |
//! | [`Locks::get`] | 1 consistent `GetItem` | `dynamodb:GetItem` |
//! | [`Locks::list`] | 1 consistent `Scan` for each MiB of the table | `dynamodb:Scan` |
//! | [`Locks::force_release`] | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//!
//! Between acquire and release nothing is sent. The SDK repeats a throttled or lost request by itself:
//! [`client_config`] sets how often and how soon. A request with all its attempts is given up after 10 s. An acquire that
//! ends without the lock sends up to two more requests if one of its attempts was not answered.
//!
//! # The protocol
//!
//! One row a key; each step is one conditional `UpdateItem`, and a failed condition returns the row that stood in the
//! way. A row is free if its lease has ended by the caller's clock. The stored end is the holder's deadline plus the
//! clock skew, so whoever sees it pass knows that the holder's own deadline has passed by the holder's own clock. A
//! refusal that shows the caller's own nonce is a success whose response was lost. A release keeps the row and its
//! owner, and ends the lease at the time of the release: a late duplicate of that owner's acquire is then refused, and so
//! is anyone's that was sent more than the clock skew before the release. An acquire that is refused while an attempt of
//! its own is unanswered leaves its nonce in the row, which then refuses that attempt. An owner numbers its renewals and
//! releases, and the row refuses a number that is not larger than the last one: a late request changes nothing. The fence
//! is counted in the row and starts at the clock in microseconds, so that it does not go back when the row is deleted.
//!
//! Idempotency is the same lock; its row is the item of Powertools for AWS Lambda's idempotency utility, and is in
//! progress while the lock is held. To complete it is the release: one update, under the condition that the row still
//! has this owner, that stores the result until the window ends. A refusal by a completed row carries its result.
//! Fencing is Martin Kleppmann's, "How to do distributed locking"; the jitter is that of the AWS Architecture Blog,
//! "Exponential Backoff And Jitter".
#![cfg_attr(docsrs, feature(doc_cfg))]
// The protocol is one, also where nothing completes a record.
#![cfg_attr(not(feature = "idempotency"), allow(dead_code))]

mod acquire;
mod backoff;
mod check;
mod client;
mod clock;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
mod holder;
#[cfg(feature = "idempotency")]
mod idempotency;
#[cfg(feature = "lambda")]
mod lambda;
mod list;
mod lock;
mod locks;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
mod metrics;
mod panics;
mod protocol;
mod telemetry;

pub use acquire::Acquire;
pub use backoff::{Backoff, Jitter};
pub use check::{Finding, Report, Verdict};
pub use client::client_config;
pub use error::{Error, HandlerError};
pub use holder::{Data, Holder};
#[cfg(feature = "idempotency")]
pub use idempotency::{
    HandlerInput, Idempotency, OnError, OnMissingKey, OnTimeout, OnUnstorableResult, RecordFormat, Run, StoredError,
    WithRun,
};
#[cfg(feature = "lambda")]
pub use lambda::{
    HandlerEvent, IdempotentLayer, IdempotentService, LockLayer, LockService, LockedEvent, Message, OnUnavailable,
    SqsConsumer, SqsConsumerService,
};
pub use list::{List, ListedRow};
pub use lock::Lock;
pub use locks::{CreateTable, Locks, LocksBuilder};
