//! The handler behind the layer.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use lambda_http::{Body, Response};
use lambda_lock::embedded::Host;
use lambda_lock_tests::invocation::{Counter, OneByOne, over_http};
use serde_json::json;
use tokio::time::sleep;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{answering, counting, created, environment, layer, order, order_of, send};

#[tokio::test]
async fn a_handler_that_panics_releases_the_record() {
    let (_world, host, locks) = environment().await;
    let panicking = layer(&locks).layer(service_fn(
        |_: lambda_http::Request| -> BoxFuture<'static, Result<Response<Body>, Infallible>> { panic!("in the call") },
    ));
    let panic = AssertUnwindSafe(panicking.oneshot(order(&host))).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the call"));
    assert_eq!(send(&layer(&locks), &counting(&Counter::default()), order(&host)).await.made_by(), (201, 1, false));
}

/// A handler that blocks its thread until a minute later, after the deadline.
fn blocking(
    host: &Host,
    runs: &Counter,
) -> impl Service<lambda_http::Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
    let host = host.clone();
    answering(runs, move |run| {
        host.advance_clock(Duration::from_mins(1));
        created(run)
    })
}

#[tokio::test]
async fn a_handler_that_blocks_past_its_lease_is_interrupted_and_a_retry_gets_its_response() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let late = send(&layer, &blocking(&host, &runs), order(&host)).await;
    assert_eq!(late.problem(), (503, "interrupted".to_owned()));
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 1, true));
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn the_service_calls_the_handler_that_it_polled_ready() {
    let (_world, host, locks) = environment().await;
    let mut service =
        layer(&locks).layer(OneByOne::<lambda_http::Request, _, Infallible>::answering(|| Ok(created(1))));
    let passes_through = Request::builder().method(Method::GET).body(Body::Empty).unwrap();
    for (request, status) in [(order(&host), 201), (passes_through, 201), (order(&host), 201)] {
        assert_eq!(service.ready().await.unwrap().call(request).await.unwrap().status(), status);
    }
    let broken = OneByOne::<lambda_http::Request, Response<Body>, _>::answering(|| Err("broken"));
    assert_eq!(layer(&locks).layer(broken).oneshot(order(&host)).await.unwrap_err(), "broken");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_ten_concurrent_requests_of_each_key_runs() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let handler = service_fn({
        let runs = runs.clone();
        move |_: lambda_http::Request| {
            let runs = runs.clone();
            async move {
                sleep(Duration::from_millis(20)).await;
                Ok::<_, Infallible>(created(runs.count()))
            }
        }
    });
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..60 {
        let (layer, handler, key) = (layer(&locks), handler.clone(), format!("order {}", index % 6));
        let request = order_of(&host, &format!("\"{key}\""), &json!({ "item": key }));
        calls.spawn(async move { send(&layer, &handler, request).await.status });
    }
    while let Some(status) = calls.join_next().await {
        assert!([201, 409].contains(&status.unwrap().as_u16()));
    }
    assert_eq!(runs.get(), 6);
}

#[tokio::test]
async fn each_front_end_gets_a_replay_in_its_own_form() {
    let headers = json!({ "idempotency-key": "\"a\"", "content-type": "application/json" });
    let rest = json!({
        "resource": "/orders", "path": "/orders", "httpMethod": "POST", "headers": headers, "multiValueHeaders": {},
        "requestContext": { "httpMethod": "POST", "identity": {} }, "body": "{}", "isBase64Encoded": false,
    });
    let http_api = json!({
        "version": "2.0", "rawPath": "/orders", "headers": headers,
        "requestContext": { "http": { "method": "POST" }, "timeEpoch": 0 }, "body": "{}", "isBase64Encoded": false,
    });
    let load_balancer = json!({
        "httpMethod": "POST", "path": "/orders", "headers": headers,
        "requestContext": { "elb": { "targetGroupArn": "arn" } }, "body": "{}", "isBase64Encoded": false,
    });
    // Where each form has the header of a replay, and what only this form has.
    let (one, many) = ("/headers/idempotency-replayed", "/multiValueHeaders/idempotency-replayed");
    for (event, form) in [
        (rest, vec![(many, json!(["true"])), ("/headers", json!({}))]),
        (http_api, vec![(one, json!("true")), ("/cookies", json!([]))]),
        (
            load_balancer,
            vec![(one, json!("true")), (many, json!(["true"])), ("/statusDescription", json!("201 Created"))],
        ),
    ] {
        let (_world, host, locks) = environment().await;
        let runs = Counter::default();
        for is_replay in [false, true] {
            let answer = over_http(&host, layer(&locks).layer(counting(&runs)), &event).await;
            assert_eq!((&answer["statusCode"], &answer["body"]), (&json!(201), &json!("{\"run\":1}")), "{answer}");
            assert_eq!(answer["isBase64Encoded"], false);
            assert_eq!(answer.to_string().contains("idempotency-replayed"), is_replay, "{answer}");
            assert!(answer.to_string().contains(CONTENT_TYPE.as_str()));
            for (member, value) in form.iter().filter(|_| is_replay) {
                assert_eq!(answer.pointer(member), Some(value), "{member} of {answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_outside_of_an_invocation_has_the_lease_of_the_locks() {
    let (world, host, locks) = environment().await;
    let mut request = order(&host);
    request.extensions_mut().clear();
    let handler = service_fn({
        let world = std::sync::Arc::new(world);
        move |_: lambda_http::Request| {
            let world = std::sync::Arc::clone(&world);
            async move {
                let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
                let end: u64 = rows[0]["in_progress_expiration"].as_n().unwrap().parse().unwrap();
                Ok::<_, Infallible>(Response::new(Body::from(end.to_string())))
            }
        }
    });
    let reply = send(&layer(&locks), &handler, request).await;
    let end: u64 = String::from_utf8(reply.body.to_vec()).unwrap().parse().unwrap();
    let now = lambda_lock_tests::invocation::millis(host.now());
    assert!((now + 20_000..=now + 31_000).contains(&end));
}
