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

#[tokio::test(start_paused = true)]
async fn only_an_answer_from_500_counts_as_failed_work() {
    let stage = Stage::set().await;
    let layer = HttpIdempotencyLayer::new(stage.locks(), Caller::shared()).prefix("api");
    let api = layer.layer(service_fn(async |request: Request| {
        let status = std::str::from_utf8(request.body()).unwrap();
        let response = Response::builder().status(status.parse::<u16>().map_err(|_| "no status")?);
        Ok::<_, &str>(response.body(Body::from("answered")).unwrap())
    }));
    for (key, status, name) in [
        ("a", "201", "released"),
        ("b", "400", "released"),
        // No result, because a retry may be answered otherwise.
        ("c", "429", "released"),
        ("d", "500", "work_failed"),
        ("e", "", "work_failed"),
    ] {
        let answer =
            api.clone().oneshot(request(Some(key), status)).await.map(|answer| answer.status().as_u16().to_string());
        assert_eq!(answer.unwrap_or_default(), status);
        let counted = stage.metrics.take();
        let ends = ["released", "work_failed"].map(|name| counted.count(name));
        assert_eq!(ends, [u64::from(name == "released"), u64::from(name == "work_failed")], "{status}");
    }
}
