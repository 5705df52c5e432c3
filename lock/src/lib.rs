//! One AWS Lambda invocation at a time does a piece of work, on nothing but a DynamoDB table.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backoff;
mod clock;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
mod holder;
#[cfg(feature = "lambda")]
mod lambda;
mod lock;
mod locks;
mod protocol;

pub use acquire::Acquire;
pub use backoff::{Backoff, Jitter};
pub use error::Error;
pub use holder::{Data, Holder};
#[cfg(feature = "lambda")]
pub use lambda::{HandlerError, HandlerEvent, LockLayer, LockService, LockedEvent, WhenUnavailable};
pub use lock::Lock;
pub use locks::{CreateTable, Locks, LocksBuilder};
