//! Each line of the table of statuses in the guide `http`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http::header::CONTENT_TYPE;
use lambda_http::{Body, Request, Response};
use lambda_lock::OnUnfinished;
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock::http::{Caller, HttpIdempotencyLayer};
use lambda_lock::idempotency::OnUnstorableResult;
use lambda_lock_tests::invocation::{Counter, LoseAnswers, keep_log, logged};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};

use crate::{MOST, Reply, TOO_LONG, answering, counting, environment, layer, order, order_of, send, to, with_key};

const GUIDE: &str = include_str!("../../../lock/docs/reference/http.md");
const OPENAPI: &str = include_str!("../../../lock/docs/openapi.yaml");
const TYPES: &str = "https://docs.rs/lambda-lock/latest/lambda_lock/docs/reference/http/index.html#";

/// The lines of the guide's table: status and whether there is `Retry-After`, by the last part of the type.
fn documented() -> BTreeMap<&'static str, (u16, bool)> {
    let lines = GUIDE.lines().filter_map(|line| {
        let [_, status, _, retry_after, _] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            return None;
        };
        let (name, status) = status.strip_prefix("<a id=\"")?.split_once("\"></a>")?;
        Some((name, (status.split(' ').next()?.parse().ok()?, retry_after != "no")))
    });
    lines.collect()
}

/// Asserts that an answer is the problem that the guide describes.
#[track_caller]
fn assert_problem(reply: &Reply, name: &str) {
    let (status, has_retry_after) = documented()[name];
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    let problem: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(problem["type"], format!("{TYPES}{name}"));
    assert_eq!((reply.status.as_u16(), &problem["status"]), (status, &json!(status)));
    for member in ["title", "detail"] {
        assert!(problem[member].as_str().is_some_and(|text| text.len() > 10), "{problem}");
    }
    let retry_after = reply.header("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
    assert_eq!(retry_after.is_some(), has_retry_after);
    assert!(retry_after.is_none_or(|seconds| seconds >= 1));
    assert!(!reply.is_replay());
}

#[test]
fn each_line_of_the_table_has_a_test() {
    let source = include_str!("statuses.rs");
    let documented = documented();
    assert_eq!(documented.len(), 14, "{documented:?}");
    for name in documented.keys() {
        assert!(source.contains(&format!(", \"{name}\");")), "{name}");
        assert!(GUIDE.contains(&format!("<a id=\"{name}\"></a>")), "{name} has no anchor");
        assert!(OPENAPI.contains(&format!("- {TYPES}{name}\n")), "{name} is not in the OpenAPI description");
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_a_bad_request() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let unkeyed = to(&host, http::Method::POST, "/orders").body(Body::Empty).unwrap();
    for request in [unkeyed, order_of(&host, "\"\"", &json!({}))] {
        assert_problem(&send(&layer, &counting(&runs), request).await, "key-missing");
    }
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

#[tokio::test]
async fn a_malformed_key_is_a_bad_request() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let twice = with_key(&host, "a").header("idempotency-key", "a").body(Body::Empty).unwrap();
    for request in [order_of(&host, "\"a", &json!({})), twice] {
        assert_problem(&send(&layer, &counting(&runs), request).await, "key-malformed");
    }
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

#[tokio::test]
async fn a_long_key_is_a_bad_request() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let shorter = layer(&locks).max_key_length(3);
    for (layer, length, is_too_long) in
        [(layer(&locks), 255, false), (layer(&locks), 256, true), (shorter.clone(), 3, false), (shorter, 4, true)]
    {
        let reply = send(&layer, &counting(&runs), order_of(&host, &"k".repeat(length), &json!({}))).await;
        if is_too_long {
            assert_problem(&reply, "key-too-long");
        } else {
            assert_eq!(reply.status, 201, "{length}");
        }
    }
    assert_eq!((runs.get(), host.requests()), (2, 4));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_a_bad_request() {
    let (_world, host, locks) = environment().await;
    let handler = service_fn(async |_: http::Request<axum::body::Body>| -> Result<Response<Body>, Infallible> {
        panic!("the handler runs")
    });
    let chunks = [Ok("{\"item\""), Err("the connection was lost")];
    let broken = with_key(&host, "a").body(axum::body::Body::from_stream(stream::iter(chunks))).unwrap();
    let reply = Reply::of(layer(&locks).layer(handler).oneshot(broken).await.unwrap()).await;
    assert_problem(&reply, "body-unreadable");
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_request_of_an_unknown_caller_is_forbidden() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let unknown = HttpIdempotencyLayer::new(locks, Caller::iam_principal());
    assert_problem(&send(&unknown, &counting(&runs), order(&host)).await, "caller-unknown");
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

#[tokio::test]
async fn a_request_whose_key_is_in_progress_is_a_conflict_for_now() {
    let (_world, host, locks) = environment().await;
    let layer = layer(&locks);
    let (started, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = service_fn({
        let (started, end) = (Arc::clone(&started), Arc::clone(&end));
        move |_: Request| {
            let (started, end) = (Arc::clone(&started), Arc::clone(&end));
            async move {
                started.notify_one();
                end.notified().await;
                Ok::<_, Infallible>(Response::new(Body::Empty))
            }
        }
    });
    let first = send(&layer, &handler, order(&host));
    let second = async {
        started.notified().await;
        let reply = send(&layer, &handler, order(&host)).await;
        end.notify_one();
        reply
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.status, 200);
    assert_problem(&second, "in-progress");
    // The lease lasts for 30 seconds, but the run may be done sooner.
    assert_eq!(second.header("retry-after"), Some("1"));
    assert_eq!(host.requests(), 3);
}

/// Begins a run that does not end.
async fn begin(layer: &HttpIdempotencyLayer, host: &Host) {
    let started = Arc::new(Notify::new());
    let handler = service_fn({
        let started = Arc::clone(&started);
        move |_: Request| {
            let started = Arc::clone(&started);
            async move {
                started.notify_one();
                pending::<Result<Response<Body>, Infallible>>().await
            }
        }
    });
    tokio::select! {
        _ = send(layer, &handler, order(host)) => panic!("it ended"),
        () = started.notified() => {}
    }
}

#[tokio::test]
async fn a_client_waits_longer_for_an_older_run_until_its_lease_ends() {
    let (world, host, locks) = environment().await;
    begin(&layer(&locks), &host).await;
    // Its lease ends after 30 seconds, and one for wrong clocks.
    for (age, seconds) in [(3, "1"), (13, "6"), (20, "10"), (26, "5")] {
        let later = world.host().later(Duration::from_millis(1_000 * age + 50)).build();
        let locks = world.locks(&later).build().unwrap();
        let reply = send(&layer(&locks), &counting(&Counter::default()), order(&later)).await;
        assert_eq!((reply.problem().0, reply.header("retry-after")), (409, Some(seconds)), "after {age} s");
    }
}

#[tokio::test]
async fn a_request_whose_key_has_an_unfinished_run_is_a_conflict() {
    let (world, host, locks) = environment().await;
    begin(&layer(&locks).on_unfinished(OnUnfinished::Reject), &host).await;
    let later = world.host().later(Duration::from_secs(33)).build();
    let locks = world.locks(&later).build().unwrap();
    let runs = Counter::default();
    let reject = layer(&locks).on_unfinished(OnUnfinished::Reject);
    assert_problem(&send(&reject, &counting(&runs), order(&later)).await, "unfinished");
    assert_eq!(runs.get(), 0);
    assert_eq!(send(&layer(&locks), &counting(&runs), order(&later)).await.made_by(), (201, 1, false));
}

/// A handler whose body no record can hold.
fn large(run: u32) -> Response<Body> {
    Response::builder().header("x-run", run).body("x".repeat(MOST + 1).into()).unwrap()
}

#[tokio::test]
async fn a_retry_whose_response_was_not_stored_is_a_conflict() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let first = send(&layer, &answering(&runs, large), order(&host)).await;
    assert_eq!((first.status.as_u16(), first.body.len(), first.header("x-run")), (200, MOST + 1, Some("1")));
    assert_problem(&send(&layer, &answering(&runs, large), order(&host)).await, "result-not-stored");
    assert_eq!((runs.get(), host.requests()), (1, 3));
}

#[tokio::test]
async fn a_large_body_is_refused() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let layer = layer(&locks).max_body_bytes(10);
    let of_bytes = |bytes| with_key(&host, "a").body(Body::Text("x".repeat(bytes))).unwrap();
    assert_problem(&send(&layer, &counting(&runs), of_bytes(11)).await, "body-too-large");
    assert_eq!(send(&layer, &counting(&runs), of_bytes(10)).await.status, 201);
    assert_eq!((runs.get(), host.requests()), (1, 2));
}

#[tokio::test]
async fn a_key_with_another_request_is_unprocessable() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 1, false));
    let other = order_of(&host, "a", &json!({ "item": "coffee" }));
    assert_problem(&send(&layer, &counting(&runs), other).await, "key-reused");
    assert_eq!((runs.get(), host.requests()), (1, 3));
}

#[tokio::test]
async fn a_required_response_that_cannot_be_stored_is_a_server_error() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let failing = layer(&locks).on_unstorable_result(OnUnstorableResult::Fail);
    assert_problem(&send(&failing, &answering(&runs, large), order(&host)).await, "result-unusable");
    assert_problem(&send(&layer(&locks), &counting(&runs), order(&host)).await, "in-progress");
    let later = world.host().later(Duration::from_secs(33)).build();
    let locks = world.locks(&later).build().unwrap();
    assert_eq!(send(&layer(&locks), &counting(&runs), order(&later)).await.made_by(), (201, 2, false));
}

/// Denies all requests.
#[derive(Debug)]
struct Denied;

impl Intercept for Denied {
    fn request(&self, _: &str, request: &mut Value) {
        *request = json!({});
    }

    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        answer.status = 400;
        answer.body = json!({ "__type": "AccessDeniedException", "message": "secret" });
    }
}

#[tokio::test]
async fn a_fault_of_the_service_is_logged_and_does_not_show_its_cause() {
    keep_log();
    let (world, _, _) = environment().await;
    let host = world.host().intercept(Denied).build();
    let locks = world.locks(&host).build().unwrap();
    let runs = Counter::default();
    let layer = layer(&locks).prefix("a-fault-of-the-service");
    let reply = send(&layer, &counting(&runs), order_of(&host, "key-of-the-client", &json!({}))).await;
    assert_problem(&reply, "failed");
    assert!(!String::from_utf8_lossy(&reply.body).contains("secret"));
    assert_eq!(runs.get(), 0);
    let log = logged("a-fault-of-the-service");
    assert!(log.iter().any(|line| line.contains("ERROR") && line.contains("secret")), "{log:?}");
    assert_eq!(logged("key-of-the-client"), [""; 0]);
}

#[tokio::test]
async fn a_request_that_outlives_its_lease_is_interrupted() {
    let (_world, host, locks) = environment().await;
    let layer = layer(&locks).lease(Duration::from_millis(300));
    let endless = service_fn(|_: Request| pending::<Result<Response<Body>, Infallible>>());
    let reply = timeout(TOO_LONG, send(&layer, &endless, order(&host))).await.expect("it is cancelled");
    assert_problem(&reply, "interrupted");
    // The record was released.
    let runs = Counter::default();
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 1, false));
}

#[tokio::test]
async fn a_request_that_outlives_its_lease_is_unfinished_if_unfinished_runs_are_rejected() {
    let (_world, host, locks) = environment().await;
    let layer = layer(&locks).lease(Duration::from_millis(300)).on_unfinished(OnUnfinished::Reject);
    let endless = service_fn(|_: Request| pending::<Result<Response<Body>, Infallible>>());
    let reply = timeout(TOO_LONG, send(&layer, &endless, order(&host))).await.expect("it is cancelled");
    assert_problem(&reply, "unfinished");
}

#[tokio::test]
async fn a_request_without_an_answer_of_the_table_is_unavailable() {
    let (world, _, _) = environment().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=99)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let runs = Counter::default();
    assert_problem(&send(&layer(&locks), &counting(&runs), order(&host)).await, "unavailable");
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_problem_names_the_documentation() {
    let (_world, host, locks) = environment().await;
    let unkeyed = || to(&host, http::Method::POST, "/orders").header(CONTENT_TYPE, "text/plain").body(Body::Empty);
    let runs = Counter::default();
    for (url, link) in [
        ("https://api.example/docs#keys", Some("<https://api.example/docs#keys>; rel=\"describedby\"")),
        ("https://api.example/ä", None),
        ("https://api.example/>; rel=\"next\", <x", None),
        ("https://api.example/\r\nx-header: 1", None),
    ] {
        let layer = layer(&locks).documentation(url);
        let reply = send(&layer, &counting(&runs), unkeyed().unwrap()).await;
        let problem: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!((problem["documentation"].as_str(), reply.header("link")), (Some(url), link));
    }
    let reply = send(&layer(&locks), &counting(&runs), unkeyed().unwrap()).await;
    assert!(reply.header("link").is_none() && !String::from_utf8_lossy(&reply.body).contains("documentation"));
}
