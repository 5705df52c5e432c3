//! A message whose handler fails for good is sent to a dead-letter queue at once.

use std::time::Duration;

use aws_lambda_events::sqs::{SqsMessage as SqsRecord, SqsMessageAttribute};
use lambda_lock::embedded::Host;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Backoff, OnUnfinished, SqsConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with, keep_log, logged};
use serde_json::{Value, json};
use tower::service_fn;

use crate::queues::{Does, Queues};
use crate::{
    Consumer, Declined, Payment, Till, batch, by_payment, deliver, deliver_in, environment, environment_in, failures,
    message, message_with_body, ms, ordered, with_attributes, work_elsewhere,
};

const LETTERS: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/letters";

fn for_good(consumer: Consumer, queues: &Queues) -> Consumer {
    consumer.dead_letter_if(queues.client(), LETTERS, |Declined| Some("declined by the bank".to_owned()))
}

async fn burying(queues: &Queues) -> (World, Host, Consumer, Till) {
    let (world, host, consumer, till) = environment().await;
    (world, host, for_good(consumer, queues), till)
}

fn with_attribute(mut message: SqsRecord, name: &str, value: &str) -> SqsRecord {
    let mut attribute = SqsMessageAttribute::default();
    attribute.data_type = Some("String".to_owned());
    attribute.string_value = Some(value.to_owned());
    message.message_attributes.insert(name.to_owned(), attribute);
    message
}

fn with_many_attributes(message: SqsRecord, count: usize) -> SqsRecord {
    (0..count).fold(message, |message, number| with_attribute(message, &format!("attribute {number}"), "value"))
}

#[tokio::test]
async fn a_message_that_fails_for_good_is_sent_with_the_reason_and_deleted() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = burying(&queues).await;
    let declined = with_attribute(message("1", "Declined"), "trace", "17");
    assert!(deliver(&consumer, &till, &host, [declined.clone(), message("2", "Done")]).await.is_empty());
    let text = |value: &str| json!({ "DataType": "String", "StringValue": value });
    assert_eq!(
        queues.sent(),
        [json!({
            "QueueUrl": LETTERS,
            "MessageBody": declined.body.unwrap(),
            "MessageAttributes": {
                "trace": text("17"),
                "DeadLetterOf": text("1"),
                "DeadLetterReason": text("declined by the bank"),
            },
        })]
    );
}

#[tokio::test]
async fn an_error_without_a_reason_is_tried_again() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.dead_letter_if(queues.client(), LETTERS, |Declined| None);
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Declined")]).await, ["1"]);
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
    assert!(queues.sent().is_empty());
    assert_eq!(till.ran(), ["1", "1"]);
}

#[tokio::test]
async fn a_message_stays_in_its_queue_until_sqs_has_the_dead_letter() {
    for does in [Does::Refuse, Does::Fail] {
        let queues = Queues::that(does);
        let (_world, host, consumer, till) = burying(&queues).await;
        for _ in 0..2 {
            assert_eq!(deliver(&consumer, &till, &host, [message("1", "Declined")]).await, ["1"]);
        }
        assert_eq!(till.ran(), ["1", "1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_dead_letter_queue_costs_two_seconds() {
    let queues = Queues::that(Does::FallSilent);
    let (_world, host, consumer, till) = environment_in(World::in_virtual_time().await);
    let consumer = for_good(consumer, &queues);
    let began = host.now();
    let event = invocation_with(&host, batch([message("1", "Declined")]), Duration::from_secs(10));
    assert_eq!(deliver_in(&consumer, &till, event).await, ["1"]);
    let took = host.now().duration_since(began).unwrap();
    assert!(took >= ms(2_000) && took < ms(2_500), "{took:?}");
    assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_record_is_held_while_the_dead_letter_is_sent() {
    let (world, host, consumer, _) = environment_in(World::in_virtual_time().await);
    let queues = Queues::that(Does::FallSilent);
    let consumer = for_good(consumer, &queues);
    let other: Consumer = SqsConsumer::by_message_id(world.locks(&world.host().build()).build().unwrap());
    let handler = service_fn(|_: SqsMessage<Payment>| async { Err::<(), _>(Declined) });
    let first = failures(&consumer, handler, invocation(&host, batch([message("1", "Declined")])));
    let second = async {
        while queues.sent().is_empty() {
            tokio::task::yield_now().await;
        }
        let till = Till::default();
        assert_eq!(deliver(&other, &till, &host, [message("1", "Done")]).await, ["1"]);
        assert!(till.ran().is_empty());
    };
    tokio::join!(first, second);
}

#[tokio::test]
async fn a_redriven_dead_letter_runs_again_until_it_is_done() {
    for policy in [OnUnfinished::RunAgain, OnUnfinished::Reject] {
        let queues = Queues::default();
        let (world, host, _, till) = environment().await;
        let once = by_payment(&world.locks(&host).build().unwrap()).on_unfinished(policy);
        let consumer = for_good(SqsConsumer::new(once), &queues);
        let payment = |message, then| message_with_body(message, &json!({ "id": "rent", "then": then }).to_string());
        for (message, then) in [("1", "Declined"), ("2", "Declined"), ("3", "Done"), ("4", "Done")] {
            assert!(deliver(&consumer, &till, &host, [payment(message, then)]).await.is_empty());
        }
        assert_eq!((till.ran(), queues.sent().len()), (["1", "2", "3"].map(str::to_owned).to_vec(), 2), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_dead_letter_queue_does_not_outlast_the_lease() {
    for policy in [OnUnfinished::RunAgain, OnUnfinished::Reject] {
        let queues = Queues::that(Does::FallSilent);
        let (world, host, _, till) = environment_in(World::in_virtual_time().await);
        let once = by_payment(&world.locks(&host).build().unwrap()).on_unfinished(policy).lease(ms(1_000));
        let consumer = for_good(SqsConsumer::new(once), &queues);
        let event = invocation_with(&host, batch([message("1", "Declined")]), Duration::from_secs(10));
        let began = host.now();
        assert_eq!(deliver_in(&consumer, &till, event).await, ["1"]);
        assert!(host.now().duration_since(began).unwrap() < ms(1_000));
        // The handler has failed, and was not cancelled: its record is free.
        assert!(deliver(&consumer, &till, &host, [message("1", "Done")]).await.is_empty(), "{policy:?}");
    }
}

#[tokio::test]
async fn copies_of_a_message_in_a_batch_are_one_dead_letter() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = burying(&queues).await;
    assert!(deliver(&consumer, &till, &host, ["1", "1"].map(|id| message(id, "Declined"))).await.is_empty());
    assert_eq!(queues.sent().len(), 1);
}

#[tokio::test]
async fn another_message_with_the_key_of_a_dead_letter_runs() {
    for of_queue in [message, |id: &str, then: &str| ordered(id, "group", then)] {
        let queues = Queues::default();
        let (world, host, _, till) = environment().await;
        let consumer = for_good(SqsConsumer::new(by_payment(&world.locks(&host).build().unwrap())), &queues);
        let order = |id, then| {
            let mut message = of_queue(id, then);
            message.body = Some(json!({ "id": "o1", "then": then }).to_string());
            message
        };
        assert!(deliver(&consumer, &till, &host, [order("1", "Declined"), order("2", "Done")]).await.is_empty());
        assert_eq!((till.ran(), queues.sent().len()), (["1", "2"].map(str::to_owned).to_vec(), 1));
    }
}

#[tokio::test]
async fn the_reason_gives_way_to_the_tenth_attribute() {
    for (count, attributes, has_reason) in [(8, 10, true), (9, 10, false)] {
        let queues = Queues::default();
        let (_world, host, consumer, till) = burying(&queues).await;
        let declined = with_many_attributes(message("1", "Declined"), count);
        assert!(deliver(&consumer, &till, &host, [declined]).await.is_empty());
        let sent = queues.sent()[0]["MessageAttributes"].as_object().unwrap().clone();
        assert_eq!((sent.len(), sent.contains_key("DeadLetterReason")), (attributes, has_reason));
    }
}

#[tokio::test]
async fn a_message_with_ten_attributes_is_returned_to_its_queue() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = burying(&queues).await;
    let full = with_many_attributes(message("1", "Declined"), 10);
    assert_eq!(deliver(&consumer, &till, &host, [full]).await, ["1"]);
    assert!(queues.sent().is_empty());
}

#[tokio::test]
async fn a_binary_attribute_is_copied() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = burying(&queues).await;
    let mut declined = message("1", "Declined");
    let attribute = json!({ "dataType": "Binary", "binaryValue": "AQID", "stringValue": null });
    declined.message_attributes.insert("image".to_owned(), serde_json::from_value(attribute).unwrap());
    assert!(deliver(&consumer, &till, &host, [declined]).await.is_empty());
    let sent = &queues.sent()[0]["MessageAttributes"]["image"];
    assert_eq!(*sent, json!({ "DataType": "Binary", "BinaryValue": "AQID" }));
}

#[tokio::test]
async fn a_reason_is_shortened_and_escaped_and_an_empty_one_is_left_out() {
    let reason = |reason: String| async move {
        let queues = Queues::default();
        let (_world, host, consumer, till) = environment().await;
        let consumer = consumer.dead_letter_if(queues.client(), LETTERS, move |Declined| Some(reason.clone()));
        assert!(deliver(&consumer, &till, &host, [message("1", "Declined")]).await.is_empty());
        queues.sent()[0]["MessageAttributes"]["DeadLetterReason"]["StringValue"].clone()
    };
    assert_eq!(reason("a\u{0}b".to_owned()).await, r"a\u{0}b");
    for long in ["x", "\u{0}"] {
        assert!(reason(long.repeat(10_000)).await.as_str().unwrap().len() <= 1024);
    }
    assert_eq!(reason("a\u{ffff}b".to_owned()).await, "a\u{fffd}b");
    assert_eq!(reason(String::new()).await, Value::Null);
}

#[tokio::test]
async fn a_fifo_dead_letter_queue_gets_the_group_and_the_message_id() {
    let (_world, host, consumer, till) = environment().await;
    let queues = Queues::default();
    let url = format!("{LETTERS}.fifo");
    let consumer = consumer.dead_letter_if(queues.client(), url, |Declined| Some("declined".to_owned()));
    let messages = [ordered("1", "a", "Declined"), message("2", "Declined"), ordered("3", "a", "Done")];
    assert!(deliver(&consumer, &till, &host, messages).await.is_empty());
    let of = |id: &str| {
        let sent = queues.sent();
        let letter = sent.iter().find(|letter| letter["MessageDeduplicationId"] == id).unwrap();
        letter["MessageGroupId"].as_str().unwrap().to_owned()
    };
    assert_eq!((of("1"), of("2")), ("a".to_owned(), "2".to_owned()));
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
}

#[tokio::test]
async fn a_standard_dead_letter_queue_gets_the_tenant_of_a_fair_queue() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = burying(&queues).await;
    let fair = with_attributes(message("1", "Declined"), [("MessageGroupId", "tenant")]);
    deliver(&consumer, &till, &host, [fair]).await;
    let sent = queues.sent();
    assert_eq!((&sent[0]["MessageGroupId"], &sent[0]["MessageDeduplicationId"]), (&json!("tenant"), &Value::Null));
}

#[tokio::test]
async fn only_errors_of_the_handler_make_dead_letters() {
    let queues = Queues::default();
    let (world, host, consumer, till) = burying(&queues).await;
    let _other = work_elsewhere(&world, "3", Duration::from_secs(40)).await;
    let messages = [message("1", "Panic"), message_with_body("2", "{"), message("3", "Declined")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["1", "2", "3"]);
    assert!(queues.sent().is_empty());
}

#[tokio::test]
async fn a_panic_of_the_predicate_fails_the_message() {
    let queues = Queues::default();
    let (_world, host, consumer, till) = environment().await;
    let consumer = consumer.dead_letter_if(queues.client(), LETTERS, |Declined| panic!("in the predicate"));
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Declined"), message("2", "Done")]).await, ["1"]);
    assert!(queues.sent().is_empty());
}

#[tokio::test]
async fn a_dead_letter_is_not_delayed_and_one_that_is_not_sent_is() {
    for (does, delayed) in [(Does::Answer, 0), (Does::Refuse, 1)] {
        let (queues, letters) = (Queues::default(), Queues::that(does));
        let (_world, host, consumer, till) = burying(&letters).await;
        let consumer = consumer.back_off(queues.client(), Backoff::new());
        deliver(&consumer, &till, &host, [message("1", "Declined")]).await;
        assert_eq!(queues.hidden().len(), delayed);
    }
}

#[tokio::test]
async fn disabled_locks_send_dead_letters_too() {
    let queues = Queues::default();
    let (world, host, _, till) = environment().await;
    let consumer = SqsConsumer::by_message_id(world.locks(&host).enabled(false).build().unwrap());
    assert!(deliver(&for_good(consumer, &queues), &till, &host, [message("1", "Declined")]).await.is_empty());
    assert_eq!(queues.sent().len(), 1);
}

#[tokio::test]
async fn a_dead_letter_is_logged_as_one_and_one_that_is_not_sent_as_returned() {
    keep_log();
    for (does, says) in [(Does::Answer, "sent to the dead-letter queue"), (Does::Refuse, "returned to the queue")] {
        let queues = Queues::that(does);
        let (world, host, consumer, till) = burying(&queues).await;
        let id = format!("letter of {}", world.table);
        let body = json!({ "id": "1", "then": "Declined" }).to_string();
        deliver(&consumer, &till, &host, [message_with_body(&id, &body)]).await;
        let errors: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("ERROR")).collect();
        let [line] = &errors[..] else { panic!("{errors:#?}") };
        assert!(line.contains(says) && line.contains("by the bank"), "{line}");
        assert_eq!(line.contains("dead_letter=true"), says.starts_with("sent"), "{line}");
        let warnings = logged(&id).into_iter().filter(|line| line.contains("dead letter not sent"));
        let explains = |line: String| {
            let parts = ["queue_url=\"https://", "sqs:SendMessage", "AccessDeniedException: no"];
            parts.iter().all(|part| line.contains(part))
        };
        assert!(warnings.map(explains).eq((says.starts_with("ret")).then_some(true)));
    }
}
