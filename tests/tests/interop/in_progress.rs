//! Work in progress on one side is refused by the other.

use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Error, ErrorKind, HandlerError, Run};
use lambda_lock_tests::invocation::{keep_log, logged};
use lambda_lock_tests::{Row, Undated, drop_midway};
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::{
    AFTER_THE_WINDOW, Failed, LEASE_IN_CONTEXT, MARGIN, Orders, WITHIN_THE_WINDOW, order, place, ran, refused,
    replayed, with_each_language,
};

/// The defaults of this crate.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);

const AFTER_THE_LEASE: Duration = LEASE.saturating_add(CLOCK_SKEW);

const WITHIN_THE_LEASE: Duration = LEASE.saturating_sub(MARGIN);

/// Leaves a record of ours in progress, whose host crashed.
async fn crash(host: &Host, orders: &Orders, id: &str) {
    drop_midway(orders, &json!({"id": id}), || host.crash()).await;
}

fn refused_here() -> Value {
    refused("IdempotencyInProgress")
}

/// The error of our function. Panics if it runs.
async fn refusal(orders: &Orders, id: &str) -> Error {
    match orders.run(&json!({"id": id}), async |_| panic!("it ran")).await {
        Err(HandlerError::Lock(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn number_in(row: &Row, name: &str) -> Option<u64> {
    row.get(name).map(|value| value.as_n().unwrap().parse().unwrap())
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn rust_refuses_a_run_of_powertools_until_its_lease_ends() {
    with_each_language(async |sides| {
        let started = sides.world.host().build().now();
        sides.crash_theirs(&LEASE_IN_CONTEXT, "crashed").await;
        let refused = refusal(&sides.ours(), "crashed").await;
        assert_eq!(refused.kind(), ErrorKind::InProgress, "{refused}");
        let holder = refused.holder().unwrap();
        assert!(holder.until() >= started + LEASE && holder.until() < started + LEASE + MARGIN, "{holder}");
        assert_eq!((holder.name(), holder.fence()), (None, None));
        assert_eq!(place(&sides.ours_later(WITHIN_THE_LEASE), &order("crashed", "ours")).await, refused_here());

        let ours = sides.ours_later(AFTER_THE_LEASE);
        assert_eq!(place(&ours, &order("crashed", "ours")).await, ran(&json!("ours")));
        assert_eq!(sides.theirs(&[], &[order("crashed", "theirs")]).await, [replayed(&json!("ours"))]);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn rust_refuses_a_run_of_powertools_without_a_lease_until_its_window_ends() {
    with_each_language(async |sides| {
        sides.crash_theirs(&[], "crashed").await;
        assert_eq!(number_in(sides.rows().await.values().next().unwrap(), "in_progress_expiration"), None);
        for ours in [sides.ours(), sides.ours_later(WITHIN_THE_WINDOW)] {
            assert_eq!(place(&ours, &order("crashed", "ours")).await, refused_here());
        }
        let ours = sides.ours_later(AFTER_THE_WINDOW);
        assert_eq!(place(&ours, &order("crashed", "ours")).await, ran(&json!("ours")));
        assert_eq!(sides.theirs(&[], &[order("crashed", "theirs")]).await, [replayed(&json!("ours"))]);
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn powertools_refuses_a_crashed_run_of_rust_until_its_lease_ends() {
    with_each_language(async |sides| {
        for (id, ago) in
            [("crashed now", Duration::ZERO), ("lease not over", WITHIN_THE_LEASE), ("lease over", AFTER_THE_LEASE)]
        {
            let host = sides.world.host().clock_behind(ago).intercept(Undated).build();
            crash(&host, &sides.ours_on(&host), id).await;
        }
        let orders = ["crashed now", "lease not over", "lease over"].map(|id| order(id, "theirs"));
        let in_progress = refused("IdempotencyAlreadyInProgressError");
        assert_eq!(
            sides.theirs(&LEASE_IN_CONTEXT, &orders).await,
            [in_progress.clone(), in_progress, ran(&json!("theirs"))]
        );
        assert_eq!(place(&sides.ours(), &order("lease over", "ours")).await, replayed(&json!("theirs")));
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn a_run_of_rust_that_powertools_took_over_is_lost() {
    keep_log();
    with_each_language(async |sides| {
        // The lease of this host has ended for all others while its work goes on. The log has the key.
        let prefix = &*sides.world.table;
        let ours = sides.ours_earlier(AFTER_THE_LEASE).prefix(prefix);
        let orders = [order("completes", "theirs"), order("fails", "theirs"), json!({"id": "again", "crash": true})];
        let (under_way, taken_over) = (Barrier::new(4), Barrier::new(4));
        let run = async |order: &Value, outcome: Result<Value, Failed>| {
            let work = async |_: &Run| {
                under_way.wait().await;
                taken_over.wait().await;
                outcome
            };
            Box::pin(ours.run(order, work)).await
        };
        let takeover = async {
            under_way.wait().await;
            let options = [&LEASE_IN_CONTEXT[..], &["--prefix", prefix]].concat();
            let theirs = ran(&json!("theirs"));
            assert_eq!(sides.theirs(&options, &orders).await, [theirs.clone(), theirs, json!({"ran": true})]);
            let rows = sides.rows().await;
            taken_over.wait().await;
            rows
        };
        let (completed, failed, again, rows) = tokio::join!(
            run(&orders[0], Ok(json!("ours"))),
            run(&orders[1], Err(Failed)),
            run(&orders[2], Ok(json!("ours"))),
            takeover
        );
        assert_eq!((completed.unwrap(), again.unwrap()), (json!("ours"), json!("ours")));
        assert!(matches!(failed, Err(HandlerError::Handler(Failed))), "{failed:?}");
        assert_eq!(rows.len(), 3);
        assert_eq!(sides.rows().await, rows);
        let warnings: Vec<_> = logged(prefix).into_iter().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(
            warnings.iter().all(|line| line.contains("lost: ") && line.contains("to=an unnamed holder")),
            "{warnings:?}"
        );

        let ours = sides.ours().prefix(prefix);
        for order in &orders[..2] {
            assert_eq!(place(&ours, order).await, replayed(&json!("theirs")));
        }
        assert_eq!(place(&ours, &orders[2]).await, refused_here());
    })
    .await;
}
