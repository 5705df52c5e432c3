//! The consumer of SQS batches. The tests run on the embedded engine, or on the DynamoDB that `LOCK_TEST_ENDPOINT`
//! names: so time is real, and a test that needs another time sets a host's clock forward.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use futures_util::FutureExt;
use lambda_lock::embedded::Host;
use lambda_lock::{
    Backoff, Idempotency, Lock, Locks, Message, OnError, OnMissingKey, OnTimeout, SqsConsumer, StoredError, WithRun,
};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, invocation, invocation_with, keep_log, logged, millis};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Barrier, Notify};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:payments";
const FIFO_QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:payments.fifo";

/// Longer than anything here takes, so that a test that hangs fails.
const TOO_LONG: Duration = Duration::from_mins(1);

/// When everyone sees that the lease of a crashed invocation has ended.
const AFTER_THE_LEASE: Duration = Duration::from_secs(32);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a message asks for.
#[derive(Clone, Debug, Deserialize)]
struct Payment {
    id: String,
    #[serde(default)]
    amount: u32,
    /// What comes of it; nothing bad by default.
    #[serde(default)]
    then: Then,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
enum Then {
    #[default]
    Done,
    Declined,
    Panic,
    Endless,
}

/// The handler's error.
#[derive(Debug)]
struct Declined;

impl From<Declined> for Diagnostic {
    fn from(_: Declined) -> Self {
        Self { error_type: "Declined".to_owned(), error_message: "by the bank".to_owned() }
    }
}

type Consumer<T = ()> = SqsConsumer<Message<Payment>, Payment, T, Declined>;

/// The handler: does what the message asks for, and keeps the ids of the messages it was given.
#[derive(Clone, Debug, Default)]
struct Till(Arc<Mutex<Vec<String>>>);

impl Till {
    fn ran(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Without their order, for messages that run at the same time.
    fn ran_in_any_order(&self) -> Vec<String> {
        let mut ran = self.ran();
        ran.sort();
        ran
    }

    async fn pay(self, message: Message<Payment>) -> Result<(), Declined> {
        self.0.lock().unwrap().push(message.message_id().unwrap().to_owned());
        tokio::task::yield_now().await;
        match message.body.then {
            Then::Done => Ok(()),
            Then::Declined => Err(Declined),
            Then::Panic => panic!("in the handler"),
            Then::Endless => pending().await,
        }
    }
}

/// A message of a standard queue that pays this.
fn message(id: &str, then: &str) -> SqsMessage {
    message_with_body(id, &json!({ "id": format!("payment {id}"), "then": then }).to_string())
}

fn message_with_body(id: &str, body: &str) -> SqsMessage {
    let mut message = SqsMessage::default();
    message.message_id = Some(id.to_owned());
    message.receipt_handle = Some(format!("receipt of {id}"));
    message.body = Some(body.to_owned());
    message.event_source_arn = Some(QUEUE.to_owned());
    message
}

fn with_attributes<const N: usize>(mut message: SqsMessage, attributes: [(&str, &str); N]) -> SqsMessage {
    message.attributes.extend(attributes.map(|(name, value)| (name.to_owned(), value.to_owned())));
    message
}

/// A message of a FIFO queue.
fn ordered(id: &str, group: &str, then: &str) -> SqsMessage {
    let mut message = with_attributes(message(id, then), [("MessageGroupId", group)]);
    message.event_source_arn = Some(FIFO_QUEUE.to_owned());
    message
}

fn batch(messages: impl IntoIterator<Item = SqsMessage>) -> SqsEvent {
    let mut event = SqsEvent::default();
    event.records = messages.into_iter().collect();
    event
}

/// The names of the messages that go back.
async fn failures<S, H, T>(
    consumer: &SqsConsumer<H, Payment, T, Declined>,
    handler: S,
    event: LambdaEvent<SqsEvent>,
) -> Vec<String>
where
    SqsConsumer<H, Payment, T, Declined>: Layer<S>,
    <SqsConsumer<H, Payment, T, Declined> as Layer<S>>::Service:
        Service<LambdaEvent<SqsEvent>, Response = SqsBatchResponse, Error = Infallible>,
{
    let answer = timeout(TOO_LONG, consumer.layer(handler).oneshot(event)).await.expect("there is an answer");
    answer.unwrap().batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect()
}

/// Delivers a batch half a minute before the deadline, and returns the names of the messages that go back.
async fn deliver(
    consumer: &Consumer,
    till: &Till,
    host: &Host,
    messages: impl IntoIterator<Item = SqsMessage>,
) -> Vec<String> {
    deliver_in(consumer, till, invocation(host, batch(messages))).await
}

async fn deliver_in(consumer: &Consumer, till: &Till, event: LambdaEvent<SqsEvent>) -> Vec<String> {
    let till = till.clone();
    failures(consumer, service_fn(move |message| till.clone().pay(message)), event).await
}

/// A table, and a consumer of messages by their ids on a host of its own.
async fn environment() -> (World, Host, Consumer, Till) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    (world, host, consumer, Till::default())
}

/// Each payment once, by the id in the body.
fn by_payment(locks: &Locks) -> Idempotency<Message<Payment>, (), Declined> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |message: &Message<Payment>| Some(message.body.id.clone()))
}

/// Another environment works on the message.
async fn work_elsewhere(world: &World, message: &str, lease: Duration) -> Lock {
    world.default_locks().acquire(format!("orders#{message}")).lease(lease).await.unwrap()
}

// Outcomes

// behaviour 71
#[tokio::test]
async fn an_empty_batch_has_no_failures_and_sends_nothing() {
    let (_world, host, consumer, till) = environment().await;
    assert!(deliver(&consumer, &till, &host, []).await.is_empty());
    assert_eq!(host.requests(), 0);
}

// behaviour 71
#[tokio::test]
async fn a_batch_that_is_done_has_no_failures_and_costs_two_requests_for_each_message() {
    let (_world, host, consumer, till) = environment().await;
    assert!(deliver(&consumer, &till, &host, ["1", "2", "3"].map(|id| message(id, "Done"))).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    assert_eq!(host.requests(), 6);
}

// behaviour 71
#[tokio::test]
async fn only_the_messages_that_failed_go_back_in_the_order_of_the_batch() {
    let (_world, host, consumer, till) = environment().await;
    let thens = ["Declined", "Done", "Panic", "Done", "Declined"];
    let messages = thens.into_iter().zip('1'..).map(|(then, id)| message(&id.to_string(), then));
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "3", "5"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3", "4", "5"]);
}

// behaviour 71
#[tokio::test]
async fn the_answer_has_the_form_that_lambda_expects() {
    let (_world, host, consumer, till) = environment().await;
    let service = consumer.layer(service_fn(move |message| till.clone().pay(message)));
    let messages = [message("1", "Declined"), message("2", "Done")];
    let answer = service.oneshot(invocation(&host, batch(messages))).await.unwrap();
    let expected = json!({ "batchItemFailures": [{ "itemIdentifier": "1" }] });
    assert_eq!(serde_json::to_value(answer).unwrap(), expected);
}

// behaviours 60, 71
#[tokio::test]
async fn a_message_that_was_done_is_not_run_when_it_comes_again_and_costs_one_request() {
    let (world, host, consumer, till) = environment().await;
    let messages = || [message("1", "Done"), message("2", "Declined")];
    assert_eq!(deliver(&consumer, &till, &host, messages()).await, ["2"]);
    let elsewhere = world.host().build();
    let consumer = SqsConsumer::by_message_id(world.locks(&elsewhere).build().unwrap());
    assert_eq!(deliver(&consumer, &till, &elsewhere, messages()).await, ["2"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "2"]);
    assert_eq!(elsewhere.requests(), 1 + 2);
}

// behaviour 64
#[tokio::test]
async fn a_message_that_failed_runs_again_when_it_comes_again() {
    let (_world, host, consumer, till) = environment().await;
    for then in ["Declined", "Panic"] {
        assert_eq!(deliver(&consumer, &till, &host, [message("1", then)]).await, ["1"]);
    }
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
    assert_eq!(till.ran().len(), 3);
}

// behaviour 64
#[tokio::test]
async fn a_message_whose_error_is_stored_goes_back_each_time_without_a_run() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = by_payment(&locks).on_error(|Declined| OnError::Store(StoredError::new("Declined", "for good")));
    let consumer = SqsConsumer::new(once);
    for _ in 0..2 {
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Declined")]).await, ["1"]);
    }
    assert_eq!(till.ran(), ["1"]);
}

// behaviour 71
#[tokio::test]
async fn a_body_that_does_not_parse_is_that_messages_failure_alone() {
    let (_world, host, consumer, till) = environment().await;
    let mut without_body = message("4", "Done");
    without_body.body = None;
    let messages = [
        message_with_body("1", "{\"id\": "),
        message("2", "Done"),
        message_with_body("3", "{\"id\": 3}"),
        without_body,
        message_with_body("5", ""),
        message("6", "Done"),
    ];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "3", "4", "5"]);
    assert_eq!(till.ran_in_any_order(), ["2", "6"]);
    assert_eq!(host.requests(), 4);
}

// behaviour 71
#[tokio::test]
async fn bodies_that_are_not_json_are_parsed_as_the_user_says() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer: Consumer = SqsConsumer::with_parser(by_payment(&locks), |text| match text.strip_prefix("pay ") {
        Some(id) => Ok(Payment { id: id.to_owned(), amount: 0, then: Then::Done }),
        None => Err("it is no payment"),
    });
    let messages = [message_with_body("1", "pay 17"), message_with_body("2", "refund 17")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2"]);
    assert!(world.row("orders#17").await.is_some());
}

// behaviour 71
#[tokio::test]
async fn a_panic_in_the_parser_or_in_the_key_is_that_messages_failure_alone() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = Idempotency::new(locks, OnMissingKey::Reject, |message: &Message<Payment>| {
        assert!(message.body.id != "payment 2", "in the key");
        Some(message.body.id.clone())
    });
    let once = once.validate(|message| {
        assert!(message.body.id != "payment 3", "in the validation");
        message.body.amount
    });
    let consumer: Consumer = SqsConsumer::with_parser(once, |text| {
        assert!(text != "panic", "in the parser");
        serde_json::from_str(text)
    });
    let messages = [message_with_body("1", "panic"), message("2", "Done"), message("3", "Done"), message("4", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2", "3"]);
    assert_eq!(till.ran(), ["4"]);
}

// behaviour 71
#[tokio::test]
async fn a_panic_in_the_call_of_the_handler_or_in_what_is_set_for_errors_is_that_messages_failure_alone() {
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = by_payment(&locks).on_error(|Declined| panic!("in the policy"));
    let consumer: Consumer = SqsConsumer::new(once);
    let handler = service_fn(|message: Message<Payment>| match message.body.then {
        Then::Panic => panic!("in the call"),
        Then::Declined => ready(Err(Declined)),
        _ => ready(Ok(())),
    });
    let messages = [message("1", "Panic"), message("2", "Declined"), message("3", "Done")];
    assert_eq!(failures(&consumer, handler, invocation(&host, batch(messages))).await, ["1", "2"]);
}

/// A handler that is never ready.
#[derive(Clone, Debug)]
struct Closed;

impl Service<Message<Payment>> for Closed {
    type Response = ();
    type Error = Declined;
    type Future = Ready<Result<(), Declined>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Declined>> {
        Poll::Ready(Err(Declined))
    }

    fn call(&mut self, _: Message<Payment>) -> Self::Future {
        panic!("it was called, and was not ready")
    }
}

// behaviour 71
#[tokio::test]
async fn a_handler_that_is_not_ready_fails_for_the_message_and_another_one_may_do_it_at_once() {
    let (_world, host, consumer, till) = environment().await;
    let event = invocation(&host, batch([message("1", "Done")]));
    assert_eq!(failures(&consumer, Closed, event).await, ["1"]);
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

// behaviour 71
#[tokio::test]
async fn a_message_without_an_id_is_answered_by_an_empty_name_and_the_others_are_done() {
    let (_world, host, consumer, till) = environment().await;
    let mut nameless = message("1", "Done");
    nameless.message_id = None;
    let messages = [message("0", "Done"), nameless, message("2", "Declined"), message("3", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["", "2"]);
    assert_eq!(till.ran_in_any_order(), ["0", "2", "3"]);
}

// behaviour 71
#[tokio::test]
async fn without_a_table_every_message_goes_back() {
    let world = World::without_table();
    let host = world.host().build();
    let consumer = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    let till = Till::default();
    let messages = ["1", "2"].map(|id| message(id, "Done"));
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2"]);
    assert!(till.ran().is_empty());
}

// behaviours 22, 69
#[tokio::test]
async fn with_locking_switched_off_every_message_runs_and_nothing_is_sent() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_message_id(world.locks(&host).enabled(false).build().unwrap());
    for _ in 0..2 {
        let messages = [message("1", "Done"), message("2", "Declined")];
        assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2"]);
    }
    assert_eq!(till.ran_in_any_order(), ["1", "1", "2", "2"]);
    assert_eq!(host.requests(), 0);
}

// behaviours 47, 71
#[tokio::test]
async fn settings_out_of_their_bounds_send_every_message_back_and_nothing_else() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = SqsConsumer::new(by_payment(&locks).window(Duration::ZERO));
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done")]).await, ["1"]);
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

// The handler

// behaviour 71
#[tokio::test]
async fn the_handler_gets_the_body_and_what_sqs_says_about_the_message() {
    let (_world, host, consumer, _) = environment().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let seen = Arc::clone(&seen);
        move |message: Message<Payment>| {
            seen.lock().unwrap().push(message);
            ready(Ok::<_, Declined>(()))
        }
    });
    let attributes =
        [("MessageGroupId", "group"), ("MessageDeduplicationId", "deduplication"), ("SentTimestamp", "17")];
    let message = with_attributes(message("1", "Done"), attributes);
    assert!(failures(&consumer, handler, invocation(&host, batch([message.clone()]))).await.is_empty());
    let seen = seen.lock().unwrap();
    let [got] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(got.body.id, "payment 1");
    assert_eq!(
        (got.message_id(), got.group_id(), got.deduplication_id()),
        (Some("1"), Some("group"), Some("deduplication"))
    );
    let mut without_body = message;
    without_body.body = None;
    assert_eq!(got.record, without_body);
}

// behaviours 71, 78
#[tokio::test]
async fn a_handler_that_asks_for_the_run_gets_its_fence() {
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer: SqsConsumer<WithRun<Message<Payment>>, Payment, u64, Declined> = SqsConsumer::by_message_id(locks);
    let handler = service_fn(async |WithRun { input, run, .. }: WithRun<Message<Payment>>| {
        assert_eq!(input.message_id(), Some("1"));
        Ok::<_, Declined>(run.lock().fence())
    });
    let event = invocation(&host, batch([message("1", "Done")]));
    assert!(failures(&consumer, handler, event).await.is_empty());
    let row = world.row("orders#1").await.unwrap();
    assert_eq!(row["data"].as_s().unwrap(), row["fence"].as_n().unwrap(), "its result was its fence");
    assert_eq!(row["status"].as_s().unwrap(), "COMPLETED");
}

// behaviour 71
#[tokio::test]
async fn what_goes_back_is_logged_with_its_id_and_never_with_its_body() {
    keep_log();
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    let id = |what: &str| format!("{what} of {}", world.table);
    let secret = format!("secret-of-{}", world.table);
    let body = |then: &str| json!({ "id": secret, "then": then }).to_string();
    let messages = [
        message_with_body(&id("unreadable"), &format!("{{\"id\": \"{secret}")),
        message_with_body(&id("mistyped"), &json!({ "id": "1", "amount": secret }).to_string()),
        message_with_body(&id("unknown"), &json!({ "id": "1", "then": secret }).to_string()),
        message_with_body(&id("declined"), &body("Declined")),
        message_with_body(&id("panicking"), &body("Panic")),
        message_with_body(&id("done"), &body("Done")),
    ];
    assert_eq!(deliver(&consumer, &till, &host, messages).await.len(), 5);
    for what in ["unreadable", "mistyped", "unknown", "declined", "panicking"] {
        let lines: Vec<_> = logged(&id(what)).into_iter().filter(|line| line.contains("goes back")).collect();
        assert!(lines.len() == 1 && lines[0].contains("ERROR"), "{lines:?}");
    }
    assert!(logged(&id("declined")).iter().any(|line| line.contains("by the bank")));
    assert_eq!(logged(&secret), Vec::<String>::new());
}

// The key

// behaviour 71
#[tokio::test]
async fn by_message_id_a_second_sending_is_another_message() {
    let (world, host, consumer, till) = environment().await;
    let body = json!({ "id": "17" }).to_string();
    let messages = ["1", "2"].map(|id| message_with_body(id, &body));
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
    assert!(world.row("orders#1").await.is_some());
}

// behaviour 71
#[tokio::test]
async fn by_deduplication_id_a_second_sending_is_the_same_message_and_one_without_goes_back() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_deduplication_id(world.locks(&host).build().unwrap());
    let deduplicated =
        |id: &str| with_attributes(ordered(id, "group", "Done"), [("MessageDeduplicationId", "the same")]);
    assert!(deliver(&consumer, &till, &host, [deduplicated("1")]).await.is_empty());
    let failed = deliver(&consumer, &till, &host, [deduplicated("2"), ordered("3", "other group", "Done")]).await;
    assert_eq!(failed, ["3"]);
    assert_eq!(till.ran(), ["1"]);
}

// behaviours 61, 71
#[tokio::test]
async fn by_a_key_from_the_body_a_second_sending_is_the_same_payment() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    let body = json!({ "id": "17" }).to_string();
    for id in ["1", "2"] {
        assert!(deliver(&consumer, &till, &host, [message_with_body(id, &body)]).await.is_empty());
    }
    assert_eq!(till.ran(), ["1"]);
    assert!(world.row("orders#17").await.is_some());
}

// behaviours 61, 71
#[tokio::test]
async fn a_message_without_a_key_goes_back_alone_or_runs_each_time_where_that_is_wanted() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let keyed = |on_missing_key| {
        let key = |message: &Message<Payment>| Some(message.body.id.clone()).filter(|id| id != "none");
        SqsConsumer::new(Idempotency::new(locks.clone(), on_missing_key, key))
    };
    let keyless = |id| message_with_body(id, &json!({ "id": "none" }).to_string());
    let messages = || [keyless("1"), message("2", "Done"), keyless("3")];
    assert_eq!(deliver(&keyed(OnMissingKey::Reject), &till, &host, messages()).await, ["1", "3"]);
    assert_eq!(till.ran(), ["2"]);
    assert!(deliver(&keyed(OnMissingKey::RunUnprotected), &till, &host, messages()).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    assert_eq!(host.requests(), 3);
}

// behaviours 63, 71
#[tokio::test]
async fn a_message_with_the_key_of_another_and_other_fields_goes_back_alone() {
    let (world, host, _, till) = environment().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).validate(|message| message.body.amount);
    let consumer = SqsConsumer::new(once);
    let paying = |id, amount| message_with_body(id, &json!({ "id": "17", "amount": amount }).to_string());
    assert!(deliver(&consumer, &till, &host, [paying("1", 5)]).await.is_empty());
    let messages = [paying("2", 6), paying("3", 5), message("4", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2"]);
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
}

// behaviours 63, 73
#[tokio::test]
async fn two_messages_of_a_batch_with_one_key_and_other_fields_are_no_twins() {
    let (world, host, _, till) = environment().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).validate(|message| message.body.amount);
    let consumer = SqsConsumer::new(once).concurrency(1);
    let paying = |id, amount| message_with_body(id, &json!({ "id": "17", "amount": amount }).to_string());
    let messages = [paying("1", 5), paying("2", 6), paying("3", 5)];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2"]);
    assert_eq!(till.ran(), ["1"]);
}

// Twins

// behaviour 73
#[tokio::test]
async fn a_message_that_is_in_the_batch_twice_runs_once_and_both_are_done() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    let twin = |id| message_with_body(id, &json!({ "id": "17" }).to_string());
    let messages = [twin("1"), message("2", "Done"), twin("3"), twin("4")];
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
    assert_eq!(host.requests(), 4);
}

// behaviour 73
#[tokio::test]
async fn a_message_that_is_in_the_batch_twice_and_fails_goes_back_twice() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    let twin = |id| message_with_body(id, &json!({ "id": "17", "then": "Declined" }).to_string());
    let messages = [message("0", "Done"), twin("1"), message("2", "Done"), twin("3")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "3"]);
    assert_eq!(till.ran_in_any_order(), ["0", "1", "2"]);
}

// behaviours 72, 73
#[tokio::test]
async fn twins_in_a_group_run_once_at_the_place_of_the_first() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_deduplication_id(world.locks(&host).build().unwrap());
    let of = |id, deduplication, then| {
        with_attributes(ordered(id, "group", then), [("MessageDeduplicationId", deduplication)])
    };
    let messages = [of("1", "x", "Done"), of("2", "y", "Done"), of("3", "x", "Done"), of("4", "z", "Done")];
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran(), ["1", "2", "4"]);
    let messages = [of("5", "v", "Declined"), of("6", "w", "Done"), of("7", "v", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["5", "6", "7"]);
    assert_eq!(till.ran(), ["1", "2", "4", "5"]);
}

// behaviours 72, 73
#[tokio::test]
async fn twins_in_two_groups_never_run_twice_and_neither_is_lost() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    let of = |id, group| {
        let mut message = ordered(id, group, "Done");
        message.body = Some(json!({ "id": "17" }).to_string());
        message
    };
    let failed = deliver(&consumer, &till, &host, [of("1", "a"), of("2", "b")]).await;
    assert_eq!(till.ran().len(), 1);
    assert!(!failed.contains(&till.ran()[0]), "{failed:?}");
    assert!(deliver(&consumer, &till, &host, [of("1", "a"), of("2", "b")]).await.is_empty());
    assert_eq!(till.ran().len(), 1);
}

// In progress elsewhere

// behaviour 73
#[tokio::test]
async fn a_message_that_is_in_progress_elsewhere_goes_back_and_is_done_when_it_comes_again() {
    let (world, host, consumer, till) = environment().await;
    let other = work_elsewhere(&world, "1", Duration::from_secs(30)).await;
    let messages = || [message("1", "Done"), message("2", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages()).await, ["1"]);
    assert_eq!(host.requests(), 1 + 2);
    other.release().await.unwrap();
    assert!(deliver(&consumer, &till, &host, messages()).await.is_empty());
    assert_eq!(till.ran(), ["2", "1"]);
}

// behaviours 66, 73
#[tokio::test]
async fn a_message_that_is_in_progress_elsewhere_can_be_waited_for() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = SqsConsumer::new(by_payment(&locks).wait(Backoff::default().base(ms(2)).cap(ms(20))));
    let other = work_elsewhere(&world, "payment 1", Duration::from_secs(30)).await;
    let messages = [message("1", "Done")];
    let (failed, ()) = tokio::join!(deliver(&consumer, &till, &host, messages), async {
        while host.requests() < 2 {
            sleep(ms(1)).await;
        }
        other.release().await.unwrap();
    });
    assert!(failed.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

// behaviours 65, 71
#[tokio::test]
async fn after_a_crash_what_was_done_is_not_run_and_what_was_in_progress_goes_back_until_its_lease_has_ended() {
    let (world, host, consumer, till) = environment().await;
    let hangs = Arc::new(Notify::new());
    let handler = service_fn({
        let (till, hangs, host) = (till.clone(), Arc::clone(&hangs), host.clone());
        move |message: Message<Payment>| {
            let (till, hangs, host) = (till.clone(), Arc::clone(&hangs), host.clone());
            async move {
                if message.body.then == Then::Endless {
                    host.crash();
                    hangs.notify_one();
                }
                till.pay(message).await
            }
        }
    });
    let consumer_of_one = consumer.clone().concurrency(1);
    let event = invocation(&host, batch([message("1", "Done"), message("2", "Endless"), message("3", "Done")]));
    tokio::select! {
        failed = failures(&consumer_of_one, handler, event) => panic!("{failed:?}"),
        () = hangs.notified() => {}
    }
    let again = || ["1", "2", "3"].map(|id| message(id, "Done"));
    for (later, failed) in [(Duration::ZERO, vec!["2"]), (AFTER_THE_LEASE, vec![])] {
        let host = world.host().clock_ahead(later).build();
        let consumer = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
        assert_eq!(deliver(&consumer, &till, &host, again()).await, failed);
    }
    assert_eq!(till.ran(), ["1", "2", "3", "2"]);
}

// behaviours 65, 71
#[tokio::test]
async fn a_message_that_must_not_run_twice_goes_back_each_time_after_it_panicked() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = SqsConsumer::new(by_payment(&locks).on_timeout(OnTimeout::Reject));
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Panic")]).await, ["1"]);
    for _ in 0..2 {
        host.advance_clock(AFTER_THE_LEASE);
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done")]).await, ["1"]);
    }
    assert_eq!(till.ran(), ["1"]);
}

// FIFO queues

// behaviour 72
#[tokio::test]
async fn the_messages_of_a_group_run_one_after_the_other_in_their_order() {
    let (_world, host, consumer, _) = environment().await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let log = Arc::clone(&log);
        move |message: Message<Payment>| {
            let log = Arc::clone(&log);
            async move {
                let id = message.message_id().unwrap().to_owned();
                log.lock().unwrap().push(format!("{id} begins"));
                // The earlier ones take longer.
                sleep(ms(30 / id.parse::<u64>().unwrap())).await;
                log.lock().unwrap().push(format!("{id} ends"));
                Ok::<_, Declined>(())
            }
        }
    });
    let messages = ["1", "2", "3"].map(|id| ordered(id, "group", "Done"));
    assert!(failures(&consumer, handler, invocation(&host, batch(messages))).await.is_empty());
    assert_eq!(*log.lock().unwrap(), ["1 begins", "1 ends", "2 begins", "2 ends", "3 begins", "3 ends"]);
}

// behaviour 72
#[tokio::test]
async fn after_a_failure_the_rest_of_the_group_goes_back_and_other_groups_go_on() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment().await;
        let messages = || {
            [
                ordered("a1", "a", "Done"),
                ordered("b1", "b", "Done"),
                ordered("a2", "a", failing),
                ordered("b2", "b", "Done"),
                ordered("a3", "a", "Done"),
                ordered("a4", "a", "Done"),
                ordered("b3", "b", "Done"),
            ]
        };
        assert_eq!(deliver(&consumer, &till, &host, messages()).await, ["a2", "a3", "a4"]);
        assert_eq!(till.ran_in_any_order(), ["a1", "a2", "b1", "b2", "b3"]);
        // And when the rest comes again.
        let rest = ["a2", "a3", "a4"].map(|id| ordered(id, "a", "Done"));
        assert!(deliver(&consumer, &till, &host, rest).await.is_empty());
        assert_eq!(till.ran()[5..], ["a2", "a3", "a4"]);
    }
}

// behaviour 72
#[tokio::test]
async fn a_message_that_cannot_be_read_sends_the_rest_of_its_group_back_too() {
    let (_world, host, consumer, till) = environment().await;
    let mut unreadable = ordered("2", "a", "Done");
    unreadable.body = Some("{".to_owned());
    let mut nameless = ordered("5", "b", "Done");
    nameless.message_id = None;
    let messages = [
        ordered("1", "a", "Done"),
        unreadable,
        ordered("3", "a", "Done"),
        ordered("4", "b", "Done"),
        nameless,
        ordered("6", "b", "Done"),
    ];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2", "3", "", "6"]);
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
}

// behaviours 72, 73
#[tokio::test]
async fn a_message_that_is_in_progress_elsewhere_stops_its_group() {
    let (world, host, consumer, till) = environment().await;
    let _other = work_elsewhere(&world, "2", Duration::from_secs(30)).await;
    let messages =
        [ordered("1", "a", "Done"), ordered("2", "a", "Done"), ordered("3", "a", "Done"), ordered("4", "b", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2", "3"]);
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
}

// behaviours 60, 72
#[tokio::test]
async fn a_message_that_was_done_before_does_not_stop_its_group() {
    let (_world, host, consumer, till) = environment().await;
    assert!(deliver(&consumer, &till, &host, [ordered("1", "a", "Done")]).await.is_empty());
    let messages = ["1", "2"].map(|id| ordered(id, "a", "Done"));
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran(), ["1", "2"]);
}

/// A handler whose messages all wait for each other.
async fn run_at_the_same_time(messages: Vec<SqsMessage>) -> bool {
    let (_world, host, consumer, _) = environment().await;
    let all = Arc::new(Barrier::new(messages.len()));
    let handler = service_fn(move |_: Message<Payment>| {
        let all = Arc::clone(&all);
        async move { timeout(ms(1_500), all.wait()).await.map_or(Err(Declined), |_| Ok(())) }
    });
    failures(&consumer, handler, invocation(&host, batch(messages))).await.is_empty()
}

// behaviours 72, 73
#[tokio::test]
async fn messages_of_several_groups_run_at_the_same_time_and_those_of_one_do_not() {
    assert!(run_at_the_same_time(vec![ordered("1", "a", "Done"), ordered("2", "b", "Done")]).await);
    assert!(!run_at_the_same_time(vec![ordered("1", "a", "Done"), ordered("2", "a", "Done")]).await);
}

// behaviour 72
#[tokio::test]
async fn a_group_of_one_queue_is_not_that_of_another() {
    let (_world, host, consumer, till) = environment().await;
    let of_another_queue = |id| {
        let mut message = ordered(id, "a", "Done");
        message.event_source_arn = Some("arn:aws:sqs:eu-west-1:123456789012:refunds.fifo".to_owned());
        message
    };
    let messages = [ordered("1", "a", "Declined"), of_another_queue("2"), ordered("3", "a", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "3"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
    assert!(run_at_the_same_time(vec![ordered("1", "a", "Done"), of_another_queue("2")]).await);
}

// behaviour 72
#[tokio::test]
async fn in_a_standard_queue_the_messages_of_a_group_have_no_order() {
    let grouped = |id, then| with_attributes(message(id, then), [("MessageGroupId", "tenant")]);
    let (_world, host, consumer, till) = environment().await;
    let messages = [grouped("1", "Declined"), grouped("2", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1"]);
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
    assert!(run_at_the_same_time(vec![grouped("1", "Done"), grouped("2", "Done")]).await);
}

// Concurrency

/// How many of these messages were worked on at the same time, at the most.
async fn most_at_once(concurrency: impl Fn(Consumer) -> Consumer, messages: Vec<SqsMessage>) -> u32 {
    let (_world, host, consumer, _) = environment().await;
    let (begun, ended, most) = (Counter::default(), Counter::default(), Arc::new(AtomicU32::new(0)));
    let handler = service_fn({
        let most = Arc::clone(&most);
        move |_: Message<Payment>| {
            let (begun, ended, most) = (begun.clone(), ended.clone(), Arc::clone(&most));
            async move {
                most.fetch_max(begun.count() - ended.get(), Ordering::Relaxed);
                sleep(ms(100)).await;
                ended.count();
                Ok::<_, Declined>(())
            }
        }
    });
    assert!(failures(&concurrency(consumer), handler, invocation(&host, batch(messages))).await.is_empty());
    most.load(Ordering::Relaxed)
}

// behaviour 73
#[tokio::test]
async fn ten_messages_are_worked_on_at_the_same_time_or_as_many_as_are_set_but_one_at_least() {
    let messages = |count: u32| (0..count).map(|id| message(&id.to_string(), "Done")).collect::<Vec<_>>();
    assert_eq!(most_at_once(|consumer| consumer, messages(25)).await, 10);
    assert_eq!(most_at_once(|consumer| consumer.concurrency(3), messages(7)).await, 3);
    assert_eq!(most_at_once(|consumer| consumer.concurrency(1), messages(3)).await, 1);
    assert_eq!(most_at_once(|consumer| consumer.concurrency(0), messages(3)).await, 1);
    assert_eq!(most_at_once(|consumer| consumer.concurrency(usize::MAX), messages(30)).await, 30);
}

// behaviours 72, 73
#[tokio::test]
async fn of_a_fifo_queue_as_many_groups_are_worked_on_at_the_same_time() {
    let messages = (0..8).map(|id| ordered(&id.to_string(), &(id / 2).to_string(), "Done")).collect();
    assert_eq!(most_at_once(|consumer| consumer.concurrency(3), messages).await, 3);
}

// behaviours 71, 73
#[tokio::test]
async fn the_largest_batch_that_lambda_delivers_is_worked_through() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    // Ten thousand messages, of a thousand payments.
    let messages = (0..10_000).map(|id| {
        let then = if id % 1_000 == 7 { "Declined" } else { "Done" };
        message_with_body(&id.to_string(), &json!({ "id": (id % 1_000).to_string(), "then": then }).to_string())
    });
    let failed = deliver(&consumer, &till, &host, messages).await;
    assert_eq!(failed, (0..10).map(|thousand| (thousand * 1_000 + 7).to_string()).collect::<Vec<_>>());
    assert_eq!(till.ran().len(), 1_000);
    assert_eq!(host.requests(), 2_000);
}

// The deadline

/// The end of the lease of a message that is done, without the clock skew.
async fn lease_end(world: &World, id: &str) -> u64 {
    let row = world.row(&format!("orders#{id}")).await.unwrap();
    row["in_progress_expiration"].as_n().unwrap().parse::<u64>().unwrap() - 1_000
}

// behaviours 3, 74
#[tokio::test]
async fn the_leases_of_a_batch_end_a_second_before_the_deadline_or_a_quarter_of_the_time_left() {
    let (world, host, consumer, till) = environment().await;
    let consumer = consumer.min_remaining_time(Duration::ZERO);
    let event = invocation(&host, batch([message("1", "Done")]));
    let deadline = event.context.deadline;
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    assert_eq!(lease_end(&world, "1").await, deadline - 1_000);
    let event = invocation_with(&host, batch([message("2", "Done")]), ms(2_000));
    let deadline = event.context.deadline;
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    let left = deadline - lease_end(&world, "2").await;
    assert!((300..=500).contains(&left), "{left}");
}

// behaviour 74
#[tokio::test]
async fn a_message_that_is_not_done_by_the_end_of_its_lease_is_cancelled_and_the_answer_comes_before_the_deadline() {
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.min_remaining_time(ms(100));
    let messages = [message("1", "Done"), message("2", "Endless"), message("3", "Done")];
    let event = invocation_with(&host, batch(messages), ms(1_600));
    let deadline = event.context.deadline;
    assert_eq!(deliver_in(&consumer, &till, event).await, ["2"]);
    assert!(millis(host.now()) < deadline);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    // It was given up, and runs again at once.
    assert!(deliver(&consumer, &till, &host, [message("2", "Done")]).await.is_empty());
}

/// A handler during which the clock goes on, alone: the environment was frozen.
async fn deliver_while_time_passes(
    consumer: &Consumer,
    till: &Till,
    host: &Host,
    messages: Vec<SqsMessage>,
    by: Duration,
) -> Vec<String> {
    let event = invocation(host, batch(messages));
    let (till, host) = (till.clone(), host.clone());
    let handler = service_fn(move |message| {
        host.advance_clock(by);
        till.clone().pay(message)
    });
    failures(consumer, handler, event).await
}

// behaviour 74
#[tokio::test]
async fn when_the_deadline_is_near_messages_that_were_not_started_go_back_without_a_run_or_a_request() {
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.concurrency(1);
    let messages = ["1", "2", "3", "4"].map(|id| message(id, "Done")).to_vec();
    // The leases end after 29 s; after the second message there is less than a second left of that.
    let failed = deliver_while_time_passes(&consumer, &till, &host, messages, ms(14_200)).await;
    assert_eq!(failed, ["3", "4"]);
    assert_eq!(till.ran(), ["1", "2"]);
    assert_eq!(host.requests(), 4);
}

// behaviours 72, 74
#[tokio::test]
async fn when_the_deadline_is_near_the_rest_of_a_group_goes_back() {
    let (_world, host, consumer, till) = environment().await;
    let messages = ["1", "2", "3", "4"].map(|id| ordered(id, "group", "Done")).to_vec();
    let failed = deliver_while_time_passes(&consumer, &till, &host, messages, ms(14_200)).await;
    assert_eq!(failed, ["3", "4"]);
    assert_eq!(till.ran(), ["1", "2"]);
}

// behaviour 74
#[tokio::test]
async fn how_much_time_a_message_needs_to_be_started_can_be_set() {
    for (min_remaining_time, failed) in [(ms(20_000), vec!["2", "3"]), (ms(500), vec![])] {
        let (_world, host, consumer, till) = environment().await;
        let consumer = consumer.concurrency(1).min_remaining_time(min_remaining_time);
        let messages = ["1", "2", "3"].map(|id| message(id, "Done")).to_vec();
        assert_eq!(deliver_while_time_passes(&consumer, &till, &host, messages, ms(9_400)).await, failed);
    }
}

// behaviour 74
#[tokio::test]
async fn past_the_deadline_everything_goes_back_and_nothing_is_sent() {
    let (_world, host, consumer, till) = environment().await;
    let event = invocation(&host, batch([message("1", "Done"), ordered("2", "a", "Done")]));
    host.advance_clock(Duration::from_secs(31));
    assert_eq!(deliver_in(&consumer, &till, event).await, ["1", "2"]);
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

// behaviours 27, 74
#[tokio::test]
async fn without_a_deadline_messages_have_the_default_lease() {
    let (world, host, consumer, till) = environment().await;
    let mut event = invocation(&host, batch([message("1", "Done")]));
    event.context.deadline = 0;
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    let row = world.row("orders#1").await.unwrap();
    let acquired_at: u64 = row["acquired_at"].as_n().unwrap().parse().unwrap();
    assert_eq!(lease_end(&world, "1").await - acquired_at, 30_000);
}

// behaviours 74, 76
#[tokio::test]
async fn a_table_that_falls_silent_does_not_keep_the_answer_past_the_deadline() {
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.min_remaining_time(ms(100));
    let event = invocation_with(&host, batch([message("1", "Done"), message("2", "Endless")]), ms(1_200));
    let deadline = event.context.deadline;
    let handler = service_fn({
        let host = host.clone();
        move |message: Message<Payment>| {
            if message.body.then == Then::Endless {
                host.crash();
            }
            till.clone().pay(message)
        }
    });
    let failed = failures(&consumer.concurrency(1), handler, event).await;
    assert_eq!(failed, ["2"]);
    assert!(millis(host.now()) < deadline, "{} ms late", millis(host.now()) - deadline);
}

// Hiding what is in progress elsewhere

/// An SQS that keeps what is sent to it.
#[derive(Clone, Debug, Default)]
struct Queues {
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    does: Does,
}

#[derive(Clone, Copy, Debug, Default)]
enum Does {
    #[default]
    Answer,
    Refuse,
    Fail,
    FallSilent,
}

impl Queues {
    fn that(does: Does) -> Self {
        Self { does, ..Self::default() }
    }

    fn client(&self) -> aws_sdk_sqs::Client {
        let retries = RetryConfig::standard().with_initial_backoff(ms(1));
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("eu-west-1"))
            .allow_no_auth()
            .retry_config(retries)
            .http_client(self.clone());
        aws_sdk_sqs::Client::from_conf(config.build())
    }

    fn requests(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        assert!(requests.iter().all(|(operation, _)| operation == "AmazonSQS.ChangeMessageVisibility"), "{requests:?}");
        requests.iter().map(|(_, request)| request.clone()).collect()
    }
}

impl HttpClient for Queues {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Queues {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let operation = request.headers().get("x-amz-target").unwrap().to_owned();
        let body = serde_json::from_slice(request.body().bytes().unwrap()).unwrap();
        self.requests.lock().unwrap().push((operation, body));
        let (status, body) = match self.does {
            Does::Answer => (200, "{}"),
            Does::Refuse => (403, r#"{"__type": "AccessDeniedException", "message": "no"}"#),
            Does::Fail => (500, "{}"),
            Does::FallSilent => return HttpConnectorFuture::new(pending()),
        };
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status.try_into().unwrap(), SdkBody::from(body))))
    }
}

/// A consumer that hides, and a message `1` that is in progress elsewhere for this long.
async fn hiding(queues: &Queues, lease: Duration) -> (World, Host, Consumer, Till, Lock) {
    let (world, host, consumer, till) = environment().await;
    let other = work_elsewhere(&world, "1", lease).await;
    (world, host, consumer.hide_while_in_progress(queues.client()), till, other)
}

// behaviour 84
#[tokio::test]
async fn a_message_that_is_in_progress_elsewhere_is_hidden_until_that_lease_ends() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done"), message("2", "Done")]).await, ["1"]);
    assert_eq!(till.ran(), ["2"]);
    let requests = queues.requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(request["QueueUrl"], "https://sqs.eu-west-1.amazonaws.com/123456789012/payments");
    assert_eq!(request["ReceiptHandle"], "receipt of 1");
    // With the clock skew 41 s, less what has passed, up to whole seconds.
    let seconds = request["VisibilityTimeout"].as_i64().unwrap();
    assert!((39..=41).contains(&seconds), "{seconds}");
}

// behaviour 84
#[tokio::test]
async fn a_hidden_message_comes_back_when_the_lease_has_ended_and_not_a_moment_before() {
    // Leases of part of a second, too.
    for lease in [ms(10_000), ms(10_250), ms(10_999)] {
        let queues = Queues::default();
        let (_world, host, consumer, till, other) = hiding(&queues, lease).await;
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done")]).await, ["1"]);
        let hidden = Duration::from_secs(queues.requests()[0]["VisibilityTimeout"].as_u64().unwrap());
        let end = other.expires_at() + Duration::from_secs(1);
        let back = host.now() + hidden;
        assert!(back >= end && back < end + ms(1_100), "{:?}", back.duration_since(end));
    }
}

// behaviour 84
#[tokio::test]
async fn a_message_is_hidden_for_twelve_hours_at_the_most() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_hours(24)).await;
    deliver(&consumer, &till, &host, [message("1", "Done")]).await;
    assert_eq!(queues.requests()[0]["VisibilityTimeout"], 43_200);
}

// behaviour 84
#[tokio::test]
async fn the_queue_is_found_by_its_arn_in_every_partition() {
    for (arn, url) in [
        (FIFO_QUEUE, "https://sqs.eu-west-1.amazonaws.com/123456789012/payments.fifo"),
        ("arn:aws-cn:sqs:cn-north-1:1:q", "https://sqs.cn-north-1.amazonaws.com.cn/1/q"),
        ("arn:aws-us-gov:sqs:us-gov-west-1:1:q", "https://sqs.us-gov-west-1.amazonaws.com/1/q"),
    ] {
        let queues = Queues::default();
        let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
        let mut message = message("1", "Done");
        message.event_source_arn = Some(arn.to_owned());
        assert_eq!(deliver(&consumer, &till, &host, [message]).await, ["1"]);
        assert_eq!(queues.requests()[0]["QueueUrl"], url);
    }
}

// behaviour 84
#[tokio::test]
async fn a_message_whose_queue_or_receipt_is_not_known_is_not_hidden() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    for arn in [None, Some(""), Some("arn:aws:sqs:eu-west-1"), Some("payments")] {
        let mut message = message("1", "Done");
        message.event_source_arn = arn.map(str::to_owned);
        assert_eq!(deliver(&consumer, &till, &host, [message]).await, ["1"]);
    }
    let mut message = message("1", "Done");
    message.receipt_handle = None;
    assert_eq!(deliver(&consumer, &till, &host, [message]).await, ["1"]);
    assert!(queues.requests().is_empty());
}

// behaviour 84
#[tokio::test]
async fn a_message_that_cannot_be_hidden_goes_back_as_it_would_without() {
    for does in [Does::Refuse, Does::Fail, Does::FallSilent] {
        let queues = Queues::that(does);
        let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done"), message("2", "Done")]).await, ["1"]);
        assert_eq!(till.ran(), ["2"]);
        assert!(!queues.requests().is_empty());
    }
}

// behaviours 74, 84
#[tokio::test]
async fn a_queue_that_falls_silent_does_not_keep_the_answer_past_the_deadline() {
    let queues = Queues::that(Does::FallSilent);
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    let consumer = consumer.min_remaining_time(ms(100));
    let event = invocation_with(&host, batch([message("1", "Done"), message("2", "Done")]), ms(1_200));
    let deadline = event.context.deadline;
    assert_eq!(deliver_in(&consumer, &till, event).await, ["1"]);
    assert!(millis(host.now()) < deadline, "{} ms late", millis(host.now()) - deadline);
}

// behaviours 72, 74, 84
#[tokio::test]
async fn what_a_group_has_done_before_a_queue_falls_silent_is_done() {
    let queues = Queues::that(Does::FallSilent);
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    let messages = ["0", "1", "2"].map(|id| ordered(id, "group", "Done"));
    let event = invocation_with(&host, batch(messages), ms(1_200));
    assert_eq!(deliver_in(&consumer.min_remaining_time(ms(100)), &till, event).await, ["1", "2"]);
    assert_eq!(till.ran(), ["0"]);
}

// behaviours 72, 84
#[tokio::test]
async fn in_a_fifo_queue_the_message_in_progress_is_hidden_and_not_the_rest_of_its_group() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    let messages = ["1", "2"].map(|id| ordered(id, "group", "Done"));
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2"]);
    let requests = queues.requests();
    assert_eq!(requests.iter().map(|request| &request["ReceiptHandle"]).collect::<Vec<_>>(), ["receipt of 1"]);
}

// behaviours 73, 84
#[tokio::test]
async fn of_twins_that_are_in_progress_elsewhere_each_is_hidden() {
    let (world, host, _, till) = environment().await;
    let queues = Queues::default();
    let consumer =
        SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap())).hide_while_in_progress(queues.client());
    let _other = work_elsewhere(&world, "17", Duration::from_secs(40)).await;
    let twins = ["1", "2"].map(|id| message_with_body(id, &json!({ "id": "17" }).to_string()));
    assert_eq!(deliver(&consumer, &till, &host, twins).await, ["1", "2"]);
    let mut hidden: Vec<_> =
        queues.requests().iter().map(|request| request["ReceiptHandle"].as_str().unwrap().to_owned()).collect();
    hidden.sort();
    assert_eq!(hidden, ["receipt of 1", "receipt of 2"]);
}

// behaviour 84
#[tokio::test]
async fn nothing_is_hidden_that_is_done_or_fails_for_another_reason() {
    let queues = Queues::default();
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = by_payment(&locks).validate(|message| message.body.amount).on_timeout(OnTimeout::Reject);
    let consumer = SqsConsumer::new(once).hide_while_in_progress(queues.client());
    let paying = |id, amount| message_with_body(id, &json!({ "id": "17", "amount": amount }).to_string());
    let messages = [
        message("1", "Done"),
        message("2", "Declined"),
        message("3", "Panic"),
        message_with_body("4", "{"),
        paying("5", 5),
    ];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2", "3", "4"]);
    host.advance_clock(AFTER_THE_LEASE);
    // Done, unfinished, and with other fields.
    let messages = [message("1", "Done"), message("3", "Done"), paying("6", 6)];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["3", "6"]);
    world.put_row(HashMap::from([("id".to_owned(), AttributeValue::S("orders#payment 7".to_owned()))])).await;
    assert_eq!(deliver(&consumer, &till, &host, [message("7", "Done")]).await, ["7"]);
    let event = invocation(&host, batch([message("8", "Done")]));
    host.advance_clock(AFTER_THE_LEASE);
    assert_eq!(deliver_in(&consumer, &till, event).await, ["8"]);
    assert!(queues.requests().is_empty());
}

// What else could lose a message

// behaviours 71, 72
#[tokio::test]
async fn one_deduplication_id_in_two_groups_or_two_queues_is_several_messages() {
    let world = World::new().await;
    let host = world.host().build();
    let consumer: Consumer = SqsConsumer::by_deduplication_id(world.locks(&host).build().unwrap());
    let till = Till::default();
    let of = |id: &str, group: &str, queue: &str| {
        let mut message = with_attributes(ordered(id, group, "Done"), [("MessageDeduplicationId", "d")]);
        message.event_source_arn = Some(queue.to_owned());
        message
    };
    let messages = [of("1", "A", FIFO_QUEUE), of("2", "B", FIFO_QUEUE), of("3", "A", "arn:aws:sqs:x:1:other.fifo")];
    assert!(deliver(&consumer, &till, &host, messages.clone()).await.is_empty());
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
}

// behaviour 74
#[tokio::test]
async fn a_function_with_a_timeout_shorter_than_the_least_time_still_works() {
    let (_world, host, consumer, till) = environment().await;
    let event = invocation_with(&host, batch([message("1", "Done")]), ms(900));
    assert!(deliver_in(&consumer, &till, event).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

// behaviours 60, 71
#[tokio::test]
async fn a_message_that_was_done_is_deleted_even_if_its_result_cannot_be_read_today() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let text: Consumer<String> = SqsConsumer::by_message_id(locks.clone());
    let handler = service_fn(async |_: Message<Payment>| Ok("a result of yesterday".to_owned()));
    assert!(failures(&text, handler, invocation(&host, batch([message("1", "Done")]))).await.is_empty());
    let number: Consumer<u32> = SqsConsumer::by_message_id(locks);
    let handler = service_fn(async |_: Message<Payment>| panic!("it runs again"));
    assert!(failures(&number, handler, invocation(&host, batch([message("1", "Done")]))).await.is_empty());
}

// behaviour 71
#[tokio::test]
async fn a_handler_need_not_be_shared_between_threads() {
    let (_world, host, consumer, _) = environment().await;
    let count = std::cell::Cell::new(0);
    let handler = service_fn(move |_: Message<Payment>| {
        count.set(count.get() + 1);
        ready(Ok(()))
    });
    assert!(failures(&consumer, handler, invocation(&host, batch([message("1", "Done")]))).await.is_empty());
}

// behaviours 71, 72
#[tokio::test]
async fn groups_and_deduplication_ids_that_look_alike_when_joined_are_several_messages() {
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_deduplication_id(world.locks(&host).build().unwrap());
    let of = |number: usize, (group, id): (&str, &str)| {
        with_attributes(ordered(&number.to_string(), group, "Done"), [("MessageDeduplicationId", id)])
    };
    let pairs = [
        ("customer", "42#refund"),
        ("customer#42", "refund"),
        ("customer%2342", "refund"),
        ("a#", "b"),
        ("a", "#b"),
        ("", "a##b"),
        ("%", "b"),
        ("%25", "b"),
    ];
    for (number, pair) in pairs.into_iter().enumerate() {
        assert!(deliver(&consumer, &till, &host, [of(number, pair)]).await.is_empty());
    }
    assert_eq!(till.ran().len(), pairs.len(), "{:?}", till.ran());
    // What needs no escape stands as it is.
    assert!(world.row(&format!("orders#{FIFO_QUEUE}#customer#42#refund")).await.is_some());
}

/// An error that cannot be told.
#[derive(Debug)]
struct Untold;

impl From<Untold> for Diagnostic {
    fn from(_: Untold) -> Self {
        panic!("in the conversion")
    }
}

// behaviour 71
#[tokio::test]
async fn a_panic_in_the_conversion_of_the_handlers_error_is_that_messages_failure_alone() {
    keep_log();
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let ran = Counter::default();
    let counter = ran.clone();
    let handler = service_fn(move |message: Message<Payment>| {
        counter.count();
        ready(if message.body.then == Then::Done { Ok(()) } else { Err(Untold) })
    });
    let consumer: SqsConsumer<Message<Payment>, Payment, (), Untold> = SqsConsumer::by_message_id(locks);
    let untold = format!("untold of {}", world.table);
    let body = json!({ "id": "1", "then": "Declined" }).to_string();
    let messages = [message("1", "Done"), message_with_body(&untold, &body), message("3", "Done")];
    let answer = consumer.concurrency(1).layer(handler).oneshot(invocation(&host, batch(messages))).await.unwrap();
    let failed: Vec<_> = answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect();
    assert_eq!((failed, ran.get()), (vec![untold.clone()], 3));
    let lines: Vec<_> = logged(&untold).into_iter().filter(|line| line.contains("goes back")).collect();
    assert!(lines.len() == 1 && lines[0].contains("ERROR") && lines[0].contains("panicked"), "{lines:?}");
}

/// A body that panics when it is thrown away.
#[derive(Debug, Deserialize)]
struct Brittle {
    is_brittle: bool,
}

impl Drop for Brittle {
    fn drop(&mut self) {
        assert!(!self.is_brittle || std::thread::panicking(), "in the drop");
    }
}

// behaviour 71
#[tokio::test]
async fn a_panic_in_the_drop_of_a_body_is_that_messages_failure_alone() {
    let world = World::new().await;
    let host = world.host().build();
    let consumer: SqsConsumer<Message<Brittle>, Brittle, (), Declined> =
        SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
    let brittle = |id: &str| message_with_body(id, &json!({ "is_brittle": true }).to_string());
    let sound = |id: &str| message_with_body(id, &json!({ "is_brittle": false }).to_string());
    let deliver = async |event| {
        let handler = service_fn(async |_: Message<Brittle>| Ok(()));
        let answer = consumer.clone().concurrency(1).layer(handler).oneshot(event).await.unwrap();
        answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect::<Vec<_>>()
    };
    // The body of a message that is handled; that of a twin, which nobody asks for; that of a message for which no time
    // is left.
    let event = invocation(&host, batch([sound("1"), brittle("2"), sound("3"), sound("4")]));
    assert_eq!(deliver(event).await, ["2"]);
    let event = invocation(&host, batch([sound("5"), sound("6"), brittle("6"), sound("7")]));
    assert!(deliver(event).await.is_empty());
    let event = invocation_with(&host, batch([brittle("8"), brittle("9"), sound("10"), sound("11")]), Duration::ZERO);
    assert_eq!(deliver(event).await, ["8", "9", "10", "11"]);
}

/// A handler that panics when it is cloned for a message.
struct Clones(Counter, u32);

impl Clone for Clones {
    fn clone(&self) -> Self {
        assert!(self.0.count() != self.1, "in the clone");
        Self(self.0.clone(), self.1)
    }
}

impl Service<Message<Payment>> for Clones {
    type Response = ();
    type Error = Declined;
    type Future = Ready<Result<(), Declined>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Declined>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Message<Payment>) -> Self::Future {
        ready(Ok(()))
    }
}

// behaviour 71
#[tokio::test]
async fn a_panic_in_the_clone_of_the_handler_does_not_lose_what_is_done() {
    // Which of the clones are for a message, and for which one, is the consumer's business.
    for which in 1..=8 {
        let (world, host, consumer, _) = environment().await;
        let service = consumer.concurrency(1).layer(Clones(Counter::default(), which + 1));
        let Ok(answer) =
            AssertUnwindSafe(service.oneshot(invocation(&host, batch(["1", "2", "3"].map(|id| message(id, "Done"))))))
                .catch_unwind()
                .await
        else {
            panic!("the panic in clone {which} escaped");
        };
        for id in ["1", "2", "3"] {
            let is_failure = answer.as_ref().unwrap().batch_item_failures.iter().any(|f| f.item_identifier == id);
            assert_eq!(world.row(&format!("orders#{id}")).await.is_none(), is_failure, "{id}, clone {which}");
        }
    }
}

// behaviours 66, 71
#[tokio::test]
async fn a_message_that_is_in_progress_elsewhere_is_told_in_one_line_that_is_no_error() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let id = format!("in progress of {}", world.table);
    let _other = work_elsewhere(&world, &id, Duration::from_secs(30)).await;
    let body = json!({ "id": "1" }).to_string();
    assert_eq!(deliver(&consumer, &till, &host, [message_with_body(&id, &body)]).await.len(), 1);
    let is_news = |line: &String| ["ERROR", "WARN", "INFO"].iter().any(|level| line.contains(level));
    let lines: Vec<_> = logged(&id).into_iter().filter(is_news).collect();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("INFO") && line.contains("message_id") && line.contains("is in progress: "), "{line}");
}

// behaviours 11, 71
#[tokio::test]
async fn the_type_of_an_error_is_logged_where_it_has_a_name_and_left_out_where_rust_has_none() {
    keep_log();
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let [named, boxed] = ["named", "boxed"].map(|what| format!("{what} of {}", world.table));
    let body = json!({ "id": "1", "then": "Declined" }).to_string();
    let consumer: SqsConsumer<Message<Payment>, Payment, (), lambda_runtime::Error> =
        SqsConsumer::by_message_id(locks.clone());
    let handler = service_fn(async |_: Message<Payment>| Err("out of reach".into()));
    consumer.layer(handler).oneshot(invocation(&host, batch([message_with_body(&boxed, &body)]))).await.unwrap();
    let consumer: Consumer = SqsConsumer::by_message_id(locks);
    deliver(&consumer, &Till::default(), &host, [message_with_body(&named, &body)]).await;
    let line = |id: &str| logged(id).into_iter().find(|line| line.contains("goes back")).unwrap();
    assert!(line(&named).contains("error_type=\"Declined\""), "{}", line(&named));
    assert!(line(&boxed).contains("out of reach") && !line(&boxed).contains("error_type"), "{}", line(&boxed));
}
