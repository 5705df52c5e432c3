//! Records: each key runs once, and its business write and its result are one transaction. Messages of a queue do the same
//! under the consumer, and come back all the time.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::sqs::{SqsEvent, SqsMessage as Message};
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use fastrand::Rng;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{HandlerError, Idempotency, Run, SqsConsumer, WithRun, request_token};
use lambda_runtime::{Config, Context, Diagnostic, LambdaEvent};
use serde_json::Value;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use super::hold::millis;
use super::{Worker, draw};
use crate::clocks;
use crate::event::What;

/// The name of the function, which the keys of messages begin with.
const FUNCTION: &str = "queue";
const QUEUE: &str = "arn:aws:sqs:us-east-1:123456789012:messages";
const LEASE: Duration = Duration::from_millis(800);
/// The time until the deadline of a batch.
const DEADLINE: Duration = Duration::from_millis(1500);
/// How long a key is new.
const PERIOD: u64 = 250_000_000;

#[derive(Debug)]
pub(super) struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Failure> for Diagnostic {
    fn from(Failure(error_message): Failure) -> Self {
        Self { error_type: "Failure".to_owned(), error_message }
    }
}

impl Worker {
    pub(super) fn records(&self) -> Idempotency<String, String, Failure> {
        let records = Idempotency::new(self.locks.clone(), OnMissingKey::Reject, |key: &String| Some(key.clone()));
        records.lease(LEASE)
    }

    pub(super) async fn run_once(&self, random: &mut Rng) {
        let key = draw_key("record", random);
        let waits = random.u8(0..3) == 0;
        let records = self.records();
        let records = if waits { records.wait(draw(random, 200..=1500)) } else { records };
        self.run_record(&records, &key, waits, random.fork()).await;
        sleep(draw(random, 0..=10)).await;
    }

    pub(super) async fn run_record(
        &self,
        records: &Idempotency<String, String, Failure>,
        key: &String,
        waits: bool,
        random: Rng,
    ) {
        let op = self.op();
        let asks = What::Asks { keys: vec![key.clone()], permits: 1, lease: millis(LEASE), waits };
        self.note(op, asks);
        match records.run(key, async |run| self.commit_once(op, key, run, random).await).await {
            Ok(result) => self.note(op, What::Replied { key: key.clone(), result }),
            Err(HandlerError::Lock(error)) => self.failed(op, &error),
            Err(error) => self.note(op, What::Failed { why: error.to_string() }),
        }
    }

    /// Delivers a batch of messages to the consumer as Lambda does, with messages that were delivered before.
    pub(super) async fn deliver(self: Arc<Self>, random: &mut Rng) {
        let ids: Vec<_> = (0..random.usize(1..=5)).map(|_| draw_key("message", random)).collect();
        let mut ops = HashMap::new();
        for id in &ids {
            let (op, key) = (self.op(), row_of(id));
            if ops.insert(key.clone(), op).is_none() {
                self.note(op, What::Asks { keys: vec![key], permits: 1, lease: millis(LEASE), waits: true });
            }
        }
        let consumer: SqsConsumer<Value, Failure, String, WithRun<SqsMessage<Value>>> =
            SqsConsumer::by_message_id(self.locks.clone()).lease(LEASE).concurrency(3);
        let (worker, known, seed) = (Arc::clone(&self), ops.clone(), random.u64(..));
        let handler = service_fn(move |WithRun { input, run, .. }: WithRun<SqsMessage<Value>>| {
            let (worker, key) = (Arc::clone(&worker), row_of(input.message_id().unwrap()));
            let op = known[&key];
            async move { worker.commit_once(op, &key, &run, Rng::with_seed(seed ^ op)).await }
        });
        let answer = consumer.fail_if_all_failed(false).layer(handler).oneshot(invocation(&ids)).await.unwrap();
        for (key, op) in ops {
            let failed = answer.batch_item_failures.iter().any(|failure| row_of(&failure.item_identifier) == key);
            self.note(op, if failed { What::Undone { key } } else { What::Done { key } });
        }
        sleep(draw(random, 0..=10)).await;
    }

    /// The work of one key: a count and the result, committed together.
    async fn commit_once(&self, op: u64, key: &str, run: &Run, mut random: Rng) -> Result<String, Failure> {
        let (lock, now) = (run.lock(), clocks::now());
        let has = What::Has { keys: vec![key.to_owned()], fences: vec![lock.fence()] };
        self.log.note_at(now, op, has);
        let overruns = random.u8(0..100) < self.settings.overruns;
        let work = if overruns { Duration::from_mins(1) } else { draw(&mut random, 0..=25) };
        let end = now + clocks::nanos(work);
        loop {
            let now = clocks::now();
            if !lock.is_valid() {
                break self.note(op, What::Invalid);
            }
            self.log.note_at(now, op, What::Valid);
            if now >= end {
                break;
            }
            sleep(Duration::from_nanos(end - now).min(draw(&mut random, 5..=40))).await;
        }
        if random.u8(0..16) == 0 {
            return Err(Failure("declined".to_owned()));
        }
        let result = self.holder(op);
        let business = Update::builder()
            .table_name(&self.settings.effects)
            .key("id", AttributeValue::S(key.to_owned()))
            .update_expression("SET committed = :result ADD commits :one")
            .expression_attribute_values(":result", AttributeValue::S(result.clone()))
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .build()
            .unwrap();
        let completion = run.complete_in(&result).map_err(|error| Failure(error.to_string()))?;
        self.note(op, What::Commits { key: key.to_owned(), result: result.clone() });
        let commit = self.client.transact_write_items();
        let commit =
            commit.transact_items(completion).transact_items(TransactWriteItem::builder().update(business).build());
        match Box::pin(commit.client_request_token(request_token()).send()).await {
            Ok(_) => Ok(result),
            Err(error) => Err(Failure(error.to_string())),
        }
    }
}

/// Most keys are new, so that several processes run them at the same time. Some were done before.
fn draw_key(name: &str, random: &mut Rng) -> String {
    let age = if random.u8(0..5) == 0 { random.u64(0..60) } else { random.u64(0..3) };
    format!("{name}-{}-{}", (clocks::now() / PERIOD).saturating_sub(age), random.u8(0..8))
}

/// The key of a message's row.
fn row_of(message_id: &str) -> String {
    format!("{FUNCTION}#{QUEUE}#{message_id}")
}

fn invocation(ids: &[String]) -> LambdaEvent<SqsEvent> {
    let mut event = SqsEvent::default();
    for id in ids {
        let mut message = Message::default();
        message.message_id = Some(id.clone());
        message.body = Some("{}".to_owned());
        message.event_source_arn = Some(QUEUE.to_owned());
        event.records.push(message);
    }
    let mut context = Context::default();
    context.deadline = millis(clocks::wall() + DEADLINE);
    context.env_config = Arc::new(Config { function_name: FUNCTION.to_owned(), ..Config::default() });
    LambdaEvent::new(event, context)
}
