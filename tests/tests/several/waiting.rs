//! Waiting for several keys, and conflicts with other transactions.

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;

use crate::{Cancel, KEYS, assert_contains, assert_held_by, eagerly, ms};

/// After the first one has finished, another one gets all of them.
#[tokio::test]
async fn a_wait_ends_when_every_key_is_released() {
    let world = World::new().await;
    let [first, second] = KEYS.map(|key| world.default_locks().acquire(key).into_future());
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let waiting = tokio::spawn(world.default_locks().acquire_all(KEYS).wait(eagerly()).into_future());
    tokio::time::sleep(ms(50)).await;
    first.release().await.unwrap();
    tokio::time::sleep(ms(50)).await;
    assert!(!waiting.is_finished());
    // It holds neither key meanwhile.
    world.default_locks().try_acquire(KEYS[0]).await.unwrap().unwrap().release().await.unwrap();
    second.release().await.unwrap();
    let set = waiting.await.unwrap().unwrap();
    assert_held_by(&world, &set).await;
    set.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_ends_names_all_holders() {
    let world = World::new().await;
    let holder = world.default_locks().acquire_all(KEYS).await.unwrap();
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let error = locks.acquire_all(KEYS).wait(ms(300)).await.unwrap_err();
    assert!(error.is_held());
    assert_eq!(error.holders().count(), 2);
    // One request takes a place with both keys, because one holder has them.
    assert!(error.attempts() > 1 && u64::from(error.attempts()) + 1 == host.requests());
    assert_contains(&error, &["`account#1`", "`account#2`", &format!("after {} attempts", error.attempts())]);
    holder.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_retries_transient_reasons_and_no_others() {
    let cases: [(&str, ErrorKind, bool); 5] = [
        ("TransactionConflict", ErrorKind::Conflict, true),
        ("ThrottlingError", ErrorKind::Throttled, true),
        ("ProvisionedThroughputExceeded", ErrorKind::Throttled, true),
        ("ValidationError", ErrorKind::Rejected, false),
        ("ItemCollectionSizeLimitExceeded", ErrorKind::Rejected, false),
    ];
    for (code, kind, is_retried) in cases {
        let world = World::new().await;
        let host = world.host().intercept(Cancel::with(code, 1..=1)).build();
        let error = world.locks(&host).build().unwrap().acquire_all(KEYS).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code}: {error:?}");
        assert_eq!((error.key(), host.requests()), (KEYS[1], 1), "{code}");
        assert!(std::error::Error::source(&error).is_some(), "{code}");

        let host = world.host().intercept(Cancel::with(code, 1..=3)).build();
        let waited = world.locks(&host).build().unwrap().acquire_all(KEYS).wait(eagerly()).await;
        match waited {
            Ok(set) => {
                assert!(is_retried, "{code}");
                assert_eq!(host.requests(), 4, "{code}");
                set.release().await.unwrap();
            }
            Err(error) => assert!(!is_retried && error.kind() == kind, "{code}: {error:?}"),
        }
    }
}
