//! Items that are in progress elsewhere, or were left by a crash.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use lambda_lock::embedded::Host;
use lambda_lock::lambda::Consumer;
use lambda_lock::{Backoff, Lock, Locks, OnUnfinished, Wait, WithRun};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{AtOnce, invocation, invocation_with, millis};
use lambda_lock_tests::till::{Declined, Paid, Then, Till};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep;
use tower::service_fn;

use crate::{
    AFTER_THE_LEASE, PER_REFUSAL, PER_RUN, Plain, Tested, answer, by_payment, deliver, environment, ms, row_of,
    work_elsewhere,
};

pub(crate) async fn an_item_in_progress_elsewhere_stops_its_lane_until_it_can_run<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let at_once = by_payment(&world.locks(&host).build().unwrap()).wait(Duration::ZERO);
    let consumer = Plain::<S>::new(at_once);
    let other = work_elsewhere::<S>(&world, "2").await;
    let payments = [("a", "Done"), ("a", "Done"), ("a", "Done"), ("b", "Done")];
    assert_eq!(deliver(&consumer, &host, &till, &payments).await, S::named(["2", "3"]));
    assert_eq!(till.ran_in_any_order(), ["1", "4"]);
    assert_eq!(host.requests(), 2 * PER_RUN + PER_REFUSAL);
    other.release().await.unwrap();
    assert!(deliver(&consumer, &host, &till, &payments).await.is_empty());
    assert_eq!(till.ran()[2..], ["2", "3"]);
}

/// Delivers a payment that is in progress elsewhere until the consumer has sent so many requests, and one behind it.
async fn assert_waits<S: Tested>(consumer: &Plain<S>, host: &Host, other: Lock, requests: u64) {
    let till = Till::default();
    let (not_done, ()) = tokio::join!(deliver(consumer, host, &till, &[("a", "Done"), ("a", "Done")]), async {
        while host.requests() < requests {
            yield_now().await;
        }
        other.release().await.unwrap();
    });
    assert!(not_done.is_empty(), "{not_done:?}");
    assert_eq!(till.ran(), ["1", "2"]);
}

pub(crate) async fn a_consumer_can_wait_for_an_item_in_progress_elsewhere<S: Tested>() {
    let (world, host, _, _) = environment::<S>().await;
    let wait = Wait::backoff(Backoff::new().base(ms(2)).cap(ms(20)));
    let consumer = Plain::<S>::new(by_payment(&world.locks(&host).build().unwrap()).wait(wait));
    assert_waits(&consumer, &host, work_elsewhere::<S>(&world, "1").await, 2).await;
}

pub(crate) async fn by_default_the_consumer_waits_for_an_item_in_progress_elsewhere<S: Tested>() {
    World::skip_waits();
    let (world, host, consumer, _) = environment::<S>().await;
    assert_waits(&consumer, &host, work_elsewhere::<S>(&world, "1").await, 1).await;
}

pub(crate) async fn by_default_the_consumer_waits_no_longer_than_the_leases_of_its_batch<S: Tested>() {
    World::skip_waits();
    let (world, host, consumer, till) = environment::<S>().await;
    let _other = work_elsewhere::<S>(&world, "1").await;
    let event = invocation_with(&host, S::event(&[("a", "Done"), ("a", "Done"), ("b", "Done")]), ms(1_500));
    let deadline = event.context.deadline;
    let not_done = S::deliver(&consumer.min_remaining_time(ms(100)), event, &till, |_| ()).await;
    assert_eq!(not_done, S::named(["1", "2"]));
    assert!(millis(host.now()) < deadline);
    assert_eq!(till.ran(), ["3"]);
}

pub(crate) async fn an_item_in_progress_at_a_crash_runs_when_its_lease_has_ended<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let hangs = Arc::new(Notify::new());
    let begin = {
        let (host, hangs) = (host.clone(), Arc::clone(&hangs));
        move |then| {
            if then == Then::Endless {
                host.crash();
                hangs.notify_one();
            }
        }
    };
    let one_by_one = consumer.concurrency(1);
    let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Endless"), ("c", "Done")]));
    tokio::select! {
        not_done = S::deliver(&one_by_one, event, &till, begin) => panic!("{not_done:?}"),
        () = hangs.notified() => {}
    }
    for (later, not_done) in [(Duration::ZERO, S::named(["2"])), (AFTER_THE_LEASE, vec![])] {
        let host = world.host().later(later).build();
        let at_once = by_payment(&world.locks(&host).build().unwrap()).wait(Duration::ZERO);
        let again = [("a", "Done"), ("b", "Done"), ("c", "Done")];
        assert_eq!(deliver(&Plain::<S>::new(at_once), &host, &till, &again).await, not_done);
    }
    assert_eq!(till.ran(), ["1", "2", "3", "2"]);
}

pub(crate) async fn an_unfinished_item_that_is_rejected_is_never_done<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).on_unfinished(OnUnfinished::Reject);
    let consumer = Plain::<S>::new(once);
    assert_eq!(deliver(&consumer, &host, &till, &[("a", "Panic")]).await, S::named(["1"]));
    for _ in 0..2 {
        host.advance_clock(AFTER_THE_LEASE);
        assert_eq!(deliver(&consumer, &host, &till, &[("a", "Done")]).await, S::named(["1"]));
    }
    assert_eq!(till.ran(), ["1"]);
}

pub(crate) async fn by_default_an_item_in_progress_elsewhere_goes_back_at_once<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let other = work_elsewhere::<S>(&world, "1").await;
    let payments = [("a", "Done"), ("b", "Done")];
    assert_eq!(deliver(&consumer, &host, &till, &payments).await, S::named(["1"]));
    assert_eq!(host.requests(), PER_REFUSAL + PER_RUN);
    other.release().await.unwrap();
    assert!(deliver(&consumer, &host, &till, &payments).await.is_empty());
    assert_eq!(till.ran(), ["2", "1"]);
}

pub(crate) async fn an_item_that_waited_does_not_start_after_a_failure<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let other = work_elsewhere::<S>(&world, "1").await;
    let consumer = consumer.concurrency(2).stop_at_first_failure();
    let (not_done, ()) = tokio::join!(deliver(&consumer, &host, &till, &[("a", "Done"), ("b", "Declined")]), async {
        while world.row(&row_of::<S>("2")).await.is_none_or(|row| !row.contains_key("released")) {
            yield_now().await;
        }
        sleep(ms(100)).await;
        other.release().await.unwrap();
    });
    assert_eq!(not_done, S::named(["1", "2"]));
    assert_eq!(till.ran(), ["2"]);
    // Its record is free.
    assert!(deliver(&consumer, &host, &till, &[("a", "Done")]).await.is_empty());
    assert_eq!(till.ran(), ["2", "1"]);
}

pub(crate) async fn an_item_without_time_after_its_wait_does_not_start<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let other = work_elsewhere::<S>(&world, "1").await;
    // At the start, the batch has 29 seconds.
    let consumer = consumer.min_remaining_time(Duration::from_secs(26));
    let (not_done, ()) = tokio::join!(deliver(&consumer, &host, &till, &[("a", "Done")]), async {
        while host.requests() < 1 {
            yield_now().await;
        }
        host.advance_clock(Duration::from_secs(5));
        other.release().await.unwrap();
    });
    assert_eq!(not_done, S::named(["1"]));
    assert!(till.ran().is_empty());
    // Its record is free.
    assert!(deliver(&consumer, &host, &till, &[("a", "Done")]).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

/// A world in which a crash has left so many payments in progress for so long.
async fn left_by_a_crash<S: Tested>(payments: u32, lease: Duration) -> (World, Host, Locks) {
    let world = World::in_virtual_time().await;
    for id in 1..=payments {
        world.default_locks().acquire(row_of::<S>(&id.to_string())).lease(lease).await.unwrap().keep();
    }
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

/// So many payments, each in a lane of its own.
fn in_lanes<S: Tested>(payments: u32) -> S::Event {
    let lanes: Vec<_> = (1..=payments).map(|number| number.to_string()).collect();
    S::event(&lanes.iter().map(|lane| (lane.as_str(), "Done")).collect::<Vec<_>>())
}

/// Ten items that a crash has left, in lanes of their own, before ten others.
pub(crate) async fn lanes_that_wait_hold_up_no_other_lane<S: Tested>() {
    tokio::time::pause();
    for concurrency in [10, 3] {
        let (_world, host, locks) = left_by_a_crash::<S>(10, Duration::from_secs(20)).await;
        let consumer = Plain::<S>::new(by_payment(&locks)).concurrency(concurrency as usize);
        let at_once = AtOnce::expecting(concurrency);
        let began = Arc::new(Mutex::new(Vec::new()));
        let handler = service_fn({
            let (host, began, at_once, start) = (host.clone(), Arc::clone(&began), at_once.clone(), host.now());
            move |item: S::Item| {
                let at = host.now().duration_since(start).unwrap();
                began.lock().unwrap().push((item.name().parse::<usize>().unwrap(), at));
                at_once.clone().run().map(Ok::<_, Declined>)
            }
        });
        assert!(answer(&consumer, handler, invocation(&host, in_lanes::<S>(20))).await.unwrap().is_empty());
        let mut began = began.lock().unwrap().clone();
        began.sort_unstable();
        assert!(began.iter().map(|(number, _)| *number).eq(1..=20), "{began:?}");
        assert!(began[..10].iter().all(|(_, at)| (20..28).contains(&at.as_secs())), "{began:?}");
        assert!(began[10..].iter().all(|(_, at)| *at < ms(500)), "{began:?}");
        at_once.assert();
    }
}

/// Otherwise thousands of items that a crash has left would ask again and again, all at once.
pub(crate) async fn no_more_lanes_wait_at_once_than_run<S: Tested>() {
    tokio::time::pause();
    let (_world, host, locks) = left_by_a_crash::<S>(50, Duration::from_mins(1)).await;
    let consumer = Plain::<S>::new(by_payment(&locks)).concurrency(2);
    let event = invocation(&host, in_lanes::<S>(51));
    assert_eq!(S::deliver(&consumer, event, &Till::default(), |_| ()).await, S::named(["1"]));
    // One for each item, one to store a result, and those of two waits of 29 s. Fifty waits would send a thousand.
    assert!((52..52 + 2 * 60).contains(&host.requests()), "{}", host.requests());
}

/// The crash has left item 1 for about a second. The two others take nearly two seconds each.
pub(crate) async fn a_lane_that_waited_starts_with_its_whole_lease<S: Tested>() {
    tokio::time::pause();
    let (_world, host, locks) = left_by_a_crash::<S>(1, ms(100)).await;
    let consumer = Consumer::<S, WithRun<S::Item>, (), Declined>::new(by_payment(&locks));
    let leases = Arc::new(Mutex::new(Vec::new()));
    let handler = service_fn({
        let leases = Arc::clone(&leases);
        move |WithRun { run, .. }: WithRun<S::Item>| {
            leases.lock().unwrap().push(run.lock().remaining());
            sleep(ms(1_850)).map(Ok::<_, Declined>)
        }
    });
    let event = invocation(&host, in_lanes::<S>(3));
    let not_done = answer(&consumer.lease(ms(2_000)).concurrency(1), handler, event).await.unwrap();
    let leases = leases.lock().unwrap().clone();
    assert!(not_done.is_empty() && leases.len() == 3, "{not_done:?}, {leases:?}");
    assert!(leases.iter().all(|left| *left > ms(1_900)), "{leases:?}");
}
