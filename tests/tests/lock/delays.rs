//! Random delays, in environments that were restored from one snapshot: the generators in their processes are equal.

use std::thread;
use std::time::Duration;

use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::{Backoff, Jitter, Locks, Wait};

/// Returns a host with the locks of an engine in which another host has the key `job`.
async fn engine() -> (Host, Locks) {
    let engine = DynamoDb::new().unwrap();
    let locks = |host: &Host| Locks::builder(host.client(), "locks").build().unwrap();
    let (other, host) = (engine.host().build(), engine.host().build());
    locks(&other).create_table().await.unwrap();
    locks(&other).acquire("job").lease(Duration::from_hours(24)).await.unwrap().keep();
    let locks = locks(&host);
    (host, locks)
}

/// Returns how long five delays take, twice after the generator of the process was restored.
async fn delays_of_two(host: &Host, locks: &Locks) -> [Duration; 2] {
    // The first request of a thread draws numbers of its own.
    delays(host, locks).await;
    [delays(host, locks).await, delays(host, locks).await]
}

async fn delays(host: &Host, locks: &Locks) -> Duration {
    fastrand::seed(7);
    let started = host.now();
    let backoff = Wait::backoff(Backoff::new().jitter(Jitter::Full)).max_attempts(6).up_to(Duration::from_hours(1));
    assert!(locks.acquire("job").wait(backoff).await.unwrap_err().is_held());
    host.now().duration_since(started).unwrap()
}

#[tokio::test(start_paused = true)]
async fn two_environments_of_one_snapshot_wait_differently() {
    // A thread that builds hosts is a simulation, so the hosts come from another one.
    let built = thread::spawn(|| {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(engine())
    });
    let (host, locks) = built.join().unwrap();
    let [one, other] = delays_of_two(&host, &locks).await;
    assert_ne!(one, other);
}

#[tokio::test(start_paused = true)]
async fn a_simulation_waits_the_same_with_the_same_seed() {
    let (host, locks) = engine().await;
    let [one, other] = delays_of_two(&host, &locks).await;
    assert_eq!(one, other);
}
