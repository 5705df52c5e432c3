//! The layer in a server, over sockets.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use lambda_lock::http::HttpIdempotencyLayer;
use lambda_lock_tests::invocation::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::dropped::{Gate, eagerly};
use crate::{TOO_LONG, environment, layer};

/// A server on loopback. It ends when it is dropped.
struct Server {
    address: SocketAddr,
    /// Receives the end of each connection.
    ended: mpsc::UnboundedReceiver<()>,
    _connections: JoinSet<()>,
}

impl Server {
    async fn start<S>(layer: HttpIdempotencyLayer, handler: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ends, ended) = mpsc::unbounded_channel();
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (service, ends) = (layer.layer(handler.clone()), ends.clone());
                let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
                    service.clone().oneshot(request.map(Body::new))
                });
                open.spawn(async move {
                    // An error is a client that has disconnected.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                    let _ = ends.send(());
                });
            }
        });
        Self { address, ended, _connections: connections }
    }

    /// Sends a request, also if the server answers before it has read all of it.
    async fn send(&self, head: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!("POST /orders HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        stream
    }

    /// Returns the answer to a request as text.
    async fn ask(&self, head: &str, body: &[u8]) -> String {
        let asked = async {
            let mut answer = Vec::new();
            self.send(head, body).await.read_to_end(&mut answer).await.unwrap();
            String::from_utf8(answer).unwrap()
        };
        timeout(TOO_LONG, asked).await.expect("it answers")
    }
}

#[tokio::test]
async fn the_handler_of_a_client_that_disconnects_runs_to_its_end() {
    let (_world, _host, locks) = environment().await;
    let gate = Gate::default();
    let handler = service_fn({
        let gate = gate.clone();
        move |_: Request<Body>| {
            let run = gate.clone().run();
            async { Ok(run.await.map(|body| Body::from(body.to_vec()))) }
        }
    });
    let layer = layer(&locks).prefix("orders");
    let mut server = Server::start(layer.clone(), handler.clone()).await;
    let request = "idempotency-key: a\r\ncontent-length: 0";
    let client = server.send(request, b"").await;
    gate.started.notified().await;
    drop(client);
    server.ended.recv().await.unwrap();
    assert!(server.ask(request, b"").await.starts_with("HTTP/1.1 409"));
    gate.end.notify_one();
    let waiting = Server::start(layer.wait(eagerly()), handler).await;
    let retry = waiting.ask(request, b"").await;
    assert!(retry.starts_with("HTTP/1.1 201") && retry.contains("idempotency-replayed: true"), "{retry}");
    assert_eq!(gate.runs.get(), 1);
}

/// More than the buffers of a connection.
const LARGE: usize = 32 << 20;

async fn refusing() -> (Server, Counter) {
    let (_world, _host, locks) = environment().await;
    let runs = Counter::default();
    let handler = service_fn({
        let runs = runs.clone();
        move |_: Request<Body>| {
            runs.count();
            async { Ok(Response::new(Body::empty())) }
        }
    });
    (Server::start(layer(&locks).prefix("orders").max_body_bytes(1000), handler).await, runs)
}

#[tokio::test]
async fn a_client_that_sends_a_large_body_gets_the_refusal() {
    let (server, runs) = refusing().await;
    let body = vec![b'x'; LARGE];
    let announced = format!("content-length: {LARGE}");
    let mut chunked = format!("{LARGE:x}\r\n").into_bytes();
    chunked.extend_from_slice(&body);
    chunked.extend_from_slice(b"\r\n0\r\n\r\n");
    for (head, body, status) in [
        (format!("idempotency-key: a\r\n{announced}"), &body, 413),
        ("idempotency-key: a\r\ntransfer-encoding: chunked".to_owned(), &chunked, 413),
        (announced.clone(), &body, 400),
        (format!("idempotency-key: \"\r\n{announced}"), &body, 400),
    ] {
        let answer = server.ask(&head, body).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
    }
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_a_large_body_need_not_send_it() {
    let (server, _) = refusing().await;
    let head = format!("idempotency-key: a\r\ncontent-length: {LARGE}\r\nexpect: 100-continue");
    let answer = server.ask(&head, b"").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

/// Asserts that a client which sends a piece at this interval is refused so long after the first one.
async fn assert_refused_after(time: Duration, interval: Duration) {
    const SECOND: Duration = Duration::from_secs(1);
    let (_world, host, locks) = environment().await;
    tokio::time::pause();
    let pieces = futures_util::stream::unfold((), move |()| async move {
        tokio::time::sleep(interval).await;
        Some((Ok::<_, Infallible>("xx"), ()))
    });
    let request = crate::with_key(&host, "a").body(Body::from_stream(pieces)).unwrap();
    let handler = service_fn(async |_: Request<Body>| -> Result<Response<Body>, Infallible> { panic!("it runs") });
    let mut answer = layer(&locks).max_body_bytes(1).layer(handler).oneshot(request);
    assert!(timeout(interval + time.saturating_sub(SECOND), &mut answer).await.is_err());
    assert_eq!(timeout(2 * SECOND, answer).await.unwrap().unwrap().status(), 413);
}

#[tokio::test]
async fn a_client_that_does_not_stop_sending_is_refused_after_30_seconds() {
    assert_refused_after(Duration::from_secs(30), Duration::from_secs(2)).await;
}

#[tokio::test]
async fn a_client_that_stops_sending_is_refused_after_5_seconds() {
    assert_refused_after(Duration::from_secs(5), Duration::from_hours(1)).await;
}
