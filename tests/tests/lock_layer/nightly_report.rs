//! The example function `nightly_report`.

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use lambda_example::{Outcome, ReportRequest, Reports, nightly_report};
use lambda_lock::Locks;
use lambda_lock::embedded::Host;
use lambda_lock_tests::World;
use tower::ServiceExt;

use crate::{invocation, row};

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
    let function = nightly_report(locks, reports);
    let deliveries = (0..5).map(|_| function.clone().oneshot(invocation(&host, report("sales", 1_000))));
    let outcomes = join_all(deliveries).await.into_iter().map(Result::unwrap);
    let (written, skipped): (Vec<_>, Vec<_>) = outcomes.partition(|outcome| matches!(outcome, Outcome::Written { .. }));
    assert!(matches!(&written[..], [Outcome::Written { times: 1, .. }]), "{written:?}");
    assert_eq!(skipped.len(), 4);
    for outcome in skipped {
        let Outcome::Skipped { reason } = outcome else { unreachable!() };
        assert!(reason.contains("report request-1 stream-1"), "{reason}");
    }
}

#[tokio::test]
async fn a_report_is_written_again_the_next_night_under_a_larger_fence() {
    let world = World::new().await;
    let host = world.host().build();
    let (locks, reports) = reports(&world, &host);
    let function = nightly_report(locks, reports);
    let mut fences = Vec::new();
    for night in 1..=2 {
        let outcome = function.clone().oneshot(invocation(&host, report("sales", 0))).await.unwrap();
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
    let function = nightly_report(locks, reports);
    let calls = ["sales", "stock"].map(|name| function.clone().oneshot(invocation(&host, report(name, 500))));
    for outcome in join_all(calls).await {
        let outcome = outcome.unwrap();
        assert!(matches!(&outcome, Outcome::Written { times: 1, .. }), "{outcome:?}");
    }
}

// behaviour 78
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
    nightly_report(locks, reports).oneshot(invocation(&host, report("sales", 0))).await.unwrap_err();
    assert_eq!(row(&world, "written#report#sales").await["fence"], AttributeValue::N(later));
}
