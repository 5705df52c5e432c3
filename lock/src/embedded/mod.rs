//! DynamoDB in this process, for tests and demos: no socket, no JVM, no Docker. Feature `embedded`.
//!
//! An [`DynamoDb`] is a DynamoDB (the crate `dynoxide-rs`, on SQLite in memory). [`DynamoDb::client`] gives the SDK's own
//! client for it, so the code under test is the code that runs in production, from the builder of a request to the
//! retries after a throttled one.
//!
//! A [`Host`] is a machine with a client: it can have a clock that is wrong, a network that loses, delays, repeats and
//! refuses requests ([`Faults`], from a seed), an observer of its traffic ([`Intercept`]), and it can
//! [crash](Host::crash).
//!
//! Time is tokio's. Under `#[tokio::test(start_paused = true)]` (tokio's feature `test-util`) nothing waits: an hour of
//! leases, retries and late duplicates passes in milliseconds, and the same seed gives the same history.
//!
//! ```
//! use std::time::Duration;
//! use lambda_lock::{Locks, embedded::{DynamoDb, Faults}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), lambda_lock::Error> {
//! let engine = DynamoDb::new()?;
//! let locks = Locks::builder(engine.client(), "locks").build()?;
//! locks.create_table().await?;
//!
//! // Another host, half a second ahead, that loses an answer now and then.
//! let host = engine
//!     .host()
//!     .clock_ahead(Duration::from_millis(500))
//!     .faults(Faults::seeded(7).lose_answers(0.1))
//!     .build();
//! let elsewhere = Locks::builder(host.client(), "locks").build()?;
//!
//! let lock = locks.acquire("nightly-report").await?;
//! assert!(elsewhere.try_acquire("nightly-report").await?.is_none());
//! lock.release().await?;
//! # Ok(())
//! # }
//! ```

mod engine;
mod faults;
mod host;

pub use engine::DynamoDb;
pub use faults::Faults;
pub use host::{Answer, Host, HostBuilder, Intercept};
