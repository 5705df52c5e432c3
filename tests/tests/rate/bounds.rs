//! Wrong numbers, and locking that is disabled.

use std::time::Duration;

use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::World;

use crate::{KEY, SECOND};

#[tokio::test]
async fn a_wrong_number_is_named_with_its_bounds() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    for (rate, expected) in [
        (locks.rate(KEY, 0, SECOND), "0 calls in 1s, not between 1 call in the period and 1 call a millisecond"),
        (locks.rate(KEY, 1001, SECOND), "1001 calls in 1s, not between"),
        (locks.rate(KEY, 1, Duration::ZERO), "the period of a rate is 0s, not between 1ms and 1day"),
        (locks.rate(KEY, 1, Duration::MAX), "not between 1ms and 1day"),
        (locks.rate(KEY, 10, SECOND).burst(0), "the burst of the rate on key `bank-api` is 0, not between 1 and"),
        (locks.rate(KEY, 10, SECOND).burst(u32::MAX), "is 4294967295, not between 1 and"),
        (locks.rate(KEY, 10, SECOND).weight(0), "the weight of the rate on key `bank-api` is 0, not between 1 and"),
        (locks.rate(KEY, 10, SECOND).weight(u32::MAX), "is 4294967295, not between 1 and"),
        (locks.rate("", 10, SECOND), "the key is empty"),
    ] {
        let error = rate.pass().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = locks.rate(KEY, 10, SECOND).pause_for(Duration::MAX).await.unwrap_err();
    assert!(error.to_string().contains("the pause of a rate is "), "{error}");
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_thousand_calls_a_second_are_a_rate() {
    let world = World::new().await;
    world.default_locks().rate(KEY, 1000, SECOND).pass().await.unwrap();
}

#[tokio::test]
async fn without_locking_each_call_passes_without_a_request() {
    let world = World::new().await;
    let host = world.host().build();
    let locks: Locks = world.locks(&host).enabled(false).build().unwrap();
    let bank = locks.rate(KEY, 1, Duration::from_hours(24));
    bank.pass().await.unwrap();
    bank.pass().await.unwrap();
    bank.pause_for(SECOND).await.unwrap();
    assert_eq!(bank.reserve(SECOND).await.unwrap(), Duration::ZERO);
    assert_eq!(host.requests(), 0);
}
