//! The formats of Powertools for AWS Lambda.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::RecordFormat;
use lambda_lock::{ErrorKind, Locks, Run};
use lambda_lock_tests::invocation::{Counter, keep_log, logged, millis};
use lambda_lock_tests::{Row, World};
use serde_json::{Value, json};

use crate::{
    AFTER_THE_WINDOW, Declined, Order, Orders, completed, decline, environment, is_declined, later, number, number_in,
    order, orders, place, refused, refusing, row, seconds, storing, string_in, text,
};

fn as_powertools(locks: &Locks, format: RecordFormat) -> Orders<Value> {
    orders(locks).format(format).prefix("orders").validate(|order| order.amount)
}

fn result_in_powertools() -> Value {
    json!({ "b": 1, "a": [1, 2.5, "é"], "z": null })
}

#[tokio::test]
async fn a_record_has_the_attributes_of_powertools_for_python() {
    let (world, host, locks) = environment().await;
    let orders = as_powertools(&locks, RecordFormat::PowertoolsPython);
    orders.run(&order("abc"), async |_| Ok(result_in_powertools())).await.unwrap();
    let row = world.row("orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90").await.unwrap();
    assert_eq!(string_in(&row, "status"), "COMPLETED");
    assert_eq!(string_in(&row, "validation"), "e4da3b7fbbce2345d7772b0674a318d5");
    assert_eq!(serde_json::from_str::<Value>(string_in(&row, "data")).unwrap(), result_in_powertools());
    assert!(number_in(&row, "expiration") > seconds(&host));
    assert!(number_in(&row, "in_progress_expiration") > millis(host.now()));
}

#[tokio::test]
async fn a_record_has_the_attributes_of_powertools_for_typescript() {
    let (world, _host, locks) = environment().await;
    let orders = as_powertools(&locks, RecordFormat::PowertoolsTypeScript);
    orders.run(&order("abc"), async |_| Ok(result_in_powertools())).await.unwrap();
    let stored = world.row("orders#69n0x7BssKr10T2A5J2LkA==").await.unwrap();
    assert_eq!(string_in(&stored, "status"), "COMPLETED");
    let list = AttributeValue::L(vec![number(1), AttributeValue::N("2.5".to_owned()), text("é")]);
    let expected = row([("a", list), ("b", number(1)), ("z", AttributeValue::Null(true))]);
    assert_eq!(stored["data"], AttributeValue::M(expected));
}

/// A row as Powertools writes it: without owner, fence and holder.
fn of_powertools<const N: usize>(
    id: &str,
    status: &str,
    expiration: u64,
    attributes: [(&str, AttributeValue); N],
) -> Row {
    let mut theirs = row([("id", text(id)), ("status", text(status)), ("expiration", number(expiration))]);
    theirs.extend(row(attributes));
    theirs
}

#[tokio::test]
async fn a_completed_record_of_powertools_is_replayed() {
    let (world, host, locks) = environment().await;
    let expiration = seconds(&host) + 600;
    let python = "orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90";
    let data = text(r#"{"a": [1, 2.5, "\u00e9"], "b": 1, "z": null}"#);
    let validation = text("e4da3b7fbbce2345d7772b0674a318d5");
    let theirs = of_powertools(python, "COMPLETED", expiration, [("data", data), ("validation", validation)]);
    world.put_row(theirs.clone()).await;
    let orders = as_powertools(&locks, RecordFormat::PowertoolsPython);
    let replayed = orders.run(&order("abc"), async |_| panic!("it runs again")).await.unwrap();
    assert_eq!(replayed, result_in_powertools());
    let other = Order { amount: 6, ..order("abc") };
    assert_eq!(refused(orders.run(&other, async |_| panic!("it runs again")).await).kind(), ErrorKind::Mismatch);
    assert_eq!(world.row(python).await, Some(theirs));

    let typescript = "orders#69n0x7BssKr10T2A5J2LkA==";
    let data = AttributeValue::M(row([("sum", number(5)), ("paid", AttributeValue::Bool(true))]));
    world.put_row(of_powertools(typescript, "COMPLETED", expiration, [("data", data)])).await;
    let orders: Orders<Value> = self::orders(&locks).format(RecordFormat::PowertoolsTypeScript).prefix("orders");
    let replayed = orders.run(&order("abc"), async |_| panic!("it runs again")).await.unwrap();
    assert_eq!(replayed, json!({ "sum": 5, "paid": true }));
}

#[tokio::test]
async fn a_record_that_powertools_left_in_progress_is_taken_over_after_its_end() {
    let (world, host, locks) = environment().await;
    let id = "orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90";
    let now = seconds(&host);
    let (runs, orders) = (Counter::default(), orders(&locks).format(RecordFormat::PowertoolsPython).prefix("orders"));
    let end = |by: i64| ("in_progress_expiration", number((now.cast_signed() + by) * 1000));
    let running = of_powertools(id, "INPROGRESS", now + 3600, [end(10)]);
    world.put_row(running.clone()).await;
    let error = refused(place(&orders, &order("abc"), &runs).await);
    assert!(error.kind() == ErrorKind::InProgress && error.holder().unwrap().name().is_none(), "{error}");
    assert_eq!(world.row(id).await, Some(running));
    // Without a Lambda context, it is in progress until its expiration.
    world.put_row(of_powertools(id, "INPROGRESS", now + 60, [])).await;
    assert_eq!(refused(place(&orders, &order("abc"), &runs).await).kind(), ErrorKind::InProgress);
    for over in [of_powertools(id, "INPROGRESS", now + 3600, [end(-10)]), of_powertools(id, "INPROGRESS", now - 10, [])]
    {
        world.put_row(over).await;
        let before = runs.get();
        assert_eq!(place(&orders, &order("abc"), &runs).await.unwrap(), before + 1);
        assert!(number_in(&world.row(id).await.unwrap(), "fence") > 0);
    }
}

#[tokio::test]
async fn a_run_that_powertools_left_in_progress_is_unfinished() {
    let (world, host, locks) = environment().await;
    let now = seconds(&host);
    let end = ("in_progress_expiration", number((now - 10) * 1000));
    world.put_row(of_powertools("a", "INPROGRESS", now + 3600, [end])).await;
    let runs = Counter::default();
    assert_eq!(refused(place(&refusing(&locks), &order("a"), &runs).await).kind(), ErrorKind::Unfinished);
    assert_eq!(place(&refusing(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_run_does_not_modify_a_record_that_powertools_took_over() {
    let (world, host, locks) = environment().await;
    let theirs = of_powertools("a", "INPROGRESS", seconds(&host) + 3600, []);
    for fails in [false, true] {
        let body = async |_: &Run| {
            // Powertools puts the whole item.
            world.put_row(theirs.clone()).await;
            if fails { Err(Declined) } else { Ok(17) }
        };
        let outcome = orders::<u32>(&locks).run(&order("a"), body).await;
        assert_eq!(outcome.is_err(), fails);
        assert_eq!(world.row("a").await.as_ref(), Some(&theirs));
        world.delete_row("a").await;
    }
}

#[tokio::test]
async fn the_powertools_formats_store_no_errors() {
    let (world, _host, locks) = environment().await;
    for format in [RecordFormat::PowertoolsPython, RecordFormat::PowertoolsTypeScript] {
        let (orders, runs) = (storing(&locks).format(format), Counter::default());
        for _ in 0..2 {
            assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
        }
        assert_eq!(runs.get(), 2);
    }
    drop(world);
}

#[tokio::test]
async fn a_run_does_not_modify_a_record_that_powertools_completed() {
    let (world, host, locks) = environment().await;
    keep_log();
    let orders: Orders<u32> = orders(&locks);
    let mine = async |_: &Run| {
        let mut theirs = world.row("completed elsewhere").await.unwrap();
        theirs.insert("status".to_owned(), text("COMPLETED"));
        theirs.insert("data".to_owned(), text("18"));
        theirs.insert("expiration".to_owned(), number(seconds(&host) + 3600));
        world.put_row(theirs).await;
        Ok(17)
    };
    assert_eq!(orders.run(&order("completed elsewhere"), mine).await.unwrap(), 17);
    assert_eq!(string_in(&world.row("completed elsewhere").await.unwrap(), "data"), "18");
    assert!(logged("completed elsewhere").iter().any(|line| line.contains("WARN") && line.contains("lost: ")));
}

/// Puts half of a surrogate pair in the place of `HALF`, as an answer with a string of JavaScript can have it.
#[derive(Clone, Debug)]
struct Halves<C>(C);

impl HttpClient for Halves<SharedHttpClient> {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(Halves(self.0.http_connector(settings, components)))
    }
}

impl HttpConnector for Halves<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let answer = self.0.call(request);
        HttpConnectorFuture::new(async move {
            let answer = answer.await?;
            let status = answer.status();
            let body = ByteStream::new(answer.into_body()).collect().await.unwrap().to_vec();
            let body = String::from_utf8(body).unwrap().replace("HALF", "\\ud83d");
            Ok(HttpResponse::new(status, SdkBody::from(body)))
        })
    }
}

/// Locks whose answers have halves of characters.
fn with_halves(world: &World, host: &Host) -> Locks {
    let config = host.client().config().clone();
    let halves = Halves(config.http_client().unwrap());
    Locks::builder(Client::from_conf(config.to_builder().http_client(halves).build()), &world.table).build().unwrap()
}

#[tokio::test]
async fn a_result_of_typescript_with_half_of_a_character_is_unusable() {
    let (world, host, _) = environment().await;
    let locks = with_halves(&world, &host);
    let id = "orders#69n0x7BssKr10T2A5J2LkA==";
    for data in [text("secret HALF"), AttributeValue::M(row([("HALF", text("secret"))]))] {
        world.put_row(completed(&host, [("id", text(id)), ("data", data)])).await;
        let orders: Orders<Value> = orders(&locks).format(RecordFormat::PowertoolsTypeScript).prefix("orders");
        let error = refused(orders.run(&order("abc"), async |_| panic!("it runs again")).await);
        assert!(error.kind() == ErrorKind::UnusableResult && error.to_string().contains("surrogate"), "{error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        // A lock knows no results.
        assert_eq!(locks.acquire(id).await.unwrap_err().kind(), ErrorKind::MalformedRow);
    }
}

#[tokio::test]
async fn a_record_of_typescript_with_half_of_a_character_is_replaced_after_its_window() {
    let (world, host, _) = environment().await;
    let locks = with_halves(&world, &host);
    let over = [("data", text("HALF")), ("expiration", number(seconds(&host) - 10))];
    world.put_row(completed(&host, over)).await;
    assert_eq!(place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_python_integer_above_64_bits_is_rejected() {
    let (world, host, locks) = environment().await;
    let data = text(r#"{"id": 123456789012345678901}"#);
    world.put_row(completed(&host, [("id", text("orders#ebd9f4c7b06cb0aaf5d13d80e49d8b90")), ("data", data)])).await;
    let orders: Orders<Value> = orders(&locks).format(RecordFormat::PowertoolsPython).prefix("orders");
    let error = refused(orders.run(&order("abc"), async |_| panic!("it runs again")).await);
    assert!(error.kind() == ErrorKind::UnusableResult && error.to_string().contains("64 bits"), "{error}");
    assert!(!error.to_string().contains("123456"), "{error}");
}
