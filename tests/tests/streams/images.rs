//! Records of DynamoDB streams: keys, images, and the event as Lambda sends it.

use std::future::ready;
use std::sync::{Arc, Mutex};

use aws_lambda_events::dynamodb::Event;
use lambda_lock::embedded::Host;
use lambda_lock::streams::{DynamoDbRecord, StreamConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, keep_log, logged};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_dynamo::Item;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};

use crate::{Declined, assert_debug_hides};

const STREAM: &str = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-22T00:00:00.000";

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Order {
    quantity: u64,
    #[serde(default)]
    fails: bool,
}

type Consumer = StreamConsumer<DynamoDbRecord<Order>, Declined>;
type Seen = Arc<Mutex<Vec<DynamoDbRecord<Order>>>>;

/// A change as Lambda sends it.
fn change(number: u32, id: &str, images: &Value) -> Value {
    let mut change = json!({
        "ApproximateCreationDateTime": 1_480_642_020,
        "Keys": { "id": { "S": id } },
        "SequenceNumber": number.to_string(),
        "SizeBytes": 26,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    });
    for (name, image) in images.as_object().unwrap() {
        change[name] = image.clone();
    }
    json!({
        "awsRegion": "eu-west-1",
        "dynamodb": change,
        "eventID": format!("event-{number}"),
        "eventName": if images["NewImage"].is_null() { "REMOVE" } else { "INSERT" },
        "eventSource": "aws:dynamodb",
        "eventSourceARN": STREAM,
        "eventVersion": "1.1",
    })
}

fn order(quantity: u64) -> Value {
    json!({ "NewImage": { "id": { "S": "order" }, "quantity": { "N": quantity.to_string() } } })
}

fn failing() -> Value {
    json!({ "NewImage": { "quantity": { "N": "1" }, "fails": { "BOOL": true } } })
}

fn batch(records: &[Value]) -> Event {
    serde_json::from_value(json!({ "Records": records })).unwrap()
}

/// Delivers a batch, and returns the answer as Lambda sees it.
async fn deliver(consumer: &Consumer, seen: &Seen, host: &Host, records: &[Value]) -> Value {
    let seen = Arc::clone(seen);
    let handler = service_fn(move |record: DynamoDbRecord<Order>| {
        seen.lock().unwrap().push(record.clone());
        async move { if record.new_image.is_some_and(|order| order.fails) { Err(Declined) } else { Ok(()) } }
    });
    let answer = consumer
        .clone()
        .fail_if_all_failed(false)
        .layer(handler)
        .oneshot(invocation(host, batch(records)))
        .await
        .unwrap();
    serde_json::to_value(answer).unwrap()
}

async fn environment() -> (World, Host, Consumer, Seen) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer = StreamConsumer::by_event_id(world.locks(&host).build().unwrap());
    (world, host, consumer, Seen::default())
}

fn numbers(seen: &Seen) -> Vec<String> {
    let mut numbers: Vec<_> =
        seen.lock().unwrap().iter().map(|record| record.sequence_number().unwrap().to_owned()).collect();
    numbers.sort();
    numbers
}

fn from(number: u32) -> Value {
    json!({ "batchItemFailures": [{ "itemIdentifier": number.to_string() }] })
}

fn nothing() -> Value {
    json!({ "batchItemFailures": [] })
}

#[tokio::test]
async fn a_handler_gets_the_images_of_a_change_and_its_keys() {
    let (world, host, consumer, seen) = environment().await;
    let image = |quantity: u32| json!({ "id": { "S": "secret" }, "quantity": { "N": quantity.to_string() } });
    let batch = [
        change(1, "secret", &json!({ "NewImage": image(1) })),
        change(2, "secret", &json!({ "NewImage": image(2), "OldImage": image(1) })),
        change(3, "secret", &json!({ "NewImage": null, "OldImage": image(2) })),
        change(4, "secret", &json!({})),
    ];
    assert_eq!(deliver(&consumer, &seen, &host, &batch).await, nothing());
    assert_eq!(host.requests(), 8);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let images: Vec<_> = seen
        .iter()
        .map(|record| [&record.new_image, &record.old_image].map(|image| image.as_ref().map(|order| order.quantity)))
        .collect();
    assert_eq!(images, [[Some(1), None], [Some(2), Some(1)], [None, Some(2)], [None, None]]);
    assert_eq!([seen[0].event_name(), seen[2].event_name()], ["INSERT", "REMOVE"]);
    let keys = serde_json::to_value(seen[0].keys()).unwrap();
    assert_eq!(keys, json!({ "id": { "S": "secret" } }));
    assert!(seen[1].record.change.new_image.is_empty() && seen[1].record.change.old_image.is_empty());
    assert_debug_hides(&seen[1], "secret");
    assert!(world.row(&format!("orders#{STREAM}#event-1")).await.is_some());
}

#[tokio::test]
async fn a_failure_stops_the_changes_of_its_item() {
    let (_world, host, consumer, seen) = environment().await;
    let batch = |first: &Value| {
        [change(1, "a", first), change(2, "b", &order(2)), change(3, "a", &order(3)), change(4, "b", &order(4))]
    };
    assert_eq!(deliver(&consumer, &seen, &host, &batch(&failing())).await, from(1));
    assert_eq!(numbers(&seen), ["1", "2", "4"]);
    assert_eq!(deliver(&consumer, &seen, &host, &batch(&order(1))).await, nothing());
    assert_eq!(numbers(&seen), ["1", "1", "2", "3", "4"]);
}

#[tokio::test]
async fn the_lane_of_a_change_is_the_whole_key_of_its_item() {
    let with_keys = |number, keys: Value, images: &Value| {
        let mut record = change(number, "", images);
        record["dynamodb"]["Keys"] = keys;
        record
    };
    let [text, sorted] =
        [json!({ "id": { "S": "1" }, "at": { "N": "2" } }), json!({ "at": { "N": "2" }, "id": { "S": "1" } })];
    for (other, is_same) in [
        (sorted, true),
        (json!({ "id": { "N": "1" }, "at": { "N": "2" } }), false),
        (json!({ "id": { "S": "1" }, "at": { "N": "3" } }), false),
        (json!({ "id": { "S": "1" } }), false),
    ] {
        let (_world, host, consumer, seen) = environment().await;
        let batch = [with_keys(1, text.clone(), &failing()), with_keys(2, other.clone(), &order(1))];
        assert_eq!(deliver(&consumer, &seen, &host, &batch).await, from(1));
        assert_eq!(numbers(&seen).contains(&"2".to_owned()), !is_same, "{other}");
    }
}

#[tokio::test]
async fn an_image_that_does_not_parse_is_not_done() {
    for which in ["NewImage", "OldImage"] {
        let (_world, host, consumer, seen) = environment().await;
        let mistyped = json!({ which: { "quantity": { "S": "many" } } });
        let batch = [change(1, "a", &order(1)), change(2, "b", &mistyped), change(3, "b", &order(3))];
        assert_eq!(deliver(&consumer, &seen, &host, &batch).await, from(2));
        assert_eq!(numbers(&seen), ["1"]);
        assert_eq!(host.requests(), 2);
    }
}

/// An image of any item.
#[derive(Deserialize)]
#[serde(untagged)]
enum Image {
    Order(Order),
    Other(IgnoredAny),
}

#[tokio::test]
async fn an_untagged_enum_reads_the_images_of_any_item() {
    let world = World::new().await;
    let host = world.host().build();
    let consumer: StreamConsumer<DynamoDbRecord<Image>, Declined> =
        StreamConsumer::by_event_id(world.locks(&host).build().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let seen = Arc::clone(&seen);
        move |record: DynamoDbRecord<Image>| {
            let quantity = match record.new_image {
                Some(Image::Order(order)) => Some(order.quantity),
                Some(Image::Other(IgnoredAny)) | None => None,
            };
            seen.lock().unwrap().push(quantity);
            ready(Ok::<_, Declined>(()))
        }
    });
    let other = json!({ "NewImage": { "quantity": { "S": "many" } }, "OldImage": { "parts": { "NS": ["1", "2"] } } });
    let event = invocation(&host, batch(&[change(1, "a", &order(2)), change(2, "a", &other)]));
    let answer = consumer.layer(handler).oneshot(event).await.unwrap();
    assert_eq!(serde_json::to_value(answer).unwrap(), nothing());
    assert_eq!(*seen.lock().unwrap(), [Some(2), None]);
}

#[tokio::test]
async fn a_change_without_a_sequence_number_returns_the_whole_batch() {
    let (_world, host, consumer, seen) = environment().await;
    let mut nameless = change(1, "a", &order(1));
    nameless["dynamodb"]["SequenceNumber"].take();
    let answer = deliver(&consumer, &seen, &host, &[nameless, change(2, "b", &order(2))]).await;
    assert_eq!(answer, json!({ "batchItemFailures": [{ "itemIdentifier": "" }] }));
    assert_eq!(numbers(&seen), ["2"]);
}

/// Delivers a change, and returns its new image, or the number of the record if it is not done.
async fn read<B>(number: &str, image: &Value) -> Result<B, String>
where
    B: DeserializeOwned + Clone + Send + Sync + 'static,
{
    let world = World::new().await;
    let host = world.host().build();
    let consumer: StreamConsumer<DynamoDbRecord<B>, Declined> =
        StreamConsumer::by_event_id(world.locks(&host).build().unwrap());
    let seen = Arc::new(Mutex::new(None));
    let handler = service_fn({
        let seen = Arc::clone(&seen);
        move |record: DynamoDbRecord<B>| {
            *seen.lock().unwrap() = record.new_image;
            ready(Ok::<_, Declined>(()))
        }
    });
    let mut record = change(1, "a", &json!({ "NewImage": image }));
    record["dynamodb"]["SequenceNumber"] = json!(number);
    // The only record of the batch is not done, so the invocation fails.
    let answer =
        consumer.layer(handler).oneshot(invocation(&host, batch(&[record]))).await.map_err(|_| number.to_owned())?;
    assert!(answer.batch_item_failures.is_empty());
    Ok(seen.lock().unwrap().take().unwrap())
}

/// An image with attributes of all types, and with numbers and bytes that JSON lacks.
fn all_types() -> Value {
    json!({
        "text": { "S": "a" },
        "number": { "N": "-99999999999999999999999999999999999999" },
        "fraction": { "N": "0.12345678901234567890123456789012345678" },
        "bytes": { "B": "AP8=" },
        "flag": { "BOOL": false },
        "nothing": { "NULL": true },
        "map": { "M": { "S": { "S": "looks like a type" }, "bytes": { "B": "AQ==" } } },
        "list": { "L": [{ "N": "1.10" }, { "L": [] }, { "M": {} }] },
        "texts": { "SS": ["a", "b"] },
        "numbers": { "NS": ["1", "99999999999999999999999999999999999999"] },
        "set of bytes": { "BS": ["AP8=", "AQ=="] },
    })
}

#[tokio::test]
async fn an_item_as_the_image_has_every_attribute_as_it_is() {
    let image: Item = read("as it is", &all_types()).await.unwrap();
    assert_eq!(serde_json::to_value(image).unwrap(), all_types());
}

#[tokio::test]
async fn an_image_that_does_not_fit_is_not_done_and_the_log_names_the_attribute_without_its_value() {
    keep_log();
    let nested = |quantity: Value| json!({ "orders": { "L": [{ "M": { "quantity": quantity } }] } });
    let shipment = "Shipment, because ";
    for (number, image, why) in [
        ("a text", nested(json!({ "S": "secret" })), "the attribute `orders[0].quantity` does not fit: "),
        ("a fraction", nested(json!({ "N": "0.77777" })), "the attribute `orders[0].quantity` does not fit: "),
        (
            "no quantity",
            json!({ "orders": { "L": [{ "M": {} }] } }),
            "the attribute `orders[0]` does not fit (missing field `quantity`): ",
        ),
        (
            "no orders",
            json!({ "id": { "S": "secret" } }),
            "the item as a whole does not fit (missing field `orders`): ",
        ),
    ] {
        assert_not_done::<Shipment>(number, &image, &format!("{shipment}{why}")).await;
    }
    // JSON has no bytes.
    for (number, value, path) in
        [("bytes", json!({ "B": "c2VjcmV0" }), "photo"), ("set of bytes", json!({ "BS": ["c2VjcmV0"] }), "photo[0]")]
    {
        let why = format!("serde_json::value::Value, because the attribute `{path}` does not fit: ");
        assert_not_done::<Value>(number, &json!({ "photo": value }), &why).await;
    }
}

#[derive(Clone, Deserialize)]
struct Shipment {
    #[expect(dead_code, reason = "only whether it can be read matters")]
    orders: Vec<Order>,
}

async fn assert_not_done<B>(number: &str, image: &Value, why: &str)
where
    B: DeserializeOwned + Clone + Send + Sync + 'static,
{
    assert_eq!(read::<B>(number, image).await.err(), Some(number.to_owned()));
    let lines = logged(number);
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains(why) && line.contains("such as `serde_dynamo::Item`"), "{line}");
    assert!(!line.contains("secret") && !line.contains("c2Vj") && !line.contains("0.77777"), "{line}");
}
