//! `Locks::force_release`: an operator releases a key.

use std::future::pending;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use lambda_lock::embedded::{Answer, DynamoDb, Faults, Host, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Data, ErrorKind, HandlerError, Holder, Idempotency, Lock, Locks, OnUnfinished};
use lambda_lock_tests::invocation::{LoseAnswers, millis};
use lambda_lock_tests::{Refuse, World};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{completed, in_progress, locks_on, ms, number, s, seen, world_without_ttl};

async fn check_in_a_transaction(host: &Host, lock: &Lock) -> bool {
    let check = TransactWriteItem::builder().condition_check(lock.condition_check().unwrap()).build();
    host.client().transact_write_items().transact_items(check).send().await.is_ok()
}

#[tokio::test]
async fn a_key_released_by_force_is_free_at_once_and_lost_for_its_holder() {
    let world = World::new().await;
    let (worker, locks) = locks_on(&world, world.host());
    let (operator, tools) = locks_on(&world, world.host());
    let old = locks.acquire("nightly").data("page 7").await.unwrap();
    assert!(check_in_a_transaction(&worker, &old).await);
    let holder = seen(&tools, "nightly").await;
    let requests = operator.requests();
    assert!(tools.force_release("nightly", &holder).await.unwrap());
    assert_eq!(operator.requests() - requests, 1);
    let freed = seen(&tools, "nightly").await;
    assert!(!freed.is_current() && freed.has_released() && !freed.is_completed());
    assert_eq!(freed.owner(), Some(old.owner()));
    assert_eq!(freed.name(), Some(&*format!("process {}", std::process::id())));

    // The old holder does not know yet. Each of its requests tells it.
    assert!(old.is_valid());
    assert!(!check_in_a_transaction(&worker, &old).await);
    let next = tools.acquire("nightly").await.unwrap();
    assert!(next.fence() > old.fence());
    assert_eq!(next.data().unwrap().as_str(), Some("page 7"));
    assert!(!check_in_a_transaction(&worker, &old).await);
    let error = old.renew(s(30)).await.unwrap_err();
    assert!(error.is_lost());
    assert_eq!(error.holder().unwrap().owner(), Some(next.owner()));
    assert!(!old.is_valid());
    assert!(old.release().await.unwrap_err().is_lost());
    assert!(check_in_a_transaction(&operator, &next).await);
    next.release().await.unwrap();
}

#[tokio::test]
async fn several_keys_of_which_an_operator_freed_two_name_both() {
    let world = World::new().await;
    let locks = world.default_locks();
    let operator = world.locks(&world.host().build()).holder("released by root@vm").build().unwrap();
    let old = locks.acquire_all(["a", "b", "c"]).await.unwrap();
    for key in ["a", "b"] {
        assert!(operator.force_release(key, &seen(&operator, key).await).await.unwrap());
    }
    let error = old.release().await.unwrap_err().to_string();
    assert_eq!(error.matches("was lost, because an operator ended it (released by root@vm)").count(), 2, "{error}");
    assert!(["key `a`", "key `b`"].iter().all(|key| error.contains(key)) && !error.contains("lost to"), "{error}");
}

#[tokio::test]
async fn a_key_with_a_new_holder_is_not_released() {
    let world = World::new().await;
    let locks = world.default_locks();
    let first = locks.acquire("nightly").await.unwrap();
    let stale = seen(&locks, "nightly").await;
    first.release().await.unwrap();
    let next = locks.acquire("nightly").await.unwrap();
    let row = world.row("nightly").await;
    assert!(!locks.force_release("nightly", &stale).await.unwrap());
    assert_eq!(world.row("nightly").await, row);
    next.renew(s(30)).await.unwrap();
    next.release().await.unwrap();

    // A release does not create a row that was deleted.
    let stale = seen(&locks, "nightly").await;
    world.delete_row("nightly").await;
    assert!(!locks.force_release("nightly", &stale).await.unwrap());
    assert_eq!(world.row("nightly").await, None);
}

#[tokio::test]
async fn a_lock_renewed_since_it_was_seen_is_released() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("nightly").lease(s(5)).await.unwrap();
    let holder = seen(&locks, "nightly").await;
    lock.renew(s(60)).await.unwrap();
    assert!(locks.force_release("nightly", &holder).await.unwrap());
    locks.acquire("nightly").await.unwrap().release().await.unwrap();
    assert!(lock.release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_key_that_is_free_already_stays_free() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let released = locks.acquire("released").await.unwrap();
    let stale = seen(&locks, "released").await;
    released.release().await.unwrap();
    let row = world.row("released").await;
    // Its holder released it first. The release by force succeeds and does not modify the row, so that it can be
    // retried.
    assert!(locks.force_release("released", &stale).await.unwrap());
    assert!(locks.force_release("released", &seen(&locks, "released").await).await.unwrap());
    assert_eq!(world.row("released").await, row);
    let expired = locks.acquire("expired").lease(s(10)).await.unwrap();
    host.advance_clock(s(20));
    assert!(locks.force_release("expired", &seen(&locks, "expired").await).await.unwrap());
    for (key, fence) in [("released", released.fence()), ("expired", expired.fence())] {
        assert!(!seen(&locks, key).await.is_current());
        let next = locks.acquire(key).await.unwrap();
        assert!(next.fence() > fence);
        next.release().await.unwrap();
    }
    assert!(expired.release().await.unwrap_err().is_lost());

    // A key that is kept by its minimum hold is released too.
    locks.acquire("kept").min_hold(s(60)).await.unwrap().release().await.unwrap();
    assert!(locks.try_acquire("kept").await.unwrap().is_none());
    assert!(locks.force_release("kept", &seen(&locks, "kept").await).await.unwrap());
    locks.acquire("kept").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_completed_run_is_not_released() {
    let world = World::new().await;
    let locks = world.default_locks();
    let orders = completed(&locks);
    let id = "order".to_owned();
    orders.run(&id, async |_| Ok("first".to_owned())).await.unwrap();
    let row = world.row("order").await;
    let freed = locks.force_release("order", &seen(&locks, "order").await).await.unwrap();
    assert_eq!(world.row("order").await, row);
    assert_eq!(orders.run(&id, async |_| Ok("second".to_owned())).await.unwrap(), "first");
    assert!(!freed);
}

#[tokio::test]
async fn a_run_that_completes_after_it_was_seen_stays_completed() {
    let world = World::new().await;
    let locks = world.default_locks();
    let orders = completed(&locks);
    let (id, mut holder) = ("order".to_owned(), None);
    let run = orders.run(&id, async |_| {
        holder = Some(seen(&locks, "order").await);
        Ok("first".to_owned())
    });
    run.await.unwrap();
    assert!(!locks.force_release("order", &holder.unwrap()).await.unwrap());
    assert_eq!(orders.run(&id, async |_| Ok("second".to_owned())).await.unwrap(), "first");
}

/// Loses the answer to the first update, and notifies the test.
#[derive(Clone, Debug, Default)]
struct FirstIsLost(Arc<Notify>, Arc<Mutex<u32>>);

impl Intercept for FirstIsLost {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        let mut updates = self.1.lock().unwrap();
        if operation == "UpdateItem" {
            *updates += 1;
            if *updates == 1 {
                answer.status = 500;
                answer.body = json!({ "__type": "InternalServerError" });
                self.0.notify_one();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_by_force_with_a_lost_answer_succeeds_after_the_next_acquire() {
    // In paused time: the SDK's pause before its second try is random, and the taker must be faster.
    let engine = DynamoDb::new().unwrap();
    let locks = Locks::builder(engine.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    let _old = locks.acquire("nightly").await.unwrap();
    let lost = FirstIsLost::default();
    let host = engine.host().intercept(lost.clone()).build();
    let tools = Locks::builder(host.client(), "locks").build().unwrap();
    let holder = seen(&tools, "nightly").await;
    let taker = async {
        lost.0.notified().await;
        locks.acquire("nightly").await.unwrap()
    };
    let (freed, next) = tokio::join!(tools.force_release("nightly", &holder), taker);
    assert!(freed.unwrap());
    assert_eq!(host.requests(), 3);
    // The new holder keeps the key.
    next.renew(s(30)).await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_release_by_force_returns_errors_and_rejects_an_empty_key() {
    World::skip_waits();
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("nightly").await.unwrap();
    let holder = seen(&locks, "nightly").await;
    let (_, tools) = locks_on(&world, world.host().faults(Faults::seeded(1).throttle(1.0)));
    assert_eq!(tools.force_release("nightly", &holder).await.unwrap_err().kind(), ErrorKind::Throttled);
    let (host, tools) = locks_on(&world, world.host());
    assert_eq!(tools.force_release("", &holder).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(host.requests(), 0);
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_row_without_an_owner_is_released_while_its_lease_is_unchanged() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let end = millis(host.now() + s(60));
    // An acquire has left the fence, which says nothing about the runs of the other library.
    for fence in [None, Some(7)] {
        let row = |end| {
            let mut row = in_progress("theirs", end);
            row.extend(fence.map(|fence| ("fence".to_owned(), number(fence))));
            row
        };
        world.put_row(row(end)).await;
        assert!(locks.try_acquire("theirs").await.unwrap().is_none());
        let holder = seen(&locks, "theirs").await;
        world.put_row(row(end + 1)).await;
        assert!(!locks.force_release("theirs", &holder).await.unwrap(), "another run of theirs");
    }
    let holder = seen(&locks, "theirs").await;
    assert!(locks.force_release("theirs", &holder).await.unwrap());
    let lock = locks.acquire("theirs").await.unwrap();
    // The row had no owner when it was seen, and has one now.
    assert!(!locks.force_release("theirs", &holder).await.unwrap());
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_row_without_owner_and_lease_is_released() {
    let world = world_without_ttl().await;
    let (host, locks) = locks_on(&world, world.host());
    // As Powertools writes it without a Lambda context: the end of the window, in seconds, is its only time.
    let mut row = in_progress("theirs", 0);
    row.remove("in_progress_expiration");
    row.insert("expiration".to_owned(), number(millis(host.now() + s(3600)) / 1000));
    world.put_row(row).await;
    let holder = seen(&locks, "theirs").await;
    assert!(holder.is_current() && holder.owner().is_none());
    assert!(locks.try_acquire("theirs").await.unwrap().is_none());
    assert!(locks.force_release("theirs", &holder).await.unwrap());
    locks.acquire("theirs").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_key_released_by_a_wrong_clock_is_free_at_once() {
    let world = World::new().await;
    let (_, locks) = locks_on(&world, world.host());
    for (key, operator) in
        [("behind", world.host().clock_behind(s(3600))), ("ahead", world.host().clock_ahead(s(3600)))]
    {
        let old = locks.acquire(key).lease(s(30)).await.unwrap();
        let (_, tools) = locks_on(&world, operator);
        assert!(tools.force_release(key, &seen(&locks, key).await).await.unwrap());
        assert!(!seen(&locks, key).await.is_current());
        assert!(locks.acquire(key).await.unwrap().fence() > old.fence());
        assert!(old.release().await.unwrap_err().is_lost());
    }
}

#[tokio::test]
async fn an_unfinished_run_runs_again_after_a_release_by_force() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let transfers = completed(&locks).on_unfinished(OnUnfinished::Reject).lease(s(10));
    let id = "transfer".to_owned();
    let crashing = transfers.run(&id, async |_| {
        host.advance_clock(s(30));
        pending().await
    });
    assert!(matches!(crashing.await.unwrap_err(), HandlerError::Lock(error) if error.is_lost()));
    let refused = transfers.run(&id, async |_| Ok("again".to_owned())).await;
    let HandlerError::Lock(error) = refused.unwrap_err() else { panic!("not run") };
    assert_eq!(error.kind(), ErrorKind::Unfinished);
    // The holder in the refusal suffices for the release.
    assert!(locks.force_release("transfer", error.holder().unwrap()).await.unwrap());
    assert_eq!(transfers.run(&id, async |_| Ok("again".to_owned())).await.unwrap(), "again");
    assert_eq!(transfers.run(&id, async |_| Ok("a third time".to_owned())).await.unwrap(), "again");
}

/// The record of a payment whose run has died, as it was seen.
async fn unfinished(host: &Host, locks: &Locks) -> Holder {
    let lock = locks.acquire("payment").lease(s(10)).await.unwrap();
    lock.keep();
    host.advance_clock(s(30));
    seen(locks, "payment").await
}

#[tokio::test]
async fn an_unfinished_run_that_is_completed_is_replayed_for_the_window() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let record = unfinished(&host, &locks).await;
    let requests = host.requests();
    let result = Data::from("\"receipt\"");
    assert!(locks.force_complete("payment", &record, s(3600), Some(result)).await.unwrap());
    assert_eq!(host.requests() - requests, 1);
    let completed_by = seen(&locks, "payment").await;
    assert!(completed_by.is_completed() && completed_by.has_released());
    assert_eq!(completed_by.owner(), record.owner());
    assert_eq!(completed_by.name(), Some(&*format!("process {}", std::process::id())));
    let payments = completed(&locks);
    let again = async || payments.run(&"payment".to_owned(), async |_| Ok("again".to_owned())).await.unwrap();
    host.advance_clock(s(3590));
    assert_eq!(again().await, "receipt");
    host.advance_clock(s(20));
    assert_eq!(again().await, "again");
}

#[tokio::test]
async fn a_run_completed_without_a_result_is_replayed_as_null() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    // A lock has left data that is no result.
    locks.acquire("payment").data("page 7").await.unwrap().release().await.unwrap();
    let record = unfinished(&host, &locks).await;
    assert!(locks.force_complete("payment", &record, s(3600), None).await.unwrap());
    let key = |id: &String| Some(id.clone());
    let messages = Idempotency::<String, (), String>::new(locks, OnMissingKey::Reject, key);
    messages.run(&"payment".to_owned(), async |_| Err("it runs".to_owned())).await.unwrap();
}

#[tokio::test]
async fn a_record_that_has_changed_is_not_completed() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let record = unfinished(&host, &locks).await;
    let complete = async || locks.force_complete("payment", &record, s(3600), None).await.unwrap();
    let _next = locks.acquire("payment").await.unwrap();
    let row = world.row("payment").await;
    assert!(!complete().await);
    assert_eq!(world.row("payment").await, row);
    host.advance_clock(s(60));
    let next = seen(&locks, "payment").await;
    assert!(locks.force_release("payment", &next).await.unwrap());
    assert!(!complete().await);
    world.delete_row("payment").await;
    assert!(!complete().await);
    assert_eq!(world.row("payment").await, None);
    for window in [ms(999), s(367 * 86_400)] {
        let error = locks.force_complete("payment", &record, window, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let large = Data::from("x".repeat(400 * 1024));
    let error = locks.force_complete("payment", &record, s(60), Some(large)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_record_that_another_operator_has_completed_is_not_completed() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let record = unfinished(&host, &locks).await;
    assert!(locks.force_complete("payment", &record, s(3600), Some("receipt".into())).await.unwrap());
    host.advance_clock(ms(10));
    assert!(!locks.force_complete("payment", &record, s(3600), None).await.unwrap());
}

#[tokio::test]
async fn a_completion_by_force_whose_answer_was_lost_succeeds() {
    let world = World::new().await;
    let (host, locks) = locks_on(&world, world.host());
    let record = unfinished(&host, &locks).await;
    let (_, tools) = locks_on(&world, world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)));
    assert!(tools.force_complete("payment", &record, s(3600), None).await.unwrap());
}

#[tokio::test]
async fn a_row_of_another_program_is_not_released() {
    let world = World::new().await;
    let locks = world.default_locks();
    let lock = locks.acquire("order-7").await.unwrap();
    let holder = seen(&locks, "order-7").await;
    let permit = locks.semaphore("pool", 2).acquire().await.unwrap();
    let permits = seen(&locks, "pool").await;
    let order = |status: &str| {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        [("id", text("order-7")), ("status", text(status)), ("owner", text("alice")), ("expiration", number(1))]
            .map(|(name, value)| (name.to_owned(), value))
    };
    for status in ["SHIPPED", "INPROGRESS", "COMPLETED", "SEMAPHORE"] {
        world.put_row(order(status).into()).await;
        for seen in [&holder, &permits] {
            match locks.force_release("order-7", seen).await {
                Ok(is_free) => assert!(!is_free, "{status}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::MalformedRow),
            }
            assert_eq!(world.row("order-7").await, Some(order(status).into()));
        }
    }
    drop((lock, permit));
}

#[tokio::test]
async fn a_release_by_force_of_permits_that_always_change_is_given_up() {
    let world = World::new().await;
    let permit = world.default_locks().semaphore("bank", 2).acquire().await.unwrap();
    let (operator, tools) = locks_on(&world, world.host().intercept(Refuse::writes_from(1)));
    let holder = seen(&tools, "bank").await;
    let requests = operator.requests();
    assert_eq!(tools.force_release("bank", &holder).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(operator.requests() - requests, 4);
    permit.release().await.unwrap();
}
