//! Limits of a bank: three calls at a time by a semaphore, and ten calls a second by a rate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anstream::println;
use lambda_lock::Locks;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_runtime::Error;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Cloud;
use crate::scene::{Scene, expect, short, table};

const CALLS: usize = 12;
const AT_ONCE: u32 = 3;

pub(crate) const SCENES: &[Scene] = &[
    Scene {
        name: "limit",
        title: "A bank takes three calls at a time",
        world: "Twelve environments call the bank at once, and each call takes 0.4 s. One more environment crashed in its \
                call, and its permit is held until its lease of 0.5 s and 1 s of clock skew have passed.",
        should: "Never more than three calls at a time. The waiters take turns, about in the order in which their \
                 requests came, and all twelve calls are made.",
        guide: "recipes/limits",
        play: |cloud| Box::pin(limit(cloud)),
    },
    Scene {
        name: "rate",
        title: "A bank takes ten calls a second",
        world: "Twelve environments call the bank at once.",
        should: "The row gives each call its time, 100 ms after the one before, so the last one starts 1.1 s after the \
                 first one. Each call sends one request.",
        guide: "recipes/rates",
        play: |cloud| Box::pin(rate(cloud)),
    },
];

async fn limit(cloud: &Cloud) -> Result<String, Error> {
    let key = format!("{}bank-api", cloud.new_prefix("payments"));
    let doomed = cloud.host();
    let permit = Locks::builder(doomed.client(), &cloud.table)
        .build()?
        .semaphore(&key, AT_ONCE)
        .acquire()
        .lease(Duration::from_millis(500))
        .await?;
    doomed.crash();

    let bank = Arc::new(Bank::default());
    let arrivals = Arc::default();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let arrival = Arrival::new(&arrivals);
        let host = cloud.new_host().intercept(arrival.clone()).build();
        let (table, key, bank) = (cloud.table.clone(), key.clone(), Arc::clone(&bank));
        calls.spawn(async move {
            let semaphore = Locks::builder(host.client(), table).build()?.semaphore(key, AT_ONCE);
            let acquire = semaphore.acquire().wait(Duration::from_secs(30));
            let fence = acquire.run(async |permit| bank.call(permit.fence()).await).await?;
            Ok::<_, Error>((fence, arrival.place()?, host.requests()))
        });
    }
    let mut answers = calls.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    drop(permit);
    answers.sort_unstable();
    let mut table = table(["turn", "came as no.", "fence", "requests"]);
    for (turn, (fence, place, requests)) in answers.iter().enumerate() {
        table.add_row([(turn + 1).to_string(), place.to_string(), short(*fence), requests.to_string()]);
    }
    println!("{table}");
    let (calls, most) = (bank.calls.load(Ordering::Relaxed), bank.most.load(Ordering::Relaxed));
    expect(calls == CALLS, format!("{calls} calls, not {CALLS}"))?;
    expect(most == AT_ONCE as usize, format!("{most} calls at a time, not {AT_ONCE}"))?;
    expect(answers.windows(2).all(|pair| pair[0].0 < pair[1].0), "two calls have one fence")?;
    Ok(format!("{calls} calls were made, and at most {most} at a time."))
}

async fn rate(cloud: &Cloud) -> Result<String, Error> {
    let key = format!("{}bank-api", cloud.new_prefix("balances"));
    let began = cloud.host().now();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let (host, table, key) = (cloud.host(), cloud.table.clone(), key.clone());
        calls.spawn(async move {
            let bank = Locks::builder(host.client(), table).build()?.rate(key, 10, Duration::from_secs(1));
            bank.pass_within(Duration::from_secs(5)).await?;
            Ok::<_, Error>((host.now(), host.requests()))
        });
    }
    let mut answers = calls.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    answers.sort_unstable();
    let first = answers.first().ok_or("no call was made")?.0;
    let mut table = table(["turn", "starts after", "requests"]);
    for (turn, (at, requests)) in answers.iter().enumerate() {
        let after = format!("{} ms", at.duration_since(first)?.as_millis());
        table.add_row([(turn + 1).to_string(), after, requests.to_string()]);
    }
    println!("{table}");
    let last = answers.last().map_or(first, |(at, ..)| *at).duration_since(first)?;
    // The time of the first call is that of its request, and on a slow machine it starts later.
    let since_all_began = first.duration_since(began)? + last;
    expect(
        since_all_began > Duration::from_millis(1099),
        format!("the last call started {since_all_began:?} after all began"),
    )?;
    Ok(format!("{} calls started within {} ms.", answers.len(), last.as_millis()))
}

/// Counts its calls.
#[derive(Default)]
struct Bank {
    calls: AtomicUsize,
    present: AtomicUsize,
    most: AtomicUsize,
}

impl Bank {
    async fn call(&self, fence: u64) -> u64 {
        let present = self.present.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(present, Ordering::Relaxed);
        sleep(Duration::from_millis(400)).await;
        self.present.fetch_sub(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        fence
    }
}

/// Learns as which one the table accepted a request of its host: for a call at once, or for a place in the queue.
#[derive(Clone, Debug)]
struct Arrival {
    arrivals: Arc<AtomicUsize>,
    place: Arc<OnceLock<usize>>,
}

impl Arrival {
    fn new(arrivals: &Arc<AtomicUsize>) -> Self {
        Self { arrivals: Arc::clone(arrivals), place: Arc::default() }
    }

    fn place(&self) -> Result<usize, Error> {
        self.place.get().copied().ok_or_else(|| "a call passed without a request".into())
    }
}

impl Intercept for Arrival {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if answer.status == 200 {
            self.place.get_or_init(|| self.arrivals.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }
}
