//! Messages that are in progress elsewhere, or were left by a crash.

use std::time::Duration;

use crate::{deliver, environment, message, work_elsewhere};

#[tokio::test]
async fn a_message_in_progress_elsewhere_goes_back_at_once_until_it_can_run() {
    let (world, host, consumer, till) = environment().await;
    let other = work_elsewhere(&world, "1", Duration::from_secs(30)).await;
    let messages = || [message("1", "Done"), message("2", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages()).await, ["1"]);
    assert_eq!(host.requests(), 1 + 2);
    other.release().await.unwrap();
    assert!(deliver(&consumer, &till, &host, messages()).await.is_empty());
    assert_eq!(till.ran(), ["2", "1"]);
}
