//! The functions, as libraries: `main`, the demonstration and the tests run the same code.

mod nightly_report;

pub use nightly_report::{Outcome, ReportRequest, Reports, nightly_report};
