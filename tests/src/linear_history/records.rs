//! Clients that do the same work, whose result is stored.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use fastrand::Rng;
use lambda_lock::idempotency::{OnMissingKey, StoredError};
use lambda_lock::{Idempotency, OnError, OnUnfinished, Run};
use tokio::time::{sleep, timeout};

use super::{Held, Scene};
use crate::history::stage::{Stage, TABLE, backoff, millis};

/// The settings of all clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    window: Duration,
    reject_unfinished: bool,
    /// The work is a write into the same table, committed together with the result.
    transactional: bool,
}

impl Terms {
    pub(super) fn draw(random: &mut Rng, stage: &Stage) -> Self {
        Self {
            // Some windows end during the history.
            window: Duration::from_secs(1) + 2 * stage.clock_skew + millis(random, 0..=3000),
            reject_unfinished: random.u8(0..3) == 0,
            transactional: random.u8(0..3) == 0,
        }
    }
}

/// How the work fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    GiveUp,
    Keep,
    Store,
}

/// A client: one host after another, with one call after another.
pub(super) async fn caller(scene: Arc<Scene>, terms: Terms, mut random: Rng) {
    let (mut host, mut client, mut locks) = scene.host(&mut random);
    for _ in 0..random.usize(2..=4) {
        let pause = if random.u8(0..4) == 0 { 1000..=4000 } else { 0..=800 };
        sleep(millis(&mut random, pause)).await;
        let work = Idempotency::new(locks.clone(), OnMissingKey::Reject, |key: &String| Some(key.clone()));
        let work = work.prefix("").window(terms.window).lease(millis(&mut random, 300..=1500));
        let work =
            work.on_unfinished(if terms.reject_unfinished { OnUnfinished::Reject } else { OnUnfinished::RunAgain });
        let work = work.on_error(|failure: &Failure| match failure {
            Failure::GiveUp => OnError::Release,
            Failure::Keep => OnError::Keep,
            Failure::Store => OnError::Store(StoredError::new("Failure", "it failed")),
        });
        let wait = if random.u8(0..3) == 0 { millis(&mut random, 100..=1500) } else { Duration::ZERO };
        let work = work.wait(backoff(wait));
        let key = scene.plan.key().to_owned();
        let own = random.fork();
        let once = async |run: &Run| do_it(&scene, &client, run, terms, own.clone()).await;
        let call = Box::pin(work.run(&key, once));
        let patience = if random.u8(0..5) == 0 { millis(&mut random, 0..=1500) } else { Duration::from_mins(1) };
        let is_gone = timeout(patience, call).await.is_err();
        if is_gone && random.bool() {
            host.crash();
            (host, client, locks) = scene.host(&mut random);
        }
    }
    // Releases in the background.
    let _unanswered = locks.flush(Duration::from_secs(2)).await;
}

/// A run relies on its record until it ends, or is dropped.
struct Relying<'a> {
    scene: &'a Scene,
    fence: u64,
    from: SystemTime,
}

impl Drop for Relying<'_> {
    fn drop(&mut self) {
        let (key, until) = (self.scene.plan.key().to_owned(), self.scene.now());
        self.scene.holders.relied(Held { key, fence: self.fence, from: self.from, until });
    }
}

async fn do_it(scene: &Scene, client: &Client, run: &Run, terms: Terms, mut random: Rng) -> Result<u64, Failure> {
    let number = run.lock().fence();
    let _relying = Relying { scene, fence: number, from: scene.now() };
    sleep(millis(&mut random, 0..=700)).await;
    if random.u8(0..4) == 0 {
        return Err([Failure::GiveUp, Failure::Keep, Failure::Store][random.usize(0..3)]);
    }
    if terms.transactional {
        let completion = run.complete_in(&number).map_err(|_| Failure::GiveUp)?;
        let is_declined = random.u8(0..4) == 0;
        let commit = commit(client.clone(), scene.plan.key().to_owned(), completion, is_declined);
        // Some processes are frozen before they send the transaction, and send it even after the lease.
        let frozen = if random.u8(0..4) == 0 { millis(&mut random, 0..=3000) } else { Duration::ZERO };
        let thawed = async move {
            sleep(frozen).await;
            commit.await
        };
        tokio::spawn(thawed).await.unwrap()?;
    }
    Ok(number)
}

/// Counts the run in another row, together with its result.
async fn commit(client: Client, key: String, completion: TransactWriteItem, is_declined: bool) -> Result<(), Failure> {
    let write = Update::builder()
        .table_name(TABLE)
        .key("id", AttributeValue::S(format!("business of {key}")))
        .update_expression("ADD writes :one")
        .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
        .set_condition_expression(is_declined.then(|| "attribute_exists(nothing)".to_owned()))
        .build()
        .unwrap();
    let transaction = client.transact_write_items().transact_items(completion);
    let transaction = transaction.transact_items(TransactWriteItem::builder().update(write).build());
    transaction.send().await.map(drop).map_err(|_| Failure::GiveUp)
}
