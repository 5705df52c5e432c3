//! The layer around an axum router.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use lambda_lock::Locks;
use lambda_lock::embedded::Host;
use lambda_lock::http::{Caller, HttpIdempotencyLayer, HttpRun};
use lambda_lock_tests::invocation::{Counter, invocation, over_http};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{environment, layer};

fn router(locks: &Locks, runs: &Counter) -> Router {
    let (place, change, read) = (runs.clone(), runs.clone(), runs.clone());
    Router::new()
        .route("/orders", post(async move |body: String| (StatusCode::CREATED, format!("{} {body}", place.count()))))
        .route("/orders/{id}", post(async move |Path(id): Path<String>| format!("{} {id}", change.count())))
        .route("/orders", get(async move || read.count().to_string()))
        .route("/fence", post(async |Extension(run): Extension<HttpRun>| run.lock().fence().to_string()))
        .layer(layer(locks))
}

fn post_to(host: &Host, uri: &str, key: &str, body: impl Into<Body>) -> Request<Body> {
    let head = Request::post(uri).header("idempotency-key", key).extension(invocation(host, ()).context);
    head.header(CONTENT_TYPE, "text/plain").body(body.into()).unwrap()
}

/// The status, the body, and whether it is a replay.
async fn ask(router: &Router, request: Request<Body>) -> (u16, String, bool) {
    let Ok::<Response<Body>, Infallible>(answer) = router.clone().oneshot(request).await;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let is_replay = head.headers.contains_key("idempotency-replayed");
    (head.status.as_u16(), String::from_utf8(body.to_vec()).unwrap(), is_replay)
}

#[tokio::test]
async fn a_router_is_idempotent() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let router = router(&locks, &runs);
    let tea = || post_to(&host, "/orders", "a", "tea");
    assert_eq!(ask(&router, tea()).await, (201, "1 tea".to_owned(), false));
    assert_eq!(ask(&router, tea()).await, (201, "1 tea".to_owned(), true));
    assert_eq!(ask(&router, post_to(&host, "/orders", "b", "tea")).await, (201, "2 tea".to_owned(), false));
    assert_eq!(ask(&router, post_to(&host, "/orders", "a", "coffee")).await.0, 422);
    assert_eq!(ask(&router, post_to(&host, "/orders/7", "a", "tea")).await.0, 422);
    assert_eq!(ask(&router, post_to(&host, "/nowhere", "c", "tea")).await.0, 404);
    assert_eq!(ask(&router, Request::post("/orders").body(Body::empty()).unwrap()).await.0, 400);
    assert_eq!(ask(&router, Request::get("/orders").body(Body::empty()).unwrap()).await, (200, "3".to_owned(), false));
    let (status, fence, _) = ask(&router, post_to(&host, "/fence", "d", "")).await;
    assert!(status == 200 && fence.parse::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn nested_routers_are_different_paths_behind_lambda() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let nested = Router::new().nest("/a", router(&locks, &runs)).nest("/b", router(&locks, &runs));
    let event = |path: &str| {
        json!({
            "version": "2.0", "rawPath": path, "headers": { "idempotency-key": "a", "content-type": "text/plain" },
            "requestContext": { "http": { "method": "POST" }, "timeEpoch": 0 }, "body": "tea", "isBase64Encoded": false,
        })
    };
    let ask = async |path: &str| -> Value {
        // `lambda_http` has its own body.
        let service = nested.clone().map_request(|request: lambda_http::Request| {
            let (parts, body) = request.into_parts();
            Request::from_parts(parts, Body::from(body.to_vec()))
        });
        over_http(&host, service, &event(path)).await["statusCode"].clone()
    };
    assert_eq!(ask("/a/orders").await, 201);
    assert_eq!(ask("/a/orders").await, 201);
    assert_eq!(ask("/b/orders").await, 422);
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn a_streamed_request_is_limited() {
    let (_world, host, locks) = environment().await;
    let limited = HttpIdempotencyLayer::new(locks, Caller::shared()).max_body_bytes(5);
    let router = Router::new().route("/orders", post(async |body: String| body)).layer(limited);
    let stream = |text: &'static str| {
        let bytes = text.bytes().map(|byte| Ok::<_, Infallible>(vec![byte])).collect::<Vec<_>>();
        Body::from_stream(futures_util::stream::iter(bytes))
    };
    assert_eq!(ask(&router, post_to(&host, "/orders", "a", stream("123456"))).await.0, 413);
    assert_eq!(ask(&router, post_to(&host, "/orders", "a", "123456")).await.0, 413);
    assert_eq!(host.requests(), 0);
    assert_eq!(ask(&router, post_to(&host, "/orders", "a", stream("12345"))).await, (200, "12345".to_owned(), false));
    assert_eq!(ask(&router, post_to(&host, "/orders", "a", "12345")).await, (200, "12345".to_owned(), true));
}
