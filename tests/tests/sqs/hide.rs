//! Messages that are in progress elsewhere are hidden until that lease ends.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Idempotency, Lock, OnUnfinished, SqsConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with, keep_log, logged, millis};
use serde_json::json;
use tokio::time::sleep;
use tower::service_fn;

use crate::queues::{Does, Queues};
use crate::{
    AFTER_THE_LEASE, Consumer, FIFO_QUEUE, Payment, Till, batch, by_payment, deliver, deliver_in, environment,
    failures, message, message_with_body, ms, ordered, row_of, work_elsewhere,
};

/// A consumer that hides messages, and a message `1`, from any queue, that is in progress elsewhere for this long.
async fn hiding(queues: &Queues, lease: Duration) -> (World, Host, Consumer, Till, Lock) {
    let (world, host, _, till) = environment().await;
    let key = |message: &SqsMessage<Payment>| message.message_id().map(str::to_owned);
    let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::Reject, key).prefix("any");
    let other = world.default_locks().acquire("any#1").lease(lease).await.unwrap();
    (world, host, SqsConsumer::new(once).hide_while_in_progress(queues.client()), till, other)
}

#[tokio::test]
async fn a_message_in_progress_elsewhere_is_hidden_until_that_lease_ends() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done"), message("2", "Done")]).await, ["1"]);
    assert_eq!(till.ran(), ["2"]);
    let requests = queues.hidden();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(request["QueueUrl"], "https://sqs.eu-west-1.amazonaws.com/123456789012/payments");
    assert_eq!(request["ReceiptHandle"], "receipt of 1");
    // 41 s with the clock skew, minus the time that has passed, rounded up to whole seconds.
    let seconds = request["VisibilityTimeout"].as_i64().unwrap();
    assert!((39..=41).contains(&seconds), "{seconds}");
}

/// The other message runs until the first one is hidden.
#[tokio::test]
async fn a_message_that_waited_is_hidden_while_others_run() {
    let queues = Queues::default();
    let (world, host, _, _) = environment().await;
    let _other = work_elsewhere(&world, "payment 1", Duration::from_secs(40)).await;
    let once = by_payment(&world.locks(&host).build().unwrap()).wait(ms(20));
    let consumer = SqsConsumer::new(once).concurrency(1).hide_while_in_progress(queues.client());
    let handler = service_fn({
        let queues = queues.clone();
        move |_: SqsMessage<Payment>| {
            let queues = queues.clone();
            async move {
                while queues.hidden().is_empty() {
                    sleep(ms(1)).await;
                }
                Ok(())
            }
        }
    });
    let event = invocation_with(&host, batch([message("1", "Done"), message("2", "Done")]), ms(3_000));
    assert_eq!(failures(&consumer, handler, event).await, ["1"]);
    assert_eq!(queues.hidden().len(), 1);
}

#[tokio::test]
async fn a_hidden_message_comes_back_when_the_lease_has_ended() {
    // Leases with fractions of a second too.
    for lease in [ms(10_000), ms(10_250), ms(10_999)] {
        let queues = Queues::default();
        let (_world, host, consumer, till, other) = hiding(&queues, lease).await;
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done")]).await, ["1"]);
        let hidden = Duration::from_secs(queues.hidden()[0]["VisibilityTimeout"].as_u64().unwrap());
        let end = other.expires_at() + Duration::from_secs(1);
        let back = host.now() + hidden;
        assert!(back >= end && back < end + ms(1_100), "{:?}", back.duration_since(end));
    }
}

#[tokio::test]
async fn a_message_is_hidden_for_at_most_eleven_hours_and_forty_minutes() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_hours(24)).await;
    deliver(&consumer, &till, &host, [message("1", "Done")]).await;
    assert_eq!(queues.hidden()[0]["VisibilityTimeout"], 42_000);
}

#[tokio::test]
async fn the_url_of_a_queue_follows_from_its_arn_in_every_partition() {
    for (arn, url) in [
        (FIFO_QUEUE, "https://sqs.eu-west-1.amazonaws.com/123456789012/payments.fifo"),
        ("arn:aws-cn:sqs:cn-north-1:1:q", "https://sqs.cn-north-1.amazonaws.com.cn/1/q"),
        ("arn:aws-us-gov:sqs:us-gov-west-1:1:q", "https://sqs.us-gov-west-1.amazonaws.com/1/q"),
    ] {
        let queues = Queues::default();
        let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
        let mut message = message("1", "Done");
        message.event_source_arn = Some(arn.to_owned());
        assert_eq!(deliver(&consumer, &till, &host, [message]).await, ["1"]);
        assert_eq!(queues.hidden()[0]["QueueUrl"], url);
    }
}

#[tokio::test]
async fn a_message_without_a_queue_or_a_receipt_is_not_hidden() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    for arn in [None, Some(""), Some("arn:aws:sqs:eu-west-1"), Some("payments")] {
        let mut message = message("1", "Done");
        message.event_source_arn = arn.map(str::to_owned);
        assert_eq!(deliver(&consumer, &till, &host, [message]).await, ["1"]);
    }
    let mut message = message("1", "Done");
    message.receipt_handle = None;
    assert_eq!(deliver(&consumer, &till, &host, [message]).await, ["1"]);
    assert!(queues.hidden().is_empty());
}

#[tokio::test]
async fn a_message_that_cannot_be_hidden_goes_back() {
    for does in [Does::Refuse, Does::Fail, Does::FallSilent] {
        let queues = Queues::that(does);
        let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
        assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done"), message("2", "Done")]).await, ["1"]);
        assert_eq!(till.ran(), ["2"]);
        assert!(!queues.hidden().is_empty());
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_hidden_is_logged_without_its_receipt() {
    keep_log();
    let queues = Queues::that(Does::Refuse);
    let (world, host, consumer, till) = environment().await;
    let id = format!("not hidden of {}", world.table);
    let _other = work_elsewhere(&world, &id, Duration::from_secs(40)).await;
    let mut message = message(&id, "Done");
    message.receipt_handle = Some("receipt of 1".to_owned());
    deliver(&consumer.hide_while_in_progress(queues.client()), &till, &host, [message]).await;
    let lines: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("message not hidden")).collect();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    for part in ["queue_url=\"https://sqs", "sqs:ChangeMessageVisibility", "AccessDeniedException: no: …"] {
        assert!(line.contains(part), "`{part}` is not in {line}");
    }
    assert!(!line.contains("receipt of 1"), "{line}");
}

#[tokio::test]
async fn a_silent_queue_does_not_delay_the_answer_past_the_deadline() {
    let queues = Queues::that(Does::FallSilent);
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    let consumer = consumer.min_remaining_time(ms(100));
    let event = invocation_with(&host, batch([message("1", "Done"), message("2", "Done")]), ms(1_200));
    let deadline = event.context.deadline;
    assert_eq!(deliver_in(&consumer, &till, event).await, ["1"]);
    assert!(millis(host.now()) < deadline, "{} ms late", millis(host.now()) - deadline);
}

#[tokio::test]
async fn a_silent_queue_does_not_return_the_messages_that_are_done() {
    let queues = Queues::that(Does::FallSilent);
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    let messages = ["0", "1", "2"].map(|id| ordered(id, "group", "Done"));
    let event = invocation_with(&host, batch(messages), ms(1_200));
    assert_eq!(deliver_in(&consumer.min_remaining_time(ms(100)), &till, event).await, ["1", "2"]);
    assert_eq!(till.ran(), ["0"]);
}

#[tokio::test]
async fn the_rest_of_the_group_of_a_hidden_message_is_not_hidden() {
    let queues = Queues::default();
    let (_world, host, consumer, till, _other) = hiding(&queues, Duration::from_secs(40)).await;
    let messages = ["1", "2"].map(|id| ordered(id, "group", "Done"));
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2"]);
    let requests = queues.hidden();
    assert_eq!(requests.iter().map(|request| &request["ReceiptHandle"]).collect::<Vec<_>>(), ["receipt of 1"]);
}

#[tokio::test]
async fn twins_in_progress_elsewhere_are_all_hidden() {
    let (world, host, _, till) = environment().await;
    let queues = Queues::default();
    let consumer =
        SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap())).hide_while_in_progress(queues.client());
    let _other = work_elsewhere(&world, "17", Duration::from_secs(40)).await;
    let twins = ["1", "2"].map(|id| message_with_body(id, &json!({ "id": "17" }).to_string()));
    assert_eq!(deliver(&consumer, &till, &host, twins).await, ["1", "2"]);
    let mut hidden: Vec<_> =
        queues.hidden().iter().map(|request| request["ReceiptHandle"].as_str().unwrap().to_owned()).collect();
    hidden.sort();
    assert_eq!(hidden, ["receipt of 1", "receipt of 2"]);
}

#[tokio::test]
async fn a_message_that_is_done_or_fails_is_not_hidden() {
    let queues = Queues::default();
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let once = by_payment(&locks).validate(|message| message.body.amount).on_unfinished(OnUnfinished::Reject);
    let consumer = SqsConsumer::new(once).hide_while_in_progress(queues.client());
    let paying = |id, amount| message_with_body(id, &json!({ "id": "17", "amount": amount }).to_string());
    let messages = [
        message("1", "Done"),
        message("2", "Declined"),
        message("3", "Panic"),
        message_with_body("4", "{"),
        paying("5", 5),
    ];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["2", "3", "4"]);
    host.advance_clock(AFTER_THE_LEASE);
    // Done, unfinished, and with different fields.
    let messages = [message("1", "Done"), message("3", "Done"), paying("6", 6)];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["3", "6"]);
    world.put_row(HashMap::from([("id".to_owned(), AttributeValue::S(row_of("payment 7")))])).await;
    assert_eq!(deliver(&consumer, &till, &host, [message("7", "Done")]).await, ["7"]);
    let event = invocation(&host, batch([message("8", "Done")]));
    host.advance_clock(AFTER_THE_LEASE);
    assert_eq!(deliver_in(&consumer, &till, event).await, ["8"]);
    assert!(queues.hidden().is_empty());
}
