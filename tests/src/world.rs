use std::collections::HashMap;
use std::env;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::{self, Credentials, Region};
use aws_sdk_dynamodb::types::AttributeValue;
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

/// A DynamoDB with an empty lock table: the embedded engine, or the one at `LOCK_TEST_ENDPOINT`.
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
}

impl World {
    /// Returns a world with a table from [`Locks::create_table`].
    pub async fn new() -> Self {
        let world = Self::without_table();
        world.create_table().await;
        world
    }

    /// Returns a world whose table has multi-Region strong consistency, which only the embedded engine has. Each host can be
    /// in another region.
    pub async fn across_regions() -> Self {
        let dynamodb = DynamoDb::new().unwrap().multi_region_strong_consistency();
        let world = Self { dynamodb: Backend::Embedded(dynamodb), ..Self::without_table() };
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
        let dynamodb = match env::var("LOCK_TEST_ENDPOINT") {
            Ok(endpoint) => Backend::Endpoint(endpoint),
            Err(_) => Backend::Embedded(DynamoDb::new().unwrap()),
        };
        Self { dynamodb, table: format!("locks-{:016x}", fastrand::u64(..)) }
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

/// The attributes of a row.
pub type Row = HashMap<String, AttributeValue>;
