//! The log of a consumer.

use std::time::Duration;

use lambda_lock::streams::StreamConsumer;
use lambda_lock_tests::invocation::{invocation_with, keep_log, logged};
use serde_json::json;

use crate::{STREAM, batch, by_payment, deliver, deliver_in, environment, ms, record_with_data};

#[tokio::test]
async fn the_log_shows_the_number_of_a_failed_record_and_not_its_data() {
    keep_log();
    let (world, host, consumer, till) = environment().await;
    let number = |what: &str| format!("{what} of {}", world.table);
    let secret = format!("secret-of-{}", world.table);
    let data = |then: &str| json!({ "id": secret, "then": then }).to_string();
    let batch = [
        record_with_data(&number("unreadable"), "a", format!("{{\"id\": \"{secret}")),
        record_with_data(&number("mistyped"), "b", json!({ "id": "1", "amount": secret }).to_string()),
        record_with_data(&number("declined"), "c", data("Declined")),
        record_with_data(&number("panicking"), "d", data("Panic")),
        record_with_data(&number("done"), &secret, data("Done")),
    ];
    assert_eq!(deliver(&consumer, &till, &host, batch).await, Some(number("unreadable")));
    for what in ["unreadable", "mistyped", "declined", "panicking"] {
        let lines: Vec<_> = logged(&number(what)).into_iter().filter(|line| line.contains("record not done")).collect();
        let [line] = &lines[..] else { panic!("{lines:#?}") };
        assert!(line.contains("ERROR") && line.contains("sequence_number") && !line.contains("message_id"), "{line}");
    }
    assert!(logged(&number("declined")).iter().any(|line| line.contains("by the bank")));
    assert_eq!(logged(&secret), Vec::<String>::new());
}

#[tokio::test]
async fn a_record_in_progress_elsewhere_is_logged_once_at_info() {
    keep_log();
    let (world, host, _, till) = environment().await;
    let number = format!("in progress of {}", world.table);
    let consumer = StreamConsumer::new(by_payment(&world.locks(&host).build().unwrap()));
    let key = format!("orders#{STREAM}#{number}");
    let _other = world.default_locks().acquire(key).lease(Duration::from_secs(30)).await.unwrap();
    let batch = batch([record_with_data(&number, "a", json!({ "id": number }).to_string())]);
    // It waits for the other one until shortly before the deadline.
    let soon_over = invocation_with(&host, batch, ms(3_000));
    assert_eq!(deliver_in(&consumer, &till, soon_over).await, Some(number.clone()));
    let is_news = |line: &String| ["ERROR", "WARN", "INFO"].iter().any(|level| line.contains(level));
    let lines: Vec<_> = logged(&number).into_iter().filter(is_news).collect();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("INFO") && line.contains("record not done") && line.contains("is in progress: "), "{line}");
}
