//! Several keys in a table with multi-Region strong consistency, which has no transactions.

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;

use crate::{KEYS, assert_contains, eagerly};

#[tokio::test]
async fn without_transactions_several_keys_are_refused_before_a_request() {
    let world = World::across_regions().await;
    let host = world.host().build();
    let locks = world.locks(&host).multi_region_strong_consistency(true).build().unwrap();
    for error in [
        locks.acquire_all(KEYS).await.unwrap_err(),
        locks.acquire_all(KEYS).wait(eagerly()).await.unwrap_err(),
        locks.acquire_all([KEYS[0]]).run(async |_| ()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(error.attempts(), 1);
        assert_contains(&error, &[KEYS[0], &world.table, "multi-Region strong consistency", "lock one key"]);
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn without_the_setting_the_rejection_is_not_repeated_and_names_the_setting() {
    let world = World::across_regions().await;
    let host = world.host().build();
    let error = world.locks(&host).build().unwrap().acquire_all(KEYS).wait(eagerly()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(!error.is_retryable());
    assert_eq!(host.requests(), 1);
    let says = ["LocksBuilder::multi_region_strong_consistency", "lock one key", "its message"];
    assert_contains(&error, &[&KEYS[..], &[&world.table], &says].concat());
    assert!(format!("{error:?}").contains("ValidationException"), "{error:?}");
}

#[tokio::test]
async fn disabled_locks_send_no_transaction() {
    let world = World::across_regions().await;
    let locks = world.locks(&world.host().build()).multi_region_strong_consistency(true).enabled(false);
    let set = locks.build().unwrap().acquire_all(KEYS).await.unwrap();
    assert_eq!(set.fence_of(KEYS[0]), Some(0));
    set.release().await.unwrap();
}
