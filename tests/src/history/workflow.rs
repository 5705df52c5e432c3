//! Workflows: hosts with the same identity acquire something, keep it for each other, take it over, one after the other or at
//! once, and free it for their identity. A step passes its fence on to the next one. Steps crash, are cancelled, run twice at
//! once, and run again when the workflow has gone on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{Acquire, Lock};
use tokio::time::{sleep, timeout};

use super::actor::{self, Kind, Report, min_hold, release, renew};
use super::stage::{Network, Waiting, millis};

/// One history in so many has workflows.
const EVERY: u64 = 3;

/// How an attempt acquires.
#[derive(Clone, Copy)]
enum How {
    Acquire,
    TakeOver,
    /// From the acquisition with this fence.
    TakeOverFrom(u64),
}

impl How {
    /// Sends this acquire, and reports what came of it.
    async fn send(self, operation: &impl Report, acquire: Acquire, min_hold: Duration) -> Option<Arc<Lock>> {
        let acquired = match self {
            Self::Acquire => acquire.await,
            Self::TakeOver => acquire.take_over().await,
            Self::TakeOverFrom(fence) => acquire.take_over_from(fence).await,
        };
        match acquired {
            Ok(lock) => {
                let lock = Arc::new(lock);
                operation.acquired(&lock, min_hold);
                Some(lock)
            }
            Err(error) => {
                operation.refused(&error);
                None
            }
        }
    }
}

/// The identity of a workflow.
pub(crate) fn identity(number: u64) -> String {
    format!("execution {number}")
}

/// How many workflows the history of a seed has.
pub(crate) fn workflows<K: Kind>(seed: u64) -> u64 {
    if seed % EVERY == 2 { K::WORKFLOWS } else { 0 }
}

/// Starts the workflows of a seed. The returned future waits for them.
pub(crate) fn begin<K: Kind>(seed: u64, scene: &Arc<K>) -> impl Future<Output = ()> + use<K> {
    let mut random = Rng::with_seed(seed);
    let number = workflows::<K>(seed);
    let mut workflows: Vec<_> =
        (0..number).map(|number| tokio::spawn(workflow(Arc::clone(scene), number, random.fork()))).collect();
    if number > 0 {
        workflows.push(tokio::spawn(alone(Arc::clone(scene), random.fork())));
    }
    async {
        for workflow in join_all(workflows).await {
            workflow.unwrap();
        }
    }
}

/// An execution of a workflow.
struct Execution<K: Kind> {
    scene: Arc<K>,
    identity: String,
    wanted: K::Wanted,
    /// The fence in the output of the last step that has ended.
    fence: Mutex<Option<u64>>,
}

/// A workflow: one step after another, each with one attempt or two.
async fn workflow<K: Kind>(scene: Arc<K>, number: u64, mut random: Rng) {
    let (wanted, identity) = (scene.draw(&mut random), identity(number));
    let execution = Arc::new(Execution { scene: Arc::clone(&scene), identity, wanted, fence: Mutex::default() });
    let mut late = Vec::new();
    let network = Network::draw(&mut random);
    let mut host = scene.host(&mut random, network);
    for step in 0..random.usize(3..=6) {
        sleep(millis(&mut random, 0..=800)).await;
        let name = format!("workflow {number} step {step}");
        // Each attempt of the step has this input.
        let fence = *execution.fence.lock().unwrap();
        let operation = scene.operation(&name, &execution.wanted, Some(&execution.identity), &mut random);
        let mut attempt = Box::pin(execution.attempt(&operation, &host, fence, random.fork()));
        match random.u8(0..8) {
            // The host crashes, and the next attempt comes from another one.
            0 => {
                if timeout(millis(&mut random, 0..=2000), &mut attempt).await.is_err() {
                    host.crash();
                    actor::left(&scene, &execution.wanted, &operation, "crashed", random.fork());
                    drop(attempt);
                    host = scene.host(&mut random, Network::Bad);
                }
            }
            // The step runs twice at once.
            1 | 2 => {
                let twin =
                    Arc::clone(&execution).duplicate(format!("{name} twin"), fence, Duration::ZERO, random.fork());
                tokio::join!(attempt, twin);
            }
            // The step is cancelled, and the host continues.
            3 => {
                let _ = timeout(millis(&mut random, 0..=800), attempt).await;
                operation.ended("was dropped, or had ended");
            }
            // A duplicate of the step comes while the workflow goes on.
            4 | 5 => {
                let (name, after) = (format!("{name} late"), millis(&mut random, 0..=5000));
                late.push(tokio::spawn(Arc::clone(&execution).duplicate(name, fence, after, random.fork())));
                attempt.await;
            }
            _ => attempt.await,
        }
    }
    join_all(late).await.into_iter().for_each(|duplicate| duplicate.unwrap());
}

/// A workflow that nobody disturbs. Its hosts crash, and each takes over what the one before has left, also when that has
/// ended.
async fn alone<K: Kind>(scene: Arc<K>, mut random: Rng) {
    let (wanted, identity) = (scene.alone(), "execution alone");
    let mut fence = None;
    for step in 0..3 {
        let name = format!("workflow alone step {step}");
        let operation = scene.operation(&name, &wanted, Some(identity), &mut random);
        let host = scene.host(&mut random, Network::Bad);
        let lease = millis(&mut random, 300..=2500);
        let how = match fence {
            Some(fence) if random.bool() => How::TakeOverFrom(fence),
            _ if step > 0 && random.bool() => How::TakeOver,
            _ => How::Acquire,
        };
        let wait = Waiting::Backoff.up_to(millis(&mut random, 0..=2000));
        let acquire = actor::acquire(&*scene, &host, &operation, &mut random).lease(lease).wait(wait);
        let held = how.send(&operation, acquire, Duration::ZERO).await;
        fence = held.as_ref().map(|held| held.fence()).or(fence);
        sleep(lease.mul_f64(random.f64() / 2.0)).await;
        host.crash();
        operation.ended("crashed, or had ended");
        drop(held);
        sleep(lease.mul_f64(2.0 * random.f64())).await;
    }
}

impl<K: Kind> Execution<K> {
    /// Another attempt of a step, on a host of its own.
    async fn duplicate(self: Arc<Self>, name: String, fence: Option<u64>, after: Duration, mut random: Rng) {
        sleep(after).await;
        let operation = self.scene.operation(&name, &self.wanted, Some(&self.identity), &mut random);
        let host = self.scene.host(&mut random, Network::Bad);
        self.attempt(&operation, &host, fence, random).await;
    }

    /// One attempt of a step. The step before has passed on its fence, if there was one.
    async fn attempt(&self, operation: &K::Operation, host: &Host, fence: Option<u64>, mut random: Rng) {
        let scene = &self.scene;
        let locks = scene.stage().locks(host);
        let lease = millis(&mut random, 300..=2500);
        let wait = Waiting::draw(&mut random).up_to(millis(&mut random, 0..=4000));
        let how = match (fence, random.u8(0..8)) {
            (None, 0..=5) | (_, 0 | 1) => How::Acquire,
            (None, _) | (_, 2) => How::TakeOver,
            // A wrong fence: that of the present holder.
            (_, 3) => match locks.get(operation.key()).await.ok().flatten().and_then(|holder| holder.fence()) {
                Some(fence) => How::TakeOverFrom(fence),
                None => How::TakeOver,
            },
            (Some(fence), _) => How::TakeOverFrom(fence),
        };
        let min_hold = min_hold::<K>(&mut random);
        let acquire = actor::acquire(&**scene, host, operation, &mut random).lease(lease).wait(wait);
        let acquire = if min_hold.is_zero() { acquire } else { acquire.min_hold(min_hold) };
        let Some(held) = how.send(operation, acquire, min_hold).await else { return };
        operation.writes(&held);
        sleep(lease.mul_f64(random.f64())).await;
        operation.writes(&held);
        match random.u8(0..4) {
            0 | 1 => renew(&**scene, operation, &held, lease).await,
            // The answer to the last request of this process may be lost, or the request late.
            2 => drop(timeout(millis(&mut random, 0..=200), held.renew(lease.mul_f64(0.5 + random.f64()))).await),
            _ => {}
        }
        match random.u8(0..10) {
            0..=4 => {
                *self.fence.lock().unwrap() = Some(held.fence());
                // The ledger borrows what is held only for a moment.
                Arc::into_inner(held).unwrap().keep();
                actor::left(scene, &self.wanted, operation, "kept its lock", random);
            }
            // The execution is stopped. Another host frees what it holds, and its holder does not always learn of it.
            is_told @ (5 | 6) => {
                let other = scene.stage().locks(&scene.host(&mut random, Network::Good));
                operation.stop(&other).await;
                if is_told == 5 {
                    release(&**scene, operation, &held).await;
                } else {
                    operation.ended("was stopped");
                }
            }
            7 => operation.ended("dropped its lock"),
            _ => release(&**scene, operation, &held).await,
        }
    }
}
