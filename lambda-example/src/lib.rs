//! The functions, as a library, so that `main`, the demonstration and the tests run the same code.

mod deployment;
mod durable_deployment;
mod failure;
mod input;
mod nightly_report;
mod order_api;
mod order_totals;
mod payment_queue;
mod settings;
mod shutdown;
pub mod telemetry;

pub use deployment::{Deployment, Done, Releases, Step, Stopped, Task, deployment};
pub use durable_deployment::durable_deployment;
pub use failure::Failure;
pub use nightly_report::{Outcome, ReportRequest, Reports, nightly_report};
pub use order_api::{NewOrder, Order, Orders, order_api};
pub use order_totals::{Totals, order_totals};
pub use payment_queue::{Payment, Payments, payment_queue};
pub use settings::{Simulation, data_table};
pub use shutdown::release_at_shutdown;
