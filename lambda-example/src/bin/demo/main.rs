//! The guided tour that `cargo run` starts. Each scene says what happens in the world, what should happen and what happened:
//! duplicates, crashes and failures, on the embedded engine, or with `--table NAME` on a real table. The exit code is 1 if a
//! scene ended in another way than it should.

mod accounts;
mod bank;
mod durable;
mod execution;
mod index;
mod orders;
mod payments;
mod reports;
mod scene;
mod totals;

use std::collections::HashMap;
use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anstream::{eprintln, print, println};
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Faults, Host, HostBuilder};
use lambda_runtime::{Config, Context, Error};

use crate::scene::{BOLD, Scene, count_fences_from};

/// The tour, in its order.
const SCENES: [&[Scene]; 9] = [
    reports::SCENES,
    orders::SCENES,
    payments::SCENES,
    totals::SCENES,
    bank::SCENES,
    accounts::SCENES,
    execution::SCENES,
    durable::SCENES,
    index::SCENES,
];

#[tokio::main]
async fn main() -> ExitCode {
    let scenes: Vec<&Scene> = SCENES.into_iter().flatten().collect();
    let usage = usage(&scenes);
    let Some(options) = Options::read(&scenes) else {
        eprintln!("{usage}");
        return ExitCode::from(2);
    };
    if options.help {
        println!("{usage}");
        return ExitCode::SUCCESS;
    }
    match options.play(&scenes).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(scenes: &[&Scene]) -> String {
    let mut usage = "Usage: cargo run [-- [SCENE] [--no-pause] [--table NAME]]

SCENE plays this scene only. At a terminal, the tour waits for Enter after each
scene, unless you give --no-pause.
--table NAME uses the tables NAME and NAME-data of your AWS account, and creates them.
"
    .to_owned();
    for scene in scenes {
        let _infallible = write!(usage, "\n  {:12} {}", scene.name, scene.title);
    }
    usage
}

#[derive(Default)]
struct Options {
    help: bool,
    scene: Option<String>,
    table: Option<String>,
    no_pause: bool,
}

impl Options {
    /// Reads the arguments, or returns `None` if there is no such option or scene.
    fn read(scenes: &[&Scene]) -> Option<Self> {
        let (mut options, mut arguments) = (Self::default(), env::args().skip(1));
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--help" | "-h" => options.help = true,
                "--no-pause" => options.no_pause = true,
                "--table" => options.table = Some(arguments.next()?),
                name if scenes.iter().any(|scene| scene.name == name) => options.scene = Some(argument),
                _ => return None,
            }
        }
        Some(options)
    }

    /// Plays the scenes, and returns whether each ended as it should.
    async fn play(&self, scenes: &[&Scene]) -> Result<bool, Error> {
        let (cloud, place, latency) = match &self.table {
            None => (Cloud::embedded()?, "on a DynamoDB in this process".to_owned(), "takes 2 to 8 ms each way"),
            Some(name) => (
                Cloud::real(name).await,
                format!("on the tables {name} and {name}-data"),
                "takes 2 to 8 ms longer each way",
            ),
        };
        for table in [&cloud.table, &cloud.data_table] {
            Locks::builder(cloud.host().client(), table).build()?.create_table().await?;
        }
        let is_chosen = |scene: &&&Scene| self.scene.as_ref().is_none_or(|name| scene.name == name);
        let chosen: Vec<_> = scenes.iter().filter(is_chosen).collect();
        println!("{BOLD}A tour of lambda-lock{BOLD:#} {place}.");
        println!("A request {latency}.");
        println!("A fence counts microseconds, here from the start of the tour.");
        count_fences_from(since_epoch_ms(cloud.host().now()) * 1000);
        let (mut correct, mut played) = (0, 0);
        for scene in &chosen {
            if played > 0 && self.leaves()? {
                break;
            }
            played += 1;
            correct += usize::from(scene.play(played, chosen.len(), &cloud).await);
        }
        println!("\n{BOLD}{correct} of {played} scenes ended as they should.{BOLD:#}");
        println!("`cargo run -- --help` names the scenes, so that you can play one of them alone.");
        println!("The guides begin at lock/docs/README.md. The functions are in lambda-example.");
        Ok(correct == played)
    }

    /// Waits for a key, if somebody is at a terminal, and returns whether it is the one to leave.
    fn leaves(&self) -> io::Result<bool> {
        if self.no_pause || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(false);
        }
        print!("\nPress Enter for the next scene, or q and Enter to leave. ");
        io::Write::flush(&mut io::stdout())?;
        let mut line = String::new();
        let is_at_end = io::stdin().read_line(&mut line)? == 0;
        Ok(is_at_end || line.trim().eq_ignore_ascii_case("q"))
    }
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
        Ok(Self::new("locks", Backend::Embedded(DynamoDb::new()?)))
    }

    async fn real(table: &str) -> Self {
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
