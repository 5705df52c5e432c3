//! What the runbook's table of errors says is done about them, as far as no other test does it.

use std::fmt::Debug;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, HandlerError, Idempotency};
use lambda_lock_tests::World;

use crate::{completed, locks_on, ms, s};

#[track_caller]
fn assert_kind(error: &Error, kind: &str) {
    assert_eq!(error.kind().as_str(), kind, "{error}");
}

#[track_caller]
fn assert_refused<T: Debug>(answer: Result<T, HandlerError<String>>, kind: &str) {
    match answer {
        Err(HandlerError::Lock(error)) => assert_kind(&error, kind),
        other => panic!("not {kind}: {other:?}"),
    }
}

#[tokio::test]
async fn a_lease_that_is_renewed_before_a_long_step_lasts() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let step = || locks.acquire("deploy").identity("run 7").lease(s(10));
    let lock = locks.acquire("job").lease(s(10)).await.unwrap();
    step().await.unwrap().keep();
    host.advance_clock(s(20));
    assert_kind(&lock.renew(s(10)).await.unwrap_err(), "lost");
    assert_kind(&step().take_over().await.unwrap_err(), "lost");

    let lock = locks.acquire("job").lease(s(10)).await.unwrap();
    step().await.unwrap().keep();
    lock.renew(s(30)).await.unwrap();
    step().lease(s(30)).take_over().await.unwrap().keep();
    host.advance_clock(s(20));
    lock.renew(s(10)).await.unwrap();
    step().take_over().await.unwrap().release().await.unwrap();
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_setting_is_corrected_as_its_error_says() {
    let world = World::new().await;
    let (_, locks) = locks_on(&world, world.host());
    let error = locks.acquire("job").lease(ms(0)).await.unwrap_err();
    assert_kind(&error, "invalid");
    assert!(error.to_string().contains("1ms"), "{error}");
    locks.acquire("job").lease(s(1)).await.unwrap().release().await.unwrap();

    let other_keys = world.locks(&world.host().build()).partition_key("PK").build().unwrap();
    assert_kind(&other_keys.acquire("job").await.unwrap_err(), "rejected");
    let report = other_keys.check().await.to_string();
    assert!(report.contains("the table has partition key `id` (S)"), "{report}");
    let corrected = world.locks(&world.host().build()).partition_key("id").build().unwrap();
    corrected.acquire("job").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn another_prefix_keeps_rows_apart() {
    let world = World::new().await;
    let (_, locks) = locks_on(&world, world.host());
    let id = [("id".to_owned(), AttributeValue::S("order".to_owned()))];
    world.put_row(id.into()).await;
    assert_kind(&locks.acquire("order").await.unwrap_err(), "malformed_row");
    locks.semaphore("bank", 2).acquire().await.unwrap().release().await.unwrap();
    assert_kind(&locks.acquire("bank").await.unwrap_err(), "wrong_kind");
    let prefixed = world.locks(&world.host().build()).key_prefix("locks#").build().unwrap();
    for key in ["order", "bank"] {
        prefixed.acquire(key).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_smaller_result_is_stored_and_an_old_one_is_read() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let exports = completed(&locks).lease(s(30));
    let id = "export".to_owned();
    assert_refused(exports.run(&id, async |_| Ok("x".repeat(400 * 1024))).await, "unusable_result");
    host.advance_clock(s(60));
    for _ in 0..2 {
        assert_eq!(exports.run(&id, async |_| Ok("s3://exports/7".to_owned())).await.unwrap(), "s3://exports/7");
    }

    // A deployment has changed the type of the result.
    let key = |id: &String| Some(id.clone());
    let changed = Idempotency::<_, u32, String>::new(locks.clone(), OnMissingKey::Reject, key);
    assert_refused(changed.run(&id, async |_| Ok(7)).await, "unusable_result");
    assert_eq!(changed.prefix("exports-2").run(&id, async |_| Ok(7)).await.unwrap(), 7);
}
