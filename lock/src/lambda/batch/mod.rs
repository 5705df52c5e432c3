//! `Consumer`: batches of a source, in lanes of items that run once each, within the time of the invocation.

mod consumer;
mod lane;
mod outcome;
mod run;
mod service;
mod source;

pub use consumer::Consumer;
pub use service::ConsumerService;
#[cfg(feature = "sqs")]
pub(super) use source::Hide;
pub use source::Source;
pub(super) use source::{Label, NotDone, json_error, log_not_done};
