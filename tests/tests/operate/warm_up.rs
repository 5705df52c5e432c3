//! `Locks::warm_up`: one request that writes nothing.

use lambda_lock::Locks;
use lambda_lock::embedded::DynamoDb;
use lambda_lock_tests::World;

use crate::{locks_on, s};

#[tokio::test]
async fn warming_up_sends_one_request_that_writes_nothing() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    locks.warm_up().await;
    assert_eq!(host.requests(), 1);
    assert!(world.row("lambda-lock-check").await.is_none());

    let host = world.host().build();
    world.locks(&host).enabled(false).build().unwrap().warm_up().await;
    assert_eq!(host.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn warming_up_a_silent_table_ends_after_three_seconds() {
    let engine = DynamoDb::new().unwrap();
    let host = engine.host().build();
    host.crash();
    let before = engine.now();
    Locks::builder(host.client(), "locks").build().unwrap().warm_up().await;
    assert_eq!(engine.now().duration_since(before).unwrap(), s(3));
}
