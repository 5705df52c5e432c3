use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use std::{env, thread};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::{self, Credentials, ProvideCredentials, Region, SharedCredentialsProvider};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_http_client::tls;
use lambda_lock::embedded::{DynamoDb, Faults, Host, HostBuilder, Intercept};
use lambda_lock::{Locks, LocksBuilder};

/// Returns an embedded engine without a table, and a host whose requests take 5 ms of virtual time.
#[must_use]
pub fn engine_with_latency(intercept: Option<impl Intercept + 'static>) -> (DynamoDb, Host) {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    let latency = Duration::from_micros(2500);
    let mut host = engine.host().faults(Faults::seeded(7).latency(latency..latency));
    if let Some(intercept) = intercept {
        host = host.intercept(intercept);
    }
    (engine, host.build())
}

/// A DynamoDB with an empty lock table: the embedded engine, the one at `LOCK_TEST_ENDPOINT`, or that of the AWS account in the
/// environment. The names of its tables begin with `LOCK_TEST_AWS`, and each is deleted with its world.
#[derive(Debug)]
pub struct World {
    dynamodb: Backend,
    /// The name of the table, different for every world.
    pub table: String,
}

#[derive(Debug)]
enum Backend {
    Embedded(DynamoDb),
    Endpoint(String),
    Aws,
}

/// The account of the environment. A paused runtime would have no time to ask for credentials.
static ACCOUNT: LazyLock<SdkConfig> = LazyLock::new(|| {
    on_own_runtime(async {
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        let provider = config.credentials_provider().expect("there is a provider of credentials");
        let credentials = provider.provide_credentials().await.expect("the environment has credentials");
        config.into_builder().credentials_provider(SharedCredentialsProvider::new(credentials)).build()
    })
});

fn on_own_runtime<T: Send>(run: impl Future<Output = T> + Send) -> T {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    thread::scope(|scope| scope.spawn(|| runtime().block_on(run)).join().unwrap())
}

impl World {
    /// Returns a world with a table from [`Locks::create_table`].
    pub async fn new() -> Self {
        let world = Self::without_table();
        world.create_table().await;
        world
    }

    /// Lets waits cost no time in this test, unless its worlds are on an endpoint, which answers in real time.
    pub fn skip_waits() {
        if let Backend::Embedded(_) = Self::without_table().dynamodb {
            tokio::time::pause();
        }
    }

    /// Returns a world on the embedded engine, for a test in paused time: no answer of an endpoint would arrive in it.
    pub async fn in_virtual_time() -> Self {
        let mut world = Self::without_table();
        world.dynamodb = Backend::Embedded(DynamoDb::new().unwrap());
        world.create_table().await;
        world
    }

    /// Returns a world whose table has multi-Region strong consistency, which only the embedded engine has. Each host can be
    /// in another region.
    pub async fn across_regions() -> Self {
        let mut world = Self::without_table();
        world.dynamodb = Backend::Embedded(DynamoDb::new().unwrap().multi_region_strong_consistency());
        world.create_table().await;
        world
    }

    async fn create_table(&self) {
        self.default_locks().create_table().await.unwrap();
    }

    /// Returns a world in which it is this time, with a table. On an endpoint, it is the time there.
    pub async fn starting_at(start: SystemTime) -> Self {
        let mut world = Self::without_table();
        if let Backend::Embedded(engine) = &mut world.dynamodb {
            *engine = DynamoDb::starting_at(start).unwrap();
        }
        world.create_table().await;
        world
    }

    /// Returns a world without its table.
    #[must_use]
    pub fn without_table() -> Self {
        let (dynamodb, prefix) = match (env::var("LOCK_TEST_ENDPOINT"), env::var("LOCK_TEST_AWS")) {
            (Ok(endpoint), _) => (Backend::Endpoint(endpoint), String::new()),
            (Err(_), Ok(prefix)) => {
                assert!(!prefix.is_empty(), "LOCK_TEST_AWS is empty, not the start of the names of tables");
                (Backend::Aws, prefix)
            }
            _ => (Backend::Embedded(DynamoDb::new().unwrap()), String::new()),
        };
        Self { dynamodb, table: format!("{prefix}locks-{:016x}", fastrand::u64(..)) }
    }

    /// Builds a new host: a client with its own clock and network.
    pub fn host(&self) -> HostBuilder {
        match &self.dynamodb {
            Backend::Embedded(engine) => engine.host(),
            Backend::Endpoint(endpoint) => Host::over(
                config::Builder::new()
                    .endpoint_url(endpoint)
                    .region(Region::from_static("us-east-1"))
                    .credentials_provider(Credentials::new("local", "local", None, None, "tests")),
                aws_smithy_http_client::Builder::new().build_http(),
            ),
            Backend::Aws => {
                let tls = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc);
                let connector = aws_smithy_http_client::Builder::new().tls_provider(tls).build_https();
                Host::over(config::Builder::from(&*ACCOUNT), connector)
            }
        }
    }

    /// Returns a client without faults and with the right time, to read rows and to write foreign ones.
    #[must_use]
    pub fn client(&self) -> Client {
        self.host().build().client()
    }

    /// Builds locks in this world's table on `host`.
    pub fn locks(&self, host: &Host) -> LocksBuilder {
        Locks::builder(host.client(), &self.table)
    }

    /// Returns locks with the default settings on a new host.
    #[must_use]
    pub fn default_locks(&self) -> Locks {
        self.locks(&self.host().build()).build().unwrap()
    }

    /// Builds locks on `host` whose SDK makes its three tries almost without a pause. With the default pauses, they
    /// take up to three seconds.
    pub fn locks_with_quick_retries(&self, host: &Host) -> LocksBuilder {
        let retries = RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
        let config = host.client().config().to_builder().retry_config(retries).build();
        Locks::builder(Client::from_conf(config), &self.table)
    }

    /// Reads the row with this partition key.
    pub async fn row(&self, id: &str) -> Option<Row> {
        let read = self.client().get_item().table_name(&self.table).consistent_read(true);
        // Boxed here and below: the SDK's futures are large.
        Box::pin(read.key("id", AttributeValue::S(id.to_owned())).send()).await.unwrap().item
    }

    /// Writes a row, and replaces an existing one.
    pub async fn put_row(&self, row: Row) {
        Box::pin(self.client().put_item().table_name(&self.table).set_item(Some(row)).send()).await.unwrap();
    }

    /// Deletes a row, as DynamoDB's TTL does.
    pub async fn delete_row(&self, id: &str) {
        let delete = self.client().delete_item().table_name(&self.table);
        Box::pin(delete.key("id", AttributeValue::S(id.to_owned())).send()).await.unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Backend::Aws = self.dynamodb {
            let _there_may_be_none =
                on_own_runtime(Client::new(&ACCOUNT).delete_table().table_name(&self.table).send());
        }
    }
}

/// The attributes of a row.
pub type Row = HashMap<String, AttributeValue>;
