//! The operations of those who have nothing in the row.

use std::time::Duration;

use lambda_lock::{Error, ErrorKind, Lock};
use lambda_lock_tests::Row;
use lambda_lock_tests::rows::{Verdict, from_json, text, verdict};
use proptest::prelude::*;
use proptest::sample::select;

use crate::claims::{Claimed, How, What, claim, kept};
use crate::rows::{KEPT_AGES, Printed, QUEUE, any_age, any_lock_row, differences, is_ours, kept_rows, number_of};
use crate::search::for_all;
use crate::stage::{Stage, ends, has_fractions, start_of_identity};
use crate::{CLOCK_SKEW, IDENTITY, KEY, LEASE, OTHER, assert_one_line, assert_readable, in_virtual_time};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Claim(What, How),
    Get,
    List,
    Check,
    ForceRelease,
    ReleaseIdentity,
    DeleteExpired,
}

fn operations() -> Vec<Operation> {
    let whats = [What::Key, What::Permit(1), What::Permit(2), What::Permit(100), What::Keys];
    let hows = [How::AtOnce, How::WithExtras, How::OfIdentity, How::TakeOver, How::Wait, How::Attempt, How::Attempts];
    let claims = whats.into_iter().flat_map(|what| hows.map(|how| Operation::Claim(what, how)));
    let others = [
        Operation::Get,
        Operation::List,
        Operation::Check,
        Operation::ForceRelease,
        Operation::ReleaseIdentity,
        Operation::DeleteExpired,
    ];
    claims.chain(others).collect()
}

#[test]
fn an_operation_on_any_row_succeeds_as_documented_or_leaves_the_row_as_it_is() {
    let cases = (any_lock_row().prop_map(Printed), any_age(), select(operations()));
    for_all("fresh", 400, &cases, |(Printed(row), age, operation)| try_on(&row, age, operation));
}

#[test]
fn every_operation_does_so_on_the_rows_of_the_corpus() {
    for row in kept_rows() {
        for age in KEPT_AGES {
            for operation in operations() {
                try_on(&from_json(&row), age, operation);
            }
        }
    }
}

fn try_on(row: &Row, age: Duration, operation: Operation) {
    in_virtual_time(async |world| {
        let stage = Stage::new(world, row.clone(), age).await;
        match operation {
            Operation::Claim(what, how) => try_claim(&stage, what, how).await,
            Operation::Get => {
                read(&stage).await;
                stage.assert_unchanged(&[]).await;
            }
            Operation::List => list(&stage).await,
            Operation::Check => {
                let report = stage.locks.check().await;
                report.findings().iter().for_each(|finding| assert_one_line(finding.message()));
                stage.assert_unchanged(&[]).await;
            }
            Operation::ForceRelease => force_release(&stage).await,
            Operation::ReleaseIdentity => release_identity(&stage).await,
            Operation::DeleteExpired => delete_expired(&stage).await,
        }
    });
}

// Claims

async fn try_claim(stage: &Stage, what: What, how: How) {
    let keys = if what == What::Keys { &[KEY, OTHER][..] } else { &[KEY] };
    let claimed = claim(&stage.locks, what, how).await;
    let most = if how.waits() { 60 } else { 6 };
    assert!(stage.host.requests() <= most, "{} requests", stage.host.requests());
    match claimed {
        Err(error) => {
            assert_readable(&error, keys);
            assert_refusal(stage, what, how, &error);
            stage.assert_unchanged(if how.waits() { &QUEUE } else { &[] }).await;
            assert_other_is_free(stage).await;
        }
        Ok(Claimed::Turn(turn)) => {
            assert!(how.waits());
            assert_eq!(kept(&turn), turn);
            stage.assert_unchanged(&QUEUE).await;
            assert_other_is_free(stage).await;
        }
        Ok(Claimed::Lock(lock)) => match what {
            What::Key => {
                assert_key_is_taken(stage, how, lock.owner(), lock.fence()).await;
                assert_ends(stage, &lock, how).await;
            }
            What::Permit(permits) => assert_permit_is_taken(stage, how, permits, &lock).await,
            What::Keys => {
                assert_key_is_taken(stage, how, lock.owner(), lock.fence_of(KEY).unwrap()).await;
                let other = stage.locks.get(OTHER).await.unwrap().expect("all keys are taken");
                assert!(other.is_current() && other.owner() == Some(lock.owner()));
                lock.release().await.unwrap();
                stage.changed_row().await;
                assert_other_is_free(stage).await;
            }
        },
    }
}

async fn assert_other_is_free(stage: &Stage) {
    let other = stage.locks.get(OTHER).await.unwrap();
    assert!(other.is_none_or(|other| !other.is_current()), "the other key is taken");
}

fn assert_refusal(stage: &Stage, what: What, how: How, error: &Error) {
    let kind = error.kind();
    if how == How::TakeOver && kind == ErrorKind::Lost {
        return;
    }
    if kind == ErrorKind::Conflict {
        // The number that is read is not the one that DynamoDB compares.
        assert!(how.has_identity() && has_fractions(&stage.before), "{error:?}");
        return;
    }
    let wrong_kind = stage.is_semaphore() != matches!(what, What::Permit(_));
    if matches!(what, What::Permit(_)) {
        match kind {
            ErrorKind::Held => assert!(stage.is_semaphore()),
            ErrorKind::WrongKind => assert!(wrong_kind),
            _ => assert_eq!(kind, ErrorKind::MalformedRow, "{error:?}"),
        }
        return;
    }
    match verdict(&stage.before, stage.now()) {
        // It is not its turn, or the row is not of its identity, which the row says only if all of it can be read.
        Verdict::Free if how.waits() || how == How::TakeOver => {
            assert!(matches!(kind, ErrorKind::Held | ErrorKind::MalformedRow), "{error:?}");
        }
        Verdict::Free => panic!("a free row was refused: {error:?}"),
        Verdict::Held => assert_eq!(kind, ErrorKind::Held, "{error:?}"),
        Verdict::Malformed if kind == ErrorKind::WrongKind => assert!(wrong_kind),
        Verdict::Malformed => assert_eq!(kind, ErrorKind::MalformedRow, "{error:?}"),
    }
}

async fn assert_key_is_taken(stage: &Stage, how: How, owner: &str, fence: u64) {
    let (before, now) = (&stage.before, stage.now());
    let is_of_identity = before
        .get("owner")
        .is_some_and(|owner| owner.as_s().is_ok_and(|owner| owner.starts_with(&start_of_identity())));
    match verdict(before, now) {
        Verdict::Free => assert!(how != How::TakeOver, "a takeover has acquired a free key"),
        _ => assert!(how.has_identity() && is_of_identity, "a row of another holder was taken"),
    }
    let mut after = stage.row().await.unwrap();
    if how == How::WithExtras && after.get("extra") == Some(&text("new")) {
        after.remove("extra");
    } else {
        assert_eq!(before.get("data"), after.get("data"), "the data is handed over");
    }
    let theirs: Vec<_> = differences(Some(before), Some(&after)).into_iter().filter(|name| !is_ours(name)).collect();
    assert!(theirs.is_empty(), "changed: {theirs:?}");
    assert_eq!((&after["status"], &after["owner"]), (&text("INPROGRESS"), &text(owner)));
    for name in ["fence", "withdrawn"] {
        let last = before.get(name).and_then(|last| last.as_n().ok()?.split('.').next()?.parse::<i128>().ok());
        assert!(last.is_none_or(|last| i128::from(fence) > last), "{fence} is not larger than `{name}`");
    }
    let holder = stage.locks.get(KEY).await.unwrap().unwrap();
    assert!(holder.is_current());
    assert_eq!((holder.owner(), holder.fence()), (Some(owner), Some(fence)));
    let another = claim(&stage.locks, What::Key, How::AtOnce).await;
    assert!(matches!(another, Err(error) if error.is_held()), "the key is then held");
}

/// Asserts that the lock is its holder's until it is released.
async fn assert_ends(stage: &Stage, lock: &Lock, how: How) {
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
    let holder = stage.locks.get(KEY).await.unwrap().unwrap();
    assert!(holder.has_released());
    assert_eq!(holder.is_current(), how == How::WithExtras);
}

async fn assert_permit_is_taken(stage: &Stage, how: How, permits: u32, lock: &Lock) {
    let now = stage.now_millis();
    let own = if how.has_identity() { start_of_identity() } else { lock.owner().to_owned() };
    let own = [format!("permit:{own}"), format!("fence:{own}")];
    let was = ends(&stage.before);
    let lasting: Vec<_> =
        was.iter().filter(|(name, end)| **end > now && ***name != own[0]).map(|(name, _)| *name).collect();
    let mut after = stage.row().await.unwrap();
    if how == How::WithExtras {
        after.remove("extra");
    }
    for name in differences(Some(&stage.before), Some(&after)) {
        assert!(is_ours(&name), "changed: {name}");
        let owner = name.strip_prefix("permit:").or(name.strip_prefix("fence:"));
        if let Some(owner) = owner.filter(|_| !own.contains(&name)) {
            let has_ended = was.get(format!("permit:{owner}").as_str()).is_some_and(|end| *end <= now);
            assert!(has_ended, "the permit of another holder has changed: {name}");
        }
    }
    let is_taken_over = was.get(own[0].as_str()).is_some_and(|end| *end > now);
    // Only the number counts. Another program may have set one that is too small.
    #[expect(clippy::cast_precision_loss, reason = "there are a few")]
    let fewest = f64::from(permits).min(was.len() as f64);
    let is_miscounted = number_of(&stage.before, "permits").is_some_and(|counted| counted < fewest);
    assert!(is_taken_over || is_miscounted || lasting.len() < permits as usize, "{lasting:?} have the permits");
    assert!(is_taken_over || how != How::TakeOver, "a takeover has acquired a permit");
    assert!(stage.is_semaphore());
    assert_eq!(after["status"], text("SEMAPHORE"));
    assert!(ends(&after)[own[0].as_str()] > now);
    match stage.locks.get(KEY).await {
        Ok(holder) => assert!(holder.unwrap().permits().iter().any(|permit| permit.owner() == Some(lock.owner()))),
        Err(error) => assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error:?}"),
    }
    match lock.release().await {
        Ok(()) if how == How::WithExtras => {}
        Ok(()) => assert!(!ends(&stage.row().await.unwrap()).contains_key(own[0].as_str())),
        Err(error) => assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error:?}"),
    }
    let released = stage.row().await.unwrap();
    assert!(lasting.iter().all(|name| released.get(*name) == stage.before.get(*name)), "{released:?}");
}

// Operators

async fn read(stage: &Stage) -> Option<lambda_lock::Holder> {
    match stage.locks.get(KEY).await {
        Ok(holder) => {
            let holder = holder.expect("the row is there");
            assert_one_line(&holder.to_string());
            Some(holder)
        }
        Err(error) => {
            assert_readable(&error, &[KEY]);
            assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error:?}");
            assert!(stage.is_semaphore() || verdict(&stage.before, stage.now()) != Verdict::Held, "{error:?}");
            None
        }
    }
}

async fn list(stage: &Stage) {
    let rows = stage.locks.list().next_page().await.unwrap().unwrap();
    let status = ["INPROGRESS", "COMPLETED", "SEMAPHORE"].map(text);
    let has = |name| stage.before.contains_key(name);
    let is_listed = stage.before.get("status").is_some_and(|is| status.contains(is))
        && (has("in_progress_expiration") || has("expiration"));
    assert_eq!(rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), if is_listed { &[KEY][..] } else { &[] });
    let holder = read(stage).await;
    for row in rows {
        match (row.holder, &holder) {
            (Ok(listed), Some(holder)) => assert_eq!(listed.to_string(), holder.to_string()),
            (Ok(_), None) => {}
            (Err(error), None) => assert_readable(&error, &[KEY]),
            (Err(error), Some(_)) => panic!("{error:?}"),
        }
    }
    stage.assert_unchanged(&[]).await;
}

async fn force_release(stage: &Stage) {
    let Some(seen) = read(stage).await else { return };
    match stage.locks.force_release(KEY, &seen).await {
        Ok(true) => {
            stage.changed_row().await;
            let after = stage.locks.get(KEY).await.unwrap().unwrap();
            assert!(!after.is_current(), "{after:?}");
            assert!(!seen.is_completed());
        }
        Ok(false) => {
            stage.assert_unchanged(&[]).await;
            assert!(seen.is_completed() || !seen.is_current() || has_fractions(&stage.before), "{seen:?} stays");
        }
        Err(error) => stage.assert_refused(&error, refusals(&stage.before)).await,
    }
}

/// Why a row that can be read is not freed for others: it is malformed, or the numbers that are read are not those that
/// DynamoDB compares.
fn refusals(row: &Row) -> &'static [ErrorKind] {
    if has_fractions(row) { &[ErrorKind::MalformedRow, ErrorKind::Conflict] } else { &[ErrorKind::MalformedRow] }
}

async fn release_identity(stage: &Stage) {
    match stage.locks.release_identity(KEY, IDENTITY).await {
        Ok(true) => {
            let before = format!("{:?}", stage.before);
            assert!(before.contains(&start_of_identity()), "the identity has not held it");
            stage.changed_row().await;
        }
        Ok(false) => stage.assert_unchanged(&[]).await,
        Err(error) => stage.assert_refused(&error, refusals(&stage.before)).await,
    }
    assert!(stage.host.requests() <= if has_fractions(&stage.before) { 6 } else { 2 });
}

async fn delete_expired(stage: &Stage) {
    let deleted = stage.locks.delete_expired().await.unwrap();
    let now = stage.now().saturating_sub(CLOCK_SKEW);
    #[expect(clippy::cast_precision_loss, reason = "times are smaller")]
    let (seconds, millis) = (now.as_secs() as f64, now.as_millis() as f64);
    let has_expired = number_of(&stage.before, "expiration").is_some_and(|end| end < seconds);
    let lasts = stage.before.contains_key("in_progress_expiration")
        && number_of(&stage.before, "in_progress_expiration").is_none_or(|end| end > millis);
    // A row of another program may have the name of a status, too.
    let is =
        |status, attribute| stage.before.get("status") == Some(&text(status)) && stage.before.contains_key(attribute);
    let is_ours = is("INPROGRESS", "in_progress_expiration")
        || is("COMPLETED", "in_progress_expiration")
        || is("SEMAPHORE", "permits");
    assert_eq!(deleted, u64::from(is_ours && has_expired && !lasts));
    if deleted == 0 {
        stage.assert_unchanged(&[]).await;
    } else {
        assert_eq!(stage.row().await, None);
    }
}
