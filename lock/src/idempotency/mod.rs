//! Idempotency: work that runs once for each key, and whose result is replayed to duplicates.

mod cache;
mod execution;
mod format;
mod policy;
mod refusal;
mod run;
mod settings;

#[cfg(feature = "lambda")]
pub(crate) use execution::NextStep;
pub use format::RecordFormat;
pub use policy::{OnError, OnMissingKey, OnTimeout, OnUnstorableResult, StoredError};
pub(crate) use refusal::Refusal;
pub use run::{HandlerInput, Run, WithRun};
pub use settings::Idempotency;
#[cfg(feature = "lambda")]
pub(crate) use settings::{Identity, Invocation};
