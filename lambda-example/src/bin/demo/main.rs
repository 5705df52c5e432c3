//! The demonstration that `cargo run` starts: the functions under duplicates, crashes and failures, on the embedded
//! engine, or with `--table NAME` on a real table. The exit code is 1 if any work is done more or less than once.

mod accounts;
mod bank;
mod durable;
mod execution;
mod index;
mod orders;
mod payments;
mod reports;
mod totals;

use std::collections::HashMap;
use std::env;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use comfy_table::Table;
use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Faults, Host, HostBuilder};
use lambda_runtime::{Config, Context, Error};

const USAGE: &str = "usage: cargo run [-- --table NAME]";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let cloud = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Cloud::embedded(),
        ["--table", name] => Ok(Cloud::real(name).await),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(cloud).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cloud: Result<Cloud, Error>) -> Result<(), Error> {
    let cloud = cloud?;
    for table in [&cloud.table, &cloud.data_table] {
        Locks::builder(cloud.host().client(), table).build()?.create_table().await?;
    }
    println!("1. nightly-report, a singleton\n");
    reports::show(&cloud).await?;
    println!("\n2. order-api, an idempotent HTTP API\n");
    orders::show(&cloud).await?;
    println!("\n3. payment-queue, a queue consumer\n");
    payments::show(&cloud).await?;
    println!("\n4. order-totals, a consumer of the table's stream\n");
    totals::show(&cloud).await?;
    println!("\n5. Calls of a bank, three at a time\n");
    bank::show(&cloud).await?;
    println!("\n6. Transfers, which lock two accounts each\n");
    accounts::show(&cloud).await?;
    println!("\n7. A workflow, whose steps hold one lock\n");
    execution::show(&cloud).await?;
    println!("\n8. durable-deployment, a durable function\n");
    durable::show(&cloud).await?;
    println!("\n9. search-index, rebuilt once more for the changes that were skipped\n");
    index::show(&cloud).await
}

/// The tables, and the engine that has them.
struct Cloud {
    table: String,
    /// The table of reports, orders, payments and totals.
    data_table: String,
    backend: Backend,
}

enum Backend {
    Embedded(DynamoDb),
    Real(Box<SdkConfig>),
}

impl Cloud {
    fn embedded() -> Result<Self, Error> {
        println!("On the embedded engine, with 2 to 8 ms of latency each way\n");
        Ok(Self::new("locks", Backend::Embedded(DynamoDb::new()?)))
    }

    async fn real(table: &str) -> Self {
        println!("On the tables {table} and {table}-data, with 2 to 8 ms of added latency each way\n");
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        Self::new(table, Backend::Real(Box::new(config)))
    }

    fn new(table: &str, backend: Backend) -> Self {
        Self { table: table.to_owned(), data_table: format!("{table}-data"), backend }
    }

    /// Creates a host, which stands for one Lambda environment.
    fn host(&self) -> Host {
        self.new_host().build()
    }

    fn new_host(&self) -> HostBuilder {
        let host = match &self.backend {
            Backend::Embedded(engine) => engine.host(),
            Backend::Real(config) => {
                let https = aws_smithy_http_client::Builder::new()
                    .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
                    .build_https();
                Host::over(aws_sdk_dynamodb::config::Builder::from(config.as_ref()), https)
            }
        };
        host.faults(Faults::seeded(7).latency(Duration::from_millis(2)..Duration::from_millis(8)))
    }

    /// Returns a prefix that no earlier demonstration has used on this table.
    fn new_prefix(&self, function: &str) -> String {
        format!("{function}-{}#", since_epoch_ms(self.host().now()))
    }

    /// Reads a row of the data table.
    async fn row(&self, id: String) -> Result<Option<HashMap<String, AttributeValue>>, Error> {
        let read = self.host().client().get_item().table_name(&self.data_table).consistent_read(true);
        Ok(read.key("id", AttributeValue::S(id)).send().await?.item)
    }
}

fn context(function: &str, number: usize, deadline: SystemTime) -> Context {
    let config = Config { function_name: function.to_owned(), ..Config::default() };
    let mut context = Context::default();
    context.request_id = format!("delivery-{number}");
    context.deadline = since_epoch_ms(deadline);
    context.env_config = config.into();
    context
}

fn since_epoch_ms(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

fn table<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

/// Fails the demonstration unless `holds`.
fn expect(holds: bool, otherwise: impl Into<Error>) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
