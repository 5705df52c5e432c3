//! Clients that call in their turn.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{sleep, timeout};

use super::Scene;
use crate::history::stage::millis;

/// How often the key may be called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    calls: u32,
    period: Duration,
    burst: u32,
}

impl Pace {
    pub(super) fn draw(random: &mut Rng) -> Self {
        let burst = if random.bool() { 1 } else { random.u32(2..=4) };
        Self { calls: random.u32(2..=5), period: millis(random, 500..=2000), burst }
    }
}

/// A client: one host after another, with one call after another.
pub(super) async fn caller(scene: Arc<Scene>, pace: Pace, mut random: Rng) {
    let (mut host, _, mut locks) = scene.host(&mut random);
    for _ in 0..random.usize(2..=6) {
        sleep(millis(&mut random, 0..=800)).await;
        let rate = locks.rate(scene.plan.key(), pace.calls, pace.period).burst(pace.burst);
        let wait = if random.bool() { Duration::ZERO } else { millis(&mut random, 100..=2000) };
        let patience = if random.u8(0..6) == 0 { millis(&mut random, 0..=500) } else { Duration::from_mins(1) };
        let is_gone = timeout(patience, rate.pass_within(wait)).await.is_err();
        if is_gone && random.bool() {
            host.crash();
            (host, _, locks) = scene.host(&mut random);
        }
    }
}
