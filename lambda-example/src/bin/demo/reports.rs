//! The function `nightly-report` under duplicate deliveries, a crash and an overrun. One invocation at a time writes.

use std::future::pending;
use std::time::{Duration, SystemTime};

use anstream::println;
use lambda_example::{Failure, Outcome, ReportRequest, Reports, Simulation, nightly_report};
use lambda_lock::embedded::Host;
use lambda_lock::{HandlerError, LockLayer, Locks};
use lambda_runtime::{Error, LambdaEvent};
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::{Cloud, context};
use crate::scene::{Scene, expect, note, short, table};

/// The number of deliveries of one event.
const DELIVERIES: usize = 8;
/// The lease of the scene with an overrun.
const LEASE: Duration = Duration::from_secs(1);

pub(crate) const SCENES: &[Scene] = &[
    Scene {
        name: "overlap",
        title: "A schedule fires eight times at once",
        world: "One scheduled event starts eight invocations of nightly-report at the same moment, each in its own \
                environment. The next night, it fires once.",
        should: "One of the eight writes the report, with two requests for its lock and one for the report. The other \
                 seven are skipped, with one request each. The next night, the key is free, and the fence is larger.",
        guide: "recipes/cron",
        play: |cloud| Box::pin(overlap(cloud)),
    },
    Scene {
        name: "crash",
        title: "A holder crashes",
        world: "The environment that writes the report dies after half a second. Its deadline is 2 s after its start. \
                Lambda retries the event every half second, with the same request id.",
        should: "Nobody gets the lock before the crashed holder's lease has ended and 1 s of clock skew has passed. \
                 Until then, a retry fails and is not skipped, because Lambda would take a skip for success. Then one runs.",
        guide: "recipes/cron",
        play: |cloud| Box::pin(crash(cloud)),
    },
    Scene {
        name: "overrun",
        title: "A holder takes longer than its lease",
        world: "The work does not end. The timeout of the function is 30 s, but its lock has a lease of 1 s.",
        should: "The work is cancelled when the lease ends, and its lock is lost. The next invocation runs at once. \
                 Without a lease of its own, the lock would last until Lambda's timeout, which ends the process, so its key \
                 would be free 1 s later.",
        guide: "reference/times",
        play: |cloud| Box::pin(overrun(cloud)),
    },
];

/// Delivers the same event many times at once, each time to its own environment.
async fn overlap(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("nightly-report");
    let mut answers = JoinSet::new();
    for number in 1..=DELIVERIES {
        let invocation = Invocation::new(cloud, &prefix, number, Duration::from_secs(30));
        answers.spawn(async move { invocation.deliver("sales", Duration::from_millis(300)).await });
    }
    let mut answers = answers.join_all().await;
    answers.sort_by_key(|answer| answer.number);
    let next = Invocation::new(cloud, &prefix, DELIVERIES + 1, Duration::from_secs(30));
    let next = next.deliver("sales", Duration::from_millis(300)).await;
    print(false, answers.iter().chain([&next]));

    expect_one_written(&answers)?;
    let skipped = answers.iter().filter_map(|answer| match &answer.outcome {
        Ok(Outcome::Skipped { reason }) if answer.requests == 1 => Some(reason),
        _ => None,
    });
    let skipped: Vec<_> = skipped.collect();
    expect(skipped.len() == DELIVERIES - 1, format!("{} were skipped with one request", skipped.len()))?;
    note(&format!("Each one that was skipped learned why: {}", skipped.first().ok_or("none was skipped")?));
    let fences = [answers.iter().find_map(Answer::fence), next.fence()];
    expect(fences[0] < fences[1], "the fence of the next night is not larger")?;
    Ok("The report was written once in the first night and once in the next one.".to_owned())
}

/// Crashes an environment that holds the lock and cannot release it.
async fn crash(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("nightly-report");
    let doomed = Invocation::new(cloud, &prefix, 1, Duration::from_secs(2));
    let host = doomed.host.clone();
    let work = tokio::spawn(async move { doomed.deliver("inventory", Duration::from_mins(1)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    host.crash();
    work.abort();

    let started = host.now();
    let mut answers = Vec::new();
    for number in 2..20 {
        let retry = Invocation { request: 1, ..Invocation::new(cloud, &prefix, number, Duration::from_secs(30)) };
        let answer = retry.deliver("inventory", Duration::from_millis(50)).await;
        let written = answer.fence().is_some();
        answers.push(answer);
        if written {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    print(true, &answers);
    expect_one_written(&answers)?;
    let refused = answers[..answers.len() - 1].iter().map(|answer| match &answer.outcome {
        Err(HandlerError::Lock(error)) if error.is_held() => Ok(error),
        _ => Err("a retry of the crashed holder was skipped"),
    });
    let refused: Vec<_> = refused.collect::<Result<_, _>>()?;
    note(&format!("A retry that failed says why: {}", refused.first().ok_or("no retry was refused")?));
    let after = host.now().duration_since(started)?.as_secs_f64();
    expect(
        after > 2.3,
        format!("the lock was taken over {after:.1} s after the crash, before its lease and the skew had passed"),
    )?;
    Ok(format!("The report was written once, {after:.1} s after the crash."))
}

/// Runs a handler that does not finish by the end of its lease.
async fn overrun(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("nightly-report");
    let without_end = |locks, _| {
        let work = service_fn(async |_: LambdaEvent<ReportRequest>| pending::<Result<Outcome, Failure>>().await);
        LockLayer::new(locks).key("forecast").lease(LEASE).layer(work)
    };
    let late = Invocation::new(cloud, &prefix, 1, Duration::from_secs(30));
    let late = late.deliver_to(without_end, "forecast", Duration::ZERO).await;
    let next = Invocation::new(cloud, &prefix, 2, Duration::from_secs(30));
    let answers = [late, next.deliver("forecast", Duration::from_millis(50)).await];
    print(false, &answers);
    let Err(HandlerError::Lock(lost)) = &answers[0].outcome else {
        return Err("the work was not cancelled at the end of the lease".into());
    };
    expect(lost.is_lost(), format!("the work was cancelled for another reason: {lost}"))?;
    note(&format!("The first one says why: {lost}"));
    expect_one_written(&answers)?;
    let took = answers[0].took;
    expect(took < LEASE + Duration::from_secs(5), format!("the work was cancelled only after {took:?}"))?;
    Ok("The first invocation was cancelled at the end of its lease and wrote nothing, and the second one wrote."
        .to_owned())
}

/// One delivery of an event to its own environment.
struct Invocation {
    number: usize,
    /// The number of the delivery that Lambda retries, or its own.
    request: usize,
    host: Host,
    table: String,
    data_table: String,
    prefix: String,
    deadline: SystemTime,
}

impl Invocation {
    fn new(cloud: &Cloud, prefix: &str, number: usize, timeout: Duration) -> Self {
        let host = cloud.host();
        let deadline = host.now() + timeout;
        Self {
            number,
            request: number,
            host,
            table: cloud.table.clone(),
            data_table: cloud.data_table.clone(),
            prefix: prefix.to_owned(),
            deadline,
        }
    }

    async fn deliver(self, report: &str, gathering: Duration) -> Answer {
        self.deliver_to(|locks, reports| nightly_report(locks, reports, Simulation::On), report, gathering).await
    }

    /// Delivers the event to this function.
    async fn deliver_to<S>(
        self,
        function: impl FnOnce(Locks, Reports) -> S,
        report: &str,
        gathering: Duration,
    ) -> Answer
    where
        S: Service<LambdaEvent<ReportRequest>, Response = Outcome, Error = HandlerError<Failure>>,
    {
        let Self { number, request, host, table, data_table, prefix, deadline } = self;
        let started = host.now();
        let outcome = async {
            let locks = Locks::builder(host.client(), table).key_prefix(&prefix).build().map_err(HandlerError::Lock)?;
            let function = function(locks, Reports::new(host.client(), data_table, prefix));
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
    /// The fence with which it wrote the report.
    fn fence(&self) -> Option<u64> {
        match self.outcome {
            Ok(Outcome::Written { fence, .. }) => Some(fence),
            _ => None,
        }
    }
}

/// Prints the answers, below a row for the first delivery if its environment crashed.
fn print<'a>(first_crashed: bool, answers: impl IntoIterator<Item = &'a Answer>) {
    let mut table = table(["delivery", "outcome", "fence", "requests", "ms"]);
    if first_crashed {
        table.add_row(["1", "none: its environment crashed"]);
    }
    for answer in answers {
        let Answer { number, outcome, requests, took } = answer;
        let outcome = match outcome {
            Ok(Outcome::Written { times, .. }) => format!("wrote the report: version {times}"),
            Ok(Outcome::Skipped { .. }) => "skipped".to_owned(),
            Err(HandlerError::Lock(error)) if error.is_held() => "failed, because the key is held".to_owned(),
            Err(HandlerError::Lock(error)) if error.is_lost() => "cancelled, because the lease ended".to_owned(),
            Err(error) => format!("failed: {error}"),
        };
        let fence = answer.fence().map(short).unwrap_or_default();
        table.add_row([number.to_string(), outcome, fence, requests.to_string(), took.as_millis().to_string()]);
    }
    println!("{table}");
}

fn expect_one_written(answers: &[Answer]) -> Result<(), Error> {
    let written = answers.iter().filter(|answer| answer.fence().is_some()).count();
    expect(written == 1, format!("{written} invocations ran, not 1"))
}
