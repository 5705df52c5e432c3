//! Histories.
