//! Which messages go back to the queue, and which are done.

use crate::{deliver, environment, message};

#[tokio::test]
async fn a_message_without_an_id_goes_back_under_an_empty_id() {
    let (_world, host, consumer, till) = environment().await;
    let mut nameless = message("1", "Done");
    nameless.message_id = None;
    let messages = [message("0", "Done"), nameless, message("2", "Declined"), message("3", "Done")];
    assert_eq!(deliver(&consumer, &till, &host, messages).await, ["", "2"]);
    assert_eq!(till.ran_in_any_order(), ["0", "2", "3"]);
}

#[tokio::test]
async fn a_message_without_a_body_goes_back() {
    let (_world, host, consumer, till) = environment().await;
    let mut without_body = message("1", "Done");
    without_body.body = None;
    assert_eq!(deliver(&consumer, &till, &host, [without_body, message("2", "Done")]).await, ["1"]);
    assert_eq!(till.ran(), ["2"]);
}
