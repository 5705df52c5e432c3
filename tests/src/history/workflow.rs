//! Workflows: hosts with the same identity acquire something, one after the other or at once, take it over from each other, and
//! free it for their identity.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{Locks, Wait};
use tokio::time::{sleep, timeout};

use super::stage::{Network, Stage, Waiting, millis};

/// One history in so many has workflows.
const EVERY: u64 = 3;

/// What the workflows of a kind of history do.
pub(crate) trait Kind: Send + Sync + Sized + 'static {
    /// What a workflow acquires.
    type Wanted: Send + Sync;
    /// One attempt of a workflow, which reports to the ledger.
    type Operation: Send + Sync;
    type Held: Send;

    /// How many workflows a history has, if it has any.
    const WORKFLOWS: u64;

    fn stage(&self) -> &Stage;

    fn host(&self, random: &mut Rng, network: Network) -> Host;

    fn draw(&self, random: &mut Rng) -> Self::Wanted;

    /// What nobody else wants.
    fn alone(&self) -> Self::Wanted;

    fn operation(&self, name: &str, wanted: &Self::Wanted, identity: &str, random: &mut Rng) -> Self::Operation;

    /// Acquires what the operation is for, and reports it.
    fn acquire(
        &self,
        operation: &Self::Operation,
        ask: Ask<'_>,
        random: &mut Rng,
    ) -> impl Future<Output = Option<Self::Held>> + Send;

    fn renew(&self, operation: &Self::Operation, held: &Self::Held, lease: Duration)
    -> impl Future<Output = ()> + Send;

    /// Leaves what is held to another process.
    fn hand_over(
        &self,
        operation: &Self::Operation,
        held: Self::Held,
        lease: Duration,
        random: Rng,
    ) -> impl Future<Output = ()> + Send;

    fn release(&self, operation: &Self::Operation, held: &Self::Held) -> impl Future<Output = ()> + Send;

    /// Frees for the identity what the operation is for, and reports it.
    fn stop(&self, operation: &Self::Operation, locks: &Locks, identity: &str) -> impl Future<Output = ()> + Send;

    /// Reports the end of an attempt without a release.
    fn ended(&self, operation: &Self::Operation, how: &str);
}

/// What an attempt asks for.
pub(crate) struct Ask<'a> {
    pub(crate) locks: &'a Locks,
    pub(crate) identity: &'a str,
    pub(crate) lease: Duration,
    pub(crate) wait: Wait,
    pub(crate) takes_over: bool,
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

/// A workflow: one host after another, with one attempt after another, or two at once.
async fn workflow<K: Kind>(scene: Arc<K>, number: u64, mut random: Rng) {
    let (wanted, identity) = (scene.draw(&mut random), identity(number));
    let mut host = scene.host(&mut random, Network::Bad);
    for step in 0..random.usize(3..=5) {
        sleep(millis(&mut random, 0..=800)).await;
        let name = format!("workflow {number} step {step}");
        let operation = scene.operation(&name, &wanted, &identity, &mut random);
        let mut attempt = Box::pin(attempt(&*scene, &host, &operation, &identity, random.fork()));
        match random.u8(0..6) {
            // The host crashes, and the next attempt comes from another one.
            0 => {
                if timeout(millis(&mut random, 0..=2000), &mut attempt).await.is_err() {
                    host.crash();
                    scene.ended(&operation, "crashed");
                    drop(attempt);
                    host = scene.host(&mut random, Network::Bad);
                }
            }
            // The step runs twice at once.
            1 | 2 => {
                let twin = scene.operation(&format!("{name} twin"), &wanted, &identity, &mut random);
                let other = scene.host(&mut random, Network::Bad);
                let second = self::attempt(&*scene, &other, &twin, &identity, random.fork());
                tokio::join!(attempt, second);
            }
            // The step is cancelled, and the host continues.
            3 => {
                let _ = timeout(millis(&mut random, 0..=800), attempt).await;
                scene.ended(&operation, "was dropped, or had ended");
            }
            _ => attempt.await,
        }
    }
}

/// A workflow that nobody disturbs. Its hosts crash, and each takes over what the one before has left, also when that has
/// ended.
async fn alone<K: Kind>(scene: Arc<K>, mut random: Rng) {
    let (wanted, identity) = (scene.alone(), "execution alone");
    for step in 0..3 {
        let operation = scene.operation(&format!("workflow alone step {step}"), &wanted, identity, &mut random);
        let host = scene.host(&mut random, Network::Bad);
        let locks = scene.stage().locks(&host);
        let lease = millis(&mut random, 300..=2500);
        let wait = Waiting::Backoff.up_to(millis(&mut random, 0..=2000));
        let ask = Ask { locks: &locks, identity, lease, wait, takes_over: step > 0 && random.bool() };
        let held = scene.acquire(&operation, ask, &mut random).await;
        sleep(lease.mul_f64(random.f64() / 2.0)).await;
        host.crash();
        scene.ended(&operation, "crashed, or had ended");
        drop(held);
        sleep(lease.mul_f64(2.0 * random.f64())).await;
    }
}

async fn attempt<K: Kind>(scene: &K, host: &Host, operation: &K::Operation, identity: &str, mut random: Rng) {
    let locks = scene.stage().locks(host);
    let lease = millis(&mut random, 300..=2500);
    let wait = Waiting::draw(&mut random).up_to(millis(&mut random, 0..=4000));
    let ask = Ask { locks: &locks, identity, lease, wait, takes_over: random.u8(0..3) == 0 };
    let Some(held) = scene.acquire(operation, ask, &mut random).await else { return };
    sleep(lease.mul_f64(random.f64() * 1.1)).await;
    if random.bool() {
        scene.renew(operation, &held, lease).await;
    }
    match random.u8(0..6) {
        0 => scene.hand_over(operation, held, lease, random).await,
        // The execution is stopped. Another host frees what it holds, and its holder does not always learn of it.
        is_told @ (1 | 2) => {
            let other = scene.stage().locks(&scene.host(&mut random, Network::Good));
            scene.stop(operation, &other, identity).await;
            if is_told == 1 {
                scene.release(operation, &held).await;
            } else {
                scene.ended(operation, "was stopped");
            }
        }
        3 => scene.ended(operation, "dropped its lock"),
        _ => scene.release(operation, &held).await,
    }
}
