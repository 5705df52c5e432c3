//! The network between a process and the table: it loses requests and answers, delivers requests seconds later, delivers
//! them twice, throttles, and breaks. It keeps what the table was sent and what it has answered, for the foreign checker.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::clocks;
use crate::place::Place;
use crate::plants::Plant;
use crate::trace::Trace;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection breaks, and the request is not applied.
    RequestLost,
    /// The request is applied, and the connection breaks before the answer.
    AnswerLost,
    /// The connection breaks, and the request arrives up to three seconds later.
    Late,
    /// No answer comes until the client gives up, and the request arrives up to three seconds later.
    Silent,
    /// The request takes up to one and a half seconds to arrive. The client may have given up.
    Slow,
    /// The request is applied, and arrives again up to three seconds later.
    Twice,
    Throttled,
    ServerError,
    /// The network is gone for a while: all requests are lost.
    Outage,
}

impl Fault {
    pub(crate) const ALL: [Self; 9] = [
        Self::RequestLost,
        Self::AnswerLost,
        Self::Late,
        Self::Silent,
        Self::Slow,
        Self::Twice,
        Self::Throttled,
        Self::ServerError,
        Self::Outage,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RequestLost => "requests lost",
            Self::AnswerLost => "answers lost",
            Self::Late => "requests that arrived late",
            Self::Silent => "requests without an answer that arrived late",
            Self::Slow => "slow requests",
            Self::Twice => "requests that arrived twice",
            Self::Throttled => "throttled",
            Self::ServerError => "status 500",
            Self::Outage => "requests lost in outages",
        }
    }
}

/// How many requests there were, and how many had each fate.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: AtomicU64,
    pub(crate) faults: [AtomicU64; Fault::ALL.len()],
    /// Requests that will arrive later.
    under_way: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    place: Place,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    random: Mutex<Rng>,
    /// How many requests of a thousand have a fault.
    faults: u32,
    plant: Option<&'static Plant>,
    outage_until: AtomicU64,
    counts: Counts,
    trace: Trace,
}

impl Proxy {
    /// Starts between a free port and the tables.
    pub(crate) async fn start(place: &Place, seed: u64, faults: u32, plant: Option<&'static Plant>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            place: place.clone(),
            client: Client::builder(TokioExecutor::new()).build(connector()),
            random: Mutex::new(Rng::with_seed(seed)),
            faults,
            plant,
            outage_until: AtomicU64::new(0),
            counts: Counts::default(),
            trace: Trace::default(),
        });
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let _later_is_good_enough = stream.set_nodelay(true);
                let state = Arc::clone(&shared);
                let answer = service_fn(move |request| Arc::clone(&state).answer(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { address, state, accepting }
    }

    /// Returns its address for a process.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets the network be gone for this long.
    pub(crate) fn fail(&self, duration: Duration) {
        self.state.outage_until.store(clocks::now() + clocks::nanos(duration), Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.state.counts
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.state.trace
    }

    /// Waits for the last of the late requests.
    pub(crate) async fn settle(&self) {
        while self.state.counts.under_way.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl State {
    fn draw(&self) -> Option<Fault> {
        let fault = if clocks::now() < self.outage_until.load(Ordering::Relaxed) {
            Some(Fault::Outage)
        } else {
            let mut random = self.random.lock().unwrap();
            let is_fault = random.u32(0..1000) < self.faults;
            // All but the outage, which has its own times.
            is_fault.then(|| Fault::ALL[random.usize(0..Fault::ALL.len() - 1)])
        };
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(fault) = fault {
            self.counts.faults[fault as usize].fetch_add(1, Ordering::Relaxed);
        }
        fault
    }

    fn delay(&self, millis: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.lock().unwrap().u64(millis))
    }

    /// Answers one request. An error breaks the connection.
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| broken())?.to_bytes();
        let deliver = |delay| self.deliver(&parts.headers, &body, delay);
        let later = || self.delay(5..=3000);
        match self.draw() {
            None => deliver(Duration::ZERO).await,
            Some(Fault::RequestLost | Fault::Outage) => Err(broken()),
            Some(Fault::AnswerLost) => {
                deliver(Duration::ZERO).await?;
                Err(broken())
            }
            Some(Fault::Late) => {
                drop(deliver(later()));
                Err(broken())
            }
            Some(Fault::Silent) => {
                drop(deliver(later()));
                std::future::pending().await
            }
            Some(Fault::Slow) => deliver(self.delay(50..=1500)).await,
            Some(Fault::Twice) => {
                let answer = deliver(Duration::ZERO).await;
                drop(deliver(later()));
                answer
            }
            Some(Fault::Throttled) => refusal(StatusCode::BAD_REQUEST, "ProvisionedThroughputExceededException"),
            Some(Fault::ServerError) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError"),
        }
    }

    /// Begins to send a request to the table, on a task of its own: a client that gives up or is killed does not stop what is on
    /// its way.
    fn deliver(
        self: &Arc<Self>,
        headers: &HeaderMap,
        body: &Bytes,
        delay: Duration,
    ) -> impl Future<Output = io::Result<Response<Full<Bytes>>>> + use<> {
        let (state, headers, body) = (Arc::clone(self), headers.clone(), body.clone());
        state.counts.under_way.fetch_add(1, Ordering::Relaxed);
        let delivered = tokio::spawn(async move {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let answer = state.forward(&headers, body).await;
            state.counts.under_way.fetch_sub(1, Ordering::Relaxed);
            answer
        });
        async move { delivered.await.map_err(|_| broken())? }
    }

    /// Sends a request to the table, with the planted mistake in it or in its answer.
    async fn forward(&self, headers: &HeaderMap, body: Bytes) -> io::Result<Response<Full<Bytes>>> {
        let operation = headers.get("x-amz-target").and_then(|target| target.to_str().ok()?.rsplit_once('.'));
        let operation = operation.map(|(_, operation)| operation.to_owned()).unwrap_or_default();
        // As the client knows it, without the planted mistake.
        let number = self.trace.sent(&operation, &body);
        let (planted, body) = match self.plant {
            Some(plant) => {
                let mut request: Value = serde_json::from_slice(&body)?;
                plant.request(&operation, &mut request);
                let body = Bytes::from(serde_json::to_vec(&request)?);
                (Some((plant, request)), body)
            }
            None => (None, body),
        };
        let mut request =
            Request::post(&self.place.endpoint).body(Full::from(body.clone())).map_err(io::Error::other)?;
        for (name, value) in headers.iter().filter(|(name, _)| ![CONTENT_LENGTH, HOST].contains(name)) {
            request.headers_mut().append(name, value.clone());
        }
        self.place.sign(&mut request, &body).await;
        let answer = self.client.request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let mut body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        if let Some((plant, request)) = planted {
            let mut answer = serde_json::from_slice(&body)?;
            plant.answer(&operation, &request, status.as_u16(), &mut answer);
            body = Bytes::from(serde_json::to_vec(&answer)?);
        }
        self.trace.answered(number, status, &body);
        respond(status, body)
    }
}

fn broken() -> io::Error {
    io::Error::other("a fault")
}

fn connector() -> HttpsConnector<HttpConnector> {
    let roots = HttpsConnectorBuilder::new().with_native_roots().expect("the system has certificates");
    roots.https_or_http().enable_http1().build()
}

fn respond(status: StatusCode, body: Bytes) -> io::Result<Response<Full<Bytes>>> {
    let answer = Response::builder().status(status).header(CONTENT_TYPE, "application/x-amz-json-1.0");
    answer.body(Full::from(body)).map_err(io::Error::other)
}

fn refusal(status: StatusCode, error: &str) -> io::Result<Response<Full<Bytes>>> {
    let body = json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{error}"), "message": "a fault" });
    respond(status, Bytes::from(body.to_string()))
}
