//! Operations on the table: create it, check it, list its holders, and release a key by force.

mod check;
mod create_table;
mod list;

pub use check::{Finding, Report, Verdict};
pub use create_table::CreateTable;
pub use list::{List, ListedRow};
