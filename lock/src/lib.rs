//! Locks, idempotency and deduplication for AWS Lambda. One invocation at a time does a piece of work, a duplicate gets the
//! first result, and all that it needs is a DynamoDB table.
//!
//! ```
//! # use lambda_lock::{Error, Locks};
//! # async fn example() -> Result<(), Error> {
//! let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
//!
//! // Releases the lock on return, error and panic. Cancels the work when the lease ends.
//! let report = locks.acquire("nightly-report");
//! match report.run(async |lock| write_report(lock.fence()).await).await {
//!     Err(error) if error.is_held() => println!("skipped: {error}"),
//!     other => other?,
//! }
//! # Ok(())
//! # }
//! # async fn write_report(_: u64) {}
//! ```
//!
//! A Lambda handler becomes a singleton by a [`LockLayer`] around it, and idempotent by an [`IdempotencyLayer`].
//! The guides are in [`docs`]; begin with the [tour](docs::learn::tour).
//!
//! ![The life of a lock: acquired, valid until the deadline, free a second later][picture/lock]
//!
//! # Where to find what
//!
//! | you want to | use | feature |
//! | --- | --- | --- |
//! | run work under a lock | [`Locks::acquire`], [`Lock`] | |
//! | run up to N pieces of work at a time | [`Locks::semaphore`] | |
//! | let N calls pass in a second | [`Locks::rate`] | |
//! | hold several keys, all or none | [`Locks::acquire_all`] | |
//! | hold a lock in one process after the other | [`Acquire::identity`], [`Lock::keep`], [`Acquire::take_over`] | |
//! | make a handler a singleton | [`LockLayer`] | `lambda` |
//! | skip an invocation, and run once more for it | [`LockLayer::coalesce`], [`Locks::coalesce`] | `lambda` |
//! | answer a duplicate with the first result | [`Idempotency`], [`IdempotencyLayer`] | `idempotency`, `lambda` |
//! | make an HTTP API idempotent | [`http::HttpIdempotencyLayer`] | `http` |
//! | do each message of an SQS queue once | [`SqsConsumer`] | `lambda`, `sqs` |
//! | do each record of a stream once, in order | [`streams::StreamConsumer`] | `streams` |
//! | do each record of a Kafka topic once, in order | [`kafka::KafkaConsumer`] | `kafka` |
//! | look at keys, and free them by hand | [`Locks::get`], [`Locks::list`], [`Locks::check`] | |
//! | do all this from a shell | the [program `lambda-lock`](docs::reference::program) | |
//! | count and trace | [`metrics`], [`tracing`](https://docs.rs/tracing) spans | `metrics` |
//! | test your own handler | [`embedded`] | `embedded` |
//!
//! # Guarantees
//!
//! At most one holder of a key, or N of a semaphore, considers itself valid at any instant, if the clocks of hosts differ by
//! no more than [the clock skew](LocksBuilder::clock_skew). Every acquisition has a larger [fence](Lock::fence) than the
//! earlier ones, with [exceptions that you can avoid](docs::trust::guarantees#when-a-fence-can-go-back). A crashed holder
//! blocks nobody once its lease and the clock skew have passed. If an answer is lost, the retry detects that its request
//! succeeded. [What you can rely on](docs::trust::guarantees) has the whole list, and what you cannot rely on.
//!
//! # Cost
//!
//! If the key is free, an acquire is one `UpdateItem`, and so are a refusal and a release, with none in between. A waiter sends
//! three or more, a permit needs a second one after a crash, and several keys need a transaction.
//! [Cost and speed](docs::trust::performance) lists all operations. The SDK retries throttled and lost
//! requests; [`client_config`] sets how often and how soon.
//!
//! # Sources
//!
//! Fencing follows Martin Kleppmann, "How to do distributed locking". The jitter follows the AWS Architecture Blog,
//! "Exponential Backoff And Jitter". The row is the item of Powertools for AWS Lambda's idempotency utility, with more
//! attributes. [`docs::trust::protocol`] explains the protocol.
//!
#![doc = include_str!("../docs/links.txt")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "idempotency"),
    allow(
        dead_code,
        unused_imports,
        reason = "the records of idempotency are always compiled, and only that feature uses them"
    )
)]

// Each module uses only modules that are listed before it.
mod clock;
// For the program `lambda-lock`. It is not a part of the interface.
#[doc(hidden)]
pub mod text;

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
mod sdk;

mod lock;
#[cfg(feature = "model")]
#[path = "../../tests/model/lock/model.rs"]
pub mod model;

#[cfg(feature = "idempotency")]
pub mod idempotency;

#[cfg(feature = "lambda")]
pub mod lambda;

#[cfg(feature = "streams")]
pub mod streams {
    //! The consumer of Kinesis data streams and DynamoDB streams, and the records that its handler gets. Feature `streams`.
    //! The [guide](crate::docs::reference::streams) explains both.

    #[doc(alias = "kinesis", alias = "dynamodb streams", alias = "change data capture")]
    pub use crate::lambda::streams::StreamConsumer;
    pub use crate::lambda::streams::{DynamoDbRecord, KinesisRecord, StreamRecord, StreamSource};
}

#[cfg(feature = "kafka")]
pub mod kafka {
    //! The consumer of Kafka topics, in Amazon MSK or self-managed, and the records that its handler gets. Feature `kafka`.
    //! [Streams](crate::docs::reference::streams#kafka) has an event source mapping.

    #[doc(alias = "msk")]
    pub use crate::lambda::kafka::KafkaConsumer;
    pub use crate::lambda::kafka::{
        KafkaBatchItemFailure, KafkaEvent, KafkaEventResponse, KafkaItemIdentifier, KafkaRecord, KafkaSource,
    };
}

#[cfg(feature = "http")]
pub mod http;

pub mod operate;

#[cfg(feature = "embedded")]
pub mod embedded;

pub mod docs;

// What most users name. The rest is in the modules. Words that people search for lead to a type. rustdoc takes the words from
// here, and not from the type.

// Locks.
pub use client::client_config;
pub use error::{Error, ErrorKind};
pub use holder::{Data, Holder};
#[doc(alias = "try lock")]
pub use lock::Acquire;
#[doc(alias = "mutex", alias = "guard")]
pub use lock::Lock;
#[doc(
    alias = "rate limit",
    alias = "rate limiter",
    alias = "token bucket",
    alias = "leaky bucket",
    alias = "throttle"
)]
pub use lock::Rate;
#[doc(alias = "permit", alias = "limit", alias = "concurrency")]
pub use lock::Semaphore;
#[doc(alias = "retry", alias = "queue")]
pub use lock::Wait;
pub use lock::{Attempt, Backoff, Jitter, Locks, LocksBuilder, Turn};
pub use random::request_token;
pub use sdk::load_config;

// Idempotency, for any async function.
#[cfg(feature = "idempotency")]
#[doc(inline)]
#[doc(alias = "deduplication", alias = "duplicate", alias = "exactly once", alias = "webhook")]
pub use idempotency::Idempotency;
#[cfg(feature = "idempotency")]
#[doc(inline)]
pub use idempotency::{HandlerError, OnError, OnUnfinished, Run};

// Middleware for Lambda handlers.
#[cfg(feature = "lambda")]
#[doc(inline)]
#[doc(alias = "deduplication", alias = "duplicate", alias = "exactly once", alias = "retry")]
pub use lambda::IdempotencyLayer;
#[cfg(feature = "lambda")]
#[doc(inline)]
#[doc(alias = "cron", alias = "schedule", alias = "singleton", alias = "mutex")]
pub use lambda::LockLayer;
#[cfg(feature = "lambda")]
#[doc(inline)]
#[doc(alias = "sqs", alias = "queue", alias = "fifo", alias = "deduplication")]
pub use lambda::SqsConsumer;
#[cfg(feature = "lambda")]
#[doc(inline)]
pub use lambda::{WithLock, WithRun};
