//! The function `nightly-report`: one report at a time.

use std::time::Duration;

use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use futures_util::future::join_all;
use lambda_example::{Outcome, ReportRequest};
use serde_json::json;

use crate::stack::Stack;
use crate::{CLOCK_SKEW, FUNCTION_TIMEOUT, GATHERING, loop_until, number};

pub(crate) async fn one_of_five_concurrent_invocations_writes(stack: &Stack) {
    let outcomes = join_all((0..5).map(|_| stack.invoke("concurrent", GATHERING))).await;
    let (written, skipped): (Vec<_>, Vec<_>) =
        outcomes.into_iter().map(Result::unwrap).partition(|outcome| matches!(outcome, Outcome::Written { .. }));
    let [Outcome::Written { fence: first, times: 1, .. }] = written[..] else { panic!("written: {written:?}") };
    assert_eq!(number(&stack.row("nightly-report", "report#concurrent").await.unwrap(), "times"), 1);
    assert_eq!(skipped.len(), 4);
    let lock = stack.lock("nightly-report", "concurrent").await.unwrap();
    for outcome in skipped {
        let Outcome::Skipped { reason } = outcome else { unreachable!() };
        assert!(reason.contains(&format!("held by {} until ", lock["holder"].as_s().unwrap())), "{reason}");
        assert!(held_until(&reason) > number(&lock, "acquired_at"), "{reason}");
    }

    let next = stack.invoke("concurrent", Duration::ZERO).await;
    let Ok(Outcome::Written { fence, times: 2, .. }) = next else { panic!("next: {next:?}") };
    assert!(fence > first, "{fence} is not larger than {first}");
}

pub(crate) async fn a_killed_invocation_blocks_its_report_for_its_lease(stack: &Stack) {
    let (killed, until) = loop_until(Duration::from_mins(1), async || {
        let failure = stack.invoke("killed", Duration::from_mins(1)).await.unwrap_err();
        let row = stack.lock("nightly-report", "killed").await.unwrap();
        // Lambda kills the process when the layer cancels the handler and releases. This test needs a kill that comes
        // first: it retries otherwise.
        match stack.invoke("killed", Duration::ZERO).await.unwrap() {
            Outcome::Skipped { reason } => {
                assert!(failure.contains(&format!("timed out after {FUNCTION_TIMEOUT}")), "{failure}");
                Some((row, held_until(&reason)))
            }
            Outcome::Written { .. } => None,
        }
    })
    .await;
    assert_eq!(until, number(&killed, "in_progress_expiration"));
    assert!(until <= number(&killed, "acquired_at") + FUNCTION_TIMEOUT * 1000 + CLOCK_SKEW);

    let fence = loop_until(Duration::from_secs(5), async || match stack.invoke("killed", Duration::ZERO).await {
        Ok(Outcome::Written { fence, .. }) => Some(fence),
        Ok(Outcome::Skipped { .. }) => None,
        Err(error) => panic!("{error}"),
    })
    .await;
    assert!(fence > number(&killed, "fence"));
    assert!(number(&stack.lock("nightly-report", "killed").await.unwrap(), "acquired_at") >= until);
}

pub(crate) async fn the_schedule_writes_its_report(stack: &Stack) {
    // The schedule fires once a minute, and the local AWS looks at it every ten seconds.
    let report = loop_until(Duration::from_secs(90), async || stack.row("nightly-report", "report#sales").await).await;
    assert!(number(&report, "times") >= 1);
    let lock = stack.lock("nightly-report", "sales").await.unwrap();
    // Larger once the lock is released.
    assert!(number(&lock, "fence") >= number(&report, "fence"));
}

/// With `panic = "abort"`, the environment dies, and the lock stays until the invocation's deadline.
pub(crate) async fn a_report_that_panics_releases_its_lock_at_once(stack: &Stack) {
    let request = ReportRequest { report: "panics".to_owned(), gathering_ms: 0, panics: true };
    let failure = stack.report(&request).await.unwrap_err();
    let next = stack.invoke("panics", Duration::ZERO).await;
    assert!(matches!(next, Ok(Outcome::Written { times: 1, .. })), "after {failure}: {next:?}");
    assert!(failure.contains("a bug in the report"), "{failure}");
}

/// The local AWS retries after one second and after two, not after minutes.
pub(crate) async fn a_report_that_was_given_up_is_kept(stack: &Stack) {
    let request = ReportRequest { report: "given-up".to_owned(), gathering_ms: 0, panics: true };
    stack.report_later(&request).await;
    let failures = stack.queue_named("nightly-report-failures").await;
    let kept = loop_until(Duration::from_mins(1), async || failures.receive_all().await.pop()).await;
    assert_eq!(kept["requestPayload"], json!(request), "{kept}");
}

/// The time at the end of a skip reason, in milliseconds since the epoch.
fn held_until(reason: &str) -> u64 {
    let (_, until) = reason.rsplit_once(" until ").unwrap();
    let until = DateTime::from_str(until, DateTimeFormat::DateTime).unwrap();
    until.to_millis().unwrap().try_into().unwrap()
}
