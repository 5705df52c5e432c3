//! The function `nightly-report` under duplicate deliveries, a crash and an overrun. One invocation at a time writes.

use std::time::{Duration, SystemTime};

use lambda_example::{Failure, Outcome, ReportRequest, Reports, Simulation, nightly_report};
use lambda_lock::embedded::Host;
use lambda_lock::{HandlerError, Locks};
use lambda_runtime::{Error, LambdaEvent};
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::{Cloud, context, expect, table};

/// The number of deliveries of one event.
const DELIVERIES: usize = 8;

pub(crate) async fn show(cloud: &Cloud) -> Result<(), Error> {
    duplicates(cloud).await?;
    crash(cloud).await?;
    overrun(cloud).await
}

/// Delivers the same event many times at once, each time to its own environment.
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

    println!("\nThe next night: the key is free, and the fence is larger");
    let next = Invocation::new(cloud, DELIVERIES + 1, Duration::from_secs(30));
    let next = [next.deliver("sales", Duration::from_millis(300)).await];
    print(&next);
    expect_one_written(&next)
}

/// Crashes an environment that holds the lock and cannot release it.
async fn crash(cloud: &Cloud) -> Result<(), Error> {
    println!("\nA holder crashes; its deadline is 2 s away and its lease ends 1 s of clock skew later");
    println!("Retries of its event have its request id: they are not skipped");
    let doomed = Invocation::new(cloud, 1, Duration::from_secs(2));
    let host = doomed.host.clone();
    let work = tokio::spawn(async move { doomed.deliver("inventory", Duration::from_mins(1)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    host.crash();
    work.abort();

    let started = host.now();
    let mut answers = Vec::new();
    for number in 2..20 {
        let retry = Invocation { request: 1, ..Invocation::new(cloud, number, Duration::from_secs(30)) };
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
    let is_refused = |answer: &Answer| matches!(&answer.outcome, Err(HandlerError::Lock(error)) if error.is_held());
    expect(answers.len() > 1, "the lock of the crashed holder refused no retry")?;
    expect(answers[..answers.len() - 1].iter().all(is_refused), "a retry of the crashed holder was skipped")?;
    println!("taken over {} ms after the crash", host.now().duration_since(started)?.as_millis());
    Ok(())
}

/// Runs a handler that does not finish by its deadline.
async fn overrun(cloud: &Cloud) -> Result<(), Error> {
    println!("\nA holder overruns; its work takes a minute and its deadline is 1 s away");
    let late = Invocation::new(cloud, 1, Duration::from_secs(1));
    let late = late.deliver("forecast", Duration::from_mins(1)).await;
    let cancelled = matches!(&late.outcome, Err(HandlerError::Lock(error)) if error.is_lost());
    let next = Invocation::new(cloud, 2, Duration::from_secs(30));
    let answers = [late, next.deliver("forecast", Duration::from_millis(50)).await];
    print(&answers);
    expect(cancelled, "the work was not cancelled at the end of the lease")?;
    expect_one_written(&answers)
}

/// One delivery of an event to its own environment.
struct Invocation {
    number: usize,
    /// The number of the delivery that Lambda retries, or its own.
    request: usize,
    host: Host,
    table: String,
    data_table: String,
    deadline: SystemTime,
}

impl Invocation {
    fn new(cloud: &Cloud, number: usize, timeout: Duration) -> Self {
        let host = cloud.host();
        let deadline = host.now() + timeout;
        Self {
            number,
            request: number,
            host,
            table: cloud.table.clone(),
            data_table: cloud.data_table.clone(),
            deadline,
        }
    }

    async fn deliver(self, report: &str, gathering: Duration) -> Answer {
        let Self { number, request, host, table, data_table, deadline } = self;
        let started = host.now();
        let outcome = async {
            let prefix = "nightly-report#";
            let locks = Locks::builder(host.client(), table).key_prefix(prefix).build().map_err(HandlerError::Lock)?;
            let function = nightly_report(locks, Reports::new(host.client(), data_table, prefix), Simulation::On);
            let input = ReportRequest {
                report: report.to_owned(),
                gathering_ms: u64::try_from(gathering.as_millis()).unwrap_or(u64::MAX),
                panics: false,
            };
            function.oneshot(LambdaEvent::new(input, context("nightly-report", request, deadline))).await
        };
        let outcome = outcome.await;
        let took = host.now().duration_since(started).unwrap_or_default();
        Answer { number, outcome, requests: host.requests(), took }
    }
}

/// The answer of an invocation.
struct Answer {
    number: usize,
    outcome: Result<Outcome, HandlerError<Failure>>,
    requests: u64,
    took: Duration,
}

impl Answer {
    fn written(&self) -> bool {
        matches!(self.outcome, Ok(Outcome::Written { .. }))
    }
}

fn print(answers: &[Answer]) {
    let mut table = table(["delivery", "outcome", "fence", "requests", "ms"]);
    for Answer { number, outcome, requests, took } in answers {
        let (outcome, fence) = match outcome {
            Ok(Outcome::Written { fence, times, .. }) => {
                (format!("ran; times written so far: {times}"), fence.to_string())
            }
            Ok(Outcome::Skipped { reason }) => (format!("skipped: {reason}"), String::new()),
            Err(error) => (format!("failed: {error}"), String::new()),
        };
        table.add_row([number.to_string(), outcome, fence, requests.to_string(), took.as_millis().to_string()]);
    }
    println!("{table}");
}

fn expect_one_written(answers: &[Answer]) -> Result<(), Error> {
    let written = answers.iter().filter(|answer| answer.written()).count();
    expect(written == 1, format!("{written} invocations ran, not 1"))
}
