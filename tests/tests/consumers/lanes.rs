//! Lanes: the items of a lane run in order, and different lanes at the same time.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use lambda_lock_tests::invocation::{AtOnce, invocation};
use lambda_lock_tests::till::{Declined, Paid};
use tokio::task::yield_now;
use tokio::time::sleep;
use tower::service_fn;

use crate::{PER_REFUSAL, PER_RUN, Plain, Tested, answer, deliver, deliver_texts, environment, ms, payment};

pub(crate) async fn the_items_of_a_lane_run_in_order<S: Tested>() {
    let (_world, host, consumer, _) = environment::<S>().await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let log = Arc::clone(&log);
        move |item: S::Item| {
            let (log, name) = (Arc::clone(&log), item.name());
            async move {
                log.lock().unwrap().push(format!("{name} begins"));
                // The earlier ones take longer.
                for _ in 0..30 / name.parse::<u32>().unwrap() {
                    yield_now().await;
                }
                log.lock().unwrap().push(format!("{name} ends"));
                Ok::<_, Declined>(())
            }
        }
    });
    let three = invocation(&host, S::event(&[("a", "Done"), ("a", "Done"), ("a", "Done")]));
    assert!(answer(&consumer, handler, three).await.unwrap().is_empty());
    assert_eq!(*log.lock().unwrap(), ["1 begins", "1 ends", "2 begins", "2 ends", "3 begins", "3 ends"]);
}

pub(crate) async fn a_lane_stops_at_its_first_item_that_is_not_done<S: Tested>() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment::<S>().await;
        let payments = |third| {
            let [first, second, last @ ..] = ["a", "b", "b", "a", "a", "b"].map(|lane| (lane, "Done"));
            [[first, second, ("a", third)].as_slice(), &last].concat()
        };
        assert_eq!(deliver(&consumer, &host, &till, &payments(failing)).await, S::named(["3", "5", "6"]));
        assert_eq!(till.ran_in_any_order(), ["1", "2", "3", "4", "7"]);
        // Lambda delivers the rest again.
        assert!(deliver(&consumer, &host, &till, &payments("Done")).await.is_empty());
        assert_eq!(till.ran()[5..], ["3", "5", "6"]);
    }
}

pub(crate) async fn no_item_starts_after_a_failure_if_the_consumer_stops_there<S: Tested>() {
    for (failing, ran) in [("Declined", &["1", "4", "2"][..]), ("Panic", &["1", "4", "2"]), ("unreadable", &["1", "4"])]
    {
        let (_world, host, consumer, till) = environment::<S>().await;
        let consumer = consumer.concurrency(1).stop_at_first_failure();
        let payments = [("a", "Done"), ("b", failing), ("c", "Done"), ("a", "Done")];
        assert_eq!(deliver(&consumer, &host, &till, &payments).await, S::named(["2", "3"]));
        // The lane of `a` was first.
        assert_eq!(till.ran(), ran);
        assert_eq!(host.requests(), PER_RUN * ran.len() as u64);
    }
}

pub(crate) async fn items_that_are_running_at_a_failure_finish<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.concurrency(2).stop_at_first_failure();
    let payments = S::event(&[("a", "Declined"), ("b", "Done"), ("b", "Done"), ("c", "Done")]);
    let handler = service_fn({
        let (till, host) = (till.clone(), host.clone());
        move |item: S::Item| {
            let (till, host) = (till.clone(), host.clone());
            async move {
                if item.name() == "2" {
                    // Until the first item has been released.
                    while host.requests() < 3 {
                        yield_now().await;
                    }
                    sleep(ms(100)).await;
                }
                till.pay(item).await
            }
        }
    });
    let not_done = answer(&consumer, handler, invocation(&host, payments)).await.unwrap();
    assert_eq!(not_done, S::named(["1", "3", "4"]));
    assert_eq!(till.ran(), ["1", "2"]);
    let again = [("a", "Done"), ("b", "Panic"), ("b", "Done"), ("c", "Done")];
    assert!(deliver(&consumer, &host, &till, &again).await.is_empty(), "the second item was done");
}

pub(crate) async fn an_item_that_was_done_before_stops_nothing<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.concurrency(1).stop_at_first_failure();
    let payments = [("a", "Done"), ("a", "Done"), ("b", "Done")];
    for delivered in [1, 3, 3] {
        assert!(deliver(&consumer, &host, &till, &payments[..delivered]).await.is_empty());
    }
    assert_eq!(till.ran(), ["1", "2", "3"]);
}

pub(crate) async fn an_unreadable_item_stops_its_lane<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let done = |lane, id| (lane, payment(id, "Done"));
    let items = [done("a", "1"), ("a", "{".to_owned()), done("a", "3"), done("b", "4")];
    assert_eq!(deliver_texts(&consumer, &host, &till, &items).await, S::named(["2", "3"]));
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
}

pub(crate) async fn twins_in_a_lane_run_once_at_the_place_of_the_first<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let of = |id, then| ("a", payment(id, then));
    let items = [of("17", "Done"), of("2", "Done"), of("17", "Done"), of("4", "Done")];
    assert!(deliver_texts(&consumer, &host, &till, &items).await.is_empty());
    assert_eq!(till.ran(), ["1", "2", "4"]);
    assert_eq!(host.requests(), 3 * PER_RUN + PER_REFUSAL);
    let items = [of("18", "Declined"), of("5", "Done"), of("18", "Done")];
    assert_eq!(deliver_texts(&consumer, &host, &till, &items).await, S::named(["1", "2", "3"]));
    assert_eq!(till.ran(), ["1", "2", "4", "1"]);
}

/// Asserts that so many items of so many lanes, with two items each, run at the same time.
async fn assert_most_at_once<S: Tested>(most: u32, concurrency: impl Fn(Plain<S>) -> Plain<S>, lanes: usize) {
    let (_world, host, consumer, _) = environment::<S>().await;
    let at_once = AtOnce::expecting(most);
    let handler = service_fn({
        let at_once = at_once.clone();
        move |_: S::Item| at_once.clone().run().map(Ok::<_, Declined>)
    });
    let lanes: Vec<_> = (0..lanes).map(|lane| lane.to_string()).collect();
    let payments: Vec<_> = lanes.iter().chain(&lanes).map(|lane| (lane.as_str(), "Done")).collect();
    let event = invocation(&host, S::event(&payments));
    assert!(answer(&concurrency(consumer), handler, event).await.unwrap().is_empty());
    at_once.assert();
}

pub(crate) async fn concurrency_limits_lanes_to_ten_by_default_and_to_one_at_least<S: Tested>() {
    assert_most_at_once::<S>(10, |consumer| consumer, 25).await;
    assert_most_at_once::<S>(3, |consumer| consumer.concurrency(3), 7).await;
    assert_most_at_once::<S>(1, |consumer| consumer.concurrency(1), 3).await;
    assert_most_at_once::<S>(1, |consumer| consumer.concurrency(0), 3).await;
    assert_most_at_once::<S>(30, |consumer| consumer.concurrency(usize::MAX), 30).await;
}
