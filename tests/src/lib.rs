//! Code that the tests share: a DynamoDB to run on, and the histories.
#![allow(clippy::missing_panics_doc, reason = "a test panics when it cannot continue")]

pub mod history;
pub mod idempotency_history;
pub mod invocation;
mod late;
pub mod powertools;
pub mod queue_history;
pub mod runtime_api;
mod world;

pub use late::Late;
pub use world::{Row, World};

/// Returns the median of these values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The README's snippets, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The snippets of SECURITY.md, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../SECURITY.md")]
pub struct Security;

/// The guides' snippets, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/moving-from-powertools.md")]
pub struct MovingFromPowertools;

#[cfg(doctest)]
#[doc = include_str!("../../docs/choosing-lease-wait-and-timeout.md")]
pub struct ChoosingLeaseWaitAndTimeout;

#[cfg(doctest)]
#[doc = include_str!("../../docs/cold-starts.md")]
pub struct ColdStarts;
