//! Runs that failed, and windows that have passed.

use lambda_lock::OnError;
use lambda_lock::idempotency::StoredError;
use serde_json::json;

use crate::{
    AFTER_THE_WINDOW, Failed, LEASE_IN_CONTEXT, WITHIN_THE_WINDOW, order, place, ran, replayed, with_each_language,
};

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn a_run_that_fails_on_one_side_runs_at_once_on_the_other() {
    with_each_language(async |sides| {
        let ours = sides.ours();
        let fails = |id: &str| json!({"id": id, "fail": true});
        let failed = json!({"ran": true, "error": "OrderFailed"});
        assert_eq!(place(&ours, &fails("ours failed")).await, failed);
        let orders = [order("ours failed", "theirs"), fails("theirs failed")];
        assert_eq!(sides.theirs(&LEASE_IN_CONTEXT, &orders).await, [ran(&json!("theirs")), failed]);
        assert_eq!(place(&ours, &order("theirs failed", "ours")).await, ran(&json!("ours")));
        assert_eq!(place(&ours, &order("ours failed", "ours")).await, replayed(&json!("theirs")));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn a_stored_error_of_rust_does_not_stop_powertools() {
    with_each_language(async |sides| {
        let ours = sides.ours().on_error(|Failed| OnError::Store(StoredError::new("OrderFailed", "for good")));
        let failed = json!({"id": "failed", "fail": true});
        assert_eq!(place(&ours, &failed).await, json!({"ran": true, "error": "OrderFailed"}));
        assert_eq!(sides.theirs(&[], &[order("failed", "theirs")]).await, [ran(&json!("theirs"))]);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn a_run_of_one_side_runs_again_on_the_other_after_its_window() {
    with_each_language(async |sides| {
        place(&sides.ours_earlier(WITHIN_THE_WINDOW), &order("within", "ours")).await;
        place(&sides.ours_earlier(AFTER_THE_WINDOW), &order("after", "ours")).await;
        let orders = ["within", "after", "theirs"].map(|id| order(id, "theirs"));
        let theirs = json!("theirs");
        assert_eq!(
            sides.theirs(&LEASE_IN_CONTEXT, &orders).await,
            [replayed(&json!("ours")), ran(&theirs), ran(&theirs)]
        );
        assert_eq!(place(&sides.ours_later(WITHIN_THE_WINDOW), &order("theirs", "ours")).await, replayed(&theirs));
        assert_eq!(place(&sides.ours_later(AFTER_THE_WINDOW), &order("theirs", "ours")).await, ran(&json!("ours")));
    })
    .await;
}
