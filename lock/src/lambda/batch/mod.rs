//! Batches of a queue or a stream: lanes of items that run once each, within the time of the invocation.

mod lane;
mod outcome;
mod run;
mod settings;
mod source;

pub(super) use settings::Settings;
pub(super) use source::{Name, Source, json_error};
