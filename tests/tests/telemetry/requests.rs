//! Metrics and events of HTTP requests that are refused.

use std::convert::Infallible;

use lambda_http::{Body, Request, Response};
use lambda_lock::http::{Caller, HttpIdempotencyLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::Stage;

fn request(key: Option<&str>, body: &str) -> Request {
    let request = http::Request::builder().method("POST").uri("https://api.example/orders");
    let request = if let Some(key) = key { request.header("idempotency-key", key) } else { request };
    request.body(Body::from(body)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_refused_request_counts_by_its_problem_and_leaves_a_line() {
    let stage = Stage::set().await;
    let layer = HttpIdempotencyLayer::new(stage.locks(), Caller::shared()).prefix("api").max_key_length(10);
    let api = layer.layer(service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::from("done")))));
    let problem = async |request: Request| {
        let status = api.clone().oneshot(request).await.unwrap().status().as_u16();
        let counted = stage.metrics.take();
        let counted = counted.counters.keys().find(|name| name.starts_with("http_problems")).cloned();
        (status, counted)
    };
    assert_eq!(problem(request(Some("a"), "tea")).await, (200, None));
    for (key, body, status, name) in [
        (Some(""), "tea", 400, "key-missing"),
        (Some("\"a"), "tea", 400, "key-malformed"),
        (Some("12345678901"), "tea", 400, "key-too-long"),
        (None, "tea", 400, "key-missing"),
        (Some("a"), "milk", 422, "key-reused"),
    ] {
        let before = stage.traces.logged("the request was refused").len();
        assert_eq!(problem(request(key, body)).await, (status, Some(format!("http_problems: {name}"))));
        let lines = stage.traces.logged("the request was refused");
        assert_eq!(lines.len(), before + 1, "{lines:?}");
        assert_eq!(lines[before].fields["problem"], name);
    }
}
