//! Locks, idempotency and deduplication for AWS Lambda. One invocation at a time does a piece of work, and all that it
//! needs is a DynamoDB table.
//!
//! | task | use | feature |
//! | --- | --- | --- |
//! | run work under a lock | [`Locks::acquire`], [`Acquire::run`], [`Lock`] | |
//! | hold several keys, all or none | [`Locks::acquire_all`], [`LockSet`] | |
//! | hold a lock in several processes, one after the other | [`Lock::into_ticket`], [`Locks::resume`], [`Ticket`] | `serde` |
//! | run up to N pieces of work at a time | [`Locks::semaphore`], [`Semaphore`] | |
//! | make a Lambda handler a singleton | `LockLayer` | `lambda` |
//! | return the first run's result to a duplicate | `Idempotency` for a function, `IdempotencyLayer` for a handler | `idempotency`, `lambda` |
//! | return the first response to a retried HTTP request | `http::HttpIdempotencyLayer` | `http` |
//! | do each message of an SQS queue once | `SqsConsumer` | `lambda`; `sqs` to hide messages in progress |
//! | do each record of a Kinesis or DynamoDB stream once, and in order | `streams::StreamConsumer` | `streams` |
//! | see who holds what, and free it by hand | [`Locks::get`], [`Locks::list`], [`Locks::force_release`] | |
//! | check the table, the clock and the permissions | [`Locks::check`] | |
//! | do all this from a shell | the program `lambda-lock` | `cli` |
//! | count and trace | [`metrics`], [`tracing`] spans | `metrics` |
//! | test your own handler | `embedded`: DynamoDB in the test's process, with faults and clocks | `embedded` |
//!
//! The guides are in [`docs`]: concepts and protocol, choosing times, testing, deploying, operating, and more.
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
//! # Guarantees
//!
//! - At most one holder considers itself valid at any instant, if the clocks of hosts differ by no more than
//!   [the clock skew](LocksBuilder::clock_skew). A lock that a [`Ticket`] hands over counts as one holder.
//!   [`Acquire::owner_from`] gives this guarantee up for acquires of the same identity.
//! - At most N permits of a [semaphore](Locks::semaphore) are valid at any instant, under the same condition.
//! - Every acquisition of a key has a larger [fence](Lock::fence) than all earlier ones, also after its row was released,
//!   expired, or deleted by DynamoDB's TTL. [`Lock::fence`] names two exceptions.
//! - A crashed holder blocks no one after its lease and the clock skew.
//! - An acquire or a release whose answer was lost recognises its own effect.
//!
//! # Limits
//!
//! - A lease cannot stop a process that is paused, or a handler that blocks its thread. For work that must not be written
//!   twice, let the receiver check the fence, or put [`Lock::condition_check`] into the transaction that writes.
//! - Locks do not work across the regions of an eventually consistent global table.
//! - Locks do not survive rows that are deleted or edited by hand while they are held.
//!
//! # Cost
//!
//! | operation | requests | IAM action |
//! | --- | --- | --- |
//! | acquire, granted or refused | 1 `UpdateItem` for each attempt | `dynamodb:UpdateItem` |
//! | a place in the queue, for an acquire that [waits](Acquire::wait) | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//! | release | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//! | renew | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//! | acquire, renew or release [several keys](Locks::acquire_all) | 1 `TransactWriteItems` each | `dynamodb:UpdateItem` |
//! | [`Locks::resume`], [`Locks::renew_ticket`], [`Locks::release_ticket`] | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//! | a permit of a [semaphore](Locks::semaphore): acquire, release, renew | 1 `UpdateItem` each; 2 to replace a permit whose lease has ended | `dynamodb:UpdateItem` |
//! | an idempotent run, a message or a record that is done | 2 `UpdateItem` | `dynamodb:UpdateItem` |
//! | a duplicate | 1 `UpdateItem`; none from the cache | `dynamodb:UpdateItem` |
//! | a run that is completed in the caller's transaction | 1 `UpdateItem` and the transaction | `dynamodb:UpdateItem` |
//! | [`Locks::get`] | 1 consistent `GetItem` | `dynamodb:GetItem` |
//! | [`Locks::list`] | 1 consistent `Scan` for each MiB of the table, 1 consistent `GetItem` for each semaphore | `dynamodb:Scan`, `dynamodb:GetItem` |
//! | [`Locks::force_release`] | 1 `UpdateItem` | `dynamodb:UpdateItem` |
//! | [`Lock::condition_check`], or one of [`LockSet::condition_checks`], in your transaction | 1 write check | `dynamodb:ConditionCheckItem` |
//! | [`Locks::check`] | 6 | see there |
//!
//! Nothing is sent between acquire and release. The SDK retries throttled and lost requests; [`client_config`] sets how
//! often and how soon. A request with all its retries ends after 10 s. An acquire that ends without the lock
//! [withdraws](Acquire#withdrawal) if one of its requests was not answered: mostly one or two more requests.
//!
//! # Sources
//!
//! Fencing follows Martin Kleppmann, "How to do distributed locking". The jitter follows the AWS Architecture Blog,
//! "Exponential Backoff And Jitter". The row is the item of Powertools for AWS Lambda's idempotency utility, with more
//! attributes. [`docs::concepts`] explains the protocol, [`docs::design`] its decisions.
#![cfg_attr(docsrs, feature(doc_cfg))]

// Each module uses only modules that are listed before it.
mod clock;
mod text;

mod holder;
mod random;

mod error;
mod limits;
pub mod metrics;
mod panics;
mod queue;

mod connections;

mod client;
mod row;

mod lock;

#[cfg(feature = "idempotency")]
pub mod idempotency;

#[cfg(feature = "lambda")]
pub mod lambda;

#[cfg(feature = "streams")]
pub mod streams {
    //! The consumer of Kinesis data streams and DynamoDB streams, and the records that its handler gets. Feature `streams`.
    //! The [guide](crate::docs::streams) explains both.

    pub use crate::lambda::streams::{DynamoDbRecord, KinesisRecord, StreamConsumer, StreamRecord, StreamSource};
}

#[cfg(feature = "http")]
pub mod http;

pub mod operate;

#[cfg(feature = "embedded")]
pub mod embedded;

pub mod docs;

// What most users name. The rest is in the modules.

// Locks.
pub use client::client_config;
pub use error::{Error, ErrorKind};
pub use holder::{Data, Holder};
pub use lock::{Acquire, AcquireAll, Backoff, Jitter, Lock, LockSet, Locks, LocksBuilder, Semaphore, Ticket, Wait};
pub use random::request_token;

// Idempotency, for any async function.
#[cfg(feature = "idempotency")]
#[doc(inline)]
pub use idempotency::{HandlerError, Idempotency, OnError, OnUnfinished, Run};

// Middleware for Lambda handlers.
#[cfg(feature = "lambda")]
#[doc(inline)]
pub use lambda::{IdempotencyLayer, LockLayer, SqsConsumer, WithLock, WithRun};
