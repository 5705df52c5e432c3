//! The middleware for HTTP requests with the header `Idempotency-Key`. Feature `http`. The [guide](crate::docs::reference::http)
//! explains it.

mod caller;
mod fingerprint;
mod layer;
mod problem;
mod request;
mod response;
mod run;

pub use caller::Caller;
#[doc(alias = "deduplication", alias = "duplicate", alias = "idempotency key", alias = "retry")]
pub use layer::HttpIdempotencyLayer;
pub use layer::HttpIdempotencyService;
pub use response::HttpIdempotencyBody;
pub use run::HttpRun;
