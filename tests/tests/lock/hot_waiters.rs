//! Waiters for a key that is asked for twice as often as its partition can answer.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{DynamoDb, Faults};
use lambda_lock::{Backoff, Locks, Wait};
use lambda_lock_tests::{median, on_all_cores};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::ms;

const WAITERS: u32 = 150;
const HOLD: Duration = ms(5);
/// The first two failed when waiters and holders had the same delays.
const SEEDS: [u64; 4] = [1, 8, 2, 3];
const PATIENCE: Duration = Duration::from_mins(5);

struct Shares {
    /// Pairs of an acquire and a release, as a share of what the partition can answer.
    throughput: f64,
    /// The longest wait, in means.
    longest: f64,
    /// For each pair, with the SDK's retries.
    requests: f64,
}

/// Waiters come twice as fast as a partition with so many units a second can serve them.
async fn contend(units: u32, wait: Wait, seed: u64) -> Shares {
    fastrand::seed(seed);
    let dynamodb = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    Locks::builder(dynamodb.client(), "locks").build().unwrap().create_table().await.unwrap();
    let dynamodb = dynamodb.limit_partitions(units);
    let latency = Duration::from_micros(2500);
    let waits = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    let started = dynamodb.now();
    let apart = Duration::from_secs(1) / units;
    for number in 0..WAITERS {
        let host = dynamodb.host().faults(Faults::seeded(fastrand::u64(..)).latency(latency..latency)).build();
        let locks = Locks::builder(host.client(), "locks").build().unwrap();
        let waits = Arc::clone(&waits);
        waiters.spawn(async move {
            sleep(apart * number).await;
            let asked = host.now();
            let lock = locks.acquire("job").wait(wait.up_to(PATIENCE)).await.unwrap();
            waits.lock().unwrap().push(host.now().duration_since(asked).unwrap().as_secs_f64());
            sleep(HOLD).await;
            lock.release().await.unwrap();
            host.requests()
        });
    }
    let requests: u64 = waiters.join_all().await.into_iter().sum();
    let total = dynamodb.now().duration_since(started).unwrap().as_secs_f64();
    let waits = waits.lock().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
    let (requests, count) = (requests as f64, waits.len() as f64);
    let mean = waits.iter().sum::<f64>() / count;
    // The partition has the units of one second to begin with.
    let ceiling = f64::from(units) * (total + 1.0) / 2.0;
    Shares {
        throughput: count / ceiling,
        longest: waits.iter().copied().fold(0.0, f64::max) / mean,
        requests: requests / count,
    }
}

#[test]
fn waiters_ask_less_often_when_they_are_throttled_so_that_holders_can_release() {
    for wait in [Wait::in_turn(), Wait::backoff(Backoff::new())] {
        let shares = on_all_cores(SEEDS, |seed| {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(contend(20, wait, seed))
        });
        let all = |figure: &dyn Fn(&Shares) -> f64| shares.iter().map(figure).collect::<Vec<_>>();
        let (throughput, longest, requests) =
            (all(&|shares| shares.throughput), all(&|shares| shares.longest), all(&|shares| shares.requests));
        let least = throughput.iter().copied().fold(1.0, f64::min);
        let most = |figures: &[f64]| figures.iter().copied().fold(0.0, f64::max);
        let (median, longest, requests) = (median(throughput), most(&longest), most(&requests));
        let shares =
            format!("{median:.2} of the ceiling, {least:.2} at least, longest {longest:.2}, {requests:.1} requests");
        println!("{shares}");
        assert!(median > 0.68 && least > 0.55 && longest < 5.0 && requests < 18.0, "{shares}");
    }
}
