//! `KafkaConsumer`: each record of a batch runs once, and those of a key run in order.

use std::time::{Duration, SystemTime};

use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::kafka::{KafkaConsumer, KafkaEvent, KafkaEventResponse, KafkaRecord};
use lambda_lock::{Idempotency, WithRun};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with, keep_log, logged};
use lambda_lock_tests::till::{Declined, Payment, Till};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

const CLUSTER: &str = "arn:aws:kafka:eu-west-1:123456789012:cluster/shop/0f3c9b5e-6a8d-4c2f-9a51-7d1f64c2b1aa-2";
const WRITTEN: u64 = 1_767_225_600_123;

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_mins(1);

type Consumer<B = Payment, T = ()> = KafkaConsumer<B, Declined, T>;

/// `text` in Base64.
fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// A record as Lambda delivers it: its topic, partition and offset, its key, and what the handler does.
fn record(partition: (&str, u32), offset: u32, key: Option<&str>, then: &str) -> Value {
    record_with_value(partition, offset, key, Some(&json!({ "id": format!("{offset}"), "then": then }).to_string()))
}

fn record_with_value((topic, partition): (&str, u32), offset: u32, key: Option<&str>, value: Option<&str>) -> Value {
    json!({
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": WRITTEN,
        "timestampType": "CREATE_TIME",
        "key": key.map(base64),
        "value": value.map(base64),
        "headers": [],
    })
}

/// An event with these records, by their partitions.
fn event(records: impl IntoIterator<Item = Value>) -> KafkaEvent {
    serde_json::from_value(event_of(CLUSTER.into(), "b-1:9092", records)).unwrap()
}

fn event_of(arn: Value, servers: &str, records: impl IntoIterator<Item = Value>) -> Value {
    let mut event = json!({ "eventSource": "aws:kafka", "bootstrapServers": servers, "records": {} });
    event["eventSourceArn"] = arn;
    for record in records {
        let partition = format!("{}-{}", record["topic"].as_str().unwrap(), record["partition"]);
        let partition = &mut event["records"][partition];
        match partition.as_array_mut() {
            Some(records) => records.push(record),
            None => *partition = json!([record]),
        }
    }
    event
}

const FIRST: (&str, u32) = ("payments", 0);
const SECOND: (&str, u32) = ("payments", 1);

/// Records of the first partition with the offsets from 1.
fn records<const N: usize>(records: [(Option<&str>, &str); N]) -> KafkaEvent {
    event(records.into_iter().zip(1..).map(|((key, then), offset)| record(FIRST, offset, key, then)))
}

/// The key of the row of a record of the first partition.
fn row_of(offset: u32) -> String {
    format!("orders#{CLUSTER}#payments#0#{offset}#{WRITTEN}")
}

async fn answer<S, H, B, T>(
    consumer: &KafkaConsumer<B, Declined, T, H>,
    handler: S,
    event: LambdaEvent<KafkaEvent>,
) -> KafkaEventResponse
where
    KafkaConsumer<B, Declined, T, H>: Layer<S>,
    <KafkaConsumer<B, Declined, T, H> as Layer<S>>::Service:
        Service<LambdaEvent<KafkaEvent>, Response = KafkaEventResponse, Error = Diagnostic>,
{
    // To compare it also if every record failed.
    let consumer = consumer.clone().fail_if_all_failed(false);
    timeout(TOO_LONG, consumer.layer(handler).oneshot(event)).await.expect("there is an answer").unwrap()
}

/// The partitions and offsets that the answer names.
fn named(answer: KafkaEventResponse) -> Vec<(String, i64)> {
    answer
        .batch_item_failures
        .into_iter()
        .map(|failure| failure.item_identifier)
        .map(|id| (id.partition, id.offset))
        .collect()
}

async fn deliver(consumer: &Consumer, till: &Till, host: &Host, event: KafkaEvent) -> Vec<(String, i64)> {
    let till = till.clone();
    let handler = service_fn(move |record| till.clone().pay(record));
    named(answer(consumer, handler, invocation(host, event)).await)
}

fn failed<const N: usize>(records: [(&str, i64); N]) -> Vec<(String, i64)> {
    records.map(|(partition, offset)| (partition.to_owned(), offset)).to_vec()
}

/// A table, and a consumer by offset on its own host.
async fn environment() -> (World, Host, Consumer, Till) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer = KafkaConsumer::by_offset(world.locks(&host).build().unwrap());
    (world, host, consumer, Till::default())
}

#[tokio::test]
async fn the_answer_has_the_form_that_lambda_expects() {
    let (_world, host, consumer, till) = environment().await;
    let service = consumer.layer(service_fn(move |record| till.clone().pay(record)));
    let two = event([record(("my-topic", 3), 17, None, "Declined"), record(SECOND, 0, None, "Done")]);
    let answer = service.clone().oneshot(invocation(&host, two)).await.unwrap();
    let expected = json!({ "batchItemFailures": [{ "itemIdentifier": { "partition": "my-topic-3", "offset": 17 } }] });
    assert_eq!(serde_json::to_value(answer).unwrap(), expected);
    let answer = service.oneshot(invocation(&host, records([(None, "Done")]))).await.unwrap();
    assert_eq!(serde_json::to_value(answer).unwrap(), json!({ "batchItemFailures": [] }));
}

#[tokio::test]
async fn the_answer_names_the_first_record_of_each_partition_that_is_not_done() {
    let (_world, host, consumer, till) = environment().await;
    let third = ("refunds", 0);
    let batch = event([
        record(FIRST, 1, Some("a"), "Done"),
        record(FIRST, 2, Some("b"), "Declined"),
        record(FIRST, 3, Some("c"), "Declined"),
        record(SECOND, 7, Some("a"), "Panic"),
        record(SECOND, 8, Some("b"), "Done"),
        record(third, 4, Some("a"), "Done"),
    ]);
    assert_eq!(deliver(&consumer, &till, &host, batch).await, failed([("payments-0", 2), ("payments-1", 7)]));
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3", "4", "7", "8"]);
}

#[tokio::test]
async fn the_lowest_offset_is_named_in_any_order_of_the_records() {
    let (_world, host, consumer, till) = environment().await;
    let batch = event([10, 9].map(|offset| record(FIRST, offset, None, "Declined")));
    assert_eq!(deliver(&consumer.clone(), &till, &host, batch).await, failed([("payments-0", 9)]));
}

#[tokio::test]
async fn a_lane_is_a_key_in_a_partition() {
    let (_world, host, consumer, till) = environment().await;
    let batch = event([
        record(FIRST, 1, Some("a"), "Declined"),
        record(FIRST, 2, Some("a"), "Done"),
        record(FIRST, 3, Some("b"), "Done"),
        record(SECOND, 4, Some("a"), "Done"),
        record(("refunds", 0), 5, Some("a"), "Done"),
    ]);
    assert_eq!(deliver(&consumer, &till, &host, batch).await, failed([("payments-0", 1)]));
    assert_eq!(till.ran_in_any_order(), ["1", "3", "4", "5"]);
}

#[tokio::test]
async fn records_without_a_key_are_a_lane_of_their_partition() {
    let (_world, host, consumer, till) = environment().await;
    let batch = event([
        record(FIRST, 1, None, "Declined"),
        record(FIRST, 2, None, "Done"),
        // An empty key is a key.
        record(FIRST, 3, Some(""), "Done"),
        record(SECOND, 4, None, "Done"),
    ]);
    assert_eq!(deliver(&consumer, &till, &host, batch).await, failed([("payments-0", 1)]));
    assert_eq!(till.ran_in_any_order(), ["1", "3", "4"]);
}

#[tokio::test]
async fn an_offset_of_another_partition_topic_cluster_or_time_is_another_record() {
    let (_world, host, consumer, till) = environment().await;
    let one = record(FIRST, 1, None, "Done");
    let mut of_a_new_topic = one.clone();
    of_a_new_topic["timestamp"] = json!(WRITTEN + 1);
    let other = "arn:aws:kafka:eu-west-1:123456789012:cluster/other/1";
    let of_another_cluster = serde_json::from_value(event_of(other.into(), "b-1:9092", [one.clone()])).unwrap();
    let batches = [
        event([one]),
        event([record(SECOND, 1, None, "Done")]),
        event([record(("refunds", 0), 1, None, "Done")]),
        event([of_a_new_topic]),
        of_another_cluster,
    ];
    for batch in &batches {
        for _ in 0..2 {
            assert!(deliver(&consumer, &till, &host, batch.clone()).await.is_empty());
        }
    }
    assert_eq!(till.ran().len(), batches.len());
}

#[tokio::test]
async fn a_cluster_without_an_arn_is_its_bootstrap_servers_in_any_order() {
    let (world, host, consumer, till) = environment().await;
    for servers in ["b-1:9092,b-2:9092", "b-2:9092, b-1:9092"] {
        let batch = event_of(Value::Null, servers, [record(FIRST, 1, None, "Done")]);
        assert!(deliver(&consumer, &till, &host, serde_json::from_value(batch).unwrap()).await.is_empty());
    }
    assert_eq!(till.ran(), ["1"]);
    assert!(world.row(&row_of(1).replace(CLUSTER, "b-1:9092,b-2:9092")).await.is_some());
}

#[tokio::test]
async fn a_record_without_a_topic_does_not_run() {
    let (_world, host, consumer, till) = environment().await;
    let mut batch = event_of(CLUSTER.into(), "", [record(FIRST, 1, None, "Done")]);
    batch["records"]["payments-0"][0].as_object_mut().unwrap().remove("topic");
    let batch = serde_json::from_value(batch).unwrap();
    assert_eq!(deliver(&consumer, &till, &host, batch).await, failed([("payments-0", 1)]));
    assert!(till.ran().is_empty());
}

#[tokio::test]
async fn a_tombstone_is_null() {
    let (world, host, consumer, till) = environment().await;
    let tombstone = || event([record_with_value(FIRST, 1, Some("a"), None)]);
    assert_eq!(deliver(&consumer, &till, &host, tombstone()).await, failed([("payments-0", 1)]));
    let consumer: Consumer<Option<Payment>, bool> = KafkaConsumer::by_offset(world.locks(&host).build().unwrap());
    let handler = service_fn(async |record: KafkaRecord<Option<Payment>>| Ok(record.body.is_none()));
    assert!(named(answer(&consumer, handler, invocation(&host, tombstone())).await).is_empty());
    assert_eq!(world.row(&row_of(1)).await.unwrap()["data"].as_s().unwrap(), "true");
}

#[tokio::test]
async fn with_parser_reads_values_that_are_not_json() {
    let (world, host, _, _) = environment().await;
    let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::Reject, KafkaRecord::id);
    let consumer: Consumer<String, String> = KafkaConsumer::with_parser(once, |value| match value {
        Some(value) => String::from_utf8(value).map_err(|error| error.to_string()),
        None => Err("it is a tombstone".to_owned()),
    });
    let handler = service_fn(async |record: KafkaRecord<String>| Ok(record.body));
    let batch =
        event([record_with_value(FIRST, 1, None, Some("plain text")), record_with_value(SECOND, 2, None, None)]);
    assert_eq!(named(answer(&consumer, handler, invocation(&host, batch)).await), failed([("payments-1", 2)]));
    assert_eq!(world.row(&row_of(1)).await.unwrap()["data"].as_s().unwrap(), r#""plain text""#);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_not_done_and_its_value_is_not_logged() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let topic = format!("payments-of-{}", world.table);
    let secret = format!("secret-of-{}", world.table);
    let mut not_base64 = record_with_value((&topic, 0), 1, None, None);
    not_base64["value"] = json!(format!("{secret}!"));
    let not_json = record_with_value((&topic, 1), 2, None, Some(&format!("{{\"id\": \"{secret}")));
    let names = [format!("{topic}-0"), format!("{topic}-1")];
    let batch = event([not_base64, not_json]);
    assert_eq!(deliver(&consumer, &till, &host, batch).await, failed([(&names[0], 1), (&names[1], 2)]));
    let mut not_a_key = record((&topic, 0), 3, None, "Done");
    not_a_key["key"] = json!(format!("{secret}!"));
    assert_eq!(deliver(&consumer, &till, &host, event([not_a_key])).await, failed([(&names[0], 3)]));
    for (name, offset) in names.iter().zip(1..) {
        let lines = logged(&format!("offset=\"{name}:{offset}\""));
        assert!(lines.len() == 1 && lines[0].contains("ERROR") && lines[0].contains(CLUSTER), "{lines:?}");
    }
    assert_eq!(logged(&secret), Vec::<String>::new());
}

#[tokio::test]
async fn a_handler_gets_the_key_the_headers_and_the_time() {
    let (world, host, _, _) = environment().await;
    let mut one = record(FIRST, 1, Some("customer 17"), "Done");
    one["headers"] = json!([{ "trace": [97, 98] }, { "trace": [-1] }, { "trace": [254] }, { "empty": [] }]);
    let consumer: KafkaConsumer<_, Declined, u64, WithRun<KafkaRecord<Payment>>> =
        KafkaConsumer::by_offset(world.locks(&host).build().unwrap());
    let handler = service_fn(async |WithRun { input, run, .. }: WithRun<KafkaRecord<Payment>>| {
        assert_eq!((&*input.topic, input.partition, input.offset), ("payments", 0, 1));
        assert_eq!(input.key.as_deref(), Some(&b"customer 17"[..]));
        let header = |name: &str, value: &[u8]| (name.to_owned(), value.to_owned());
        let headers = [header("trace", b"ab"), header("trace", &[255]), header("trace", &[254]), header("empty", b"")];
        assert_eq!(input.headers, headers);
        assert_eq!(input.timestamp, SystemTime::UNIX_EPOCH + Duration::from_millis(WRITTEN));
        assert_eq!(input.cluster, CLUSTER);
        Ok(run.lock().fence())
    });
    assert!(named(answer(&consumer, handler, invocation(&host, event([one]))).await).is_empty());
}

#[tokio::test]
async fn a_record_without_a_timestamp_or_headers_is_read() {
    let (_world, host, consumer, till) = environment().await;
    for (offset, timestamp) in [(1, Some(-1)), (2, Some(i64::MIN)), (3, Some(i64::MAX)), (4, None)] {
        let mut bare = record(FIRST, offset, None, "Done");
        bare.as_object_mut().unwrap().retain(|name, _| !["timestamp", "headers"].contains(&name.as_str()));
        if let Some(timestamp) = timestamp {
            bare["timestamp"] = json!(timestamp);
        }
        assert!(deliver(&consumer, &till, &host, event([bare])).await.is_empty());
    }
    let mut null = record(FIRST, 5, None, "Done");
    (null["timestamp"], null["headers"]) = (Value::Null, json!([{ "trace": null }]));
    assert!(deliver(&consumer, &till, &host, event([null])).await.is_empty());
    assert_eq!(till.ran().len(), 5);
}

#[tokio::test]
async fn the_debug_output_has_no_key_and_no_value() {
    let (_world, host, consumer, _) = environment().await;
    let batch = event([record(FIRST, 1, Some("secret"), "Done")]);
    let shown = format!("{batch:?}");
    assert!(shown.contains("payments-0") && !shown.contains(&base64("secret")), "{shown}");
    let handler = service_fn(async |record: KafkaRecord<Payment>| {
        let shown = format!("{record:?}");
        assert!(shown.contains("payments") && !shown.contains("115"), "{shown}");
        Ok(())
    });
    assert!(named(answer(&consumer, handler, invocation(&host, batch)).await).is_empty());
}

#[tokio::test]
async fn a_mapping_without_partial_responses_can_get_an_error_for_the_whole_batch() {
    let (_world, host, consumer, till) = environment().await;
    let handler = service_fn({
        let till = till.clone();
        move |record| till.clone().pay(record)
    });
    let service = consumer.layer(handler).map_result(|answer: Result<KafkaEventResponse, Diagnostic>| {
        if answer?.batch_item_failures.is_empty() { Ok(()) } else { Err(Diagnostic::from("records are not done")) }
    });
    let first = invocation_with(&host, records([(None, "Done"), (None, "Declined")]), Duration::from_secs(30));
    assert!(service.clone().oneshot(first).await.is_err());
    let again = invocation(&host, records([(None, "Done"), (None, "Done")]));
    assert!(service.oneshot(again).await.is_ok());
    assert_eq!(till.ran(), ["1", "2", "2"]);
}

#[test]
fn an_event_without_records_is_not_one_of_kafka() {
    for event in [json!({}), json!({ "Records": [] }), json!({ "records": null })] {
        assert!(serde_json::from_value::<KafkaEvent>(event).is_err());
    }
}
