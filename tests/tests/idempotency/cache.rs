//! The cache of results in the process.

use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, LoseAnswers};

use crate::{
    ALMOST_THE_WINDOW, Declined, Order, environment, give_to_another, later, order, orders, place, refused, validated,
};

#[tokio::test]
async fn a_cached_result_sends_no_request() {
    let (_world, host, locks) = environment().await;
    let (cached, runs) = (orders(&locks).cache(10), Counter::default());
    for _ in 0..5 {
        assert_eq!(place(&cached, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 2);
    let without = orders(&locks).cache(0);
    for _ in 0..5 {
        assert_eq!(place(&without, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 7);
}

#[tokio::test]
async fn a_replayed_result_of_another_environment_is_cached() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&later(&world, Duration::ZERO)), &order("a"), &runs).await.unwrap();
    let cached = orders(&locks).cache(10);
    for _ in 0..3 {
        assert_eq!(place(&cached, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 1);
}

#[tokio::test]
async fn the_cache_evicts_the_least_recently_used_record() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(2), Counter::default());
    let requests_for = async |id: &str| {
        let before = host.requests();
        place(&orders, &order(id), &runs).await.unwrap();
        host.requests() - before
    };
    assert_eq!((requests_for("a").await, requests_for("b").await), (2, 2));
    assert_eq!(requests_for("a").await, 0, "`b` is now the least recently used");
    assert_eq!(requests_for("c").await, 2);
    assert_eq!(requests_for("a").await, 0);
    assert_eq!(requests_for("b").await, 1);
    assert_eq!(runs.get(), 3);
}

#[tokio::test]
async fn the_cache_serves_no_record_in_progress_released_or_lost() {
    let (world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    orders
        .run(&order("a"), async |_| {
            for _ in 0..2 {
                assert_eq!(refused(place(&orders, &order("a"), &runs).await).kind(), ErrorKind::InProgress);
            }
            assert_eq!(host.requests(), 3);
            Err::<u32, _>(Declined)
        })
        .await
        .unwrap_err();
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    // A result that was not stored is not cached.
    let lost = orders
        .run(&order("b"), async |_| {
            give_to_another(&world, "b").await;
            Ok(runs.count())
        })
        .await;
    assert_eq!(lost.unwrap(), 2);
    assert_eq!(refused(place(&orders, &order("b"), &runs).await).kind(), ErrorKind::InProgress);
}

#[tokio::test]
async fn a_cached_result_expires_with_the_window() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    place(&orders, &order("a"), &runs).await.unwrap();
    host.advance_clock(ALMOST_THE_WINDOW);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    host.advance_clock(Duration::from_secs(62));
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 2);
    assert_eq!(host.requests(), 4);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 2);
    assert_eq!(host.requests(), 4);
}

#[tokio::test]
async fn a_cached_result_is_validated() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (validated(&locks).cache(10), Counter::default());
    place(&orders, &order("a"), &runs).await.unwrap();
    assert_eq!(refused(place(&orders, &Order { amount: 6, ..order("a") }, &runs).await).kind(), ErrorKind::Mismatch);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!((runs.get(), host.requests()), (1, 2));
}

#[tokio::test]
async fn a_mismatch_in_the_cache_names_the_holder_of_the_row() {
    let (_world, host, locks) = environment().await;
    let (cached, runs) = (validated(&locks).cache(10), Counter::default());
    place(&cached, &order("a"), &runs).await.unwrap();
    let other = Order { amount: 6, ..order("a") };
    let of_cache = refused(place(&cached, &other, &runs).await);
    assert_eq!(host.requests(), 2);
    let of_row = refused(place(&validated(&locks), &other, &runs).await);
    let holders = [of_cache, of_row].map(|error| error.holder().unwrap().clone());
    assert_eq!((holders[0].owner(), holders[0].name()), (holders[1].owner(), holders[1].name()));
}

#[tokio::test]
async fn clones_share_the_cache() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(10), Counter::default());
    let clone = orders.clone();
    place(&clone, &order("a"), &runs).await.unwrap();
    drop(clone);
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), 2);
}

#[tokio::test]
async fn a_result_with_a_lost_answer_is_cached() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let (orders, runs) =
        (orders(&world.locks_with_quick_retries(&host).build().unwrap()).cache(10), Counter::default());
    place(&orders, &order("a"), &runs).await.unwrap();
    let requests = host.requests();
    assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    assert_eq!(host.requests(), requests);
}

#[tokio::test]
async fn a_cache_of_usize_max_records_works() {
    let (_world, host, locks) = environment().await;
    let (orders, runs) = (orders(&locks).cache(usize::MAX), Counter::default());
    for _ in 0..2 {
        assert_eq!(place(&orders, &order("a"), &runs).await.unwrap(), 1);
    }
    assert_eq!(host.requests(), 2);
}
