//! The log of a consumer.

use std::time::Duration;

use lambda_lock::SqsConsumer;
use lambda_lock_tests::invocation::{invocation, keep_log, logged};
use serde_json::json;

use crate::{
    Consumer, batch, deliver, deliver_in, environment, message, message_with_body, row_of, with_attributes,
    work_elsewhere,
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
