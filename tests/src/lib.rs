//! What the tests share: a DynamoDB to run on, and the histories.

pub mod history;
mod world;

pub use world::World;
