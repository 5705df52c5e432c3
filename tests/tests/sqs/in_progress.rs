//! Messages that are in progress elsewhere, or were left by a crash.

use std::sync::Arc;
use std::time::Duration;

use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Backoff, OnUnfinished, SqsConsumer, Wait};
use lambda_lock_tests::invocation::invocation;
use tokio::sync::Notify;
use tokio::time::sleep;
use tower::service_fn;

use crate::{
    AFTER_THE_LEASE, Payment, Then, batch, by_payment, deliver, environment, failures, message, ms, work_elsewhere,
};

#[tokio::test]
async fn a_message_in_progress_elsewhere_goes_back_until_it_can_run() {
    let (world, host, consumer, till) = environment().await;
    let other = work_elsewhere(&world, "1", Duration::from_secs(30)).await;
    let messages = || [message("1", "Done"), message("2", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages()).await, ["1"]);
    assert_eq!(host.requests(), 1 + 2);
    other.release().await.unwrap();
    assert!(deliver(&consumer, &till, &host, messages()).await.is_empty());
    assert_eq!(till.ran(), ["2", "1"]);
}

#[tokio::test]
async fn a_consumer_can_wait_for_a_message_in_progress_elsewhere() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = SqsConsumer::new(by_payment(&locks).wait(Wait::backoff(Backoff::new().base(ms(2)).cap(ms(20)))));
    let other = work_elsewhere(&world, "payment 1", Duration::from_secs(30)).await;
    let messages = [message("1", "Done")];
    let (failed, ()) = tokio::join!(deliver(&consumer, &till, &host, messages), async {
        while host.requests() < 2 {
            sleep(ms(1)).await;
        }
        other.release().await.unwrap();
    });
    assert!(failed.is_empty());
    assert_eq!(till.ran(), ["1"]);
}

#[tokio::test]
async fn a_message_in_progress_at_a_crash_goes_back_until_its_lease_ends() {
    let (world, host, consumer, till) = environment().await;
    let hangs = Arc::new(Notify::new());
    let handler = service_fn({
        let (till, hangs, host) = (till.clone(), Arc::clone(&hangs), host.clone());
        move |message: SqsMessage<Payment>| {
            let (till, hangs, host) = (till.clone(), Arc::clone(&hangs), host.clone());
            async move {
                if message.body.then == Then::Endless {
                    host.crash();
                    hangs.notify_one();
                }
                till.pay(message).await
            }
        }
    });
    let consumer_of_one = consumer.clone().concurrency(1);
    let event = invocation(&host, batch([message("1", "Done"), message("2", "Endless"), message("3", "Done")]));
    tokio::select! {
        failed = failures(&consumer_of_one, handler, event) => panic!("{failed:?}"),
        () = hangs.notified() => {}
    }
    let again = || ["1", "2", "3"].map(|id| message(id, "Done"));
    for (later, failed) in [(Duration::ZERO, vec!["2"]), (AFTER_THE_LEASE, vec![])] {
        let host = world.host().later(later).build();
        let consumer = SqsConsumer::by_message_id(world.locks(&host).build().unwrap());
        assert_eq!(deliver(&consumer, &till, &host, again()).await, failed);
    }
    assert_eq!(till.ran(), ["1", "2", "3", "2"]);
}

#[tokio::test]
async fn an_unfinished_message_goes_back_each_time() {
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let consumer = SqsConsumer::new(by_payment(&locks).on_unfinished(OnUnfinished::Reject));
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Panic")]).await, ["1"]);
    for _ in 0..2 {
        host.advance_clock(AFTER_THE_LEASE);
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done")]).await, ["1"]);
    }
    assert_eq!(till.ran(), ["1"]);
}
