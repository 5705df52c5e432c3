//! The first run of a key, and the duplicates that get its result.

use std::collections::HashMap;
use std::time::Duration;

use lambda_lock::{ErrorKind, Run};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, millis};

use crate::{
    AFTER_THE_WINDOW, ALMOST_THE_WINDOW, Orders, environment, later, number, number_in, order, orders, place, refused,
    row, seconds, string_in, text,
};

#[tokio::test]
async fn a_duplicate_gets_the_result_of_the_first_run() {
    let (world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    let elsewhere = self::orders(&later(&world, Duration::ZERO));
    assert_eq!(place(&elsewhere, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn inputs_with_different_keys_all_run() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    for (index, id) in ["a", "A", "ab", "a#", "é"].into_iter().enumerate() {
        assert_eq!(place(&orders, &order(id), &runs).await.unwrap() as usize, index + 1, "{id}");
    }
}

#[tokio::test]
async fn a_replayed_result_equals_the_first() {
    type Receipt = (String, Vec<Option<i64>>, HashMap<String, f64>, u64);
    let (_world, _host, locks) = environment().await;
    let receipts: Orders<Receipt> = orders(&locks);
    let receipt: Receipt = (
        "\u{0} \"é\" \u{1f980}".to_owned(),
        vec![Some(i64::MIN), None],
        HashMap::from([(String::new(), 0.1), ("tenth".to_owned(), -1e300)]),
        u64::MAX,
    );
    let first = receipts.run(&order("a"), async |_| Ok(receipt.clone())).await.unwrap();
    let second = receipts.run(&order("a"), async |_| panic!("it runs again")).await.unwrap();
    assert_eq!((first, second), (receipt.clone(), receipt));
}

#[tokio::test]
async fn a_unit_result_is_replayed() {
    let (_world, _host, locks) = environment().await;
    let (orders, runs) = (orders::<()>(&locks), Counter::default());
    for _ in 0..2 {
        orders.run(&order("a"), async |_| Ok(_ = runs.count())).await.unwrap();
    }
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn a_run_sends_two_requests_and_a_duplicate_sends_one() {
    let (world, host, locks) = environment().await;
    let (mine, runs) = (orders(&locks), Counter::default());
    place(&mine, &order("a"), &runs).await.unwrap();
    assert_eq!(host.requests(), 2);
    place(&mine, &order("a"), &runs).await.unwrap();
    assert_eq!(host.requests(), 3);
    let other = world.host().build();
    let theirs = orders(&world.locks(&other).build().unwrap());
    place(&theirs, &order("a"), &runs).await.unwrap();
    assert_eq!(other.requests(), 1);
}

#[tokio::test]
async fn the_record_is_in_progress_during_the_run_and_completed_after_it() {
    let (world, host, locks) = environment().await;
    let mut during = None;
    let orders: Orders<u32> = orders(&locks);
    let body = async |_: &Run| {
        during = world.row("a").await;
        Ok(17)
    };
    orders.run(&order("a"), body).await.unwrap();
    let during = during.unwrap();
    assert_eq!(string_in(&during, "status"), "INPROGRESS");
    assert!(number_in(&during, "in_progress_expiration") > millis(host.now()));
    assert!(number_in(&during, "expiration") * 1000 > number_in(&during, "in_progress_expiration"));
    assert!(!during.contains_key("data"));
    let after = world.row("a").await.unwrap();
    assert_eq!((string_in(&after, "status"), string_in(&after, "data")), ("COMPLETED", "17"));
    assert!(!after.contains_key("validation") && !after.contains_key("error"));
    for kept in ["owner", "holder", "acquired_at", "in_progress_expiration"] {
        assert_eq!(after[kept], during[kept], "{kept}");
    }
    // The completion refuses late requests of the run.
    assert!(number_in(&after, "fence") > number_in(&during, "fence"));
}

#[tokio::test]
async fn fences_grow_from_run_to_run_and_across_deletion_of_the_row() {
    let (world, host, locks) = environment().await;
    let orders = orders::<u64>(&locks);
    let mut last = 0;
    for index in 0..4 {
        if index == 2 {
            world.delete_row("a").await;
        }
        let fence = orders.run(&order("a"), async |run: &Run| Ok(run.lock().fence())).await.unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        host.advance_clock(AFTER_THE_WINDOW);
    }
}

#[tokio::test]
async fn a_run_after_the_window_removes_the_old_outcome_and_keeps_other_attributes() {
    let (world, host, locks) = environment().await;
    let expired = seconds(&host) - 10;
    world
        .put_row(row([
            ("id", text("a")),
            ("status", text("COMPLETED")),
            ("expiration", number(expired)),
            ("data", text("99")),
            ("error", text(r#"{"type":"Old","message":"old"}"#)),
            ("validation", text("old")),
            ("team", text("ours")),
        ]))
        .await;
    let mut during = None;
    let outcome = orders(&locks)
        .run(&order("a"), async |_| {
            during = world.row("a").await;
            Ok(1)
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    let during = during.unwrap();
    assert!(["data", "error", "validation"].iter().all(|name| !during.contains_key(*name)), "{during:?}");
    let after = world.row("a").await.unwrap();
    assert_eq!((string_in(&after, "data"), string_in(&after, "team")), ("1", "ours"));
}

#[tokio::test]
async fn a_completed_record_blocks_a_plain_lock_until_its_window_ends() {
    let (world, _host, locks) = environment().await;
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    let error = locks.acquire("a").await.unwrap_err();
    assert!(error.is_held() && error.holder().unwrap().is_completed(), "{error}");
    assert!(later(&world, ALMOST_THE_WINDOW).try_acquire("a").await.unwrap().is_none());
    assert!(later(&world, AFTER_THE_WINDOW).try_acquire("a").await.unwrap().is_some());
}

#[tokio::test]
async fn a_plain_lock_makes_its_key_in_progress() {
    let (_world, _host, locks) = environment().await;
    let lock = locks.acquire("a").data("not a result").await.unwrap();
    let runs = Counter::default();
    assert_eq!(refused(place(&orders(&locks), &order("a"), &runs).await).kind(), ErrorKind::InProgress);
    lock.release().await.unwrap();
    assert_eq!(place(&orders(&locks), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_run_whose_work_releases_the_lock_stores_no_result() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks), Counter::default());
    let outcome = orders
        .run(&order("a"), async |run: &Run| {
            run.lock().release().await.unwrap();
            Ok(runs.count())
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert_eq!(host.requests(), 2);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 2);
}

#[tokio::test]
async fn a_missing_table_is_an_error_and_nothing_runs() {
    let world = World::without_table();
    let runs = Counter::default();
    let error = refused(place(&orders(&world.default_locks()), &order("a"), &runs).await);
    assert_eq!(error.kind(), ErrorKind::TableNotFound, "{error}");
    assert_eq!(runs.get(), 0);
}
