//! The rules of `Consumer` that are the same for every source. Each test runs for a queue, a stream and a topic.

use std::time::Duration;

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::sqs::{SqsEvent, SqsMessage as SqsRecord};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::kafka::{KafkaEvent, KafkaRecord, KafkaSource};
use lambda_lock::lambda::{Consumer, Source, SqsMessage, SqsSource};
use lambda_lock::streams::{KinesisRecord, StreamSource};
use lambda_lock::{Idempotency, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{by_tenant, invocation, invocation_with, millis};
use lambda_lock_tests::till::{Declined, Paid, Payment, Then, Till};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::json;
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_mins(1);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A consumer whose handler takes plain items.
type Plain<S> = Consumer<S, <S as Source>::Item, (), Declined>;

/// A source, and how Lambda delivers from it.
trait Tested: Source<Item: Paid> + Sized + 'static {
    /// A consumer with these settings.
    fn consumer(once: Idempotency<Self::Item, (), Declined>) -> Plain<Self>;

    /// Returns the part of a key that tells the queue, the stream or the topic with this name from all others.
    fn id_of(name: &str) -> String;

    /// An event with payments from the queue, stream or topic with this name, each with its lane and with what the handler
    /// does. Their ids and names are the numbers from 1.
    fn event_from(name: &str, payments: &[(&str, &str)]) -> Self::Event;

    /// Returns the same item from the queue, stream or topic `payments`.
    fn event(payments: &[(&str, &str)]) -> Self::Event {
        Self::event_from("payments", payments)
    }

    /// Delivers an event to a handler that calls `begin` before each payment, and returns the names in the answer.
    async fn invoke(
        consumer: &Plain<Self>,
        event: LambdaEvent<Self::Event>,
        till: &Till,
        begin: impl Fn(Then) + Clone + Send + 'static,
    ) -> Result<Vec<String>, Diagnostic>;

    /// The same for a consumer that always answers.
    async fn deliver(
        consumer: &Plain<Self>,
        event: LambdaEvent<Self::Event>,
        till: &Till,
        begin: impl Fn(Then) + Clone + Send + 'static,
    ) -> Vec<String> {
        Self::invoke(&consumer.clone().fail_if_all_failed(false), event, till, begin).await.unwrap()
    }

    /// Returns the names in the answer when these payments are not done.
    fn named<const N: usize>(not_done: [&str; N]) -> Vec<String>;
}

/// Returns what the payments of an event say.
fn texts(payments: &[(&str, &str)]) -> impl Iterator<Item = (String, String, String)> {
    payments.iter().zip(1..).map(|((lane, then), number)| {
        let text = json!({ "id": number.to_string(), "then": then }).to_string();
        (number.to_string(), (*lane).to_owned(), text)
    })
}

fn by_payment<I: Paid>(locks: &Locks) -> Idempotency<I, (), Declined> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |item: &I| Some(item.payment().id.clone()))
}

/// A FIFO queue, whose lanes are its groups.
impl Tested for SqsSource<Payment> {
    fn consumer(once: Idempotency<Self::Item, (), Declined>) -> Plain<Self> {
        Consumer::new(once)
    }

    fn id_of(name: &str) -> String {
        format!("arn:aws:sqs:eu-west-1:123456789012:{name}.fifo")
    }

    fn event_from(name: &str, payments: &[(&str, &str)]) -> SqsEvent {
        let mut event = SqsEvent::default();
        event.records.extend(texts(payments).map(|(number, lane, text)| {
            let mut message = SqsRecord::default();
            message.message_id = Some(number);
            message.body = Some(text);
            message.event_source_arn = Some(Self::id_of(name));
            message.attributes.insert("MessageGroupId".to_owned(), lane);
            message
        }));
        event
    }

    async fn invoke(
        consumer: &Plain<Self>,
        event: LambdaEvent<SqsEvent>,
        till: &Till,
        begin: impl Fn(Then) + Clone + Send + 'static,
    ) -> Result<Vec<String>, Diagnostic> {
        let till = till.clone();
        let handler = service_fn(move |message: SqsMessage<Payment>| {
            begin(message.body.then);
            till.clone().pay(message)
        });
        let answer = timeout(TOO_LONG, consumer.layer(handler).oneshot(event)).await.expect("there is an answer")?;
        Ok(answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect())
    }

    /// All of them, which return to the queue.
    fn named<const N: usize>(not_done: [&str; N]) -> Vec<String> {
        not_done.map(str::to_owned).to_vec()
    }
}

/// A Kinesis stream, whose lanes are its partition keys.
impl Tested for StreamSource<KinesisRecord<Payment>> {
    fn consumer(once: Idempotency<Self::Item, (), Declined>) -> Plain<Self> {
        Consumer::new(once)
    }

    fn id_of(name: &str) -> String {
        format!("arn:aws:kinesis:eu-west-1:123456789012:stream/{name}")
    }

    fn event_from(name: &str, payments: &[(&str, &str)]) -> KinesisEvent {
        let mut event = KinesisEvent::default();
        event.records.extend(texts(payments).map(|(number, lane, text)| {
            let mut record = KinesisEventRecord::default();
            record.event_source_arn = Some(Self::id_of(name));
            record.kinesis.sequence_number = number;
            record.kinesis.partition_key = lane;
            record.kinesis.data.0 = text.into_bytes();
            record
        }));
        event
    }

    async fn invoke(
        consumer: &Plain<Self>,
        event: LambdaEvent<KinesisEvent>,
        till: &Till,
        begin: impl Fn(Then) + Clone + Send + 'static,
    ) -> Result<Vec<String>, Diagnostic> {
        let till = till.clone();
        let handler = service_fn(move |record: KinesisRecord<Payment>| {
            begin(record.body.then);
            till.clone().pay(record)
        });
        let answer = timeout(TOO_LONG, consumer.layer(handler).oneshot(event)).await.expect("there is an answer")?;
        Ok(answer.batch_item_failures.into_iter().filter_map(|failure| failure.item_identifier).collect())
    }

    /// The first of them, from which Lambda delivers again.
    fn named<const N: usize>(not_done: [&str; N]) -> Vec<String> {
        not_done.into_iter().take(1).map(str::to_owned).collect()
    }
}

const CLUSTER: &str = "arn:aws:kafka:eu-west-1:123456789012:cluster/shop/1";

/// A topic of Kafka, whose lanes are the keys of a partition.
impl Tested for KafkaSource<Payment> {
    fn consumer(once: Idempotency<Self::Item, (), Declined>) -> Plain<Self> {
        Consumer::new(once)
    }

    fn id_of(name: &str) -> String {
        format!("{CLUSTER}#{name}")
    }

    fn event_from(name: &str, payments: &[(&str, &str)]) -> KafkaEvent {
        let records = texts(payments).map(|(number, lane, text)| {
            let (offset, key, value) = (number.parse::<u64>().unwrap(), STANDARD.encode(lane), STANDARD.encode(text));
            json!({ "topic": name, "partition": 0, "offset": offset, "key": key, "value": value })
        });
        let records = json!({ format!("{name}-0"): records.collect::<Vec<_>>() });
        serde_json::from_value(json!({ "eventSourceArn": CLUSTER, "records": records })).unwrap()
    }

    async fn invoke(
        consumer: &Plain<Self>,
        event: LambdaEvent<KafkaEvent>,
        till: &Till,
        begin: impl Fn(Then) + Clone + Send + 'static,
    ) -> Result<Vec<String>, Diagnostic> {
        let till = till.clone();
        let handler = service_fn(move |record: KafkaRecord<Payment>| {
            begin(record.body.then);
            till.clone().pay(record)
        });
        let answer = timeout(TOO_LONG, consumer.layer(handler).oneshot(event)).await.expect("there is an answer")?;
        let failures = answer.batch_item_failures.into_iter();
        Ok(failures.map(|failure| failure.item_identifier.offset.to_string()).collect())
    }

    /// The first of them in the partition, from which Lambda delivers again.
    fn named<const N: usize>(not_done: [&str; N]) -> Vec<String> {
        not_done.into_iter().take(1).map(str::to_owned).collect()
    }
}

/// A table, and a consumer on its own host.
async fn environment<S: Tested>() -> (World, Host, Plain<S>, Till) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer = S::consumer(by_payment(&world.locks(&host).build().unwrap()));
    (world, host, consumer, Till::default())
}

/// Invokes the function 30 seconds before the deadline.
async fn invoke<S: Tested>(
    consumer: &Plain<S>,
    host: &Host,
    till: &Till,
    payments: &[(&str, &str)],
) -> Result<Vec<String>, Diagnostic> {
    S::invoke(consumer, invocation(host, S::event(payments)), till, |_| ()).await
}

/// Delivers payments 30 seconds before the deadline.
async fn deliver<S: Tested>(consumer: &Plain<S>, host: &Host, till: &Till, payments: &[(&str, &str)]) -> Vec<String> {
    S::deliver(consumer, invocation(host, S::event(payments)), till, |_| ()).await
}

/// Runs each of these tests for a queue, a stream and a topic.
macro_rules! tests {
    ($($test:ident)*) => {
        mod queue {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test::<super::SqsSource<super::Payment>>().await;
                }
            )*
        }

        mod stream {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test::<super::StreamSource<super::KinesisRecord<super::Payment>>>().await;
                }
            )*
        }

        mod topic {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test::<super::KafkaSource<super::Payment>>().await;
                }
            )*
        }
    };
}

tests! {
    an_item_that_outlives_its_lease_is_cancelled_before_the_deadline
    an_item_that_outlives_a_lease_of_its_own_is_cancelled
    an_item_that_returns_after_its_lease_is_not_done_and_not_repeated
    items_not_started_near_the_deadline_are_not_done_and_send_nothing
    nothing_runs_past_the_deadline
    a_silent_table_does_not_delay_the_answer_past_the_deadline
    a_lane_stops_at_its_first_item_that_is_not_done
    no_item_starts_after_a_failure_if_the_consumer_stops_there
    an_item_that_was_done_before_stops_nothing
    an_invocation_fails_if_every_item_failed
    an_invocation_without_its_table_fails_with_the_message_of_dynamodb
    an_invocation_answers_if_an_item_is_done_or_in_progress_or_none_started
    a_consumer_can_answer_although_every_item_failed
    equal_keys_of_two_sources_are_different_work
    a_prefix_of_its_own_spans_the_sources
    tenants_share_no_record_unless_it_spans_them
}

/// Delivers one payment with the id 1 from each of these queues, streams or topics.
async fn deliver_from<S: Tested>(consumer: &Plain<S>, host: &Host, till: &Till, names: &[&str]) {
    for name in names {
        let event = invocation(host, S::event_from(name, &[("a", "Done")]));
        assert!(S::deliver(consumer, event, till, |_| ()).await.is_empty(), "{name}");
    }
}

async fn equal_keys_of_two_sources_are_different_work<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    deliver_from::<S>(&consumer, &host, &till, &["orders", "refunds", "orders", "refunds"]).await;
    assert_eq!(till.ran(), ["1", "1"]);
    for name in ["orders", "refunds"] {
        assert!(world.row(&format!("orders#{}#1", S::id_of(name))).await.is_some(), "{name}");
    }
}

async fn a_prefix_of_its_own_spans_the_sources<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    for prefix in ["shop", ""] {
        let once = by_payment(&world.locks(&host).build().unwrap()).prefix(prefix);
        deliver_from::<S>(&S::consumer(once), &host, &till, &["orders", "refunds"]).await;
    }
    assert_eq!(till.ran(), ["1", "1"]);
    assert!(world.row("shop#1").await.is_some() && world.row("1").await.is_some());
}

async fn tenants_share_no_record_unless_it_spans_them<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let once = by_payment(&world.locks(&host).key_prefix("shared#").build().unwrap()).across_tenants();
    for (consumer, runs) in [(consumer, 3), (S::consumer(once), 4)] {
        for tenant in [Some("blue"), Some("green"), None, Some("blue"), None] {
            let event = invocation(&host, S::event(&[("a", "Done")]));
            let event = if let Some(tenant) = tenant { by_tenant(tenant, event) } else { event };
            assert!(S::deliver(&consumer, event, &till, |_| ()).await.is_empty());
        }
        assert_eq!(till.ran(), vec!["1"; runs]);
    }
    assert!(world.row(&format!("orders#green#{}#1", S::id_of("payments"))).await.is_some());
}

async fn an_invocation_fails_if_every_item_failed<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    // The last one is not started.
    let payments = [("a", "Declined"), ("b", "Panic"), ("c", "{"), ("a", "Done")];
    let failed = invoke(&consumer, &host, &till, &payments).await.unwrap_err();
    assert_eq!(failed.error_type, "Declined");
    assert_eq!(failed.error_message, "no item of a batch of 4 is done; the first failure: by the bank");
    let panicked = invoke(&consumer, &host, &till, &[("b", "Panic")]).await.unwrap_err();
    assert_eq!((&*panicked.error_type, panicked.error_message.contains("panicked")), ("BatchFailed", true));
    let unreadable = invoke(&consumer, &host, &till, &[("b", "unknown")]).await.unwrap_err();
    assert!(unreadable.error_message.contains("Data error at line 1"), "{unreadable:?}");
    // All is delivered again.
    assert!(invoke(&consumer, &host, &till, &payments.map(|(lane, _)| (lane, "Done"))).await.unwrap().is_empty());
}

async fn an_invocation_without_its_table_fails_with_the_message_of_dynamodb<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let locks = Locks::builder(host.client(), format!("{}-missing", world.table)).build().unwrap();
    let consumer = S::consumer(by_payment(&locks));
    let failed = invoke(&consumer, &host, &till, &[("a", "Done"), ("b", "Done")]).await.unwrap_err();
    assert_eq!(failed.error_type, "LockTableNotFound");
    assert!(failed.error_message.contains("ResourceNotFoundException: "), "{failed:?}");
}

async fn an_invocation_answers_if_an_item_is_done_or_in_progress_or_none_started<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    for _ in 0..2 {
        let answer = invoke(&consumer, &host, &till, &[("a", "Done"), ("b", "Declined")]).await;
        assert_eq!(answer.unwrap(), S::named(["2"]));
    }
    let payments = [("a", "Declined"), ("b", "Done")];
    let consumer = S::consumer(by_payment(&world.locks(&host).key_prefix("other#").build().unwrap()));
    let _other = world.default_locks().acquire(format!("other#orders#{}#2", S::id_of("payments"))).await.unwrap();
    // A topic waits for the other one until shortly before the deadline.
    let soon_over = invocation_with(&host, S::event(&payments), ms(3_000));
    assert_eq!(S::invoke(&consumer, soon_over, &till, |_| ()).await.unwrap(), S::named(["1", "2"]));
    let late = invocation(&host, S::event(&payments));
    host.advance_clock(Duration::from_secs(31));
    assert_eq!(S::invoke(&consumer, late, &till, |_| ()).await.unwrap(), S::named(["1", "2"]));
}

async fn a_consumer_can_answer_although_every_item_failed<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.fail_if_all_failed(false);
    let payments = [("a", "Declined"), ("b", "Declined")];
    assert_eq!(invoke(&consumer, &host, &till, &payments).await.unwrap(), S::named(["1", "2"]));
}

async fn an_item_that_outlives_its_lease_is_cancelled_before_the_deadline<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.min_remaining_time(ms(100));
    let payments = S::event(&[("a", "Done"), ("b", "Endless"), ("c", "Done")]);
    let event = invocation_with(&host, payments, ms(1_600));
    let deadline = event.context.deadline;
    assert_eq!(S::deliver(&consumer, event, &till, |_| ()).await, S::named(["2"]));
    assert!(millis(host.now()) < deadline);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    // It was released, and runs again at once. The others are done.
    let again = [("a", "Panic"), ("b", "Done"), ("c", "Panic")];
    assert!(deliver(&consumer, &host, &till, &again).await.is_empty());
}

async fn an_item_that_outlives_a_lease_of_its_own_is_cancelled<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let begun = host.now();
    let payments = [("a", "Endless"), ("b", "Done")];
    assert_eq!(deliver(&consumer.lease(ms(500)), &host, &till, &payments).await, S::named(["1"]));
    let took = host.now().duration_since(begun).unwrap();
    assert!(took < Duration::from_secs(20), "{took:?}, and the batch had 29 s");
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
}

async fn an_item_that_returns_after_its_lease_is_not_done_and_not_repeated<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let event = invocation(&host, S::event(&[("a", "Blocked")]));
    let begin = {
        let host = host.clone();
        move |_| host.advance_clock(Duration::from_secs(31))
    };
    assert_eq!(S::deliver(&consumer, event, &till, begin).await, S::named(["1"]));
    assert!(deliver(&consumer, &host, &till, &[("a", "Done")]).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

async fn items_not_started_near_the_deadline_are_not_done_and_send_nothing<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Done"), ("a", "Done"), ("b", "Done")]));
    // The environment was frozen.
    let begin = {
        let host = host.clone();
        move |_| host.advance_clock(ms(14_200))
    };
    // The leases end after 29 s. After the second payment, which is the other one of `a`, less than a second is left.
    assert_eq!(S::deliver(&consumer.concurrency(1), event, &till, begin).await, S::named(["2", "4"]));
    assert_eq!(till.ran(), ["1", "3"]);
    assert_eq!(host.requests(), 4);
}

async fn nothing_runs_past_the_deadline<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Done")]));
    host.advance_clock(Duration::from_secs(31));
    assert_eq!(S::deliver(&consumer, event, &till, |_| ()).await, S::named(["1", "2"]));
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

async fn a_silent_table_does_not_delay_the_answer_past_the_deadline<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.min_remaining_time(ms(100)).concurrency(1);
    let event = invocation_with(&host, S::event(&[("a", "Done"), ("b", "Endless"), ("c", "Done")]), ms(1_200));
    let deadline = event.context.deadline;
    let begin = {
        let host = host.clone();
        move |then| {
            if then == Then::Endless {
                host.crash();
            }
        }
    };
    assert_eq!(S::deliver(&consumer, event, &till, begin).await, S::named(["2", "3"]));
    assert!(millis(host.now()) < deadline, "{} ms late", millis(host.now()) - deadline);
}

async fn a_lane_stops_at_its_first_item_that_is_not_done<S: Tested>() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment::<S>().await;
        let payments = [("a", "Done"), ("a", failing), ("a", "Done"), ("b", "Done")];
        assert_eq!(deliver(&consumer, &host, &till, &payments).await, S::named(["2", "3"]));
        assert_eq!(till.ran_in_any_order(), ["1", "2", "4"]);
    }
}

async fn no_item_starts_after_a_failure_if_the_consumer_stops_there<S: Tested>() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment::<S>().await;
        let consumer = consumer.concurrency(1).stop_at_first_failure();
        let payments = [("a", "Done"), ("b", failing), ("c", "Done"), ("a", "Done")];
        assert_eq!(deliver(&consumer, &host, &till, &payments).await, S::named(["2", "3"]));
        // The lane of `a` was first.
        assert_eq!(till.ran(), ["1", "4", "2"]);
        assert_eq!(host.requests(), 6);
    }
}

async fn an_item_that_was_done_before_stops_nothing<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.concurrency(1).stop_at_first_failure();
    for _ in 0..2 {
        assert!(deliver(&consumer, &host, &till, &[("a", "Done"), ("b", "Done")]).await.is_empty());
    }
    assert_eq!(till.ran(), ["1", "2"]);
}
