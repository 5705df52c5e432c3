//! The operations of an owner whose row somebody has changed meanwhile.

use std::time::Duration;

use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::types::{Put, TransactWriteItem};
use lambda_lock::{Error, ErrorKind, Holder, Lock, Locks};
use lambda_lock_tests::Row;
use lambda_lock_tests::rows::text;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::rows::{Change, any_change, any_lock_row, differences, number_of};
use crate::search::for_all;
use crate::stage::{Stage, has_fractions, start_of_identity};
use crate::{IDENTITY, KEY, LEASE, OTHER, SINCE_EPOCH, in_virtual_time};

/// What the owner has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Key,
    KeyOfIdentity,
    HeldAtLeast,
    Permit,
    /// Beside those of others.
    OneOfThree,
    PermitOfIdentity,
    /// With [`OTHER`].
    Keys,
}

const ALL: [What; 7] = [
    What::Key,
    What::KeyOfIdentity,
    What::HeldAtLeast,
    What::Permit,
    What::OneOfThree,
    What::PermitOfIdentity,
    What::Keys,
];

impl What {
    fn is_permit(self) -> bool {
        matches!(self, Self::Permit | Self::OneOfThree | Self::PermitOfIdentity)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Renew,
    Release,
    ReleaseTwice,
    /// In a transaction.
    Check,
    /// By what was seen before the change.
    ForceRelease,
    ReleaseIdentity,
    TakeOver,
    /// With the fence of the lock.
    TakeOverFrom,
    Acquire,
}

const OPERATIONS: [Operation; 9] = [
    Operation::Renew,
    Operation::Release,
    Operation::ReleaseTwice,
    Operation::Check,
    Operation::ForceRelease,
    Operation::ReleaseIdentity,
    Operation::TakeOver,
    Operation::TakeOverFrom,
    Operation::Acquire,
];

async fn acquired(locks: &Locks, what: What) -> Lock {
    let semaphore = |permits| locks.semaphore(KEY, permits).acquire();
    match what {
        What::Key => locks.acquire(KEY).await.unwrap(),
        What::KeyOfIdentity => locks.acquire(KEY).identity(IDENTITY).await.unwrap(),
        What::HeldAtLeast => locks.acquire(KEY).min_hold(LEASE / 2).await.unwrap(),
        What::Permit => semaphore(1).await.unwrap(),
        What::OneOfThree => {
            // Neither is released.
            semaphore(3).await.unwrap().keep();
            semaphore(3).await.unwrap().keep();
            semaphore(3).await.unwrap()
        }
        What::PermitOfIdentity => semaphore(2).identity(IDENTITY).await.unwrap(),
        What::Keys => locks.acquire_all([KEY, OTHER]).await.unwrap(),
    }
}

#[test]
fn an_owner_whose_row_was_changed_has_it_still_or_leaves_it_as_it_is() {
    let changes = prop_oneof![
        4 => vec(any_change(), 0..4),
        1 => any_lock_row().prop_map(|row| vec![Change::Other(row)]),
    ];
    let ages = select(vec![Duration::ZERO, Duration::from_millis(1), LEASE / 2, LEASE, LEASE * 2]);
    let cases = (select(&ALL[..]), changes, ages, select(&OPERATIONS[..]));
    for_all("owned", 200, &cases, |(what, changes, age, operation)| try_after(what, &changes, age, operation));
}

fn try_after(what: What, changes: &[Change], age: Duration, operation: Operation) {
    in_virtual_time(async |world| {
        // Its numbers are not those of the rows that programs leave.
        let host = world.host().clock_ahead(Duration::from_millis(1)).build();
        let locks = world.locks(&host).build().unwrap();
        let held = acquired(&locks, what).await;
        let seen = locks.get(KEY).await.unwrap().unwrap();
        let acquired = world.row(KEY).await.unwrap();
        let mut row = acquired.clone();
        for change in changes {
            change.apply(&mut row);
        }
        host.advance_clock(age);
        let stage = Stage::of(world, host, locks, row).await;
        let before = stage.host.requests();
        if what == What::Keys {
            with_two(&stage, operation, &held, &acquired).await;
        } else {
            with_one(&stage, what, operation, held, &acquired, &seen).await;
        }
        let sent = stage.host.requests() - before;
        assert!(sent <= 10, "{sent} requests");
        // A release in the background may have met a row that cannot be read.
        if let Err(error) = stage.locks.flush(Duration::from_mins(1)).await {
            assert_ne!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    });
}

async fn with_one(stage: &Stage, what: What, operation: Operation, lock: Lock, acquired: &Row, seen: &Holder) {
    let (locks, owner) = (&stage.locks, lock.owner().to_owned());
    let has = Has::of(stage, what, &owner, acquired);
    let mut kinds = vec![ErrorKind::Lost, ErrorKind::MalformedRow];
    if has_fractions(&stage.before) {
        // The number that is read is not the one that DynamoDB compares.
        kinds.push(ErrorKind::Conflict);
    }
    // Another row may be of the identity, too.
    let is_named = format!("{:?}", stage.before).contains(&start_of_identity());
    let done = match operation {
        Operation::Renew => lock.renew(LEASE).await.map(|()| has.holds),
        Operation::Release | Operation::ReleaseTwice => {
            let mut released = lock.release().await;
            if operation == Operation::ReleaseTwice && released.is_ok() {
                released = lock.release().await;
            }
            released.map(|()| has.is_there)
        }
        Operation::Check => {
            let check = TransactWriteItem::builder().condition_check(lock.condition_check().unwrap()).build();
            let put = Put::builder().table_name(&stage.world.table).item("id", text("business")).build().unwrap();
            let put = TransactWriteItem::builder().put(put).build();
            let client = stage.world.client();
            let sent = Box::pin(client.transact_write_items().transact_items(check).transact_items(put).send()).await;
            match sent.map_err(SdkError::into_service_error) {
                Ok(_) => assert!(has.holds, "the check succeeds"),
                Err(error) => {
                    assert!(error.is_transaction_canceled_exception(), "{error:?}");
                    assert!(!has.holds || has_fractions(&stage.before), "the check fails");
                }
            }
            stage.assert_unchanged(&[]).await;
            return;
        }
        Operation::ForceRelease => {
            kinds.retain(|kind| *kind != ErrorKind::Lost);
            locks.force_release(KEY, seen).await.map(|is_free| is_free && (has.is_there || what.is_permit()))
        }
        Operation::ReleaseIdentity => {
            kinds.retain(|kind| *kind != ErrorKind::Lost);
            locks.release_identity(KEY, IDENTITY).await.map(|is_freed| is_freed && is_named)
        }
        Operation::TakeOver | Operation::TakeOverFrom | Operation::Acquire => {
            kinds.extend([ErrorKind::Held, ErrorKind::WrongKind]);
            let acquire = match what {
                What::PermitOfIdentity | What::Permit | What::OneOfThree => locks.semaphore(KEY, 2).acquire(),
                _ => locks.acquire(KEY),
            };
            let acquire = acquire.identity(IDENTITY);
            let next = match operation {
                Operation::TakeOver => acquire.take_over().await,
                Operation::TakeOverFrom => acquire.take_over_from(lock.fence()).await,
                _ => acquire.await,
            };
            match next {
                Ok(next) => {
                    let still = locks.get(KEY).await.ok().flatten();
                    assert!(still.is_none_or(|now| now.is_current()), "it was taken");
                    next.release().await.map(|()| operation == Operation::Acquire || is_named)
                }
                Err(error) => Err(error),
            }
        }
    };
    settle(stage, what, &owner, operation, done, &kinds).await;
}

/// Asserts that a success was allowed, and that a refusal left the row as it was.
async fn settle(
    stage: &Stage,
    what: What,
    owner: &str,
    operation: Operation,
    done: Result<bool, Error>,
    kinds: &[ErrorKind],
) {
    match done {
        Err(error) => stage.assert_refused(&error, kinds).await,
        Ok(false) if matches!(operation, Operation::ForceRelease | Operation::ReleaseIdentity) => {
            stage.assert_unchanged(&[]).await;
        }
        Ok(is_own) => {
            assert!(is_own, "it was done without the lock");
            let after = stage.changed_row().await;
            // By force, all permits that were seen are released.
            let of_others = !matches!(
                operation,
                Operation::Renew | Operation::Release | Operation::ReleaseTwice | Operation::ReleaseIdentity
            );
            if what.is_permit() && !of_others {
                let is_for_identity = operation == Operation::ReleaseIdentity;
                let what = if is_for_identity { What::PermitOfIdentity } else { what };
                assert_other_permits(stage, &own_permit(what, owner), &after);
            }
        }
    }
}

/// The name of the owner's permit.
fn own_permit(what: What, owner: &str) -> String {
    let owner = if what == What::PermitOfIdentity { start_of_identity() } else { owner.to_owned() };
    format!("permit:{owner}")
}

/// Permits of others are as they were.
fn assert_other_permits(stage: &Stage, own: &str, after: &Row) {
    for name in differences(Some(&stage.before), Some(after)) {
        assert!(!name.starts_with("permit:") || name == own, "{name} has changed");
    }
}

async fn with_two(stage: &Stage, operation: Operation, set: &Lock, acquired: &Row) {
    let has = Has::of(stage, What::Keys, set.owner(), acquired);
    let kinds = [ErrorKind::Lost, ErrorKind::MalformedRow];
    let done = match operation {
        Operation::Renew => set.renew(LEASE).await.map(|()| has.holds),
        _ => set.release().await.map(|()| has.is_there),
    };
    let goes_on = stage.now() < SINCE_EPOCH + LEASE;
    if operation != Operation::Renew && goes_on {
        let other = stage.locks.get(OTHER).await.unwrap().unwrap();
        assert!(other.has_released() && !other.is_current(), "the other key stays held");
    }
    settle(stage, What::Keys, set.owner(), operation, done, &kinds).await;
}

/// What the changed row says about the owner: another implementation.
#[derive(Debug)]
struct Has {
    /// It shows the acquisition.
    is_there: bool,
    /// The lease goes on.
    holds: bool,
}

impl Has {
    /// `acquired` is the row before the change.
    fn of(stage: &Stage, what: What, owner: &str, acquired: &Row) -> Self {
        let row = &stage.before;
        let is_same =
            |names: &[&str], now: &Row, then: &Row| names.iter().all(|name| now.get(*name) == then.get(*name));
        let goes_on = |row: &Row, end| number_of(row, end).is_some_and(|end| end > stage.now_millis());
        if what.is_permit() {
            let name = own_permit(what, owner);
            let names = if what == What::PermitOfIdentity { &["no", "nonce"][..] } else { &["no"] };
            let permit = row.get(&name).and_then(|permit| permit.as_m().ok());
            let own = permit.filter(|permit| is_same(names, permit, acquired[&name].as_m().unwrap()));
            return Self { is_there: own.is_some(), holds: own.is_some_and(|own| goes_on(own, "end")) };
        }
        let is_there = is_same(&["owner", "fence", "status"], row, acquired);
        Self { is_there, holds: is_there && goes_on(row, "in_progress_expiration") }
    }
}
