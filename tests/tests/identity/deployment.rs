//! The example function `deployment`.

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_example::{Deployment, Done, Releases, Simulation, Step, Stopped, Task, deployment};
use lambda_lock::embedded::Host;
use lambda_lock::{Ticket, Turn};
use lambda_lock_tests::invocation::{LoseAnswers, invocation, reported};
use lambda_lock_tests::{Row, World};
use tower::ServiceExt;

use crate::number;

const PREFIX: &str = "ci#";

/// One invocation. Returns its output, or its error as Lambda reports it.
async fn invoke(world: &World, host: &Host, step: Step) -> Result<Done, (String, String)> {
    invoke_with(Simulation::On, world, host, Task::Step(Box::new(step))).await
}

async fn invoke_with(simulation: Simulation, world: &World, host: &Host, task: Task) -> Result<Done, (String, String)> {
    let locks = world.locks(host).key_prefix(PREFIX).build().unwrap();
    let function = deployment(locks, Releases::new(host.client(), &world.table, PREFIX), simulation);
    function.oneshot(invocation(host, task)).await.map_err(reported)
}

async fn take(world: &World, execution: &str) -> Result<Ticket, (String, String)> {
    match ask(world, execution, None).await? {
        Done::Taken { ticket } => Ok(ticket),
        other => panic!("{other:?}"),
    }
}

async fn ask(world: &World, execution: &str, turn: Option<Turn>) -> Result<Done, (String, String)> {
    let step = Step::Take { input: input("7"), execution: execution.to_owned(), turn };
    invoke(world, &world.host().build(), step).await
}

fn input(version: &str) -> Deployment {
    Deployment { key: "shop".to_owned(), version: version.to_owned(), rolling_out_ms: 0, fails: false }
}

fn work(ticket: &Ticket, version: &str) -> Step {
    Step::Work { ticket: ticket.clone(), input: input(version) }
}

fn free(ticket: &Ticket) -> Step {
    Step::Free { ticket: ticket.clone() }
}

async fn release(world: &World) -> Option<Row> {
    world.row("ci#release#shop").await
}

#[tokio::test]
async fn a_deployment_releases_its_version_under_its_lock() {
    let world = World::new().await;
    let host = world.host().build();
    let ticket = take(&world, "1").await.unwrap();
    let Done::Waiting { turn, delay } = ask(&world, "2", None).await.unwrap() else { panic!("it has the lock") };
    assert!((1..=900).contains(&delay), "{delay}");
    let done = invoke(&world, &host, work(&ticket, "7")).await.unwrap();
    assert_eq!(done, Done::Released { version: "7".to_owned(), fence: ticket.fence() });
    let row = release(&world).await.unwrap();
    assert_eq!((row["version"].as_s().unwrap().as_str(), number(&row, "fence")), ("7", ticket.fence()));
    assert_eq!(invoke(&world, &host, free(&ticket)).await.unwrap(), Done::Freed);
    let Done::Taken { ticket: next } = ask(&world, "2", Some(turn)).await.unwrap() else { panic!("it waits") };
    assert!(next.fence() > ticket.fence());
}

#[tokio::test]
async fn an_execution_that_waits_too_long_fails() {
    let world = World::new().await;
    let ticket = take(&world, "1").await.unwrap();
    let Done::Waiting { turn, .. } = ask(&world, "2", None).await.unwrap() else { panic!("it has the lock") };
    let mut turn = serde_json::to_value(turn).unwrap();
    turn["began"] = (turn["began"].as_u64().unwrap() - 3_600_000).into();
    let (error, message) = ask(&world, "2", serde_json::from_value(turn).unwrap()).await.unwrap_err();
    assert_eq!(error, "LockHeld", "{message}");
    invoke(&world, &world.host().build(), free(&ticket)).await.unwrap();
}

#[tokio::test]
async fn an_execution_that_was_stopped_frees_its_lock_and_no_other() {
    let world = World::new().await;
    let stopped = async |execution: &str| {
        let event = serde_json::json!({
            "executionArn": execution,
            "status": "ABORTED",
            "input": serde_json::to_string(&input("7")).unwrap(),
        });
        invoke_with(Simulation::On, &world, &world.host().build(), serde_json::from_value(event).unwrap()).await
    };
    let ticket = take(&world, "1").await.unwrap();
    assert_eq!(stopped("2").await.unwrap(), Done::Freed);
    invoke(&world, &world.host().build(), work(&ticket, "7")).await.unwrap();
    assert_eq!(stopped("1").await.unwrap(), Done::Freed);
    let (error, _) = invoke(&world, &world.host().build(), work(&ticket, "7")).await.unwrap_err();
    assert_eq!(error, "LockLost");
    let next = take(&world, "2").await.unwrap();
    assert_eq!(stopped("1").await.unwrap(), Done::Freed);
    invoke(&world, &world.host().build(), work(&next, "8")).await.unwrap();
}

#[tokio::test]
async fn an_execution_that_failed_by_its_input_has_no_lock_to_free() {
    let world = World::new().await;
    let host = world.host().build();
    let failed = Task::Stopped(Stopped { execution_arn: "1".to_owned(), input: Some("{}".to_owned()) });
    assert_eq!(invoke_with(Simulation::On, &world, &host, failed).await.unwrap(), Done::Freed);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_deployment_with_lost_answers_of_the_table_is_released() {
    let world = World::new().await;
    let ticket = take(&world, "1").await.unwrap();
    // The first answers to the renewal and to the write of the release.
    for nth in [1, 2] {
        let host = world.host().intercept(LoseAnswers::to("UpdateItem", nth..=nth)).build();
        let done = invoke(&world, &host, work(&ticket, "7")).await.unwrap();
        assert_eq!(done, Done::Released { version: "7".to_owned(), fence: ticket.fence() });
    }
}

#[tokio::test]
async fn a_failing_version_is_not_released() {
    let world = World::new().await;
    let ticket = take(&world, "1").await.unwrap();
    let Step::Work { ticket, mut input } = work(&ticket, "7") else { unreachable!() };
    input.fails = true;
    let (error, message) = invoke(&world, &world.host().build(), Step::Work { ticket, input }).await.unwrap_err();
    assert_eq!((error.as_str(), message.as_str()), ("NotDeployed", "version 7 failed its tests"));
    assert_eq!(release(&world).await, None);
}

#[tokio::test]
async fn a_caller_cannot_choose_that_a_deployment_takes_long_or_fails() {
    let world = World::new().await;
    let ticket = take(&world, "1").await.unwrap();
    let Step::Work { ticket, input } = work(&ticket, "7") else { unreachable!() };
    let input = Deployment { rolling_out_ms: 1_000, fails: true, ..input };
    let host = world.host().build();
    invoke_with(Simulation::Off, &world, &host, Task::Step(Box::new(Step::Work { ticket, input }))).await.unwrap();
    assert_eq!(release(&world).await.unwrap()["version"].as_s().unwrap(), "7");
}

#[tokio::test]
async fn a_deployment_without_its_lock_releases_nothing() {
    let world = World::new().await;
    let host = world.host().build();
    let ticket = take(&world, "1").await.unwrap();
    invoke(&world, &host, free(&ticket)).await.unwrap();
    let next = take(&world, "2").await.unwrap();
    let (error, _) = invoke(&world, &host, work(&ticket, "7")).await.unwrap_err();
    assert_eq!(error, "LockTicketRefused");
    assert_eq!(release(&world).await, None);
    // A repeated release leaves the lock of the next execution alone.
    assert_eq!(invoke(&world, &host, free(&ticket)).await.unwrap(), Done::Freed);
    invoke(&world, &host, work(&next, "8")).await.unwrap();
}

#[tokio::test]
async fn a_release_with_a_larger_fence_is_not_replaced() {
    let world = World::new().await;
    let host = world.host().build();
    let ticket = take(&world, "1").await.unwrap();
    let put = host.client().put_item().table_name(&world.table);
    put.item("id", AttributeValue::S("ci#release#shop".to_owned()))
        .item("version", AttributeValue::S("8".to_owned()))
        .item("fence", AttributeValue::N((ticket.fence() + 1).to_string()))
        .send()
        .await
        .unwrap();
    let (error, _) = invoke(&world, &host, work(&ticket, "7")).await.unwrap_err();
    assert_eq!(error, "NotDeployed");
    assert_eq!(release(&world).await.unwrap()["version"].as_s().unwrap(), "8");
}

#[tokio::test]
async fn a_repeated_attempt_takes_the_lock_of_its_execution_over() {
    let world = World::new().await;
    let host = world.host().build();
    let first = take(&world, "1").await.unwrap();
    let second = take(&world, "1").await.unwrap();
    assert!(second.fence() > first.fence());
    let (error, _) = invoke(&world, &host, work(&first, "7")).await.unwrap_err();
    assert_eq!(error, "LockLost");
    invoke(&world, &host, work(&second, "7")).await.unwrap();
}

#[test]
fn the_input_and_the_output_of_a_state_are_json() {
    let step = |input| serde_json::json!({ "action": "take", "key": "shop", "input": input, "execution": "1" });
    let input = serde_json::json!({ "key": "shop", "version": "7" });
    assert!(
        matches!(serde_json::from_value(step(input)).unwrap(), Task::Step(step) if matches!(*step, Step::Take { .. }))
    );
    // No lock is taken for an input that cannot be deployed.
    for input in [
        serde_json::json!({ "key": "", "version": "7" }),
        serde_json::json!({ "key": "shop", "version": "" }),
        serde_json::json!({ "key": "shop" }),
    ] {
        serde_json::from_value::<Task>(step(input)).unwrap_err();
    }
    assert_eq!(serde_json::to_value(Done::Freed).unwrap(), serde_json::Value::Null);
}
