//! Several executions, which wait for each other in virtual time.

use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::Locks;
use lambda_lock_durable::{Fences, LockContext as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::service::{Ended, Service};
use crate::{KEY, KINDS, LEASE, Table, Takes};

const HOLD: Duration = Duration::from_secs(20);
/// How late an invocation begins after its wait.
const COLD_START: Duration = Duration::from_millis(150);

pub(crate) fn arn(number: u32) -> String {
    format!("arn:aws:lambda:eu-west-1:123456789012:function:deploy:1/durable-execution/e{number}/1")
}

/// Executes a function that holds what it takes for 20 s, in a step. Returns its fence.
pub(crate) async fn execute(service: &Service, locks: &Locks, number: u32, takes: Takes) -> Ended {
    let locks = locks.clone();
    service
        .execute(&arn(number), COLD_START, move |_: Value, ctx| {
            let locks = locks.clone();
            async move {
                let lock = takes(&ctx, &locks).lease(LEASE).wait_up_to(Duration::from_hours(1));
                let fence = lock.run(move |held| async move {
                    let work = move |fences: Fences| async move {
                        sleep(HOLD).await;
                        Ok(fences.fence())
                    };
                    Ok(held.step("work", work).await?)
                });
                Ok(json!(fence.await?))
            }
        })
        .await
}

/// What some executions needed.
#[derive(Debug)]
struct Needed {
    time: Duration,
    waits: usize,
    invocations: u32,
    requests: u64,
    /// In the order of their start.
    fences: Vec<u64>,
}

/// Starts six executions, each this much later than the one before, and returns what they needed. An execution before them
/// tells how long a hold takes, unless they are the first ones.
async fn six(table: &Table, service: &Service, takes: Takes, apart: Duration, are_first: bool) -> Needed {
    if !are_first {
        execute(service, &table.locks, 0, takes).await;
    }
    let (started, requests) = (table.engine.now(), table.host.requests());
    let executions = (1..=6).map(|number| async move {
        sleep(apart * (number - 1)).await;
        execute(service, &table.locks, number, takes).await
    });
    let ended = join_all(executions).await;
    for execution in &ended {
        assert_eq!(execution.response["Status"], "SUCCEEDED", "{execution:?}");
    }
    let needed = Needed {
        time: table.engine.now().duration_since(started).unwrap(),
        waits: (1..=6).map(|number| service.waits(&arn(number))).sum(),
        invocations: ended.iter().map(|execution| execution.invocations).sum(),
        requests: table.host.requests() - requests,
        fences: ended.iter().map(|end| end.response["Result"].as_str().unwrap().parse().unwrap()).collect(),
    };
    println!("{needed:?}");
    assert!(!table.is_held().await);
    needed
}

/// Each waits twice at most: until its turn, and once more if the holder takes longer than others did. A holder needs an
/// attempt, a takeover of two requests, and a release of two requests for each key. Each wait needs an attempt, and the first
/// one a place with each key. Each attempt at a free key is sent twice, because a release by an identity leaves a number that is
/// ahead of all clocks.
///
/// The first executions of a key do not know how long it is held. They ask a few more times, and the key is free for a while
/// before the next one asks.
///
/// While the first one runs, another one sleeps until its turn.
/// After the first one has finished, another one takes the lock.
#[tokio::test(start_paused = true)]
async fn executions_take_turns_with_few_suspensions() {
    for (takes, keys) in KINDS.into_iter().zip([1, 1, 2]) {
        for are_first in [false, true] {
            let table = Table::new().await;
            let service = Service::new(&table.engine);
            let Needed { time, waits, invocations, requests, .. } =
                six(&table, &service, takes, Duration::ZERO, are_first).await;
            assert!(waits <= 12, "{waits} waits");
            assert!(time <= 6 * HOLD.mul_f64(1.15), "{time:?}");
            assert_eq!(invocations as usize, 6 + waits, "each wait ends an invocation, and nothing else does");
            let most = 6 * (4 + 2 * keys) + (2 + keys) * waits;
            assert!(requests <= most as u64, "{requests} requests");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn executions_hold_in_the_order_of_their_start() {
    for takes in KINDS {
        let table = Table::new().await;
        let service = Service::new(&table.engine);
        let fences = six(&table, &service, takes, Duration::from_secs(2), false).await.fences;
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_permits_let_two_executions_hold_at_a_time() {
    let takes: Takes = |ctx, locks| ctx.permit(locks, KEY, 2);
    let table = Table::new().await;
    let service = Service::new(&table.engine);
    let Needed { time, waits, .. } = six(&table, &service, takes, Duration::ZERO, false).await;
    assert!((3 * HOLD..=3 * HOLD.mul_f64(1.15)).contains(&time), "{time:?}");
    assert!(waits <= 12, "{waits} waits");
}
