//! A semaphore: a bank that takes three calls at a time, and environments that want more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lambda_lock::{Backoff, Locks, Wait};
use lambda_runtime::Error;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Cloud, expect, table};

const CALLS: usize = 18;
const AT_ONCE: u32 = 3;

pub(crate) async fn show(cloud: &Cloud) -> Result<(), Error> {
    println!("{CALLS} environments call a bank at once, at most {AT_ONCE} at a time; one more crashes in its call");
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
    let mut calls = JoinSet::new();
    for number in 1..=CALLS {
        let (host, table, key, bank) = (cloud.host(), cloud.table.clone(), key.clone(), Arc::clone(&bank));
        calls.spawn(async move {
            let semaphore = Locks::builder(host.client(), table).build()?.semaphore(key, AT_ONCE);
            let wait = Wait::backoff(Backoff::new().base(Duration::from_millis(50)).cap(Duration::from_millis(200)));
            let acquire = semaphore.acquire().wait(wait.up_to(Duration::from_secs(30)));
            let fence = acquire.run(async |permit| bank.call(permit.fence()).await).await?;
            Ok::<_, Error>((number, fence, host.requests()))
        });
    }
    let mut answers = calls.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    drop(permit);
    answers.sort_unstable();
    let mut table = table(["environment", "fence", "requests"]);
    for (number, fence, requests) in &answers {
        table.add_row([number.to_string(), fence.to_string(), requests.to_string()]);
    }
    println!("{table}");
    let (calls, most) = (bank.calls.load(Ordering::Relaxed), bank.most.load(Ordering::Relaxed));
    println!("calls: {calls}; most at a time: {most}");
    expect(calls == CALLS, format!("{calls} calls, not {CALLS}"))?;
    expect(most == AT_ONCE as usize, format!("{most} calls at a time, not {AT_ONCE}"))?;
    answers.sort_unstable_by_key(|(_, fence, _)| *fence);
    expect(answers.windows(2).all(|pair| pair[0].1 < pair[1].1), "two calls have one fence")
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
        sleep(Duration::from_millis(200)).await;
        self.present.fetch_sub(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        fence
    }
}
