//! Clients that hold something for a while: a key, several keys, or a permit.

use std::collections::HashMap;
use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::{Acquire, Holder, Lock, Locks};
use tokio::time::{sleep, timeout};

use super::{Kind, Scene};
use crate::history::stage::{self, Waiting, millis};

/// The clients of a history want this.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    keys: Vec<String>,
    /// How many clients can have the key, if it is a semaphore.
    permits: Option<u32>,
    /// How many identities some of the clients have.
    identities: u8,
}

impl Plan {
    pub(super) fn draw(kind: Kind, random: &mut Rng) -> Self {
        let (keys, permits, identities) = match kind {
            Kind::Locks | Kind::Records | Kind::Rates => (1, None, 0),
            Kind::Identities => (1, None, random.u8(1..=2)),
            Kind::Several => (random.u32(2..=3), None, random.u8(0..=2)),
            Kind::Permits => (1, Some(random.u32(1..=3)), random.u8(0..=2)),
        };
        Self { keys: (0..keys).map(|number| format!("key {number}")).collect(), permits, identities }
    }

    pub(super) fn key(&self) -> &str {
        &self.keys[0]
    }

    /// The identity of a client, if it has one.
    fn identity(&self, random: &mut Rng) -> Option<String> {
        let has_identity = self.identities > 0 && random.bool();
        has_identity.then(|| format!("execution {}", random.u8(0..self.identities)))
    }

    fn acquire(&self, locks: &Locks, random: &mut Rng) -> Acquire {
        if let Some(permits) = self.permits {
            return locks.semaphore(self.key(), permits).acquire();
        }
        if self.keys.len() == 1 {
            return locks.acquire(self.key());
        }
        let mut keys = self.keys.clone();
        random.shuffle(&mut keys);
        keys.truncate(random.usize(1..=keys.len()));
        match &keys[..] {
            [key] if random.bool() => locks.acquire(key),
            keys => locks.acquire_all(keys),
        }
    }
}

/// The time in which a holder relied on what it had.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) key: String,
    pub(super) fence: u64,
    pub(super) from: SystemTime,
    pub(super) until: SystemTime,
}

/// Who relied on what.
#[derive(Debug)]
pub(super) struct Holders {
    /// How many there may be at once.
    most: usize,
    held: Mutex<Vec<Held>>,
    /// When an operator has freed the key of a holder with this fence. What this holder believes from then on does not count.
    freed: Mutex<HashMap<(String, u64), SystemTime>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Holders {
    pub(super) fn of(plan: &Plan) -> Self {
        Self { most: plan.permits.unwrap_or(1) as usize, held: Mutex::default(), freed: Mutex::default() }
    }

    pub(super) fn relied(&self, held: Held) {
        lock(&self.held).push(held);
    }

    fn freed(&self, key: &str, holder: &Holder, now: SystemTime) {
        for holder in if holder.is_semaphore() { holder.permits() } else { std::slice::from_ref(holder) } {
            if let Some(fence) = holder.fence() {
                lock(&self.freed).entry((key.to_owned(), fence)).or_insert(now);
            }
        }
    }

    /// More holders of a key at once than there may be.
    pub(super) fn overlap(&self) -> Option<String> {
        let (mut held, freed) = (lock(&self.held).clone(), lock(&self.freed));
        for held in &mut held {
            if let Some(freed) = freed.get(&(held.key.clone(), held.fence)) {
                held.until = held.until.min(*freed);
            }
        }
        held.retain(|held| held.from < held.until);
        held.iter().find_map(|one| {
            // A holder that relied on the same acquisition twice, such as after a renewal, counts once.
            let is_at_once = |other: &&Held| other.key == one.key && other.from <= one.from && one.from < other.until;
            let at_once: HashMap<_, _> = held.iter().filter(is_at_once).map(|held| (held.fence, held)).collect();
            (at_once.len() > self.most).then(|| format!("{at_once:?}"))
        })
    }
}

/// Lets a few clients and an operator work.
pub(super) async fn work(scene: &Arc<Scene>, random: &mut Rng) {
    let operator = random.bool().then(|| tokio::spawn(operator(Arc::clone(scene), random.fork())));
    stage::work(2..=4, random, |_, random| worker(Arc::clone(scene), random)).await;
    if let Some(operator) = operator {
        operator.await.unwrap();
    }
}

/// The holder relies on the lock for this long, or until it is lost. What has an identity can be lost to it at any time, so that
/// this does not count.
async fn rely(scene: &Scene, lock: &Lock, span: Duration, has_identity: bool) {
    let from = scene.now();
    let _lost = timeout(span, lock.until_lost()).await;
    for key in lock.keys().iter().filter(|_| !has_identity) {
        let fence = lock.fence_of(key).unwrap_or_default();
        scene.holders.relied(Held { key: key.clone(), fence, from, until: scene.now() });
    }
}

/// A client: one host after another, with one acquire after another.
async fn worker(scene: Arc<Scene>, mut random: Rng) {
    let (mut host, _, mut locks) = scene.host(&mut random);
    let identity = scene.plan.identity(&mut random);
    for _ in 0..random.usize(1..=2) {
        sleep(millis(&mut random, 0..=1500)).await;
        let lease = millis(&mut random, 300..=2000);
        let acquire = scene.plan.acquire(&locks, &mut random).lease(lease);
        let is_one = scene.plan.keys.len() == 1 && scene.plan.permits.is_none();
        let acquire =
            if is_one && random.u8(0..4) == 0 { acquire.min_hold(millis(&mut random, 1..=1500)) } else { acquire };
        let acquire = match &identity {
            Some(identity) => acquire.identity(identity),
            None => acquire,
        };
        let acquire = match random.u8(0..3) {
            0 => acquire,
            _ => acquire.wait(Waiting::draw(&mut random).up_to(millis(&mut random, 200..=3000))),
        };
        let patience = if random.u8(0..5) == 0 { millis(&mut random, 0..=500) } else { Duration::from_mins(1) };
        let takes_over = identity.is_some() && random.u8(0..3) == 0;
        let acquired = async { if takes_over { acquire.take_over().await } else { acquire.into_future().await } };
        let Ok(Ok(lock)) = timeout(patience, acquired).await else { continue };
        let has_identity = identity.is_some();
        rely(&scene, &lock, millis(&mut random, 0..=600), has_identity).await;
        if random.u8(0..3) == 0 && lock.is_valid() && lock.renew(lease).await.is_ok() {
            rely(&scene, &lock, millis(&mut random, 0..=600), has_identity).await;
        }
        if let Some(identity) = identity.as_ref().filter(|_| random.u8(0..4) == 0) {
            // The execution is stopped, and its holder does not learn of it.
            let (_host, _, locks) = scene.host(&mut random);
            let _freed = locks.release_identity(scene.plan.key(), identity).await;
        }
        match random.u8(0..8) {
            0 => {
                host.crash();
                (host, _, locks) = scene.host(&mut random);
            }
            1 => drop(lock),
            2 | 3 if let Some(identity) = &identity => {
                if random.bool() {
                    // The last request of this process may be lost, or late.
                    let _unanswered = timeout(millis(&mut random, 0..=60), lock.renew(lease)).await;
                }
                let (keys, fence) = (lock.keys().to_vec(), lock.fence());
                lock.keep();
                go_on(&scene, &keys, identity, fence, &mut random).await;
            }
            _ => drop(lock.release().await),
        }
    }
    // Withdrawals and releases in the background.
    let _unanswered = locks.flush(Duration::from_secs(2)).await;
}

/// Two processes go on with what was kept at about the same time, and one frees it.
async fn go_on(scene: &Arc<Scene>, keys: &[String], identity: &str, fence: u64, random: &mut Rng) {
    let attempts = [random.fork(), random.fork()].map(|mut random| async move {
        let (_host, _, locks) = scene.host(&mut random);
        let pause = if random.u8(0..4) == 0 { 0..=2000 } else { 0..=300 };
        sleep(millis(&mut random, pause)).await;
        let fence = match random.u8(0..4) {
            // That of another holder, or of a release.
            0 => locks.get(&keys[0]).await.ok().flatten().and_then(|holder| holder.fence()).unwrap_or(fence),
            _ => fence,
        };
        let acquire = match (scene.plan.permits, keys) {
            (Some(permits), _) => locks.semaphore(&keys[0], permits).acquire(),
            (None, [key]) => locks.acquire(key).min_hold(millis(&mut random, 0..=1000)),
            (None, keys) => locks.acquire_all(keys),
        };
        let acquire = acquire.identity(identity).lease(millis(&mut random, 300..=2000));
        let Ok(lock) = acquire.take_over_from(fence).await else { return };
        rely(scene, &lock, millis(&mut random, 0..=300), true).await;
        if random.bool() { lock.keep() } else { drop(lock.release().await) }
    });
    join_all(attempts).await;
    if random.bool() {
        let (_host, _, locks) = scene.host(random);
        let _freed = locks.release_identity_all(keys, identity).await;
    }
}

/// Frees a key of whoever has it, and now and then does so again with what it saw before.
async fn operator(scene: Arc<Scene>, mut random: Rng) {
    let (_host, _, locks) = scene.host(&mut random);
    sleep(millis(&mut random, 0..=3000)).await;
    let key = scene.plan.keys[random.usize(0..scene.plan.keys.len())].clone();
    let Ok(Some(holder)) = locks.get(&key).await else { return };
    // The holder does not learn of it before its next request.
    scene.holders.freed(&key, &holder, scene.now());
    for _ in 0..random.usize(1..=2) {
        let pause = if random.bool() { 0..=50 } else { 0..=1000 };
        sleep(millis(&mut random, pause)).await;
        let _freed = locks.force_release(&key, &holder).await;
    }
}
