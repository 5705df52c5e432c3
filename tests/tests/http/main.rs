//! `HttpIdempotencyLayer`: requests with the header `Idempotency-Key`, through `lambda_http` and through axum.

mod axum_router;
mod callers;
mod complete_in;
mod dropped;
mod handler;
mod keys;
mod replay;
mod results;
mod same_request;
mod socket;
mod statuses;

use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::request::Builder;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use lambda_http::{Body, Request, Response};
use lambda_lock::Locks;
use lambda_lock::embedded::Host;
use lambda_lock::http::{Caller, HttpIdempotencyBody, HttpIdempotencyLayer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, invocation};
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt, service_fn};

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_secs(30);

/// The most bytes that a record stores.
const MOST: usize = 390 * 1024;

async fn environment() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

fn layer(locks: &Locks) -> HttpIdempotencyLayer {
    HttpIdempotencyLayer::new(locks.clone(), Caller::shared())
}

/// A request in an invocation that has 30 seconds left.
fn to(host: &Host, method: Method, uri: &str) -> Builder {
    http::Request::builder().method(method).uri(uri).extension(invocation(host, ()).context)
}

fn with_key(host: &Host, key: &str) -> Builder {
    to(host, Method::POST, "https://api.example/orders").header("idempotency-key", key)
}

/// An order with the key `a`.
fn order(host: &Host) -> Request {
    order_of(host, "a", &json!({ "item": "tea" }))
}

fn order_of(host: &Host, key: &str, body: &Value) -> Request {
    with_key(host, key).header(CONTENT_TYPE, "application/json").body(body.to_string().into()).unwrap()
}

/// A handler that answers with a response for each run, counted from 1.
fn answering(
    runs: &Counter,
    answer: impl Fn(u32) -> Response<Body> + Clone + Send + 'static,
) -> impl Service<Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static {
    let runs = runs.clone();
    service_fn(move |_: Request| {
        let answer = answer(runs.count());
        async move { Ok(answer) }
    })
}

/// A handler that answers 201 with the number of its run.
fn counting(
    runs: &Counter,
) -> impl Service<Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static {
    answering(runs, created)
}

fn created(run: u32) -> Response<Body> {
    let body = json!({ "run": run }).to_string();
    Response::builder().status(201).header(CONTENT_TYPE, "application/json").body(body.into()).unwrap()
}

/// An answer whose body was read.
#[derive(Clone, Debug, PartialEq)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    async fn of<B>(answer: Response<HttpIdempotencyBody<B>>) -> Self
    where
        B: http_body::Body<Error: Debug>,
    {
        let (head, body) = answer.into_parts();
        Self { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// The status and the last part of the type of a problem.
    #[track_caller]
    fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        let (_, name) = problem["type"].as_str().unwrap().rsplit_once('#').unwrap();
        (self.status.as_u16(), name.to_owned())
    }

    /// The status, the number of the run that made the answer, and whether it is a replay.
    #[track_caller]
    fn made_by(&self) -> (u16, u64, bool) {
        let body: Value = serde_json::from_slice(&self.body).unwrap();
        (self.status.as_u16(), body["run"].as_u64().unwrap(), self.is_replay())
    }
}

async fn send<S>(layer: &HttpIdempotencyLayer, handler: &S, request: Request) -> Reply
where
    S: Service<Request, Response = Response<Body>, Error: Debug + Send, Future: Send> + Clone + Send + 'static,
{
    Reply::of(layer.layer(handler.clone()).oneshot(request).await.unwrap()).await
}
