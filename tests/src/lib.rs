//! What the tests share: a DynamoDB to run on, and the histories.
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on panics")]

pub mod history;
mod world;

pub use world::{Row, World};

/// The README's snippets, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
