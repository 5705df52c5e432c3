//! Executions that sleep between the attempts of a wait: each attempt is in another process. Some turns are used twice: by a
//! process that repeats what another one did, or by two at the same time.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::{BoxFuture, join_all};
use lambda_lock::{Attempt, Turn};
use tokio::time::{sleep, timeout};

use super::Scene;
use super::actor::{Report as _, release};
use super::frame::History as _;
use super::ledger::{Operation, postponed};
use super::stage::{Network, millis};

/// How many executions wait for one key.
const EXECUTIONS: usize = 3;
/// How many attempts one makes at most.
const ATTEMPTS: usize = 40;

/// Lets a few executions wait for a key of the history, if the history of this seed has any. The returned future waits for them.
pub(super) fn begin(seed: u64, scene: &Arc<Scene>) -> impl Future<Output = ()> + use<> {
    let executions = (seed % 5 == 1).then(|| tokio::spawn(executions(Arc::clone(scene), Rng::with_seed(seed))));
    async {
        if let Some(executions) = executions {
            executions.await.unwrap();
        }
    }
}

async fn executions(scene: Arc<Scene>, mut random: Rng) {
    let key = format!("key {}", random.u64(0..scene.keys));
    let each = (0..EXECUTIONS)
        .map(|number| execute(Arc::clone(&scene), format!("execution {number}"), key.clone(), None, random.fork()));
    join_all(each.collect::<Vec<_>>()).await;
}

/// Makes attempts until one acquires the key, and releases it. Boxed, because it starts another one of its kind.
fn execute(
    scene: Arc<Scene>,
    execution: String,
    key: String,
    mut turn: Option<String>,
    mut random: Rng,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let lease = millis(&mut random, 500..=2500);
        for number in 0..ATTEMPTS {
            let name = format!("{execution} attempt {number}");
            let operation = Operation::new(&name, vec![key.clone()], None, None, &scene.ledger);
            let host = scene.host(&mut random, Network::Bad);
            let acquire = scene.stage.locks(&host).acquire(&key).holder(&operation.name).lease(lease);
            let attempt = acquire.wait(Duration::from_mins(1)).attempt_in_turn(turn.as_deref().map(read));
            // A process that is cut off has not kept its turn: the next one uses the turn before again.
            let limit = if random.u8(0..6) == 0 { millis(&mut random, 0..=300) } else { Duration::from_mins(1) };
            match timeout(limit, attempt).await {
                Ok(Ok(Attempt::Acquired(lock))) => {
                    let lock = Arc::new(lock);
                    operation.acquired(&lock, Duration::ZERO);
                    sleep(lease.mul_f64(random.f64() * 0.9)).await;
                    return release(&*scene, &operation, &lock).await;
                }
                Ok(Ok(Attempt::Waiting(next))) => {
                    postponed(&operation, next.delay());
                    let json = serde_json::to_string(&next).unwrap();
                    if !execution.contains("twin") && random.u8(0..4) == 0 {
                        let twin = format!("{name}, twin");
                        let turn = Some(json.clone());
                        tokio::spawn(execute(Arc::clone(&scene), twin, key.clone(), turn, random.fork()));
                    }
                    sleep(next.delay().mul_f64(0.2 + random.f64())).await;
                    turn = Some(json);
                }
                Ok(Err(error)) => return operation.refused(&error),
                Err(_elapsed) => operation.ended("was cut off"),
            }
        }
    })
}

fn read(turn: &str) -> Turn {
    serde_json::from_str(turn).unwrap()
}
