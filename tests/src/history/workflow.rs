//! Workflows: hosts with the same identity acquire a key, one after the other or at once, take it over from each other, and
//! free it for their identity.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use tokio::time::{sleep, timeout};

use super::ledger::Operation;
use super::stage::{Network, Waiting, millis};
use super::{Scene, hand_over, release};

/// One history in so many has workflows, and how many.
const EVERY: u64 = 3;
const WORKFLOWS: u64 = 3;

/// Starts the workflows of a seed. The returned future waits for them.
pub(super) fn begin(seed: u64, scene: &Arc<Scene>) -> impl Future<Output = ()> + use<> {
    let mut random = Rng::with_seed(seed);
    let number = if seed % EVERY == 2 { WORKFLOWS } else { 0 };
    let workflows: Vec<_> =
        (0..number).map(|number| tokio::spawn(workflow(Arc::clone(scene), number, random.fork()))).collect();
    async {
        for workflow in join_all(workflows).await {
            workflow.unwrap();
        }
    }
}

/// A workflow: one host after another, with one attempt after another, or two at once.
async fn workflow(scene: Arc<Scene>, number: u64, mut random: Rng) {
    let (key, identity) = (format!("key {}", random.u64(0..scene.keys)), format!("execution {number}"));
    let mut host = scene.host(&mut random, Network::Bad);
    for step in 0..random.usize(3..=5) {
        sleep(millis(&mut random, 0..=800)).await;
        let named = |twin: &str| {
            Operation::new(&format!("workflow {number} step {step}{twin}"), key.clone(), Arc::clone(&scene.ledger))
        };
        let operation = named("");
        let mut attempt = Box::pin(attempt(&scene, &host, &operation, &identity, random.fork()));
        match random.u8(0..4) {
            // The host crashes, and the next attempt comes from another one.
            0 => {
                if timeout(millis(&mut random, 0..=2000), &mut attempt).await.is_err() {
                    host.crash();
                    operation.ended("crashed");
                    drop(attempt);
                    host = scene.host(&mut random, Network::Bad);
                }
            }
            // The step runs twice at once.
            1 => {
                let (twin, other) = (named(" twin"), scene.host(&mut random, Network::Bad));
                let second = self::attempt(&scene, &other, &twin, &identity, random.fork());
                tokio::join!(attempt, second);
            }
            _ => attempt.await,
        }
    }
}

async fn attempt(scene: &Scene, host: &Host, operation: &Operation, identity: &str, mut random: Rng) {
    let locks = scene.stage.locks(host);
    let lease = millis(&mut random, 300..=2500);
    let wait = Waiting::draw(&mut random).up_to(millis(&mut random, 0..=4000));
    let acquire = locks.acquire(&operation.key).holder(&operation.name).owner_from(identity).lease(lease).wait(wait);
    let acquired = if random.u8(0..3) == 0 { acquire.take_over().await } else { acquire.await };
    let lock = match acquired {
        Ok(lock) => Arc::new(lock),
        Err(error) => return operation.refused(&error),
    };
    operation.acquired(&lock, Duration::ZERO);
    sleep(lease.mul_f64(random.f64() * 1.1)).await;
    if random.bool() {
        operation.renewed(&lock, lock.renew(lease).await);
    }
    match random.u8(0..6) {
        0 => hand_over(scene, operation, lock, lease, false, random).await,
        // The execution is stopped. Another host frees what it holds.
        1 | 2 => {
            let other = scene.stage.locks(&scene.host(&mut random, Network::Good));
            let freed = other.release_identity(&operation.key, identity).await;
            operation.ended(&format!("was stopped: {freed:?}"));
        }
        3 => operation.ended("dropped its lock"),
        _ => release(operation, &lock).await,
    }
}
