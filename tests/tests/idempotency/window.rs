//! How long a result is kept.

use std::time::Duration;

use lambda_lock::ErrorKind;
use lambda_lock_tests::invocation::{Counter, millis};

use crate::{
    AFTER_THE_WINDOW, ALMOST_THE_WINDOW, WINDOW, environment, later, ms, number_in, order, orders, place, refused,
};

#[tokio::test]
async fn a_result_is_kept_for_an_hour_rounded_up_to_seconds() {
    let (world, host, locks) = environment().await;
    let before = millis(host.now() + WINDOW);
    place(&orders(&locks), &order("a"), &Counter::default()).await.unwrap();
    let after = millis(host.now() + WINDOW);
    let expiration = number_in(&world.row("a").await.unwrap(), "expiration") * 1000;
    assert!((before..after + 1000).contains(&expiration), "{expiration} is not between {before} and {after}");
}

#[tokio::test]
async fn a_clock_set_back_in_a_run_does_not_shorten_the_window() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let orders = orders(&locks);
    orders
        .run(&order("a"), async |_| {
            host.set_clock_back(2 * WINDOW);
            Ok(runs.count())
        })
        .await
        .unwrap();
    assert_eq!(place(&crate::orders(&later(&world, ALMOST_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_result_comes_back_after_a_wrong_clock_took_its_record() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&locks), &order("a"), &runs).await.unwrap();
    let ahead = world.locks(&world.host().clock_ahead(2 * WINDOW).build()).build().unwrap();
    assert_eq!(refused(place(&orders(&ahead), &order("a"), &runs).await).kind(), ErrorKind::ClockSkew);
    assert_eq!(place(&orders(&locks), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn a_result_is_stored_after_a_renewal_by_a_wrong_clock() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let outcome = orders(&locks)
        .run(&order("a"), async |run| {
            host.set_clock_back(WINDOW);
            assert_eq!(run.lock().renew(ms(1000)).await.unwrap_err().kind(), ErrorKind::ClockSkew);
            Ok(runs.count())
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    host.set_clock_forward(WINDOW);
    assert_eq!(place(&orders(&locks), &order("a"), &runs).await.unwrap(), 1);
}

#[tokio::test]
async fn the_window_begins_when_the_run_ends() {
    let (world, host, locks) = environment().await;
    let window = Duration::from_secs(90);
    orders(&locks)
        .window(window)
        .run(&order("a"), async |_| {
            host.advance_clock(Duration::from_secs(20));
            Ok(1)
        })
        .await
        .unwrap();
    let expiration = number_in(&world.row("a").await.unwrap(), "expiration") * 1000;
    let end = millis(host.now() + window);
    assert!((end - 1000..=end + 1000).contains(&expiration), "{expiration} {end}");
}

#[tokio::test]
async fn the_window_ends_by_the_clock_while_the_row_remains() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    place(&orders(&locks), &order("a"), &runs).await.unwrap();
    let almost = later(&world, ALMOST_THE_WINDOW);
    assert_eq!(place(&orders(&almost), &order("a"), &runs).await.unwrap(), 1);
    assert!(world.row("a").await.is_some());
    assert_eq!(place(&orders(&later(&world, AFTER_THE_WINDOW)), &order("a"), &runs).await.unwrap(), 2);
}

#[tokio::test]
async fn rejects_a_window_outside_its_bounds_without_a_request() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    let longest = Duration::from_hours(366 * 24);
    for window in [Duration::ZERO, ms(2_999), longest + ms(1), Duration::MAX] {
        let error = refused(place(&orders(&locks).window(window), &order("a"), &runs).await);
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("window"), "{error}");
        assert!(error.to_string().contains("3s"), "{error}");
    }
    assert_eq!((runs.get(), host.requests()), (0, 0));
    for (key, window) in [("a", ms(3_000)), ("b", longest)] {
        place(&orders(&locks).window(window), &order(key), &runs).await.unwrap();
    }
    let exact = world.locks(&host).clock_skew(Duration::ZERO).build().unwrap();
    place(&orders(&exact).window(ms(1_000)), &order("c"), &runs).await.unwrap();
    assert_eq!(refused(place(&orders(&exact).window(ms(999)), &order("d"), &runs).await).kind(), ErrorKind::Invalid);
    assert_eq!(runs.get(), 3);
}
