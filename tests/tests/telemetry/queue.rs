//! The places of waiters in the queue.

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::{Locks, Wait};
use lambda_lock_tests::World;
use tokio::time::sleep;
use tracing::Level;

use crate::recorder::Metrics;
use crate::traces::Traces;
use crate::{Stage, TABLE, ms, s};

/// Waits until the queue has this length.
async fn length(locks: &Locks, length: u64) {
    while locks.get("nightly").await.unwrap().unwrap().waiters() != length {
        sleep(ms(1)).await;
    }
}

fn in_turn() -> Wait {
    Wait::in_turn().up_to(s(30))
}

#[tokio::test]
async fn waiters_record_how_many_are_ahead() {
    let world = World::new().await;
    let (metrics, traces) = (Metrics::begin(), Traces::begin());
    let locks = world.default_locks();
    let lock = locks.acquire("nightly").await.unwrap();
    let mut waiting = Vec::new();
    for number in 1..=3 {
        let acquire = locks.acquire("nightly").wait(in_turn());
        waiting.push(tokio::spawn(async { acquire.await?.release().await }));
        length(&locks, number).await;
    }
    // A waiter records its place after the answer.
    sleep(ms(50)).await;
    assert_eq!(metrics.take().values("waiters_ahead"), [0.0, 1.0, 2.0]);
    let joined = traces.logged("took a place in the queue");
    assert_eq!(joined.iter().map(|event| event.lock).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    assert!(joined.iter().all(|event| event.level == Level::DEBUG && event.fields["key"] == "nightly"), "{joined:?}");
    let spans = traces.locks();
    let ahead = spans.iter().map(|span| span.fields.get("ahead").map(String::as_str));
    assert_eq!(ahead.collect::<Vec<_>>(), [None, Some("0"), Some("1"), Some("2")]);

    lock.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    let counted = metrics.take();
    assert_eq!((counted.count("acquired"), counted.values("waiters_ahead")), (3, &[][..]), "{counted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_place_in_a_new_queue_is_counted_and_the_span_keeps_the_first() {
    let stage = Stage::set().await;
    let (locks, client) = (stage.locks(), stage.engine.client());
    let _deleted = locks.acquire("nightly").await.unwrap();
    let ahead = tokio::spawn(locks.acquire("nightly").wait(in_turn()).into_future());
    length(&locks, 1).await;
    let waiter = tokio::spawn(locks.acquire("nightly").wait(in_turn()).into_future());
    length(&locks, 2).await;
    ahead.abort();
    let delete = client.delete_item().table_name(TABLE);
    delete.key("id", AttributeValue::S("nightly".to_owned())).send().await.unwrap();
    let next = locks.acquire("nightly").await.unwrap();
    length(&locks, 1).await;
    assert_eq!(stage.metrics.take().values("waiters_ahead"), [0.0, 1.0, 0.0]);
    next.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(stage.traces.locks()[2].fields["ahead"], "1");
}
