//! The queue of a key's waiters, and how long the key is held: what a row says, and how a release updates it.
//!
//! All of it is a hint. It decides when a waiter asks for the key, and never whether it gets the key.

use std::time::Duration;

use crate::clock::Moment;

/// The waiters of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Queue {
    /// The last place that was given. Places are numbers from 1.
    pub(crate) tail: u64,
    /// The place of the last waiter that was served.
    pub(crate) head: u64,
    /// Until when the waiter in the last place waits, in milliseconds since the epoch.
    pub(crate) until: u64,
    pub(crate) hold_time: Option<HoldTime>,
    /// The row has values for the places that no join writes.
    pub(crate) is_malformed: bool,
}

impl Queue {
    /// Returns the number of places that were given and not served. Waiters that gave up count until one behind them is
    /// served, or until all have stopped waiting.
    pub(crate) fn waiters(&self, now: Moment) -> u64 {
        if self.until > now.millis() { self.tail.saturating_sub(self.head) } else { 0 }
    }
}

/// How long recent holds took: a running mean, and a running mean of the deviation from it, as TCP estimates its round-trip
/// time (RFC 6298).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HoldTime {
    pub(crate) mean: Duration,
    pub(crate) deviation: Duration,
}

impl HoldTime {
    /// The weight of the last hold in the mean.
    const WEIGHT: f64 = 0.125;
    /// How much longer than the last hold the mean may be. An absurd value in a row does not outlast the next release.
    const LONGER: u32 = 16;

    /// Returns the hold time after one more hold.
    pub(crate) fn after(before: Option<Self>, hold: Duration) -> Self {
        // Much shorter than recent holds: those were exceptional, such as the first ones of a cold start.
        let is_usual = |before: &Self| hold >= before.mean / 2 || hold + 3 * before.deviation >= before.mean;
        let Some(Self { mean, deviation }) = before.filter(is_usual) else {
            return Self { mean: hold, deviation: hold / 5 };
        };
        let limit = hold.saturating_mul(Self::LONGER);
        Self { mean: blend(mean, hold).min(limit), deviation: blend(deviation, mean.abs_diff(hold)).min(limit) }
    }
}

fn blend(mean: Duration, last: Duration) -> Duration {
    mean.mul_f64(1.0 - HoldTime::WEIGHT).saturating_add(last.mul_f64(HoldTime::WEIGHT))
}
