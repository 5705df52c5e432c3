//! Locks, sets and permits: acquire, work, renew at times, release at times.

use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use fastrand::Rng;
use lambda_lock::{Backoff, Lock, Wait};
use tokio::time::sleep;

use super::{Kind, LOCKS, PERMITS, SETS, Worker, draw};
use crate::clocks;
use crate::event::What;

/// What is acquired.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) keys: Vec<String>,
    pub(super) permits: u32,
}

impl Target {
    fn draw(kind: Kind, random: &mut Rng) -> Self {
        let (keys, permits) = match kind {
            Kind::Permits => {
                let (key, permits) = PERMITS[random.usize(0..PERMITS.len())];
                (vec![key.to_owned()], permits)
            }
            Kind::Sets => {
                let mut keys: Vec<_> = (0..SETS).map(|key| format!("set-{key}")).collect();
                random.shuffle(&mut keys);
                keys.truncate(random.usize(1..=3));
                (keys, 1)
            }
            _ => (vec![format!("lock-{}", random.u64(0..LOCKS))], 1),
        };
        Self { keys, permits }
    }
}

/// What an event says of a lock that is held.
pub(super) fn has(lock: &Lock) -> What {
    let fences = lock.keys().iter().map(|key| lock.fence_of(key).unwrap()).collect();
    What::Has { keys: lock.keys().to_vec(), fences }
}

impl Worker {
    pub(super) async fn lock_and_work(&self, random: &mut Rng) {
        let op = self.op();
        let target = Target::draw(self.settings.kind, random);
        let Some(held) = self.acquire(op, &target, draw(random, 300..=900), random).await else {
            return sleep(draw(random, 0..=40)).await;
        };
        if self.settings.kind == Kind::Locks && random.u8(0..4) == 0 && target.keys.len() == 1 {
            self.write(op, &held).await;
        }
        let is_valid = self.hold(op, &held, random).await;
        // Some are gone without a release, and some release what is no longer theirs.
        if random.u8(0..100) < if is_valid { 98 } else { 50 } {
            self.release(op, &held).await;
        } else {
            std::mem::forget(held);
        }
    }

    pub(super) async fn acquire(&self, op: u64, target: &Target, lease: Duration, random: &mut Rng) -> Option<Lock> {
        let backoff = Backoff::new().base(Duration::from_millis(5)).cap(Duration::from_millis(100));
        let wait = match random.u8(0..4) {
            0 => Some(Wait::in_turn()),
            1 => Some(Wait::backoff(backoff)),
            _ => None,
        };
        let wait = wait.map(|wait| wait.up_to(draw(random, 200..=2000)));
        let Target { keys, permits } = target.clone();
        let holder = self.holder(op);
        let asks = What::Asks { keys: keys.clone(), permits, lease: millis(lease), waits: wait.is_some() };
        self.note(op, asks);
        let acquire = match &keys[..] {
            [key] if permits == 1 => self.locks.acquire(key),
            [key] => self.locks.semaphore(key, permits).acquire(),
            keys => self.locks.acquire_all(keys),
        };
        let acquire = acquire.lease(lease).holder(holder);
        self.answered(op, if let Some(wait) = wait { acquire.wait(wait).await } else { acquire.await })
    }

    /// Works as long as the lock is valid, and returns whether it still is.
    pub(super) async fn hold(&self, op: u64, held: &Lock, random: &mut Rng) -> bool {
        let overruns = random.u8(0..100) < self.settings.overruns;
        let work = match random.u8(0..10) {
            _ if overruns => Duration::from_mins(1),
            0 => draw(random, 20..=300),
            _ => draw(random, 0..=12),
        };
        let mut renewals = if random.u8(0..100) < self.settings.renewals { random.u8(1..=3) } else { 0 };
        let end = clocks::now() + clocks::nanos(work);
        loop {
            let now = clocks::now();
            if !held.is_valid() {
                self.note(op, What::Invalid);
                return false;
            }
            self.log.note_at(now, op, What::Valid);
            if now >= end {
                return true;
            }
            if renewals > 0 {
                renewals -= 1;
                let lease = draw(random, 200..=900);
                self.note(op, What::Renews { lease: millis(lease) });
                match held.renew(lease).await {
                    Ok(()) => self.note(op, What::Renewed),
                    Err(error) => self.note(op, What::Failed { why: error.kind().to_string() }),
                }
            }
            sleep(Duration::from_nanos(end.saturating_sub(now)).min(draw(random, 5..=40))).await;
        }
    }

    pub(super) async fn release(&self, op: u64, held: &Lock) {
        self.note(op, What::Releases);
        match held.release().await {
            Ok(()) => self.note(op, What::Released),
            Err(error) => self.note(op, What::Failed { why: error.kind().to_string() }),
        }
    }

    /// Counts up in a store that knows nothing of locks except the fence: it rejects smaller ones. The first write shows
    /// the fence and reads the count, the second writes the count plus one.
    pub(super) async fn write(&self, op: u64, lock: &Lock) {
        let (key, fence) = (lock.key().to_owned(), lock.fence());
        self.note(op, What::Writes { key: key.clone(), fence });
        let update = || {
            let update = self.client.update_item().table_name(&self.settings.effects);
            let id = AttributeValue::S(format!("store of {key}"));
            update.key("id", id).expression_attribute_values(":mine", number(fence)).return_values(ReturnValue::AllNew)
        };
        let shown = update()
            .update_expression("SET largest = :mine")
            .condition_expression("attribute_not_exists(largest) OR largest <= :mine");
        let Ok(shown) = shown.send().await else { return };
        let stored = shown.attributes.as_ref().and_then(|row| row.get("counted")?.as_n().ok()?.parse().ok());
        let value = stored.unwrap_or(0) + 1;
        let written = update()
            .update_expression("SET counted = :value")
            .condition_expression("largest = :mine")
            .expression_attribute_values(":value", number(value));
        if written.send().await.is_ok() {
            self.note(op, What::Wrote { key, fence, value });
        }
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}

fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}
