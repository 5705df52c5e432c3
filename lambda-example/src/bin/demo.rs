//! `cargo run`: the function `nightly-report` under duplicate deliveries, a crash and an overrun, on the embedded
//! engine; with `--table NAME` on a real table. Exits with 1 when more or fewer than one invocation ran.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use comfy_table::Table;
use lambda_example::{Outcome, ReportRequest, Reports, nightly_report};
use lambda_lock::embedded::{Engine, Faults, Host};
use lambda_lock::{HandlerError, Locks};
use lambda_runtime::{Config, Context, Error, LambdaEvent};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// How many times the one event is delivered.
const DELIVERIES: usize = 8;
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
    Locks::builder(cloud.host().client(), &cloud.table).build()?.create_table().await?;
    duplicates(&cloud).await?;
    crash(&cloud).await?;
    overrun(&cloud).await
}

/// The same event, delivered many times at once, to one environment each.
async fn duplicates(cloud: &Cloud) -> Result<(), Error> {
    println!("One scheduled event, delivered {DELIVERIES} times at once");
    let mut answers = JoinSet::new();
    for number in 1..=DELIVERIES {
        let invocation = Invocation::new(cloud, number, Duration::from_secs(30));
        answers.spawn(async move { invocation.deliver("sales", Duration::from_millis(300)).await });
    }
    let mut answers = answers.join_all().await;
    answers.sort_by_key(|answer| answer.number);
    print(&answers);
    expect_one_written(&answers)?;

    println!("\nThe next night: the key is free, the fence larger");
    let next = Invocation::new(cloud, DELIVERIES + 1, Duration::from_secs(30));
    let next = [next.deliver("sales", Duration::from_millis(300)).await];
    print(&next);
    expect_one_written(&next)
}

/// An environment that dies while it holds the lock, and is not there to release it.
async fn crash(cloud: &Cloud) -> Result<(), Error> {
    println!("\nA holder that crashes: its deadline is 2 s away, its lease ends 1 s of clock skew later");
    let doomed = Invocation::new(cloud, 1, Duration::from_secs(2));
    let host = doomed.host.clone();
    let work = tokio::spawn(async move { doomed.deliver("inventory", Duration::from_mins(1)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    host.crash();
    work.abort();

    let started = host.now();
    let mut answers = Vec::new();
    for number in 2..20 {
        let retry = Invocation::new(cloud, number, Duration::from_secs(30));
        let answer = retry.deliver("inventory", Duration::from_millis(50)).await;
        let written = answer.written();
        answers.push(answer);
        if written {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    print(&answers);
    expect_one_written(&answers)?;
    if answers.len() < 2 {
        return Err("the crashed holder's lock kept nobody out".into());
    }
    println!("taken over {} ms after the crash", host.now().duration_since(started)?.as_millis());
    Ok(())
}

/// A handler that is not done by its deadline.
async fn overrun(cloud: &Cloud) -> Result<(), Error> {
    println!("\nA holder that overruns: the work takes a minute, the deadline is 1 s away");
    let late = Invocation::new(cloud, 1, Duration::from_secs(1));
    let late = late.deliver("forecast", Duration::from_mins(1)).await;
    let cancelled = matches!(&late.outcome, Err(HandlerError::Lock(error)) if error.is_lost());
    let next = Invocation::new(cloud, 2, Duration::from_secs(30));
    let answers = [late, next.deliver("forecast", Duration::from_millis(50)).await];
    print(&answers);
    if !cancelled {
        return Err("the work was not cancelled at the end of its lease".into());
    }
    expect_one_written(&answers)
}

/// Where the table is.
struct Cloud {
    table: String,
    backend: Backend,
}

enum Backend {
    Embedded(Engine),
    Real(Box<SdkConfig>),
}

impl Cloud {
    fn embedded() -> Result<Self, Error> {
        println!("On the embedded engine, with 2 to 8 ms of latency each way\n");
        Ok(Self { table: "locks".to_owned(), backend: Backend::Embedded(Engine::new()?) })
    }

    async fn real(table: &str) -> Self {
        println!("On table {table}\n");
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        Self { table: table.to_owned(), backend: Backend::Real(Box::new(config)) }
    }

    /// A host of its own, as every Lambda environment is.
    fn host(&self) -> Host {
        match &self.backend {
            Backend::Embedded(engine) => {
                let latency = Duration::from_millis(2)..Duration::from_millis(8);
                engine.host().faults(Faults::seeded(7).latency(latency)).build()
            }
            Backend::Real(config) => {
                let https = aws_smithy_http_client::Builder::new()
                    .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
                    .build_https();
                Host::over(aws_sdk_dynamodb::config::Builder::from(config.as_ref()), https).build()
            }
        }
    }
}

/// One delivery of an event to an environment of its own.
struct Invocation {
    number: usize,
    host: Host,
    table: String,
    deadline: SystemTime,
}

impl Invocation {
    fn new(cloud: &Cloud, number: usize, timeout: Duration) -> Self {
        let host = cloud.host();
        let deadline = host.now() + timeout;
        Self { number, host, table: cloud.table.clone(), deadline }
    }

    async fn deliver(self, report: &str, gathering: Duration) -> Answer {
        let Self { number, host, table, deadline } = self;
        let started = host.now();
        let outcome = async {
            let prefix = "nightly-report#";
            let locks = Locks::builder(host.client(), &table).key_prefix(prefix).build().map_err(HandlerError::Lock)?;
            let function = nightly_report(locks, Reports::new(host.client(), &table, prefix));
            let request = ReportRequest {
                report: report.to_owned(),
                gathering_ms: u64::try_from(gathering.as_millis()).unwrap_or(u64::MAX),
            };
            function.oneshot(LambdaEvent::new(request, context(number, deadline))).await
        };
        let outcome = outcome.await;
        let took = host.now().duration_since(started).unwrap_or_default();
        Answer { number, outcome, requests: host.requests(), took }
    }
}

fn context(number: usize, deadline: SystemTime) -> Context {
    let config = Config { function_name: "nightly-report".to_owned(), ..Config::default() };
    let mut context = Context::default();
    context.request_id = format!("delivery-{number}");
    let deadline = deadline.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    context.deadline = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    context.env_config = config.into();
    context
}

/// What an invocation came to.
struct Answer {
    number: usize,
    outcome: Result<Outcome, HandlerError<Error>>,
    requests: u64,
    took: Duration,
}

impl Answer {
    fn written(&self) -> bool {
        matches!(self.outcome, Ok(Outcome::Written { .. }))
    }
}

fn print(answers: &[Answer]) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(["delivery", "outcome", "fence", "requests", "ms"]);
    for Answer { number, outcome, requests, took } in answers {
        let (outcome, fence) = match outcome {
            Ok(Outcome::Written { fence, times, .. }) => {
                (format!("ran; written {times} times in all"), fence.to_string())
            }
            Ok(Outcome::Skipped { reason }) => (format!("skipped: {reason}"), String::new()),
            Err(error) => (format!("failed: {error}"), String::new()),
        };
        table.add_row([number.to_string(), outcome, fence, requests.to_string(), took.as_millis().to_string()]);
    }
    println!("{table}");
}

fn expect_one_written(answers: &[Answer]) -> Result<(), Error> {
    match answers.iter().filter(|answer| answer.written()).count() {
        1 => Ok(()),
        count => Err(format!("{count} invocations ran, not 1").into()),
    }
}
