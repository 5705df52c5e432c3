//! The row that an acquire replaced.

use std::time::SystemTime;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock_tests::Row;

use crate::{in_progress, locks_on, number, text, world_without_ttl};

fn fence(row: &Row) -> u64 {
    row["fence"].as_n().unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_acquire_knows_its_fence_and_data_after_any_previous_row() {
    let world = world_without_ttl().await;
    let (host, locks) = locks_on(&world, world.host());
    let acquired = async |data: Option<&str>, expected: Option<&str>| {
        let acquire = locks.acquire("nightly");
        let lock = match data {
            Some(data) => acquire.data(data).await.unwrap(),
            None => acquire.await.unwrap(),
        };
        let row = world.row("nightly").await.unwrap();
        assert_eq!(lock.fence(), fence(&row));
        assert_eq!(
            (lock.data().and_then(|data| data.as_str()), row.get("data").map(|data| data.as_s().unwrap().as_str())),
            (expected, expected)
        );
        assert_eq!(row["owner"], text(lock.owner()));
        lock.release().await.unwrap();
        lock.fence()
    };
    let before = u64::try_from(host.now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let first = acquired(None, None).await;
    assert!(first > before, "a new row's fence starts at the clock");
    let second = acquired(Some("page 1"), Some("page 1")).await;
    let third = acquired(None, Some("page 1")).await;
    let fourth = acquired(Some("page 2"), Some("page 2")).await;
    world.delete_row("nightly").await;
    let fifth = acquired(None, None).await;
    assert!([first, second, third, fourth, fifth].is_sorted_by(|one, next| one < next));
    // A row of Powertools has no fence and no owner.
    let mut row = in_progress("nightly", 1);
    row.insert("data".to_owned(), text("theirs"));
    world.put_row(row.clone()).await;
    assert!(acquired(None, Some("theirs")).await > before);
    let ahead = fifth * 2;
    for fence in [number(17), number(ahead), AttributeValue::N(format!("{ahead}.5"))] {
        row.insert("fence".to_owned(), fence.clone());
        world.put_row(row.clone()).await;
        let least = if fence == number(17) { before } else { ahead };
        assert!(acquired(None, Some("theirs")).await > least, "{fence:?}");
    }
}
