//! Which argument the handler gets, and whether an item is done after its result or its error.

use std::collections::HashMap;
use std::future::ready;

use lambda_lock::idempotency::StoredError;
use lambda_lock::lambda::Consumer;
use lambda_lock::{OnError, WithRun};
use lambda_lock_tests::invocation::{Counter, OneByOne, invocation};
use lambda_lock_tests::till::{Declined, Paid, Payment, Then};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::service_fn;

use crate::{PER_RUN, Plain, Tested, answer, by_payment, deliver, deliver_texts, environment, row_of};

pub(crate) async fn an_item_with_a_stored_error_is_not_done_and_does_not_run_again<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let once = by_payment(&world.locks(&host).build().unwrap());
    let consumer = Plain::<S>::new(once.on_error(|Declined| OnError::Store(StoredError::new("Declined", "for good"))));
    for _ in 0..2 {
        assert_eq!(deliver(&consumer, &host, &till, &[("a", "Declined")]).await, S::named(["1"]));
    }
    assert_eq!(till.ran(), ["1"]);
}

pub(crate) async fn disabled_locks_run_every_item_without_a_request<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let consumer = Plain::<S>::new(by_payment(&world.locks(&host).enabled(false).build().unwrap()));
    for _ in 0..2 {
        assert_eq!(deliver(&consumer, &host, &till, &[("a", "Done"), ("b", "Declined")]).await, S::named(["2"]));
    }
    assert_eq!(till.ran_in_any_order(), ["1", "1", "2", "2"]);
    assert_eq!(host.requests(), 0);
}

pub(crate) async fn an_item_that_is_done_with_an_unreadable_result_is_done<S: Tested>() {
    let (world, host, _, _) = environment::<S>().await;
    let locks = world.locks(&host).build().unwrap();
    let event = || invocation(&host, S::event(&[("a", "Done")]));
    let text = Consumer::<S, S::Item, String, Declined>::new(by_payment(&locks));
    let handler = service_fn(|_: S::Item| ready(Ok("a result of yesterday".to_owned())));
    assert!(answer(&text, handler, event()).await.unwrap().is_empty());
    let number = Consumer::<S, S::Item, u32, Declined>::new(by_payment(&locks));
    let handler = service_fn(async |_: S::Item| panic!("it runs again"));
    assert!(answer(&number, handler, event()).await.unwrap().is_empty());
}

/// Delivers an item twice to a handler with this result. Both deliveries are done, and the handler runs once.
async fn assert_done_with<S: Tested, T: Clone + DeserializeOwned + Send + Serialize + Sync + 'static>(result: T) {
    let (world, host, _, _) = environment::<S>().await;
    let consumer = Consumer::<S, S::Item, T, Declined>::new(by_payment(&world.locks(&host).build().unwrap()));
    let runs = Counter::default();
    for _ in 0..2 {
        let (result, runs) = (result.clone(), runs.clone());
        let handler = service_fn(move |_: S::Item| {
            runs.count();
            ready(Ok(result.clone()))
        });
        let event = invocation(&host, S::event(&[("a", "Done")]));
        assert!(answer(&consumer, handler, event).await.unwrap().is_empty());
    }
    assert_eq!(runs.get(), 1);
    assert_eq!(world.row(&row_of::<S>("1")).await.unwrap()["status"].as_s().unwrap(), "COMPLETED");
}

pub(crate) async fn an_item_is_done_whatever_its_result<S: Tested>() {
    assert_done_with::<S, _>(f64::NAN).await;
    assert_done_with::<S, _>("x".repeat(390 * 1024)).await;
    assert_done_with::<S, _>(HashMap::from([((1, 2), 3)])).await;
}

pub(crate) async fn a_parser_of_its_own_reads_what_is_not_json<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let once = by_payment(&world.locks(&host).build().unwrap());
    let consumer = S::with_parser(once, |text| match text.strip_prefix("pay ") {
        Some(id) => Ok(Payment { id: id.to_owned(), amount: 0, then: Then::Done }),
        None => Err("it is no payment"),
    });
    let items = [("a", "pay 17".to_owned()), ("b", "refund 17".to_owned())];
    assert_eq!(deliver_texts(&consumer, &host, &till, &items).await, S::named(["2"]));
    assert_eq!(till.ran(), ["1"]);
    assert!(world.row(&row_of::<S>("17")).await.is_some());
}

pub(crate) async fn a_handler_of_with_run_gets_the_fence<S: Tested>() {
    let (world, host, _, _) = environment::<S>().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = Consumer::<S, WithRun<S::Item>, u64, Declined>::new(by_payment(&locks));
    let handler = service_fn(|WithRun { input, run, .. }: WithRun<S::Item>| {
        assert_eq!(input.name(), "1");
        ready(Ok(run.lock().fence()))
    });
    let event = invocation(&host, S::event(&[("a", "Done")]));
    assert!(answer(&consumer, handler, event).await.unwrap().is_empty());
    let row = world.row(&row_of::<S>("1")).await.unwrap();
    let [result, last] = [row["data"].as_s(), row["fence"].as_n()].map(|of| of.unwrap().parse::<u64>().unwrap());
    assert!(0 < result && result < last, "the completion of fence {result} has the number {last}");
    assert_eq!(row["status"].as_s().unwrap(), "COMPLETED");
}

pub(crate) async fn an_item_of_a_handler_that_is_not_ready_can_run_again_at_once<S: Tested>() {
    let (_world, host, consumer, till) = environment::<S>().await;
    let closed = OneByOne::<S::Item, (), Declined>::answering(|| Err(Declined));
    let event = invocation(&host, S::event(&[("a", "Done")]));
    // A handler that is called nevertheless panics.
    assert_eq!(answer(&consumer, closed, event).await.unwrap_err().error_type, "Declined");
    assert_eq!(host.requests(), PER_RUN);
    assert!(deliver(&consumer, &host, &till, &[("a", "Done")]).await.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

pub(crate) async fn a_handler_need_not_be_sync<S: Tested>() {
    let (_world, host, consumer, _) = environment::<S>().await;
    let count = std::cell::Cell::new(0);
    let handler = service_fn(move |_: S::Item| {
        count.set(count.get() + 1);
        ready(Ok(()))
    });
    assert!(answer(&consumer, handler, invocation(&host, S::event(&[("a", "Done")]))).await.unwrap().is_empty());
}
