//! Callers of one rate, on a host each.

use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::Locks;
use lambda_lock::embedded::Host;

use crate::scene::{Contended, Stage, runtime, seed_thread};

/// How callers fared.
pub(crate) struct Called {
    /// From the first one to the last.
    pub(crate) total: Duration,
    /// For each call.
    pub(crate) requests: f64,
    /// They passed in the order of their times.
    pub(crate) in_order: bool,
}

/// So many callers at once, of a key that lets so many pass in a second.
pub(crate) fn at_once(callers: u32, calls: u32, seed: u64) -> Called {
    seed_thread(seed);
    runtime().block_on(async {
        let stage = Stage::set(Duration::from_mins(1), Contended::Key).await;
        let hosts: Vec<_> = (0..callers).map(|_| stage.host()).collect();
        let started = stage.now();
        let passed = join_all(hosts.iter().map(async |(host, locks): &(Host, Locks)| {
            let rate = locks.rate("rate", calls, Duration::from_secs(1));
            let wait = rate.reserve(Duration::MAX).await.unwrap();
            let given = host.now() + wait;
            tokio::time::sleep(wait).await;
            (given, stage.now().duration_since(started).unwrap())
        }));
        let mut passed = passed.await;
        passed.sort_unstable();
        let requests: u64 = hosts.iter().map(|(host, _)| host.requests()).sum();
        #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
        let requests = requests as f64 / f64::from(callers);
        Called {
            total: passed.iter().map(|(_, at)| *at).max().unwrap(),
            requests,
            in_order: passed.is_sorted_by_key(|(_, at)| *at),
        }
    })
}
