//! `Consumer::at_rate`: messages start at a rate.

use std::time::Duration;

use lambda_lock_tests::World;

use crate::queues::Queues;
use crate::{deliver, environment_in, message};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test]
async fn a_message_beyond_the_rate_comes_back_when_its_time_has_come() {
    let queues = Queues::default();
    let world = World::new().await;
    let (world, host, consumer, till) = environment_in(world);
    let bank = world.locks(&host).build().unwrap().rate("bank-api", 1, HOUR);
    let consumer = consumer.concurrency(1).at_rate(bank).hide_while_in_progress(queues.client());
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done"), message("2", "Done")]).await, ["2"]);
    assert_eq!(till.ran(), ["1"]);
    let hidden = queues.hidden();
    let [request] = hidden.as_slice() else { panic!("{hidden:?}") };
    assert_eq!(request["ReceiptHandle"], "receipt of 2");
    let seconds = request["VisibilityTimeout"].as_u64().unwrap();
    assert!((3560..=3600).contains(&seconds), "{seconds}");
    // A duplicate takes no call, and the message runs when it comes back.
    host.advance_clock(HOUR);
    assert_eq!(deliver(&consumer, &till, &host, [message("1", "Done"), message("2", "Done")]).await, [""; 0]);
    assert_eq!(till.ran(), ["1", "2"]);
}
