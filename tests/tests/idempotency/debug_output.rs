//! Debug output: it shows no payload, no result and no digest.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use lambda_lock::idempotency::StoredError;
use lambda_lock::{ErrorKind, HandlerError, Locks, OnError, WithRun};
use lambda_lock_tests::invocation::{Counter, invocation};
use serde_json::json;

use crate::{
    Declined, Order, Orders, decline, environment, is_declined, order, orders, place, refused, string_in, validated,
};

#[tokio::test]
async fn debug_output_does_not_show_a_stored_error() {
    let (_world, _host, locks) = environment().await;
    let secret: Orders<u32> = validated(&locks).on_error(|Declined| OnError::Store(StoredError::new("T", "card 4242")));
    assert!(is_declined(&decline(&secret, &order("a"), &Counter::default()).await));
    let other = Order { amount: 6, ..order("a") };
    let mismatch = refused(place(&secret, &other, &Counter::default()).await);
    assert_eq!(mismatch.kind(), ErrorKind::Mismatch);
    assert!(!format!("{mismatch:?}").contains("card 4242"), "{mismatch:?}");
    let holder = locks.get("a").await.unwrap().unwrap();
    assert!(!format!("{holder:?}").contains("card 4242"));
}

#[tokio::test]
async fn debug_output_shows_no_payload_result_or_digest() {
    let (world, host, locks) = environment().await;
    let printed = Mutex::new(Vec::new());
    let print = |what: &dyn Debug| printed.lock().unwrap().extend([format!("{what:?}"), format!("{what:#?}")]);
    let secret = || "4111 1111".to_owned();

    // Events and messages.
    let mut record = aws_lambda_events::sqs::SqsMessage::default();
    record.message_id = Some("message 1".to_owned());
    let mut attribute = aws_lambda_events::sqs::SqsMessageAttribute::default();
    attribute.string_value = Some(secret());
    record.message_attributes.insert("card".to_owned(), attribute);
    record.attributes.insert("MessageDeduplicationId".to_owned(), secret());
    let message = lambda_lock::lambda::SqsMessage::new(secret(), record);
    print(&message);
    let lock = Arc::new(locks.acquire("lock").data(secret()).await.unwrap());
    let mut event = invocation(&host, secret());
    event.context.client_context = serde_json::from_value(json!({
        "client": {
            "installationId": "", "appTitle": "", "appVersionName": "", "appVersionCode": "", "appPackageName": ""
        },
        "custom": { "card": secret() }, "environment": {}
    }))
    .unwrap();
    print(&lambda_lock::WithLock::new(event, Arc::clone(&lock)));
    print(&lock);
    print(&lock.data());

    // Runs, records, errors.
    let declining = validated(&locks).on_error(|Declined| OnError::Store(StoredError::new("Declined", "4111 1111")));
    print(&declining);
    decline(&declining, &order("a"), &Counter::default()).await.unwrap_err();
    let replayed = place(&declining, &order("a"), &Counter::default()).await.unwrap_err();
    assert!(matches!(&replayed, HandlerError::Replayed(_)));
    print(&replayed);
    print(&OnError::Store(StoredError::new("Declined", secret())));
    let mismatch = place(&declining, &Order { amount: 6, ..order("a") }, &Counter::default()).await.unwrap_err();
    print(&mismatch);
    let paid: Orders<String> = orders(&locks).validate(|order| order.amount);
    paid.run(&order("b"), async |run| {
        print(&run);
        print(&WithRun::new(secret(), run.clone()));
        Ok(secret())
    })
    .await
    .unwrap();
    let unreadable: Orders<u32> = orders(&locks);
    print(&place(&unreadable, &order("b"), &Counter::default()).await.unwrap_err());
    for key in ["a", "b", "lock"] {
        print(&locks.get(key).await.unwrap());
    }
    let mut list = locks.list();
    while let Some(rows) = list.next_page().await.unwrap() {
        print(&rows);
    }
    lock.release().await.unwrap();

    let digest = string_in(&world.row("b").await.unwrap(), "validation").to_owned();
    let printed = printed.into_inner().unwrap();
    for text in &printed {
        assert!(!text.contains("4111 1111") && !text.contains(&digest), "{text}");
    }
    // The output still identifies each value.
    for what in ["message 1", "WithLock", "Declined", "another payload", "stored result"] {
        assert!(printed.iter().any(|text| text.contains(what)), "{what}");
    }
}

#[tokio::test]
async fn the_debug_output_of_an_error_is_its_message_and_its_source() {
    let (world, _host, locks) = environment().await;
    let _held = locks.acquire("a").await.unwrap();
    let held = locks.acquire("a").await.unwrap_err();
    assert_eq!(format!("{held:?}"), held.to_string());
    let message = held.to_string();
    assert_eq!(format!("{:?}", HandlerError::<Declined>::Lock(held)), message);
    assert_eq!(format!("{:?}", HandlerError::Handler(Declined)), "Declined");
    let elsewhere = Locks::builder(world.client(), "no-such-table").build().unwrap();
    let missing = elsewhere.acquire("a").await.unwrap_err();
    let printed = format!("{missing:?}");
    assert!(printed.starts_with(&missing.to_string()) && printed.contains("ResourceNotFoundException"), "{printed}");
    assert!(printed.len() < 500 && !printed.contains("Inner"), "{printed}");
}
