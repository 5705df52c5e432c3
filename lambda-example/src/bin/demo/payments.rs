//! The function `payment-queue` at a queue in this process: a payment in several messages, a payment that fails twice,
//! and two messages that always fail.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anstream::println;
use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use lambda_example::{Payment, Payments, Simulation, payment_queue};
use lambda_lock::Locks;
use lambda_lock::embedded::Host;
use lambda_runtime::{Error, LambdaEvent};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::ServiceExt;

use super::{Cloud, context};
use crate::scene::{Scene, expect, table};

/// The queue's visibility timeout.
const VISIBILITY_TIMEOUT: Duration = Duration::from_millis(200);
/// The function's timeout.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The number of deliveries before a message becomes a dead letter.
const MAX_RECEIVE_COUNT: u32 = 5;

pub(crate) const SCENES: &[Scene] = &[Scene {
    name: "queue",
    title: "SQS delivers messages twice, and some always fail",
    world: "The queue has the payment of the rent in two messages, which come at once, and in a third one later. The \
            payment of the power fails twice. One payment always fails, and one message is no payment at all. A message \
            that fails returns after 0.2 s, and is a dead letter after five deliveries.",
    should: "The rent is paid once: its second message is hidden while the first one is in progress, and then deleted. \
             The power is paid at the third delivery. The last two messages become dead letters, and hold up nothing.",
    guide: "recipes/sqs",
    play: |cloud| Box::pin(deliveries(cloud)),
}];

async fn deliveries(cloud: &Cloud) -> Result<String, Error> {
    let queue = Queue::new(cloud.host());
    let prefix = cloud.new_prefix("payment-queue");
    let rent = payment("rent", 300, 0);
    for body in [&rent, &rent, &payment("power", 0, 2), &payment("poison", 0, 1_000), &"not a payment".to_owned()] {
        queue.send(body);
    }
    queue.work_off(cloud, &prefix).await?;
    // After all messages are done.
    queue.send(&rent);
    queue.work_off(cloud, &prefix).await?;
    queue.print();

    for (id, expected) in [("rent", 1), ("power", 1), ("poison", 0)] {
        let row = cloud.row(format!("{prefix}payment#{id}")).await?;
        let times = row.as_ref().and_then(|row| row["times"].as_n().ok()?.parse().ok()).unwrap_or(0);
        expect(times == expected, format!("{id} was paid {times} times, not {expected}"))?;
    }
    let ends: Vec<_> = queue.messages().iter().map(|message| (message.deliveries, message.fate)).collect();
    let (at_once, others) = ends.split_at(2);
    let (done, dead) = (Fate::Done, Fate::DeadLetter);
    let one_came_back = [[(1, done), (2, done)], [(2, done), (1, done)]].iter().any(|ends| ends == at_once);
    expect(one_came_back, format!("the two at once ended as {at_once:?}"))?;
    expect(others == [(3, done), (5, dead), (5, dead), (1, done)], format!("the others ended as {others:?}"))?;
    Ok("The rent and the power were paid once each, and nothing else was paid.".to_owned())
}

fn payment(id: &str, paying_ms: u64, failing_deliveries: u64) -> String {
    let account = "DE02 1203 0000 0000 2020 51".to_owned();
    json!(Payment { id: id.to_owned(), account, amount: 12_345, paying_ms, failing_deliveries, panics: false })
        .to_string()
}

/// A queue in memory. As an HTTP client, it answers `ChangeMessageVisibility`.
#[derive(Clone, Debug)]
struct Queue {
    messages: Arc<Mutex<Vec<Queued>>>,
    clock: Host,
}

#[derive(Debug)]
struct Queued {
    body: String,
    deliveries: u32,
    visible_from: SystemTime,
    /// How long the function hid the message, in seconds.
    hidden: Option<u64>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Queued,
    Done,
    DeadLetter,
}

impl Queue {
    fn new(clock: Host) -> Self {
        Self { messages: Arc::default(), clock }
    }

    fn messages(&self) -> MutexGuard<'_, Vec<Queued>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, body: &str) {
        let (body, visible_from) = (body.to_owned(), self.clock.now());
        self.messages().push(Queued { body, deliveries: 0, visible_from, hidden: None, fate: Fate::Queued });
    }

    /// Delivers messages until each one is done or is a dead letter.
    async fn work_off(&self, cloud: &Cloud, prefix: &str) -> Result<(), Error> {
        while self.messages().iter().any(|message| message.fate == Fate::Queued) {
            let received = self.receive();
            let (even, odd) = received.into_iter().partition(|(number, _)| number % 2 == 0);
            tokio::try_join!(self.deliver(even, cloud, prefix), self.deliver(odd, cloud, prefix))?;
            sleep(VISIBILITY_TIMEOUT / 4).await;
        }
        Ok(())
    }

    fn receive(&self) -> Vec<(usize, SqsMessage)> {
        let now = self.clock.now();
        let mut received = Vec::new();
        for (number, message) in self.messages().iter_mut().enumerate() {
            if message.fate != Fate::Queued || message.visible_from > now {
                continue;
            }
            if message.deliveries == MAX_RECEIVE_COUNT {
                message.fate = Fate::DeadLetter;
                continue;
            }
            message.deliveries += 1;
            message.visible_from = now + VISIBILITY_TIMEOUT;
            let mut record = SqsMessage::default();
            record.message_id = Some(number.to_string());
            record.receipt_handle = Some(number.to_string());
            record.event_source_arn = Some("arn:aws:sqs:us-east-1:123456789012:payments".to_owned());
            record.attributes.insert("ApproximateReceiveCount".to_owned(), message.deliveries.to_string());
            record.body = Some(message.body.clone());
            received.push((number, record));
        }
        received
    }

    /// Delivers one batch to its own environment, and deletes the messages that succeeded.
    async fn deliver(&self, batch: Vec<(usize, SqsMessage)>, cloud: &Cloud, prefix: &str) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let host = cloud.host();
        let locks = Locks::builder(host.client(), &cloud.table).key_prefix(prefix).build()?;
        let payments = Payments::new(host.client(), &cloud.data_table, prefix);
        let function = payment_queue(locks, payments, self.client(), Simulation::On);
        let (numbers, records): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let mut event = SqsEvent::default();
        event.records = records;
        let event = LambdaEvent::new(event, context("payment-queue", numbers[0], host.now() + TIMEOUT));
        // Lambda returns every message of a failed invocation to the queue.
        let Ok(answer) = function.oneshot(event).await else { return Ok(()) };
        let failed: Vec<_> = answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect();
        let mut messages = self.messages();
        for number in numbers {
            if !failed.contains(&number.to_string()) {
                messages[number].fate = Fate::Done;
            }
        }
        Ok(())
    }

    fn client(&self) -> aws_sdk_sqs::Client {
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("us-east-1"))
            .allow_no_auth()
            .http_client(self.clone());
        aws_sdk_sqs::Client::from_conf(config.build())
    }

    fn change_visibility(&self, request: &HttpRequest) -> Option<()> {
        let request: Value = serde_json::from_slice(request.body().bytes()?).ok()?;
        let number: usize = request["ReceiptHandle"].as_str()?.parse().ok()?;
        let seconds = request["VisibilityTimeout"].as_u64()?;
        let mut messages = self.messages();
        let message = messages.get_mut(number)?;
        message.visible_from = self.clock.now() + Duration::from_secs(seconds);
        message.hidden = Some(seconds);
        Some(())
    }

    fn print(&self) {
        let mut table = table(["message", "body", "deliveries", "hidden for", "in the end"]);
        for (number, message) in self.messages().iter().enumerate() {
            let body: Value = serde_json::from_str(&message.body).unwrap_or_default();
            let hidden = message.hidden.map(|seconds| format!("{seconds} s, while in progress")).unwrap_or_default();
            table.add_row([
                (number + 1).to_string(),
                body["id"].as_str().unwrap_or(&message.body).to_owned(),
                message.deliveries.to_string(),
                hidden,
                match message.fate {
                    Fate::Queued => "in the queue".to_owned(),
                    Fate::Done => "deleted".to_owned(),
                    Fate::DeadLetter => "dead letter".to_owned(),
                },
            ]);
        }
        println!("{table}");
    }
}

impl HttpClient for Queue {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Queue {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::ready(match self.change_visibility(&request) {
            Some(()) => {
                let ok = 200.try_into().map_err(|error| ConnectorError::other(Box::new(error), None));
                ok.map(|ok| HttpResponse::new(ok, SdkBody::from("{}")))
            }
            None => Err(ConnectorError::user("the queue supports only ChangeMessageVisibility".into())),
        })
    }
}
