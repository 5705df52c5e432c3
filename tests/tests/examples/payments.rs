//! `payment-queue`.

use std::time::Duration;

use aws_lambda_events::sqs::{SqsEvent, SqsMessage as SqsRecord};
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use lambda_example::{Payment, Payments, Simulation, payment_queue};
use lambda_lock::embedded::Host;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{LoseAnswers, invocation};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::PREFIX;

fn payment(id: &str, failing_deliveries: u64) -> Value {
    let account = "DE02".to_owned();
    json!(Payment { id: id.to_owned(), account, amount: 100, paying_ms: 0, failing_deliveries, panics: false })
}

/// Delivers the bodies as one batch for the nth time, and returns the positions of the messages that go back. Each
/// delivery has new message ids, as after a redrive.
async fn deliver(world: &World, nth: u32, bodies: &[Value]) -> Vec<usize> {
    deliver_to(world, &world.host().build(), nth, bodies).await
}

async fn deliver_to(world: &World, host: &Host, nth: u32, bodies: &[Value]) -> Vec<usize> {
    deliver_with(Simulation::On, world, host, nth, bodies).await
}

async fn deliver_with(simulation: Simulation, world: &World, host: &Host, nth: u32, bodies: &[Value]) -> Vec<usize> {
    let locks = world.locks(host).key_prefix(PREFIX).build().unwrap();
    // No message is in progress elsewhere, so nothing is sent to SQS.
    let queues = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"));
    let queues = aws_sdk_sqs::Client::from_conf(queues.build());
    let function = payment_queue(locks, Payments::new(host.client(), &world.table, PREFIX), queues, simulation);
    let records = bodies.iter().enumerate().map(|(position, body)| {
        let mut record = SqsRecord::default();
        record.message_id = Some(format!("{:08x}#{position}", fastrand::u32(..)));
        record.event_source_arn = Some("arn:aws:sqs:us-east-1:123456789012:payments".to_owned());
        record.attributes.insert("ApproximateReceiveCount".to_owned(), nth.to_string());
        record.body = Some(body.to_string());
        record
    });
    let mut event = SqsEvent::default();
    event.records = records.collect();
    // Lambda takes a failed invocation as the failure of each message.
    let Ok(response) = function.oneshot(invocation(host, event)).await else { return (0..bodies.len()).collect() };
    let position = |id: &str| id.split_once('#').unwrap().1.parse().unwrap();
    response.batch_item_failures.iter().map(|failure| position(&failure.item_identifier)).collect()
}

async fn times_paid(world: &World, id: &str) -> u32 {
    let row = world.row(&format!("{PREFIX}payment#{id}")).await;
    row.map_or(0, |row| row["times"].as_n().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_payment_in_several_messages_is_made_once() {
    let world = World::new().await;
    assert_eq!(deliver(&world, 1, &[payment("rent", 0), payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(deliver(&world, 1, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn a_payment_that_was_made_is_not_made_again_after_a_redrive() {
    let world = World::new().await;
    deliver(&world, 1, &[payment("rent", 0)]).await;
    // The longest retention of the queue, of the dead-letter queue, and of the queue again.
    let later = world.host().later(Duration::from_hours(42 * 24)).build();
    assert_eq!(deliver_to(&world, &later, 1, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn a_payment_with_a_used_id_and_another_amount_goes_back() {
    let world = World::new().await;
    let mut other = payment("rent", 0);
    other["amount"] = 101.into();
    deliver(&world, 1, &[payment("rent", 0)]).await;
    assert_eq!(deliver(&world, 1, &[other]).await, [0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn only_a_failed_payment_goes_back_and_is_made_later() {
    let world = World::new().await;
    let bodies = [payment("rent", 0), payment("power", 1), json!("not a payment"), payment("water", 0)];
    assert_eq!(deliver(&world, 1, &bodies).await, [1, 2]);
    assert_eq!(times_paid(&world, "power").await, 0);
    assert_eq!(deliver(&world, 2, &bodies[1..2]).await, [0_usize; 0]);
    for id in ["rent", "power", "water"] {
        assert_eq!(times_paid(&world, id).await, 1, "{id}");
    }
}

#[tokio::test]
async fn a_payment_with_a_lost_answer_of_the_table_is_made_once() {
    let world = World::new().await;
    // All answers to the three tries of the SDK.
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=3)).build();
    assert_eq!(deliver_to(&world, &host, 1, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(deliver(&world, 2, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn a_sender_cannot_choose_that_a_payment_takes_long_fails_or_panics() {
    let world = World::new().await;
    let payment = Payment {
        id: "rent".to_owned(),
        account: "DE02".to_owned(),
        amount: 100,
        paying_ms: u64::MAX,
        failing_deliveries: u64::MAX,
        panics: true,
    };
    let failed = deliver_with(Simulation::Off, &world, &world.host().build(), 1, &[json!(payment)]).await;
    assert_eq!(failed, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}
