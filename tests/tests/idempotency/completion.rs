//! A run completes its record only while it owns it.

use std::fmt::Debug;

use lambda_lock::ErrorKind;
use lambda_lock::embedded::Intercept;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{Counter, keep_log, logged};
use lambda_lock_tests::request::{Purpose, purpose_of};
use serde_json::Value;
use tokio::time::sleep;

use crate::{
    AFTER_THE_LEASE, Declined, environment, give_to_another, is_declined, later, ms, order, orders, place, refused,
    storing,
};

#[tokio::test]
async fn a_run_that_loses_its_record_returns_its_result_and_warns() {
    keep_log();
    let (world, host, locks) = environment().await;
    let mut theirs = None;
    let id = format!("lost {}", world.table);
    let outcome = orders(&locks)
        .run(&order(&id), async |_| {
            theirs = Some(give_to_another(&world, &id).await);
            Ok(17)
        })
        .await;
    assert_eq!(outcome.unwrap(), 17);
    assert_eq!(host.requests(), 2);
    assert_eq!(world.row(&id).await, theirs);
    let warnings: Vec<_> = logged(&id).into_iter().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("lost: ") && warnings[0].contains("to=another environment"), "{warnings:?}");
}

#[tokio::test]
async fn a_failed_run_that_loses_its_record_does_not_modify_the_row() {
    let (world, _host, locks) = environment().await;
    for settings in [orders(&locks), storing(&locks)] {
        let mut theirs = None;
        let outcome = settings
            .run(&order("a"), async |_| {
                theirs = Some(give_to_another(&world, "a").await);
                Err::<u32, _>(Declined)
            })
            .await;
        assert!(is_declined(&outcome));
        assert_eq!(world.row("a").await, theirs);
        world.delete_row("a").await;
    }
}

#[tokio::test]
async fn after_a_takeover_duplicates_get_the_new_runs_result() {
    let (world, _host, locks) = environment().await;
    let runs = Counter::default();
    let mine = orders(&locks);
    let outcome = mine
        .run(&order("a"), async |_| {
            let mine = runs.count();
            assert_eq!(place(&orders(&later(&world, AFTER_THE_LEASE)), &order("a"), &runs).await.unwrap(), 2);
            Ok(mine)
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert_eq!(place(&mine, &order("a"), &runs).await.unwrap(), 2);
}

#[tokio::test]
async fn a_run_whose_row_is_deleted_returns_its_result_and_writes_nothing() {
    let (world, _host, locks) = environment().await;
    let outcome = orders(&locks)
        .run(&order("a"), async |_| {
            world.delete_row("a").await;
            Ok(1)
        })
        .await;
    assert_eq!(outcome.unwrap(), 1);
    assert!(world.row("a").await.is_none());
}

/// Sends completions to a table that does not exist.
#[derive(Debug)]
struct MisplacesCompletions;

impl Intercept for MisplacesCompletions {
    fn request(&self, operation: &str, request: &mut Value) {
        if purpose_of(operation, request) == Some(Purpose::Complete) {
            request["TableName"] = "elsewhere".into();
        }
    }
}

#[tokio::test]
async fn a_failed_completion_returns_the_result_and_leaves_the_record_in_progress() {
    let world = World::new().await;
    let host = world.host().intercept(MisplacesCompletions).build();
    let (mine, runs) = (orders(&world.locks(&host).build().unwrap()), Counter::default());
    assert_eq!(place(&mine, &order("a"), &runs).await.unwrap(), 1);
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 2, "no release: the work is done");
    assert_eq!(refused(place(&mine, &order("a"), &runs).await).kind(), ErrorKind::InProgress);
    let after = orders(&later(&world, AFTER_THE_LEASE));
    assert_eq!(place(&after, &order("a"), &runs).await.unwrap(), 2);
}
