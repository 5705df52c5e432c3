//! `Consumer`: batches of a source, in lanes of items that run once each, within the time of the invocation.

mod consumer;
mod lane;
mod outcome;
mod run;
mod service;
mod slots;
mod source;

pub use consumer::Consumer;
pub use service::ConsumerService;
pub use source::Source;
#[cfg(feature = "sqs")]
pub(super) use source::{Fate, Inform};
pub(super) use source::{Label, NotDone, json_error, log_not_done};
