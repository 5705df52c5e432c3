//! What some histories have beside bad networks: clocks that step, two versions of the settings on one table, partitions
//! that throttle, and writes of other regions to the same rows. A seed has its own generator for them, so that all other draws
//! of a history stay the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{self, ConfigBag, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use fastrand::Rng;
use lambda_lock::embedded::{Answer, Host, Intercept};
use serde_json::Value;
use tokio::time::sleep;

use super::stage::millis;

/// Mixed into the seed of a history, so that its twists do not follow from its first draws.
const OWN_SEED: u64 = 0x7477_6973_7473;
/// How long a request of a holder is repeated.
pub(crate) const REPEATED_FOR: Duration = Duration::from_secs(10);
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
    /// The chance that a write over a bad network meets one of another region.
    pub(crate) conflicts: f64,
}

impl Twists {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ OWN_SEED);
        let mut is_drawn = || random.u8(0..6) == 0;
        let (steps, is_deployment, is_throttled) = (is_drawn(), is_drawn(), is_drawn());
        let longer_skew = is_deployment.then(|| millis(&mut random, 1..=2000));
        let write_units = is_throttled.then(|| random.u32(5..=12));
        let conflicts = if random.u8(0..6) == 0 { [0.05, 0.2][random.usize(0..2)] } else { 0.0 };
        Self { steps, longer_skew, write_units, conflicts }
    }

    /// How much longer something can take than without the twists: requests are repeated while a partition throttles them,
    /// and a key is free later by the longer skew.
    pub(crate) fn slack(&self) -> Duration {
        let throttling = self.write_units.map_or(Duration::ZERO, |_| REPEATED_FOR);
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
    /// Writes that met one of another region.
    pub replicated: usize,
}

impl Twisted {
    /// The outcomes that every search must reach, with how often they occurred.
    #[must_use]
    pub fn named(&self) -> [(&'static str, usize); 4] {
        let Self { stepped, redeployed, throttled, replicated } = *self;
        [("stepped", stepped), ("redeployed", redeployed), ("throttled", throttled), ("replicated", replicated)]
    }
}

/// Counts the twists of a history while it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<[AtomicUsize; 4]>);

impl Tally {
    fn count(&self, index: usize) {
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn redeployed(&self) {
        self.count(1);
    }

    pub(crate) fn sum(&self) -> Twisted {
        let [stepped, redeployed, throttled, replicated] =
            [0, 1, 2, 3].map(|index| self.0[index].load(Ordering::Relaxed));
        Twisted { stepped, redeployed, throttled, replicated }
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
                    host.set_clock_forward(by);
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

/// Counts the writes that meet one of another region. The network refuses them before they arrive, so only their sender sees
/// it.
impl config::Intercept for Tally {
    fn name(&self) -> &'static str {
        "Tally"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = context.response().body().bytes().unwrap_or_default();
        if !context.response().status().is_success()
            && String::from_utf8_lossy(body).contains("ReplicatedWriteConflictException")
        {
            self.count(3);
        }
        Ok(())
    }
}
