//! Rates: calls that pass, wait or are refused, and some that only reserve their time.

use std::time::Duration;

use fastrand::Rng;
use lambda_lock::{Locks, Rate};
use tokio::time::sleep;

use super::{RATES, Worker, draw};
use crate::event::What;

/// Each remembers what its last answer has shown.
pub(super) fn rates(locks: &Locks) -> Vec<(&'static str, Rate)> {
    let rate = |(key, calls, period, burst)| (key, locks.rate(key, calls, period).burst(burst));
    RATES.map(rate).into()
}

impl Worker {
    pub(super) async fn call(&self, random: &mut Rng) {
        let (index, op) = (random.usize(0..RATES.len()), self.op());
        let (key, rate) = &self.rates[index];
        let (_, calls, period, burst) = RATES[index];
        let interval = period / calls;
        self.note(
            op,
            What::Calls {
                key: (*key).to_owned(),
                interval: micros(interval),
                tolerance: micros(interval * (burst - 1)),
            },
        );
        let longest = if random.bool() { Duration::ZERO } else { draw(random, 50..=800) };
        let passed = if random.u8(0..3) == 0 {
            rate.reserve(longest).await.map(Some)
        } else {
            rate.pass_within(longest).await.map(|()| None)
        };
        match passed {
            Ok(wait) => self.note(op, What::MayCall { wait: wait.map(micros) }),
            Err(error) => self.failed(op, &error),
        }
        sleep(draw(random, 0..=150)).await;
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap()
}
