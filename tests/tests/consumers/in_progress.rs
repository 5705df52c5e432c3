//! Items that are in progress elsewhere, or were left by a crash.

use std::sync::Arc;
use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Backoff, Lock, OnUnfinished, Wait};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with, millis};
use lambda_lock_tests::till::{Then, Till};
use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::{
    AFTER_THE_LEASE, PER_REFUSAL, PER_RUN, Plain, Tested, by_payment, deliver, environment, ms, work_elsewhere,
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
