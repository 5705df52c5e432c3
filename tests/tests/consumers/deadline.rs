//! Items in the time of an invocation: leases, items that do not start, silent tables.

use std::time::Duration;

use lambda_lock_tests::invocation::{invocation, invocation_with, millis};
use lambda_lock_tests::till::Then;

use crate::{Tested, deliver, environment, ms};

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
