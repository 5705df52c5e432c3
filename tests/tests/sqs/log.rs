//! The log of a consumer.

use std::time::Duration;

use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Locks, SqsConsumer};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, keep_log, logged};
use serde_json::json;
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    Consumer, Payment, Till, batch, deliver, deliver_in, environment, message, message_with_body, ordered, row_of,
    with_attributes, work_elsewhere,
};

#[tokio::test]
async fn the_log_of_a_failed_message_says_key_queue_and_whether_it_comes_again() {
    keep_log();
    let (world, host, _, till) = environment().await;
    let locks = world.locks(&host).key_prefix("shop#").build().unwrap();
    let consumer: Consumer = SqsConsumer::by_message_id(locks).max_receive_count(3);
    let body = json!({ "id": "1", "then": "Declined" }).to_string();
    for (receives, is_last) in [("1", "false"), ("3", "true"), ("4", "true")] {
        let id = format!("receive {receives} of {}", world.table);
        let mut message = message_with_body(&id, &body);
        message.event_source_arn = Some("arn:aws:sqs:eu-west-1:123456789012:payments".to_owned());
        message.attributes.insert("ApproximateReceiveCount".to_owned(), receives.to_owned());
        deliver(&consumer, &till, &host, [message]).await;
        let lines: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("ERROR")).collect();
        let [line] = &lines[..] else { panic!("{lines:#?}") };
        for part in [
            "queue=\"payments\"",
            &format!("key=\"shop#{}\"", row_of(&id)),
            &format!("receive_count={receives}"),
            &format!("dead_letter={is_last}"),
        ] {
            assert!(line.contains(part), "`{part}` is not in {line}");
        }
    }
}

#[tokio::test]
async fn the_log_shows_the_type_of_an_error_if_it_has_a_name() {
    keep_log();
    let (world, host, _, _) = environment().await;
    let locks = world.locks(&host).build().unwrap();
    let [named, boxed] = ["named", "boxed"].map(|what| format!("{what} of {}", world.table));
    let body = json!({ "id": "1", "then": "Declined" }).to_string();
    let consumer: SqsConsumer<Payment> = SqsConsumer::by_message_id(locks.clone());
    let handler = service_fn(async |_: SqsMessage<Payment>| Err("out of reach".into()));
    consumer.layer(handler).oneshot(invocation(&host, batch([message_with_body(&boxed, &body)]))).await.unwrap_err();
    let consumer: Consumer = SqsConsumer::by_message_id(locks);
    deliver(&consumer, &Till::default(), &host, [message_with_body(&named, &body)]).await;
    let line = |id: &str| logged(id).into_iter().find(|line| line.contains("message returned to the queue")).unwrap();
    assert!(line(&named).contains("error_type=\"Declined\""), "{}", line(&named));
    assert!(line(&boxed).contains("out of reach") && !line(&boxed).contains("error_type"), "{}", line(&boxed));
}

#[tokio::test]
async fn the_log_of_a_refused_message_has_the_message_of_dynamodb() {
    keep_log();
    let (world, host, _, till) = environment().await;
    let locks = Locks::builder(host.client(), format!("{}-missing", world.table)).build().unwrap();
    let id = format!("refused of {}", world.table);
    let messages = [message_with_body(&id, &json!({ "id": "1" }).to_string())];
    assert_eq!(deliver(&SqsConsumer::by_message_id(locks), &till, &host, messages).await, [id.as_str()]);
    let lines: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("ERROR")).collect();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("ResourceNotFoundException: "), "{line}");
}

#[tokio::test]
async fn messages_without_time_are_one_line() {
    keep_log();
    for fifo in [false, true] {
        let (world, host, consumer, till) = environment().await;
        let marker = format!("fifo {fifo} of {}", world.table);
        let messages = (0..10_000).map(|number| {
            let id = format!("{number} {marker}");
            if fifo { ordered(&id, "group", "Done") } else { message(&id, "Done") }
        });
        let event = invocation(&host, batch(messages));
        host.advance_clock(Duration::from_secs(31));
        assert_eq!(deliver_in(&consumer, &till, event).await.len(), 10_000);
        let lines = logged(&marker);
        let [line] = &lines[..] else { panic!("{} lines, first {}", lines.len(), lines[0]) };
        for part in ["WARN", "count=10000", "no time left", &format!("0 {marker}")] {
            assert!(line.contains(part), "`{part}` is not in {line}");
        }
        assert!(line.len() < 20_000, "{}", line.len());
    }
}

#[tokio::test]
async fn each_dead_letter_without_time_is_named_in_a_line_of_many() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let id = |number: usize| format!("{number} of {}", world.table);
    let messages = (0..250).map(|number| {
        let receives = if number == 7 { "2" } else { "3" };
        with_attributes(message(&id(number), "Done"), [("ApproximateReceiveCount", receives)])
    });
    let event = invocation(&host, batch(messages));
    host.advance_clock(Duration::from_secs(31));
    deliver_in(&consumer.max_receive_count(3), &till, event).await;
    let lines = logged(&world.table);
    let letters: Vec<_> = lines.iter().filter(|line| line.contains("dead_letter=true")).collect();
    assert_eq!((letters.len(), lines.len()), (3, 4));
    for number in 0..250 {
        let names =
            |line: &&&String| ["\"", ", "].iter().any(|before| line.contains(&format!("{before}{}", id(number))));
        let of = letters.iter().filter(names);
        assert_eq!(of.count(), usize::from(number != 7), "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_behind_a_failure_does_not_count_as_without_time() {
    keep_log();
    let world = World::in_virtual_time().await;
    let host = world.host().build();
    // Not enforced, so that the endless one is cut off when the answer is due.
    let consumer: Consumer = SqsConsumer::by_message_id(world.locks(&host).enabled(false).build().unwrap());
    let id = |what: &str| format!("{what} of {}", world.table);
    let messages = [
        ordered(&id("declined"), "a", "Declined"),
        ordered(&id("behind"), "a", "Done"),
        ordered(&id("endless"), "b", "Endless"),
        ordered(&id("late"), "b", "Done"),
    ];
    assert_eq!(deliver(&consumer, &Till::default(), &host, messages).await.len(), 4);
    let lines: Vec<_> = logged(&world.table).into_iter().filter(|line| line.contains("no time left")).collect();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("count=2") && !line.contains(&id("behind")), "{line}");
}

#[tokio::test]
async fn the_log_of_a_message_in_progress_elsewhere_says_whether_it_comes_again() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let id = format!("in progress of {}", world.table);
    let _other = work_elsewhere(&world, &id, Duration::from_secs(30)).await;
    let body = json!({ "id": "1" }).to_string();
    let message = with_attributes(message_with_body(&id, &body), [("ApproximateReceiveCount", "3")]);
    assert_eq!(deliver(&consumer.max_receive_count(3), &till, &host, [message]).await, [id.as_str()]);
    let lines: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("is in progress: ")).collect();
    assert!(lines.iter().any(|line| line.contains("INFO") && line.contains("dead_letter=true")), "{lines:#?}");
}
