//! Items in the time of an invocation: leases, items that do not start, silent tables.

use std::time::Duration;

use lambda_lock::WithRun;
use lambda_lock::lambda::Consumer;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with, millis};
use lambda_lock_tests::till::{Declined, Then, Till};
use tokio::time::sleep;
use tower::service_fn;

use crate::{Plain, Tested, answer, by_payment, deliver, environment, ms, row_of};

pub(crate) async fn an_item_that_outlives_its_lease_is_cancelled_before_the_deadline<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.min_remaining_time(ms(100));
    let payments = S::event(&[("a", "Done"), ("b", "Endless"), ("c", "Done")]);
    let event = invocation_with(&host, payments, ms(1_600));
    let deadline = event.context.deadline;
    assert_eq!(S::deliver(&consumer, event, &till, |_| ()).await, S::named(["2"]));
    assert!(millis(host.now()) < deadline);
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    // It was released, and runs again at once. The others are done.
    let again = [("a", "Panic"), ("b", "Done"), ("c", "Panic")];
    assert!(deliver(&consumer, &host, &till, &again).await.is_empty());
}

pub(crate) async fn an_item_that_outlives_a_lease_of_its_own_is_cancelled<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let begun = host.now();
    let payments = [("a", "Endless"), ("b", "Done")];
    assert_eq!(deliver(&consumer.lease(ms(500)), &host, &till, &payments).await, S::named(["1"]));
    let took = host.now().duration_since(begun).unwrap();
    assert!(took < Duration::from_secs(20), "{took:?}, and the batch had 29 s");
    assert_eq!(till.ran_in_any_order(), ["1", "2"]);
}

pub(crate) async fn an_item_that_returns_after_its_lease_is_not_done_and_not_repeated<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let event = invocation(&host, S::event(&[("a", "Blocked")]));
    let begin = {
        let host = host.clone();
        move |_| host.advance_clock(Duration::from_secs(31))
    };
    assert_eq!(S::deliver(&consumer, event, &till, begin).await, S::named(["1"]));
    assert!(deliver(&consumer, &host, &till, &[("a", "Done")]).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

pub(crate) async fn items_not_started_near_the_deadline_are_not_done_and_send_nothing<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Done"), ("a", "Done"), ("b", "Done")]));
    // The environment was frozen.
    let begin = {
        let host = host.clone();
        move |_| host.advance_clock(ms(14_200))
    };
    // The leases end after 29 s. After the second payment, which is the other one of `a`, less than a second is left.
    assert_eq!(S::deliver(&consumer.concurrency(1), event, &till, begin).await, S::named(["2", "4"]));
    assert_eq!(till.ran(), ["1", "3"]);
    assert_eq!(host.requests(), 4);
}

pub(crate) async fn nothing_runs_past_the_deadline<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Done")]));
    host.advance_clock(Duration::from_secs(31));
    assert_eq!(S::deliver(&consumer, event, &till, |_| ()).await, S::named(["1", "2"]));
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}

pub(crate) async fn a_silent_table_does_not_delay_the_answer_past_the_deadline<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let consumer = consumer.min_remaining_time(ms(100)).concurrency(1);
    let event = invocation_with(&host, S::event(&[("a", "Done"), ("b", "Endless"), ("c", "Done")]), ms(1_200));
    let deadline = event.context.deadline;
    let begin = {
        let host = host.clone();
        move |then| {
            if then == Then::Endless {
                host.crash();
            }
        }
    };
    assert_eq!(S::deliver(&consumer, event, &till, begin).await, S::named(["2", "3"]));
    assert!(millis(host.now()) < deadline, "{} ms late", millis(host.now()) - deadline);
}

/// The end of the lease under which a payment was done, without the clock skew.
async fn lease_end<S: Tested>(world: &World, id: &str) -> u64 {
    let row = world.row(&row_of::<S>(id)).await.unwrap();
    row["in_progress_expiration"].as_n().unwrap().parse::<u64>().unwrap() - 1_000
}

pub(crate) async fn leases_end_a_second_or_a_quarter_of_the_time_before_the_deadline<S: Tested>() {
    for (time, before) in [(Duration::from_secs(30), 1_000..=1_000), (ms(2_000), 300..=500)] {
        let (world, host, consumer, till) = environment::<S>().await;
        let event = invocation_with(&host, S::event(&[("a", "Done")]), time);
        let deadline = event.context.deadline;
        assert!(S::deliver(&consumer.min_remaining_time(Duration::ZERO), event, &till, |_| ()).await.is_empty());
        let left = deadline - lease_end::<S>(&world, "1").await;
        assert!(before.contains(&left), "{left}");
    }
}

pub(crate) async fn items_without_a_deadline_have_the_default_lease<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let mut event = invocation(&host, S::event(&[("a", "Done")]));
    event.context.deadline = 0;
    assert!(S::deliver(&consumer, event, &till, |_| ()).await.is_empty());
    let row = world.row(&row_of::<S>("1")).await.unwrap();
    let acquired_at: u64 = row["acquired_at"].as_n().unwrap().parse().unwrap();
    assert_eq!(lease_end::<S>(&world, "1").await - acquired_at, 30_000);
}

pub(crate) async fn min_remaining_time_sets_when_no_item_is_started<S: Tested>() {
    for (min_remaining_time, not_done) in [(ms(20_000), &["2", "3"][..]), (ms(500), &[])] {
        let (_world, host, consumer, till) = environment::<S>().await;
        let consumer = consumer.concurrency(1).min_remaining_time(min_remaining_time);
        let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Done"), ("c", "Done")]));
        let begin = move |_| host.advance_clock(ms(9_400));
        assert_eq!(S::deliver(&consumer, event, &till, begin).await, S::named(not_done.iter().copied()));
    }
}

pub(crate) async fn a_timeout_below_min_remaining_time_still_runs_items<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let event = invocation_with(&host, S::event(&[("a", "Done")]), ms(900));
    assert!(S::deliver(&consumer, event, &till, |_| ()).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

pub(crate) async fn work_that_released_its_record_outlives_the_lease<S: Tested>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let host = world.host().build();
    let once = by_payment(&world.locks(&host).build().unwrap());
    let consumer = Consumer::<S, WithRun<S::Item>, (), Declined>::new(once).lease(ms(2_000));
    let handler = service_fn(async |WithRun { run, .. }: WithRun<S::Item>| {
        run.lock().release().await.unwrap();
        sleep(ms(3_000)).await;
        Ok(())
    });
    assert!(answer(&consumer, handler, invocation(&host, S::event(&[("a", "Done")]))).await.unwrap().is_empty());
}

/// A lock that is not enforced has no lease that ends.
pub(crate) async fn a_batch_that_is_cut_off_names_the_answer_as_the_reason<S: Tested>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let host = world.host().build();
    let consumer = Plain::<S>::new(by_payment(&world.locks(&host).enabled(false).build().unwrap()));
    let event = invocation(&host, S::event(&[("a", "Endless")]));
    let failed = S::invoke(&consumer, event, &Till::default(), |_| ()).await.unwrap_err();
    assert_eq!(failed.error_type, "TimedOut");
    assert!(failed.error_message.ends_with("unfinished when the answer was due"), "{failed:?}");
}

pub(crate) async fn items_wait_within_their_leases_for_the_times_of_a_rate<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let bank = world.locks(&host).build().unwrap().rate("bank-api", 20, Duration::from_secs(1));
    let payments = [("a", "Done"), ("b", "Done"), ("c", "Done")];
    assert!(deliver(&consumer.concurrency(1).at_rate(bank), &host, &till, &payments).await.is_empty());
    assert_eq!(till.ran(), ["1", "2", "3"]);
}
