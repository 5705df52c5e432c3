//! DynamoDB on a socket of this machine, for a client with its own connections or for another process.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lambda_lock::Locks;
use lambda_lock::embedded::{Answer, DynamoDb, Intercept};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{Barrier, Notify};
use tokio::time::sleep;

/// The name of the lock table.
pub const TABLE: &str = "locks";
/// The latency of each request, there and back.
const LATENCY: Duration = Duration::from_millis(5);

/// The fate of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The request is applied, and the connection breaks before the answer.
    AnswerLost,
    /// The connection breaks, and the request is not applied.
    Reset,
    /// DynamoDB answers with status 500, and the request is not applied.
    ServerError,
    /// DynamoDB refuses the request.
    Throttle,
    /// The request is applied, and the answer never comes.
    Silence,
}

/// The embedded engine behind a socket, on a separate thread. It takes only updates of single items.
#[derive(Debug)]
pub struct Loopback {
    address: SocketAddr,
    engine: DynamoDb,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of connections that were opened.
    connections: AtomicU64,
    faults: Mutex<Faults>,
    /// The number of requests on dead connections.
    met: AtomicU64,
    was_met: Notify,
}

#[derive(Debug, Default)]
struct Faults {
    /// The fate of the next update, by key.
    next: HashMap<String, Fault>,
    /// The fate of all requests on the first connections, so many of them.
    dead: Option<(u64, Fault)>,
    /// All requests wait here for each other.
    gathering: Option<Arc<Barrier>>,
}

impl State {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loopback {
    /// Starts DynamoDB with an empty lock table on a free port.
    #[must_use]
    pub fn start() -> Self {
        let (state, (sender, started)) = (Arc::new(State::default()), mpsc::channel());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let engine = DynamoDb::new().unwrap();
                let carrier = Arc::new(Carrier::new(&engine).await);
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send((listener.local_addr().unwrap(), engine)).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (carrier, shared) = (Arc::clone(&carrier), Arc::clone(&shared));
                    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
                    let answer =
                        service_fn(move |request| answer(Arc::clone(&carrier), Arc::clone(&shared), number, request));
                    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
                }
            });
        });
        let (address, engine) = started.recv().unwrap();
        Self { address, engine, state }
    }

    /// Returns the URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the engine, which a caller in this process reaches without the socket.
    #[must_use]
    pub fn engine(&self) -> &DynamoDb {
        &self.engine
    }

    /// Sets the fate of the next update of this key.
    pub fn fail(&self, key: &str, fault: Fault) {
        self.state.faults().next.insert(key.to_owned(), fault);
    }

    /// Lets so many requests at a time wait for each other, so that each has a connection of its own.
    pub fn gather(&self, requests: Option<usize>) {
        self.state.faults().gathering = requests.map(|requests| Arc::new(Barrier::new(requests)));
    }

    /// Leaves so many idle connections in the pool of the locks' client, which has none before: requests wait for each
    /// other.
    pub async fn fill_pool(&self, locks: &Locks, connections: usize) {
        self.gather(Some(connections));
        let acquires = (0..connections).map(|number| locks.acquire(format!("pool {number}")).into_future());
        let held = join_all(acquires).await;
        self.gather(None);
        for lock in held {
            lock.unwrap().release().await.unwrap();
        }
    }

    /// Lets all connections that are open die, as in an environment that was frozen.
    pub fn kill_connections(&self, fault: Fault) {
        self.state.faults().dead = Some((self.connections(), fault));
        self.state.met.store(0, Ordering::Relaxed);
    }

    /// Answers no request from now on, and applies none.
    pub fn fall_silent(&self) {
        self.state.faults().dead = Some((u64::MAX, Fault::Silence));
    }

    /// Throttles every request from now on.
    pub fn throttle(&self) {
        self.state.faults().dead = Some((u64::MAX, Fault::Throttle));
    }

    /// Returns how many connections were opened.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// Returns how many requests came on dead connections.
    #[must_use]
    pub fn met(&self) -> u64 {
        self.state.met.load(Ordering::Relaxed)
    }

    /// Waits for a request on a dead connection.
    pub async fn wait_until_met(&self) {
        self.state.was_met.notified().await;
    }
}

/// Answers one request. An error breaks the connection.
async fn answer(
    carrier: Arc<Carrier>,
    state: Arc<State>,
    connection: u64,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let broken = || io::Error::other("a fault");
    let body = request.into_body().collect().await.map_err(|_| broken())?.to_bytes();
    let update: Value = serde_json::from_slice(&body)?;
    let (dead, gathering) = {
        let faults = state.faults();
        (faults.dead.filter(|(dead, _)| connection < *dead).map(|(_, fault)| fault), faults.gathering.clone())
    };
    let of_json =
        |status, body: String| Response::builder().status(status).body(Full::from(body)).map_err(|_| broken());
    let throttled = || of_json(400, json!({ "__type": "ThrottlingException" }).to_string());
    if let Some(fault) = dead {
        state.met.fetch_add(1, Ordering::Relaxed);
        state.was_met.notify_one();
        return match fault {
            Fault::Silence => std::future::pending().await,
            Fault::Throttle => throttled(),
            _ => Err(broken()),
        };
    }
    if let Some(gathering) = gathering {
        gathering.wait().await;
    }
    let fault = update["Key"]["id"]["S"].as_str().and_then(|key| state.faults().next.remove(key));
    sleep(LATENCY / 2).await;
    let answer = match fault {
        Some(Fault::Reset) => return Err(broken()),
        Some(Fault::ServerError) => of_json(500, json!({ "__type": "InternalServerError" }).to_string()),
        Some(Fault::Throttle) => throttled(),
        Some(Fault::AnswerLost) => {
            carrier.update(update).await;
            return Err(broken());
        }
        Some(Fault::Silence) => {
            carrier.update(update).await;
            std::future::pending().await
        }
        None => {
            let (status, body) = carrier.update(update).await;
            of_json(status, body.to_string())
        }
    };
    sleep(LATENCY / 2).await;
    answer
}

/// Passes updates from the socket to the embedded engine.
#[derive(Debug)]
struct Carrier {
    engine: Client,
    load: Load,
    alone: tokio::sync::Mutex<()>,
}

/// The update, then its answer.
#[derive(Clone, Debug, Default)]
struct Load(Arc<Mutex<(Value, u16)>>);

impl Intercept for Load {
    fn request(&self, _: &str, request: &mut Value) {
        *request = self.0.lock().unwrap().0.take();
    }

    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        *self.0.lock().unwrap() = (answer.body.clone(), answer.status);
    }
}

impl Carrier {
    async fn new(engine: &DynamoDb) -> Self {
        let load = Load::default();
        Locks::builder(engine.client(), TABLE).build().unwrap().create_table().await.unwrap();
        let engine = engine.host().intercept(load.clone()).build().client();
        Self { engine, load, alone: tokio::sync::Mutex::default() }
    }

    async fn update(&self, update: Value) -> (u16, Value) {
        let _alone = self.alone.lock().await;
        self.load.0.lock().unwrap().0 = update;
        // The hand-written request, which `Load` replaces with the update.
        let request = self.engine.update_item().table_name(TABLE);
        let _answer = request.key("id", AttributeValue::S("replaced".to_owned())).send().await;
        let (body, status) = self.load.0.lock().unwrap().clone();
        (status, body)
    }
}
