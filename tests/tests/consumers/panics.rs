//! A panic in the caller's code fails one item.

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::task::{Context as TaskContext, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lambda_lock::Idempotency;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::Consumer;
use lambda_lock_tests::invocation::{Counter, invocation, keep_log};
use lambda_lock_tests::till::{Declined, Paid, Then, Till};
use lambda_runtime::Diagnostic;
use tower::{Service, service_fn};

use crate::log::the_line;
use crate::{Plain, Tested, answer, by_payment, deliver_texts, environment, payment, row_of};

pub(crate) async fn a_panic_in_the_parser_or_the_key_fails_one_item<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::Reject, |item: &S::Item| {
        assert!(item.payment().id != "2", "in the key");
        Some(item.payment().id.clone())
    });
    let once = once.validate(|item| {
        assert!(item.payment().id != "3", "in the validation");
        item.payment().amount
    });
    let consumer = S::with_parser(once, |text| {
        assert!(text != "panic", "in the parser");
        serde_json::from_str(text)
    });
    let done = |lane, id| (lane, payment(id, "Done"));
    let items = [("a", "panic".to_owned()), done("b", "2"), done("c", "3"), done("d", "4")];
    assert_eq!(deliver_texts(&consumer, &host, &till, &items).await, S::named(["1", "2", "3"]));
    assert_eq!(till.ran(), ["4"]);
}

pub(crate) async fn a_panic_in_the_call_of_the_handler_or_in_on_error_fails_one_item<S: Tested>() {
    let (world, host, _, _) = environment::<S>().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).on_error(|Declined| panic!("in the policy"));
    let handler = service_fn(|item: S::Item| match item.payment().then {
        Then::Panic => panic!("in the call"),
        Then::Declined => ready(Err(Declined)),
        _ => ready(Ok(())),
    });
    let event = S::event(&[("a", "Done"), ("b", "Declined"), ("c", "Panic"), ("d", "Done")]);
    let not_done = answer(&Plain::<S>::new(once), handler, invocation(&host, event)).await.unwrap();
    assert_eq!(not_done, S::named(["2", "3"]));
    assert!(world.row(&row_of::<S>("4")).await.is_some());
}

/// An error whose conversion panics.
#[derive(Debug)]
struct Unconvertible;

impl From<Unconvertible> for Diagnostic {
    fn from(_: Unconvertible) -> Self {
        panic!("in the conversion")
    }
}

pub(crate) async fn a_panic_in_the_conversion_of_an_error_fails_one_item<S: Tested>() {
    keep_log();
    let (world, host, _, _) = environment::<S>().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = Consumer::<S, S::Item, (), Unconvertible>::new(by_payment(&locks)).concurrency(1);
    let ran = Counter::default();
    let handler = service_fn({
        let ran = ran.clone();
        move |item: S::Item| {
            ran.count();
            ready(if item.payment().then == Then::Done { Ok(()) } else { Err(Unconvertible) })
        }
    });
    let name = format!("unconvertible-in-{}", world.table);
    let event = S::event_from(&name, &[("a", "Done"), ("b", "Declined"), ("c", "Done")]);
    assert_eq!(answer(&consumer, handler, invocation(&host, event)).await.unwrap(), S::named(["2"]));
    assert_eq!(ran.get(), 3);
    let line = the_line::<S>(&name, "2");
    assert!(line.contains("ERROR") && line.contains("panicked"), "{line}");
}

/// A handler whose clone with this number panics. The consumer clones it for the batch, for each lane and for each item.
struct Clones {
    till: Till,
    made: Counter,
    panicking: u32,
}

impl Clone for Clones {
    fn clone(&self) -> Self {
        assert!(self.made.count() != self.panicking, "in the clone");
        Self { till: self.till.clone(), made: self.made.clone(), panicking: self.panicking }
    }
}

impl<I: Paid + Send + 'static> Service<I> for Clones {
    type Response = ();
    type Error = Declined;
    type Future = BoxFuture<'static, Result<(), Declined>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Declined>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, item: I) -> Self::Future {
        self.till.clone().pay(item).boxed()
    }
}

pub(crate) async fn a_panic_in_the_clone_of_the_handler_keeps_the_items_that_are_done<S: Tested>() {
    // The rule does not depend on which clone is for which item. The first one is for the batch.
    for panicking in 2..=9 {
        let (world, host, consumer, till) = environment::<S>().await;
        let handler = Clones { till, made: Counter::default(), panicking };
        let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Done"), ("c", "Done")]));
        let answer = AssertUnwindSafe(answer(&consumer.concurrency(1), handler, event)).catch_unwind().await;
        let Ok(answer) = answer else { panic!("the panic in clone {panicking} escaped") };
        let mut not_done = Vec::new();
        for id in ["1", "2", "3"] {
            if world.row(&row_of::<S>(id)).await.is_none() {
                not_done.push(id);
            }
        }
        assert_eq!(answer.unwrap(), S::named(not_done), "clone {panicking}");
    }
}

pub(crate) async fn a_panic_in_the_clone_of_the_handler_fails_its_lane<S: Tested>() {
    /// Those before it are for the batch, the first lane and its item.
    const OF_THE_SECOND_LANE: u32 = 4;
    for (stops, not_done, ran) in [(false, vec!["2"], vec!["1", "3"]), (true, vec!["2", "3"], vec!["1"])] {
        let (_world, host, consumer, till) = environment::<S>().await;
        let consumer = consumer.concurrency(1);
        let consumer = if stops { consumer.stop_at_first_failure() } else { consumer };
        let handler = Clones { till: till.clone(), made: Counter::default(), panicking: OF_THE_SECOND_LANE };
        let event = invocation(&host, S::event(&[("a", "Done"), ("b", "Done"), ("c", "Done")]));
        assert_eq!(answer(&consumer, handler, event).await.unwrap(), S::named(not_done));
        assert_eq!(till.ran(), ran);
    }
}

pub(crate) async fn an_item_whose_handler_panics_in_its_clone_is_logged<S: Tested>() {
    /// Those before it are for the batch and the lane.
    const OF_THE_ITEM: u32 = 3;
    keep_log();
    let (world, host, consumer, till) = environment::<S>().await;
    let name = format!("cloned-in-{}", world.table);
    let handler = Clones { till, made: Counter::default(), panicking: OF_THE_ITEM };
    answer(&consumer, handler, invocation(&host, S::event_from(&name, &[("a", "Done")]))).await.unwrap_err();
    let line = the_line::<S>(&name, "1");
    assert!(line.contains("ERROR") && line.contains("the handler panicked"), "{line}");
}
