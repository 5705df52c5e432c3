//! The queue of a key's waiters, and how long the key is held: what a row says, and how a release updates it.
//!
//! All of it is a hint. It decides when a waiter asks for the key, and never whether it gets the key.

use std::time::Duration;

use crate::clock::{Moment, millis};

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
    /// Returns the number of places that were given and not served. Waiters that gave up count until a waiter behind them is
    /// served, or until all have stopped waiting.
    pub(crate) fn waiters(&self, now: u64) -> u64 {
        if self.until > now { self.tail.saturating_sub(self.head) } else { 0 }
    }
}

/// The reservation of a key by a waiter for several keys: other waiters leave the key to it until then.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reservation {
    pub(crate) owner: String,
    /// In milliseconds since the epoch.
    pub(crate) until: u64,
}

impl Reservation {
    /// The longest time for which a key is reserved.
    pub(crate) const LONGEST: Duration = Duration::from_mins(1);

    /// Returns the latest end that counts. A later one is wrong.
    pub(crate) fn latest(now: Moment, clock_skew: Duration) -> u64 {
        millis(now.wall.saturating_add(Self::LONGEST).saturating_add(clock_skew))
    }
}

/// How long recent holds took: a running mean, and a running mean of the deviation from it, as TCP estimates its round-trip
/// time (RFC 6298).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HoldTime {
    pub(crate) mean: Duration,
    /// `None` after the first hold.
    pub(crate) deviation: Option<Duration>,
}

impl HoldTime {
    /// The weight of the last hold in the mean.
    const WEIGHT: f64 = 0.125;
    /// How much longer than the last hold the mean may be. An absurd value in a row does not outlast the next release.
    const LONGER: u32 = 16;
    /// The shortest hold that counts. A shorter one is the effect of a clock that was set back.
    const SHORTEST: Duration = Duration::from_micros(100);

    /// Returns the hold time after one more hold.
    pub(crate) fn after(before: Option<Self>, hold: Duration) -> Self {
        let hold = hold.max(Self::SHORTEST);
        match before {
            None => Self { mean: hold, deviation: None },
            Some(Self { mean, deviation: None }) => {
                Self { mean: blend(mean, hold, 0.5), deviation: Some(mean.abs_diff(hold) / 2) }.limited(hold)
            }
            Some(Self { mean, deviation: Some(deviation) }) => Self {
                mean: blend(mean, hold, Self::WEIGHT),
                deviation: Some(blend(deviation, mean.abs_diff(hold), Self::WEIGHT)),
            }
            .limited(hold),
        }
    }

    /// Returns the deviation, or a guess after the first hold.
    pub(crate) fn deviation(self) -> Duration {
        self.deviation.unwrap_or(self.mean / 5)
    }

    fn limited(self, hold: Duration) -> Self {
        let limit = hold.saturating_mul(Self::LONGER);
        Self { mean: self.mean.min(limit), deviation: self.deviation.map(|deviation| deviation.min(limit)) }
    }
}

fn blend(mean: Duration, last: Duration, weight: f64) -> Duration {
    mean.mul_f64(1.0 - weight).saturating_add(last.mul_f64(weight))
}
