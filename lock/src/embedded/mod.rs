//! DynamoDB in this process, for tests and demos: no socket, no JVM, no Docker. Feature `embedded`.
//!
//! A [`DynamoDb`] is a DynamoDB (the crate `dynoxide-rs`, on SQLite in memory). [`DynamoDb::client`] returns the SDK's own
//! client for it. The code under test is therefore the code that runs in production, from the request builder to the
//! retries after throttling.
//!
//! A [`Host`] is a machine with a client. It can have a wrong clock, a network that loses, delays, repeats and refuses
//! requests ([`Faults`], drawn from a seed) and an observer of its traffic ([`Intercept`]). It can also
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
//! let dynamodb = DynamoDb::new()?;
//! let locks = Locks::builder(dynamodb.client(), "locks").build()?;
//! locks.create_table().await?;
//!
//! // Another host, half a second ahead, that loses some answers.
//! let host = dynamodb
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

mod dynamodb;
mod faults;
mod host;
mod network;
mod partitions;
mod time;

#[doc(alias = "mock", alias = "fake")]
pub use dynamodb::DynamoDb;
pub use faults::Faults;
pub use host::{Host, HostBuilder};
pub use network::{Answer, Intercept};
