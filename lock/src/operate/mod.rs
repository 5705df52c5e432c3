//! What operators get from the table: [`Locks::create_table`], [`Locks::check`] and [`Locks::list`] return these types.
//!
//! [`Locks::create_table`]: crate::Locks::create_table
//! [`Locks::check`]: crate::Locks::check
//! [`Locks::list`]: crate::Locks::list

mod check;
mod create_table;
mod expired;
mod list;

pub use check::{CheckReport, Finding, Verdict};
pub use create_table::CreateTable;
pub use list::{List, ListedRow};
