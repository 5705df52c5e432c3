//! The functions, as a library, so that `main`, the demonstration and the tests run the same code.

mod deployment;
mod failure;
mod nightly_report;
mod order_api;
mod payment_queue;
pub mod telemetry;

pub use deployment::{Deployment, Done, Releases, Step, deployment};
pub use failure::Failure;
pub use nightly_report::{Outcome, ReportRequest, Reports, nightly_report};
pub use order_api::{NewOrder, Order, Orders, order_api};
pub use payment_queue::{Payment, Payments, payment_queue};
