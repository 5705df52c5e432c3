//! The example function `deployment`.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_example::{Deployment, Done, Releases, Simulation, Step, Stopped, Task, deployment};
use lambda_lock::Turn;
use lambda_lock::embedded::Host;
use lambda_lock_tests::invocation::{LoseAnswers, invocation, reported};
use lambda_lock_tests::{Row, World};
use tower::ServiceExt;

use crate::{CLOCK_SKEW, number};

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

/// Takes the lock. Returns its fence.
async fn take(world: &World, execution: &str) -> Result<u64, (String, String)> {
    match ask(world, execution, None).await? {
        Done::Taken { fence } => Ok(fence),
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

fn work(execution: &str, fence: u64, version: &str) -> Step {
    Step::Work { input: input(version), execution: execution.to_owned(), fence }
}

fn free(execution: &str) -> Step {
    Step::Free { key: "shop".to_owned(), execution: execution.to_owned() }
}

/// The fence by which a step has released its version.
fn fence_of(done: &Done) -> u64 {
    match done {
        Done::Released { fence, .. } => *fence,
        other => panic!("{other:?}"),
    }
}

async fn release(world: &World) -> Option<Row> {
    world.row("ci#release#shop").await
}

/// Frees the lock of an execution that was stopped, as the rule of the example stack does.
async fn stop(world: &World, execution: &str) {
    let event = serde_json::json!({
        "executionArn": execution,
        "status": "ABORTED",
        "input": serde_json::to_string(&input("7")).unwrap(),
    });
    let task = serde_json::from_value(event).unwrap();
    let done = invoke_with(Simulation::On, world, &world.host().build(), task).await;
    assert_eq!(done.unwrap(), Done::Freed);
}

#[tokio::test]
async fn a_deployment_releases_its_version_under_its_lock() {
    let world = World::new().await;
    let host = world.host().build();
    let taken = take(&world, "1").await.unwrap();
    let Done::Waiting { turn, delay } = ask(&world, "2", None).await.unwrap() else { panic!("it has the lock") };
    assert!((1..=900).contains(&delay), "{delay}");
    let done = invoke(&world, &host, work("1", taken, "7")).await.unwrap();
    let fence = fence_of(&done);
    assert!(fence > taken);
    assert_eq!(done, Done::Released { version: "7".to_owned(), fence });
    let row = release(&world).await.unwrap();
    assert_eq!((row["version"].as_s().unwrap().as_str(), number(&row, "fence")), ("7", fence));
    assert_eq!(invoke(&world, &host, free("1")).await.unwrap(), Done::Freed);
    // The takeover, the write of the release, and two to free the lock.
    assert_eq!(host.requests(), 4);
    let Done::Taken { fence: next } = ask(&world, "2", Some(turn)).await.unwrap() else { panic!("it waits") };
    assert!(next > fence);
}

#[tokio::test]
async fn an_execution_that_waits_too_long_fails() {
    let world = World::new().await;
    take(&world, "1").await.unwrap();
    let Done::Waiting { turn, .. } = ask(&world, "2", None).await.unwrap() else { panic!("it has the lock") };
    let mut turn = serde_json::to_value(turn).unwrap();
    turn["began"] = (turn["began"].as_u64().unwrap() - 3_600_000).into();
    let (error, message) = ask(&world, "2", serde_json::from_value(turn).unwrap()).await.unwrap_err();
    assert_eq!(error, "LockHeld", "{message}");
}

#[tokio::test]
async fn an_execution_that_was_stopped_frees_its_lock_and_no_other() {
    let world = World::new().await;
    let host = world.host().build();
    let taken = take(&world, "1").await.unwrap();
    stop(&world, "2").await;
    invoke(&world, &host, work("1", taken, "7")).await.unwrap();
    stop(&world, "1").await;
    let (error, _) = invoke(&world, &host, work("1", taken, "7")).await.unwrap_err();
    assert_eq!(error, "LockLost");
    let next = take(&world, "2").await.unwrap();
    stop(&world, "1").await;
    invoke(&world, &host, work("2", next, "8")).await.unwrap();
}

#[tokio::test]
async fn a_redriven_execution_goes_on_within_its_lease_only() {
    let world = World::new().await;
    let host = world.host().build();
    let taken = take(&world, "1").await.unwrap();
    host.advance_clock(Duration::from_mins(9));
    let redriven = invoke(&world, &host, work("1", taken, "7")).await.unwrap();
    host.advance_clock(Duration::from_mins(10) + CLOCK_SKEW);
    let (error, message) = invoke(&world, &host, work("1", taken, "7")).await.unwrap_err();
    assert_eq!(error, "LockLost");
    assert!(message.ends_with("was lost: its lease ended, it was freed, or its row was deleted"), "{message}");
    assert_eq!(number(&release(&world).await.unwrap(), "fence"), fence_of(&redriven));
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
    let taken = take(&world, "1").await.unwrap();
    // The first answers to the takeover and to the write of the release.
    for nth in [1, 2] {
        let host = world.host().intercept(LoseAnswers::to("UpdateItem", nth..=nth)).build();
        let done = invoke(&world, &host, work("1", taken, "7")).await.unwrap();
        assert_eq!(number(&release(&world).await.unwrap(), "fence"), fence_of(&done));
    }
}

#[tokio::test]
async fn a_failing_version_is_not_released_and_leaves_the_lock_held() {
    let world = World::new().await;
    let host = world.host().build();
    let taken = take(&world, "1").await.unwrap();
    let fails = Deployment { fails: true, ..input("7") };
    let failing = Step::Work { input: fails, execution: "1".to_owned(), fence: taken };
    let (error, message) = invoke(&world, &host, failing).await.unwrap_err();
    assert_eq!((error.as_str(), message.as_str()), ("NotDeployed", "version 7 failed its tests"));
    assert_eq!(release(&world).await, None);
    assert!(matches!(ask(&world, "2", None).await.unwrap(), Done::Waiting { .. }));
    invoke(&world, &host, work("1", taken, "7")).await.unwrap();
}

#[tokio::test]
async fn a_caller_cannot_choose_that_a_deployment_takes_long_or_fails() {
    let world = World::new().await;
    let fence = take(&world, "1").await.unwrap();
    let input = Deployment { rolling_out_ms: 1_000, fails: true, ..input("7") };
    let host = world.host().build();
    let step = Step::Work { input, execution: "1".to_owned(), fence };
    invoke_with(Simulation::Off, &world, &host, Task::Step(Box::new(step))).await.unwrap();
    assert_eq!(release(&world).await.unwrap()["version"].as_s().unwrap(), "7");
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_attempts_at_once_cannot_undo_the_later() {
    let world = World::in_virtual_time().await;
    let (one, other) = (world.host().build(), world.host().build());
    let fence = take(&world, "1").await.unwrap();
    let slow = Deployment { rolling_out_ms: 60_000, ..input("7") };
    let slow = invoke(&world, &one, Step::Work { input: slow, execution: "1".to_owned(), fence });
    let later = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        invoke(&world, &other, work("1", fence, "7")).await
    };
    let (slow, later) = tokio::join!(slow, later);
    assert_eq!(slow.unwrap_err().0, "NotDeployed");
    assert_eq!(number(&release(&world).await.unwrap(), "fence"), fence_of(&later.unwrap()));
    // The earlier attempt has not freed the lock of the later one.
    assert!(matches!(ask(&world, "2", None).await.unwrap(), Done::Waiting { .. }));
}

#[tokio::test]
async fn a_release_with_a_larger_fence_is_not_replaced() {
    let world = World::new().await;
    let host = world.host().build();
    let taken = take(&world, "1").await.unwrap();
    let later = taken + 3_600_000_000;
    let put = host.client().put_item().table_name(&world.table);
    put.item("id", AttributeValue::S("ci#release#shop".to_owned()))
        .item("version", AttributeValue::S("8".to_owned()))
        .item("fence", AttributeValue::N(later.to_string()))
        .send()
        .await
        .unwrap();
    let (error, _) = invoke(&world, &host, work("1", taken, "7")).await.unwrap_err();
    assert_eq!(error, "NotDeployed");
    assert_eq!(release(&world).await.unwrap()["version"].as_s().unwrap(), "8");
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
    for (done, json) in [
        (Done::Freed, serde_json::Value::Null),
        (Done::Taken { fence: 7 }, serde_json::json!({ "fence": 7 })),
        (Done::Released { version: "7".to_owned(), fence: 8 }, serde_json::json!({ "version": "7", "fence": 8 })),
    ] {
        assert_eq!(serde_json::to_value(&done).unwrap(), json);
        assert_eq!(serde_json::from_value::<Done>(json).unwrap(), done);
    }
}
