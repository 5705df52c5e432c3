//! Tickets: locks that outlive their process, and acquires of an identity.

mod clocks;
mod deployment;
mod durable_deployment;
mod errors;
mod hand_over;
mod identity;
mod late_requests;
mod lease;
mod permits;
mod serialised;
mod state_machine;

use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Error, Lock, Locks, Ticket};
use lambda_lock_tests::{Row, World};
use serde_json::Value;

const LEASE: Duration = Duration::from_mins(30);
/// The default.
const CLOCK_SKEW: Duration = Duration::from_secs(1);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A new host with its locks.
fn host(world: &World) -> (Host, Locks) {
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (host, locks)
}

/// Acquires `job` on another host for 30 minutes.
async fn acquired(world: &World) -> Lock {
    world.default_locks().acquire("job").lease(LEASE).data("page 7").await.unwrap()
}

/// A ticket of `job`, after its way through JSON.
async fn ticket(world: &World) -> Ticket {
    passed_on(&acquired(world).await.into_ticket().unwrap())
}

fn passed_on(ticket: &Ticket) -> Ticket {
    serde_json::from_str(&serde_json::to_string(ticket).unwrap()).unwrap()
}

/// A copy of the ticket with another value of a field.
fn with(ticket: &Ticket, field: &str, value: impl Into<Value>) -> Ticket {
    let mut json = serde_json::to_value(ticket).unwrap();
    json[field] = value.into();
    serde_json::from_value(json).unwrap()
}

/// The number of the acquisition.
fn number_of(ticket: &Ticket) -> u64 {
    serde_json::to_value(ticket).unwrap()["number"].as_u64().unwrap()
}

fn number(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}

#[track_caller]
fn assert_contains(error: &Error, parts: &[&str]) {
    for part in parts {
        assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
    }
}
