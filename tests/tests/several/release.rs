//! Releasing several keys: all of them, those that are left, and by a drop.

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::ErrorKind;
use lambda_lock_tests::World;

use crate::{CLOCK_SKEW, KEYS, LEASE, assert_contains};

#[tokio::test]
async fn a_release_with_one_key_lost_names_it_and_frees_the_others() {
    let world = World::new().await;
    let (ours, theirs) = (world.host().build(), world.host().build());
    let set = world.locks(&ours).build().unwrap().acquire_all(["a", "b", "c"]).await.unwrap();
    theirs.advance_clock(LEASE + CLOCK_SKEW);
    let next = world.locks(&theirs).holder("the next").build().unwrap().acquire("b").await.unwrap();
    let row = world.row("b").await;
    let error = set.release().await.unwrap_err();
    assert_eq!(ours.requests(), 3);
    assert!(error.is_lost());
    assert_eq!(
        error.holders().map(|(key, holder)| (key, holder.owner())).collect::<Vec<_>>(),
        [("b", Some(next.owner()))]
    );
    assert_contains(&error, &["the lock on key `b`", &world.table, "was lost to the next"]);
    assert_eq!(world.row("b").await, row);
    // The other keys are free before the lease ends.
    world.default_locks().acquire_all(["a", "c"]).await.unwrap().release().await.unwrap();
    assert!(set.release().await.unwrap_err().is_lost());
    assert_eq!(ours.requests(), 3);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_malformed_row_does_not_keep_the_other_keys() {
    let world = World::new().await;
    let set = world.default_locks().acquire_all(KEYS).await.unwrap();
    let mut row = world.row(KEYS[0]).await.unwrap();
    row.insert("status".to_owned(), AttributeValue::S("something else".to_owned()));
    world.put_row(row).await;
    assert_eq!(set.release().await.unwrap_err().kind(), ErrorKind::MalformedRow);
    assert!(world.default_locks().try_acquire(KEYS[1]).await.unwrap().is_some());
}
