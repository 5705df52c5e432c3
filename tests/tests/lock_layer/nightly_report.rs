//! The example function `nightly_report`.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use lambda_example::{Outcome, ReportRequest, Reports, Simulation, nightly_report};
use lambda_lock::Locks;
use lambda_lock::embedded::Host;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::reported;
use tokio::time::sleep;
use tower::ServiceExt;

use crate::{invocation, row, with_request_id};

/// The example function. Its locks and reports are rows of one table.
fn reports(world: &World, host: &Host) -> (Locks, Reports) {
    let locks = world.locks(host).key_prefix("lock#").build().unwrap();
    (locks, Reports::new(host.client(), &world.table, "written#"))
}

fn report(name: &str, gathering_ms: u64) -> ReportRequest {
    ReportRequest { report: name.to_owned(), gathering_ms, panics: false }
}

#[tokio::test]
async fn a_report_delivered_five_times_at_once_is_written_once() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports, Simulation::On);
    let deliveries = (1..=5).map(|number| {
        let delivery = invocation(&host, report("sales", 1_000));
        function.clone().oneshot(with_request_id(&format!("request-{number}"), delivery))
    });
    let outcomes = join_all(deliveries).await.into_iter().map(Result::unwrap);
    let (written, skipped): (Vec<_>, Vec<_>) = outcomes.partition(|outcome| matches!(outcome, Outcome::Written { .. }));
    assert!(matches!(&written[..], [Outcome::Written { times: 1, .. }]), "{written:?}");
    assert_eq!(skipped.len(), 4);
    for outcome in skipped {
        let Outcome::Skipped { reason } = outcome else { unreachable!() };
        assert!(reason.contains("report request-") && reason.contains(" stream-1"), "{reason}");
    }
}

#[tokio::test]
async fn a_report_is_written_again_the_next_night_under_a_larger_fence() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports, Simulation::On);
    let mut fences = Vec::new();
    for night in 1..=2 {
        let event = with_request_id(&format!("night-{night}"), invocation(&host, report("sales", 0)));
        let outcome = function.clone().oneshot(event).await.unwrap();
        let Outcome::Written { fence, times, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(times, night);
        fences.push(fence);
    }
    assert!(fences[0] < fences[1]);
}

#[tokio::test]
async fn two_reports_are_written_at_the_same_time() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports, Simulation::On);
    let calls = ["sales", "stock"].map(|name| function.clone().oneshot(invocation(&host, report(name, 500))));
    for outcome in join_all(calls).await {
        let outcome = outcome.unwrap();
        assert!(matches!(&outcome, Outcome::Written { times: 1, .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn an_event_that_is_delivered_twice_at_once_writes_its_report_once() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports, Simulation::On);
    let deliveries = [(); 2].map(|()| function.clone().oneshot(invocation(&host, report("sales", 500))));
    let (written, refused): (Vec<_>, Vec<_>) = join_all(deliveries).await.into_iter().partition(Result::is_ok);
    assert!(matches!(&written[..], [Ok(Outcome::Written { times: 1, .. })]), "{written:?}");
    // The layer cannot tell it from a retry after a crash, so Lambda retries it.
    let refused = refused.into_iter().map(|refused| reported(refused.unwrap_err()).0);
    assert_eq!(refused.collect::<Vec<_>>(), ["LockHeld"]);
    let retried = function.oneshot(invocation(&host, report("sales", 0))).await.unwrap();
    assert!(matches!(retried, Outcome::Written { times: 1, .. }), "{retried:?}");
}

#[tokio::test]
async fn after_a_crash_the_retry_writes_when_the_lease_has_ended() {
    let world = World::new().await;
    let crashing = world.host().build();
    let (locks, reports_there) = reports(&world, &crashing);
    let function = nightly_report(locks, reports_there, Simulation::On);
    let crashed = tokio::spawn(function.oneshot(invocation(&crashing, report("sales", 60_000))));
    while world.row("lock#sales").await.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    crashing.crash();
    crashed.abort();

    let retry = world.host().build();
    let (locks, reports_there) = reports(&world, &retry);
    let function = nightly_report(locks, reports_there, Simulation::On);
    let refused = function.oneshot(invocation(&retry, report("sales", 0))).await.unwrap_err();
    assert_eq!(reported(refused).0, "LockHeld");

    let second_retry = world.host().later(Duration::from_mins(1)).build();
    let (locks, reports_there) = reports(&world, &second_retry);
    let function = nightly_report(locks, reports_there, Simulation::On);
    let written = function.oneshot(invocation(&second_retry, report("sales", 0))).await.unwrap();
    assert!(matches!(written, Outcome::Written { times: 1, .. }), "{written:?}");
}

#[tokio::test]
async fn a_caller_cannot_choose_that_a_report_takes_long_or_panics() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let request = ReportRequest { panics: true, ..report("sales", 1_000) };
    let written = nightly_report(locks, reports, Simulation::Off).oneshot(invocation(&host, request)).await.unwrap();
    assert!(matches!(written, Outcome::Written { times: 1, .. }), "{written:?}");
}

#[tokio::test]
async fn a_report_with_an_outdated_fence_is_not_written() {
    let world = World::new().await;
    let host = world.host().build();
    // A later holder wrote while this one was paused.
    let later = u64::MAX.to_string();
    let put = world.client().put_item().table_name(&world.table);
    put.item("id", AttributeValue::S("written#report#sales".to_owned()))
        .item("fence", AttributeValue::N(later.clone()))
        .send()
        .await
        .unwrap();
    let (locks, reports) = reports(&world, &host);
    nightly_report(locks, reports, Simulation::On).oneshot(invocation(&host, report("sales", 0))).await.unwrap_err();
    assert_eq!(row(&world, "written#report#sales").await["fence"], AttributeValue::N(later));
}

#[test]
fn an_event_without_the_name_of_a_report_is_refused_before_the_lock() {
    for event in [serde_json::json!({}), serde_json::json!({ "report": "" })] {
        serde_json::from_value::<ReportRequest>(event).unwrap_err();
    }
}
