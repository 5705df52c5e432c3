//! What some histories have beside bad networks: clocks that step, two versions of the settings on one table, and
//! partitions that throttle. A seed has its own generator for them, so that all other draws of a history stay the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::{Answer, Host, Intercept};
use serde_json::Value;
use tokio::time::sleep;

use super::stage::millis;

/// Mixed into the seed of a history, so that its twists do not follow from its first draws.
const OWN_SEED: u64 = 0x7477_6973_7473;
/// How often the clock of a host steps, at most.
const STEPS: usize = 12;

/// The twists of a history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Twists {
    /// The clocks of hosts step, forward and back, within their largest error.
    pub(crate) steps: bool,
    /// By how much the clock skew of one of two deployments is longer. The other settings differ, too.
    pub(crate) longer_skew: Option<Duration>,
    /// How many write units a partition has a second.
    pub(crate) write_units: Option<u32>,
}

impl Twists {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ OWN_SEED);
        let mut is_drawn = || random.u8(0..6) == 0;
        let (steps, is_deployment, is_throttled) = (is_drawn(), is_drawn(), is_drawn());
        Self {
            steps,
            longer_skew: is_deployment.then(|| millis(&mut random, 1..=2000)),
            write_units: is_throttled.then(|| random.u32(5..=12)),
        }
    }

    /// How much longer something can take than without the twists: requests are repeated while a partition throttles them,
    /// and a key is free later by the longer skew.
    pub(crate) fn slack(&self) -> Duration {
        let throttling = self.write_units.map_or(Duration::ZERO, |_| Duration::from_secs(10));
        throttling + self.longer_skew.unwrap_or_default()
    }
}

/// How often the twists of a history occurred.
#[derive(Clone, Copy, Debug, Default)]
pub struct Twisted {
    /// Clocks that stepped.
    pub stepped: usize,
    /// Times that the second version of the settings was used.
    pub redeployed: usize,
    /// Requests that a partition throttled.
    pub throttled: usize,
}

impl Twisted {
    /// The outcomes that every search must reach, with how often they occurred.
    #[must_use]
    pub fn named(&self) -> [(&'static str, usize); 3] {
        [("stepped", self.stepped), ("redeployed", self.redeployed), ("throttled", self.throttled)]
    }
}

/// Counts the twists of a history while it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<[AtomicUsize; 3]>);

impl Tally {
    fn count(&self, index: usize) {
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn redeployed(&self) {
        self.count(1);
    }

    pub(crate) fn sum(&self) -> Twisted {
        let [stepped, redeployed, throttled] = [0, 1, 2].map(|index| self.0[index].load(Ordering::Relaxed));
        Twisted { stepped, redeployed, throttled }
    }

    /// Lets the clock of this host step now and then to another error of at most `most`, from one of `off` ahead, or behind if
    /// it is negative, both in microseconds.
    pub(crate) fn step(&self, host: Host, mut off: i64, most: Duration, mut random: Rng) {
        let (tally, most) = (self.clone(), i64::try_from(most.as_micros()).unwrap());
        tokio::spawn(async move {
            for _ in 0..STEPS {
                let pause = if random.u8(0..4) == 0 { 10_000..=200_000 } else { 0..=1500 };
                sleep(millis(&mut random, pause)).await;
                let to = random.i64(-most..=most);
                let by = Duration::from_micros((to - off).unsigned_abs());
                if to > off {
                    host.advance_clock(by);
                } else {
                    host.set_clock_back(by);
                }
                off = to;
                tally.count(0);
            }
        });
    }
}

/// Counts what partitions throttle.
impl Intercept for Tally {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if answer.status == 200 {
            return;
        }
        let reasons = answer.body["CancellationReasons"].as_array().into_iter().flatten();
        let is_throttled = answer.body["__type"].as_str().is_some_and(|of| of.ends_with("ThroughputExceededException"))
            || reasons.into_iter().any(|reason| reason["Code"] == "ThrottlingError");
        if is_throttled {
            self.count(2);
        }
    }
}
