//! What operators do: create and check the table, see who holds what, and free a key by force.

mod check;
mod create_table;
mod list;

pub use check::{Finding, Report, Verdict};
pub use create_table::CreateTable;
pub use list::{List, ListedRow};
