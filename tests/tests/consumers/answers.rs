//! Which items an answer names, and when an invocation fails.

use std::time::Duration;

use lambda_lock::Locks;
use lambda_lock_tests::invocation::{invocation, invocation_with};

use crate::{
    PER_REFUSAL, PER_RUN, Plain, Tested, by_payment, deliver, deliver_texts, environment, invoke, ms, payment, row_of,
};

pub(crate) async fn an_empty_batch_sends_nothing<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    for empty in [S::event(&[]), S::Event::default()] {
        assert!(S::deliver(&consumer, invocation(&host, empty), &till, |_| ()).await.is_empty());
    }
    assert_eq!(host.requests(), 0);
}

pub(crate) async fn the_answer_names_what_is_not_done<S: Tested>() {
    for failing in ["Declined", "Panic"] {
        let (_world, host, consumer, till) = environment::<S>().await;
        let five = [("a", "Done"), ("b", failing), ("c", "Done"), ("d", "Declined"), ("e", "Done")];
        assert_eq!(deliver(&consumer, &host, &till, &five).await, S::named(["2", "4"]));
        assert_eq!(till.ran_in_any_order(), ["1", "2", "3", "4", "5"]);
    }
}

pub(crate) async fn an_item_that_is_done_does_not_run_again_and_sends_one_request<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let three = [("a", "Done"), ("b", "Declined"), ("c", "Done")];
    assert_eq!(deliver(&consumer, &host, &till, &three).await, S::named(["2"]));
    // Lambda delivers them again elsewhere, with what has arrived since.
    let elsewhere = world.host().build();
    let consumer = Plain::<S>::new(by_payment(&world.locks(&elsewhere).build().unwrap()));
    let four = [("a", "Done"), ("b", "Declined"), ("c", "Done"), ("d", "Done")];
    assert_eq!(deliver(&consumer, &elsewhere, &till, &four).await, S::named(["2"]));
    assert_eq!(till.ran_in_any_order(), ["1", "2", "2", "3", "4"]);
    assert_eq!(elsewhere.requests(), 2 * PER_RUN + 2 * PER_REFUSAL);
}

pub(crate) async fn an_unreadable_item_is_not_done_and_sends_nothing<S: Tested>() {
    for unreadable in ["{\"id\": ", "{\"id\": 3}", "", "[]"] {
        let (_world, host, consumer, till) = environment::<S>().await;
        let items = [("a", unreadable.to_owned()), ("b", payment("2", "Done"))];
        assert_eq!(deliver_texts(&consumer, &host, &till, &items).await, S::named(["1"]), "{unreadable}");
        assert_eq!(till.ran(), ["2"]);
        assert_eq!(host.requests(), PER_RUN);
    }
}

pub(crate) async fn an_invocation_fails_if_every_item_failed<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    // The last one is not started.
    let payments = [("a", "Declined"), ("b", "Panic"), ("c", "{"), ("a", "Done")];
    let failed = invoke(&consumer, &host, &till, &payments).await.unwrap_err();
    assert_eq!(failed.error_type, "Declined");
    assert_eq!(failed.error_message, "no item of a batch of 4 is done; the first failure: by the bank");
    let panicked = invoke(&consumer, &host, &till, &[("b", "Panic")]).await.unwrap_err();
    assert_eq!((&*panicked.error_type, panicked.error_message.contains("panicked")), ("BatchFailed", true));
    let unreadable = invoke(&consumer, &host, &till, &[("b", "unknown")]).await.unwrap_err();
    assert!(unreadable.error_message.contains("Data error at line 1"), "{unreadable:?}");
    // All is delivered again.
    assert!(invoke(&consumer, &host, &till, &payments.map(|(lane, _)| (lane, "Done"))).await.unwrap().is_empty());
}

pub(crate) async fn an_invocation_without_its_table_fails_with_the_message_of_dynamodb<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let locks = Locks::builder(host.client(), format!("{}-missing", world.table)).build().unwrap();
    let consumer = Plain::<S>::new(by_payment(&locks));
    let failed = invoke(&consumer, &host, &till, &[("a", "Done"), ("b", "Done")]).await.unwrap_err();
    assert_eq!(failed.error_type, "LockTableNotFound");
    assert!(failed.error_message.contains("ResourceNotFoundException: "), "{failed:?}");
}

pub(crate) async fn an_invocation_answers_if_an_item_is_done_or_in_progress_or_none_started<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    for _ in 0..2 {
        let answer = invoke(&consumer, &host, &till, &[("a", "Done"), ("b", "Declined")]).await;
        assert_eq!(answer.unwrap(), S::named(["2"]));
    }
    let payments = [("a", "Declined"), ("b", "Done")];
    let consumer = Plain::<S>::new(by_payment(&world.locks(&host).key_prefix("other#").build().unwrap()));
    let _other = world.default_locks().acquire(format!("other#{}", row_of::<S>("2"))).await.unwrap();
    // A topic waits for the other one until shortly before the deadline.
    let soon_over = invocation_with(&host, S::event(&payments), ms(3_000));
    assert_eq!(S::invoke(&consumer, soon_over, &till, |_| ()).await.unwrap(), S::named(["1", "2"]));
    let late = invocation(&host, S::event(&payments));
    host.advance_clock(Duration::from_secs(31));
    assert_eq!(S::invoke(&consumer, late, &till, |_| ()).await.unwrap(), S::named(["1", "2"]));
}
