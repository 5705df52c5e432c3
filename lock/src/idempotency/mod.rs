//! Idempotency: work that runs once for each key, and whose result is replayed to duplicates. Feature `idempotency`.
//! [`Idempotency`] describes it; this module has its policies and formats, too.

mod cache;
mod error;
mod execution;
mod format;
mod policy;
mod run;
mod settings;

pub use error::HandlerError;
#[cfg(feature = "lambda")]
pub(crate) use execution::NextStep;
pub use format::RecordFormat;
#[cfg(feature = "http")]
pub(crate) use format::{hex, is_missing};
pub use policy::{OnError, OnMissingKey, OnUnfinished, OnUnstorableResult, StoredError};
pub use run::Run;
pub use settings::Idempotency;
#[cfg(feature = "lambda")]
pub(crate) use settings::{Identity, Invocation};
