//! Identities: a later acquire of the same identity takes the lock over, and the lock outlives its process.

mod deployment;
mod durable_deployment;
mod keep;
mod lease;
mod state_machine;
mod takeover;

use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Acquire, Locks};
use lambda_lock_tests::{Row, World, ms};

const ARN: &str = "arn:aws:states:eu-west-1:123456789012:execution:deploy:1";
const LEASE: Duration = Duration::from_mins(30);
/// The default.
const CLOCK_SKEW: Duration = Duration::from_secs(1);

/// A new host with its locks.
fn host(world: &World) -> (Host, Locks) {
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (host, locks)
}

fn by(locks: &Locks, identity: &str) -> Acquire {
    locks.acquire("job").lease(LEASE).identity(identity)
}

fn number(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}
