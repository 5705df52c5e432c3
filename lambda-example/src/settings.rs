//! The settings of all functions, from the environment.

use std::env;
use std::time::Duration;

use lambda_runtime::Error;
use tokio::time::sleep;

/// Returns the name of the table of orders, payments, reports, releases and totals.
///
/// # Errors
///
/// Returns an error if `DATA_TABLE_NAME` is not set, or is not UTF-8.
pub fn data_table() -> Result<String, Error> {
    env::var("DATA_TABLE_NAME").map_err(|error| {
        format!("DATA_TABLE_NAME: {error}: set it to the name of the table for the function's data").into()
    })
}

/// Whether a function does what its input asks it to simulate: slow work, a failure, a bug.
///
/// The demonstration and the tests use this. With it, every caller can make a function run until its timeout, or panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulation {
    /// The function ignores these fields of its input.
    Off,
    /// The function does what these fields ask for.
    On,
}

impl Simulation {
    /// Returns [`On`](Self::On) if `SIMULATION` is `true`.
    #[must_use]
    pub fn from_env() -> Self {
        if env::var("SIMULATION").is_ok_and(|value| value == "true") { Self::On } else { Self::Off }
    }

    /// Works for so many milliseconds, which means that it waits.
    pub(crate) async fn work(self, millis: u64) {
        if self == Self::On {
            sleep(Duration::from_millis(millis)).await;
        }
    }

    /// Returns this time, if the input may choose one.
    pub(crate) fn time(self, millis: u64) -> Duration {
        if self == Self::On { Duration::from_millis(millis) } else { Duration::ZERO }
    }

    /// Returns whether the function fails as the input asks.
    pub(crate) fn fails(self, asked: bool) -> bool {
        asked && self == Self::On
    }
}
