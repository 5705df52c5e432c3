//! Idempotency with disabled locks.

use std::time::Duration;

use lambda_lock::OnError;
use lambda_lock::idempotency::StoredError;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::Counter;
use tokio::time::sleep;

use crate::{decline, environment, is_declined, ms, order, order_without_id, orders, place};

#[tokio::test]
async fn disabled_locks_do_not_use_the_cache() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    for index in 1..=3 {
        assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), index);
    }
}

#[tokio::test]
async fn disabled_locks_run_every_input_without_a_request() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let runs = Counter::default();
    for (index, policy) in
        [OnError::Release, OnError::Keep, OnError::Store(StoredError::new("Declined", "no"))].into_iter().enumerate()
    {
        let orders = orders(&locks).on_error(move |_| policy.clone());
        assert_eq!(place(&orders, &order("a"), &runs).await.unwrap() as usize, 2 * index + 1);
        assert!(is_declined(&decline(&orders, &order("a"), &runs).await));
    }
    assert_eq!(runs.get(), 6);
    sleep(ms(20)).await;
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn disabled_locks_check_neither_key_nor_window() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let (orders, runs) = (orders(&locks), Counter::default());
    place(&orders, &order_without_id(), &runs).await.unwrap();
    place(&orders, &order(&"x".repeat(5000)), &runs).await.unwrap();
    place(&orders.window(Duration::ZERO), &order("a"), &runs).await.unwrap();
    assert_eq!((runs.get(), host.requests()), (3, 0));
}
