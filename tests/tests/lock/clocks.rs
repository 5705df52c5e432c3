//! A host whose clock is wrong: what it has replaced comes back.

use std::time::Duration;

use lambda_lock::{Attempt, ErrorKind, Locks};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{Row, World};
use tokio::time::timeout;

use crate::rows::powertools;
use crate::{CLOCK_SKEW, LEASE, ms};

const HOUR: Duration = Duration::from_hours(1);

fn ahead(world: &World) -> Locks {
    world.locks(&world.host().clock_ahead(HOUR).build()).build().unwrap()
}

/// The row without what a put-back adds.
async fn row(world: &World) -> Row {
    let mut row = world.row("job").await.unwrap();
    row.remove("withdrawn");
    row.remove("asked");
    row
}

#[tokio::test]
async fn a_holder_goes_on_after_a_wrong_clock_took_its_key() {
    let world = World::new().await;
    let locks = world.default_locks();
    locks.acquire("job").data("1").await.unwrap().release().await.unwrap();
    let lock = locks.acquire("job").await.unwrap();
    let before = row(&world).await;
    let error = ahead(&world).acquire("job").data("2").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClockSkew);
    assert_eq!(row(&world).await, before);
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
    assert_eq!(locks.acquire("job").await.unwrap().data().unwrap().as_str(), Some("1"));
}

#[tokio::test]
async fn a_run_of_powertools_comes_back_as_it_was() {
    let world = World::new().await;
    let now = world.host().build().now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let run = powertools("job", now, "INPROGRESS", Some(60), 600);
    world.put_row(run.clone()).await;
    assert_eq!(ahead(&world).acquire("job").await.unwrap_err().kind(), ErrorKind::ClockSkew);
    assert_eq!(row(&world).await, run);
}

#[tokio::test]
async fn the_error_of_a_wrong_clock_counts_the_attempts_before_it() {
    let world = World::new().await;
    let _holder = world.default_locks().acquire("job").await.unwrap();
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let Attempt::Waiting(turn) = locks.acquire("job").attempt_in_turn(None).await.unwrap() else {
        panic!("the key was free")
    };
    host.set_clock_forward(HOUR);
    let error = locks.acquire("job").attempt_in_turn(Some(turn)).await.unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::ClockSkew, 2), "{error}");
}

#[tokio::test]
async fn a_holder_runs_once_more_for_work_left_to_a_wrong_clock() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(ahead(&world).acquire("job").await.unwrap_err().kind(), ErrorKind::ClockSkew);
    assert!(lock.release_coalescing().await.unwrap());
}

/// Neither its attempt nor its caller has seen an answer.
#[tokio::test]
async fn a_dropped_acquire_of_a_wrong_clock_keeps_the_key_for_its_holder() {
    let world = World::new().await;
    let locks = world.default_locks();
    let _holder = locks.acquire("job").lease(LEASE).await.unwrap();
    let host = world.host().clock_ahead(HOUR).intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    let wrong = world.locks(&host).build().unwrap();
    let mut acquire = Box::pin(wrong.acquire("job").lease(LEASE).into_future());
    while host.requests() == 0 {
        let _not_ready = timeout(ms(1), &mut acquire).await;
    }
    drop(acquire);
    wrong.flush(Duration::from_secs(10)).await.unwrap();
    assert!(locks.acquire("job").await.unwrap_err().is_held());
    let later = world.host().later(LEASE + 3 * CLOCK_SKEW).build();
    world.locks(&later).build().unwrap().acquire("job").await.unwrap().release().await.unwrap();
}
