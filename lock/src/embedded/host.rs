//! `Host`: a client with its own clock and network.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::{RetryConfig, RetryPartition, TokenBucket};
use aws_sdk_dynamodb::config::{self, BehaviorVersion, Region};
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use aws_smithy_runtime_api::client::http::{HttpClient, SharedHttpClient};
use aws_smithy_types::timeout::TimeoutConfig;

use super::dynamodb::DynamoDb;
use super::faults::Faults;
use super::network::{Backend, Intercept, Network, NetworkClient};
use super::time::{HostClock, TrueTime};
use crate::{client, random};

impl DynamoDb {
    /// Returns a client of a host with the right time and no faults.
    #[must_use]
    pub fn client(&self) -> Client {
        self.host().build().client()
    }

    /// Returns the builder of a host with its own clock and network.
    pub fn host(&self) -> HostBuilder {
        HostBuilder::new(Backend::Embedded(self.clone()), self.time())
    }
}

/// A machine with its own DynamoDB client, clock and network.
///
/// ```
/// # use std::time::Duration;
/// # use lambda_lock::embedded::DynamoDb;
/// # fn main() -> Result<(), lambda_lock::Error> {
/// let dynamodb = DynamoDb::new()?;
/// let host = dynamodb.host().clock_behind(Duration::from_secs(1)).build();
/// let client = host.client();
/// host.advance_clock(Duration::from_secs(60));
/// assert_eq!(host.requests(), 0);
/// # Ok(())
/// # }
/// ```
///
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Host {
    client: Client,
    clock: Arc<HostClock>,
    network: Arc<Network>,
}

impl Host {
    /// Returns the builder of a host for a real DynamoDB or another emulator: `config` has its address and the
    /// credentials, `http_client` carries the requests. Clock, faults and observers work as with a [`DynamoDb`].
    pub fn over(config: config::Builder, http_client: impl HttpClient + 'static) -> HostBuilder {
        let backend = Backend::Http(SharedHttpClient::new(http_client));
        HostBuilder { config, ..HostBuilder::new(backend, TrueTime::starting_at(SystemTimeSource::new().now())) }
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the time by this host's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Lets this much time pass for this host, as while Lambda freezes it: its wall clock and the time in DynamoDB's answers
    /// to it move on. The monotonic clock does not change, and neither do other hosts.
    pub fn advance_clock(&self, by: Duration) {
        self.clock.pass(by);
    }

    /// Sets the wall clock forward, so that it is wrong. The monotonic clock does not change.
    pub fn set_clock_forward(&self, by: Duration) {
        self.clock.set_forward(by);
    }

    /// Sets the wall clock back, so that it is wrong. The monotonic clock does not change.
    pub fn set_clock_back(&self, by: Duration) {
        self.clock.set_back(by);
    }

    /// Returns the number of requests sent, including the SDK's retries.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.network.requests.load(Ordering::Relaxed)
    }

    /// Cuts the host off: from now on it sends nothing and receives nothing. Requests on their way still arrive. A
    /// request that waits for its answer ends with a timeout of the client.
    pub fn crash(&self) {
        self.network.crashed.store(true, Ordering::Relaxed);
    }
}

/// The settings of a [`Host`].
#[derive(Debug)]
#[must_use = "`build` creates the host"]
pub struct HostBuilder {
    backend: Backend,
    config: config::Builder,
    clock: HostClock,
    faults: Option<Faults>,
    intercepts: Vec<Box<dyn Intercept>>,
}

impl HostBuilder {
    fn new(backend: Backend, time: TrueTime) -> Self {
        Self {
            backend,
            config: config::Builder::new()
                .region(Region::from_static("us-east-1"))
                .endpoint_url("http://embedded.invalid")
                .allow_no_auth(),
            clock: HostClock::new(time),
            faults: None,
            intercepts: Vec::new(),
        }
    }

    /// Makes a host of a later time, as [`Host::advance_clock`] does: for a test of what follows when a lease has ended.
    pub fn later(self, by: Duration) -> Self {
        self.clock.pass(by);
        self
    }

    /// Sets the clock ahead by this much: it is wrong.
    pub fn clock_ahead(self, by: Duration) -> Self {
        self.clock.set_forward(by);
        self
    }

    /// Sets the clock behind by this much: it is wrong.
    pub fn clock_behind(self, by: Duration) -> Self {
        self.clock.set_back(by);
        self
    }

    /// Lets the clock gain `rate` seconds a second, or lose them if `rate` is negative, until its error is `most`.
    pub fn clock_drift(mut self, rate: f64, most: Duration) -> Self {
        self.clock.drift(rate, most);
        self
    }

    /// Sets the faults and the latency of the network; none by default.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Adds an observer. Observers see requests, and answers, in the order in which they were added.
    pub fn intercept(mut self, intercept: impl Intercept + 'static) -> Self {
        self.intercepts.push(Box::new(intercept));
        self
    }

    /// Builds the host and its client.
    pub fn build(self) -> Host {
        random::simulate();
        let clock = Arc::new(self.clock);
        let network = Arc::new(Network {
            backend: self.backend,
            clock: Arc::clone(&clock),
            faults: self.faults.map(Mutex::new),
            intercepts: self.intercepts,
            requests: AtomicU64::new(0),
            crashed: AtomicBool::new(false),
        });
        // By default clients share the token bucket that limits retries. Hosts must not.
        let tokens = RetryPartition::custom("host").token_bucket(TokenBucket::default()).build();
        let config = self
            .config
            .behavior_version(BehaviorVersion::latest())
            .retry_config(client::retry_config(RetryConfig::standard()))
            .timeout_config(client::timeout_config(TimeoutConfig::builder().build()))
            .retry_partition(tokens)
            .interceptor(client::FirstRetry)
            .time_source(ClientClock(Arc::clone(&clock)))
            .http_client(NetworkClient(Arc::clone(&network)))
            .build();
        Host { client: Client::from_conf(config), clock, network }
    }
}

/// The host's clock as the client's time source.
#[derive(Debug)]
struct ClientClock(Arc<HostClock>);

impl TimeSource for ClientClock {
    fn now(&self) -> SystemTime {
        self.0.now()
    }
}
