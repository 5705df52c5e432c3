//! A handler that completes its run in its own transaction.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use lambda_http::{Body, Request, Response};
use lambda_lock::ErrorKind;
use lambda_lock::embedded::Host;
use lambda_lock::http::HttpRun;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, LoseAnswers};
use serde_json::json;
use std::convert::identity;
use std::time::Duration;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{Reply, counting, created, environment, layer, order, order_of, send};

/// The handler's error.
#[derive(Debug)]
struct NotCommitted;

type Outcome = Result<Response<Body>, NotCommitted>;

/// A handler that writes a new business row with a response, both or neither, and returns what `answer` makes of the
/// outcome.
fn committing(
    world: &World,
    host: &Host,
    answer: impl Fn(Outcome) -> Outcome + Clone + Send + 'static,
) -> impl Service<Request, Response = Response<Body>, Error = NotCommitted, Future: Send> + Clone + Send + 'static {
    let (table, runs) = (world.table.clone(), Counter::default());
    let retries = RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
    let client = Client::from_conf(host.client().config().to_builder().retry_config(retries).build());
    service_fn(move |request: Request| {
        let (client, table, answer, response) = (client.clone(), table.clone(), answer.clone(), created(runs.count()));
        async move {
            let run = request.extensions().get::<HttpRun>().unwrap();
            let row = Put::builder()
                .table_name(table)
                .item("id", AttributeValue::S("the order itself".to_owned()))
                .condition_expression("attribute_not_exists(id)");
            let completion = run.complete_in(&response).unwrap();
            let transaction = client
                .transact_write_items()
                .transact_items(TransactWriteItem::builder().put(row.build().unwrap()).build())
                .transact_items(completion);
            let sent = Box::pin(transaction.send()).await;
            answer(sent.map(|_| response).map_err(|_| NotCommitted))
        }
    })
}

#[tokio::test]
async fn a_response_is_committed_with_the_business_write() {
    let (world, host, locks) = environment().await;
    let handler = committing(&world, &host, identity);
    let first = send(&layer(&locks), &handler, order(&host)).await;
    assert_eq!(first.made_by(), (201, 1, false));
    assert_eq!(host.requests(), 2);
    let replay = send(&layer(&locks), &handler, order(&host)).await;
    assert_eq!((replay.made_by(), &replay.body), ((201, 1, true), &first.body));
    assert_eq!(replay.header("content-type"), Some("application/json"));
    assert!(world.row("the order itself").await.is_some());
    assert_eq!(host.requests(), 3);
}

#[tokio::test]
async fn a_committed_response_whose_answer_was_lost_is_replayed() {
    let (world, _, _) = environment().await;
    // All answers to the three tries of the SDK.
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=3)).build();
    let locks = world.locks(&host).build().unwrap();
    let reply = send(&layer(&locks), &committing(&world, &host, identity), order(&host)).await;
    assert_eq!(reply.made_by(), (201, 1, true));
}

#[tokio::test]
async fn another_response_after_a_failed_transaction_is_stored() {
    let (world, host, locks) = environment().await;
    let exists = || Response::builder().status(422).body("the order exists".into()).unwrap();
    let handler = committing(&world, &host, move |outcome| Ok(outcome.unwrap_or_else(|NotCommitted| exists())));
    assert_eq!(send(&layer(&locks), &handler, order(&host)).await.made_by(), (201, 1, false));
    for is_replay in [false, true] {
        let reply = send(&layer(&locks), &handler, order_of(&host, "b", &json!({}))).await;
        assert_eq!((reply.status.as_u16(), reply.is_replay()), (422, is_replay));
        assert_eq!(reply.body, "the order exists");
    }
}

#[tokio::test]
async fn another_response_after_a_committed_transaction_is_replaced() {
    let (world, host, locks) = environment().await;
    let handler = committing(&world, &host, |outcome| outcome.map(|_| created(7)));
    for _ in 0..2 {
        assert_eq!(send(&layer(&locks), &handler, order(&host)).await.made_by(), (201, 1, true));
    }
}

#[tokio::test]
async fn complete_in_refuses_an_unstorable_response() {
    let (_world, host, locks) = environment().await;
    let handler = service_fn(async |request: Request| {
        let failed = Response::builder().status(503).body(Body::Empty).unwrap();
        let error = request.extensions().get::<HttpRun>().unwrap().complete_in(&failed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        Ok::<_, NotCommitted>(failed)
    });
    let reply = Reply::of(layer(&locks).layer(handler).oneshot(order(&host)).await.unwrap()).await;
    assert_eq!(reply.status, 503);
    assert_eq!(send(&layer(&locks), &counting(&Counter::default()), order(&host)).await.made_by(), (201, 1, false));
}
