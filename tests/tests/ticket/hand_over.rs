//! A lock that another process resumes, renews and releases.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use lambda_lock::embedded::{Answer, Faults, Host, Intercept};
use lambda_lock::{Data, ErrorKind};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{LoseAnswers, millis};
use serde_json::Value;
use tokio::sync::Notify;

use crate::{CLOCK_SKEW, LEASE, acquired, host, ms, number, passed_on, ticket};

fn requests(of: &Host, before: u64) -> u64 {
    of.requests() - before
}

#[tokio::test]
async fn a_ticket_sends_nothing_and_keeps_the_key_held() {
    let world = World::new().await;
    let (first, locks) = host(&world);
    let lock = locks.acquire("job").lease(LEASE).await.unwrap();
    let (fence, end, before) = (lock.fence(), lock.expires_at(), world.row("job").await);
    let ticket = lock.into_ticket().unwrap();
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(first.requests(), 1);
    assert_eq!(world.row("job").await, before);
    assert_eq!((ticket.key(), ticket.table(), ticket.fence()), ("job", world.table.as_str(), fence));
    assert_eq!(millis(ticket.expires_at()), millis(end));
    assert!(ticket.is_enforced());
    assert!(locks.try_acquire("job").await.unwrap().is_none());
}

#[tokio::test]
async fn a_resumed_lock_has_the_fence_the_data_and_the_lease() {
    let world = World::new().await;
    let lock = acquired(&world).await;
    let (fence, owner, end, since) = (lock.fence(), lock.owner().to_owned(), lock.expires_at(), lock.acquired_at());
    let ticket = passed_on(&lock.into_ticket().unwrap());
    let (second, locks) = host(&world);
    let resumed = locks.resume(&ticket).await.unwrap();
    assert_eq!(second.requests(), 1);
    assert_eq!((resumed.fence(), resumed.owner(), resumed.key()), (fence, owner.as_str(), "job"));
    assert_eq!(resumed.data().and_then(Data::as_str), Some("page 7"));
    assert_eq!(millis(resumed.expires_at()), millis(end));
    assert_eq!(resumed.acquired_at(), since);
    assert!(resumed.is_valid() && resumed.is_enforced());
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_none());
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(end + CLOCK_SKEW));
    resumed.release().await.unwrap();
}

#[tokio::test]
async fn work_under_a_resumed_lock_is_cancelled_when_the_lease_ends() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (second, locks) = host(&world);
    let lock = locks.resume(&ticket).await.unwrap();
    assert_eq!(lock.while_held(async { "done" }).await.unwrap(), "done");
    assert_eq!(second.requests(), 1);
    assert!(lock.is_valid());
    second.advance_clock(LEASE);
    let error = lock.while_held(pending::<()>()).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(second.requests(), 1);
}

#[tokio::test]
async fn a_resumed_lock_can_be_renewed_checked_and_released() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (second, locks) = host(&world);
    let lock = locks.resume(&ticket).await.unwrap();
    lock.renew(2 * LEASE).await.unwrap();
    assert!(lock.remaining() > LEASE);
    let row = world.row("job").await.unwrap();
    assert_eq!(number(&row, "in_progress_expiration"), millis(lock.expires_at() + CLOCK_SKEW));
    let check = aws_sdk_dynamodb::types::TransactWriteItem::builder().condition_check(lock.condition_check().unwrap());
    second.client().transact_write_items().transact_items(check.build()).send().await.unwrap();
    lock.set_data("page 8");
    lock.release().await.unwrap();
    assert_eq!(second.requests(), 4);
    let next = world.default_locks().try_acquire("job").await.unwrap().unwrap();
    assert!(next.fence() > ticket.fence());
    assert_eq!(next.data().and_then(Data::as_str), Some("page 8"));
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_can_be_handed_over_several_times() {
    let world = World::new().await;
    let mut ticket = ticket(&world).await;
    for _ in 0..3 {
        let lock = world.default_locks().resume(&ticket).await.unwrap();
        lock.renew(LEASE).await.unwrap();
        let next = passed_on(&lock.into_ticket().unwrap());
        assert_eq!(world.default_locks().resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketUsed);
        ticket = next;
    }
    world.default_locks().release_ticket(&ticket).await.unwrap();
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_resumed_lock_that_is_dropped_is_released() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (_, locks) = host(&world);
    drop(locks.resume(&ticket).await.unwrap());
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_renewal_with_a_ticket_extends_the_lease_and_does_not_use_it_up() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (second, locks) = host(&world);
    for factor in [2, 3] {
        let before = second.requests();
        let end = locks.renew_ticket(&ticket, factor * LEASE).await.unwrap();
        assert_eq!(requests(&second, before), 1);
        assert!(end > second.now() + (factor - 1) * LEASE && end <= second.now() + factor * LEASE);
        let row = world.row("job").await.unwrap();
        assert_eq!(number(&row, "in_progress_expiration"), millis(end + CLOCK_SKEW));
        assert!(number(&row, "expiration") * 1000 >= millis(end + CLOCK_SKEW + std::time::Duration::from_hours(24)));
        assert_eq!(number(&row, "sequence"), 0);
    }
    // A shorter lease changes nothing.
    let row = world.row("job").await;
    let end = locks.renew_ticket(&ticket, LEASE).await.unwrap();
    assert_eq!(millis(end + CLOCK_SKEW), number(row.as_ref().unwrap(), "in_progress_expiration"));
    assert_eq!(world.row("job").await, row);
    let lock = locks.resume(&ticket).await.unwrap();
    assert_eq!(lock.expires_at(), end);
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_release_with_a_ticket_frees_the_key_and_can_be_repeated() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let (second, locks) = host(&world);
    locks.release_ticket(&ticket).await.unwrap();
    assert_eq!(second.requests(), 1);
    locks.release_ticket(&ticket).await.unwrap();
    let next = world.default_locks().try_acquire("job").await.unwrap().unwrap();
    assert_eq!(next.data().and_then(Data::as_str), Some("page 7"));
    let row = world.row("job").await;
    locks.release_ticket(&ticket).await.unwrap();
    assert_eq!(world.row("job").await, row);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_minimum_hold_goes_with_the_ticket() {
    let world = World::new().await;
    for resumes in [true, false] {
        let (key, hold) = (format!("job {resumes}"), LEASE / 2);
        let lock = world.default_locks().acquire(&key).lease(LEASE).min_hold(hold).await.unwrap();
        let until = lock.acquired_at() + hold + CLOCK_SKEW;
        let ticket = passed_on(&lock.into_ticket().unwrap());
        let (second, locks) = host(&world);
        if resumes {
            locks.resume(&ticket).await.unwrap().release().await.unwrap();
        } else {
            locks.release_ticket(&ticket).await.unwrap();
        }
        assert!(locks.try_acquire(&key).await.unwrap().is_none());
        let end = number(&world.row(&key).await.unwrap(), "in_progress_expiration");
        assert!((millis(until)..=millis(until) + 1).contains(&end), "{end} {}", millis(until));
        second.advance_clock(hold + CLOCK_SKEW + ms(1));
        assert!(locks.try_acquire(&key).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_resumed_lock_counts_its_hold_with_those_before() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let lock = locks.acquire("job").lease(LEASE).await.unwrap();
    host.advance_clock(ms(8000));
    lock.release().await.unwrap();
    let ticket = locks.acquire("job").lease(LEASE).await.unwrap().into_ticket().unwrap();
    host.advance_clock(ms(2000));
    locks.resume(&ticket).await.unwrap().release().await.unwrap();
    let mean = locks.get("job").await.unwrap().unwrap().hold_time().unwrap();
    assert!((ms(4900)..ms(7500)).contains(&mean), "{mean:?}");
}

#[tokio::test]
async fn a_resumption_with_a_lost_answer_succeeds() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let second = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    let locks = world.locks_with_quick_retries(&second).build().unwrap();
    let lock = locks.resume(&ticket).await.unwrap();
    assert_eq!(second.requests(), 2);
    assert_eq!((lock.fence(), millis(lock.expires_at())), (ticket.fence(), millis(ticket.expires_at())));
    assert_eq!(lock.data().and_then(Data::as_str), Some("page 7"));
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_resumption_without_any_answer_uses_up_the_ticket() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let second = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=3)).build();
    let locks = world.locks_with_quick_retries(&second).build().unwrap();
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketUsed);
}

#[tokio::test]
async fn a_resumption_that_is_dropped_can_use_up_the_ticket_and_leaves_the_key_held() {
    /// Tells that a request was applied, before its answer returns.
    #[derive(Debug)]
    struct Applied(Arc<Notify>);

    impl Intercept for Applied {
        fn answer(&self, _: &str, _: &Value, _: &mut Answer) {
            self.0.notify_one();
        }
    }

    let world = World::new().await;
    let ticket = ticket(&world).await;
    let applied = Arc::new(Notify::new());
    let second = world.host().faults(Faults::seeded(1)).intercept(Applied(Arc::clone(&applied))).build();
    let locks = world.locks(&second).build().unwrap();
    tokio::select! {
        biased;
        () = applied.notified() => {}
        lock = locks.resume(&ticket) => panic!("not dropped: {lock:?}"),
    }
    locks.flush(Duration::from_mins(1)).await.unwrap();
    assert_eq!(second.requests(), 1);
    let (_, locks) = host(&world);
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketUsed);
    assert_eq!(locks.renew_ticket(&ticket, LEASE).await.unwrap_err().kind(), ErrorKind::TicketUsed);
    assert_eq!(locks.release_ticket(&ticket).await.unwrap_err().kind(), ErrorKind::TicketUsed);
    assert!(locks.try_acquire("job").await.unwrap().is_none());
    // An operator frees it, or the lease ends.
    let holder = locks.get("job").await.unwrap().unwrap();
    assert!(locks.force_release("job", &holder).await.unwrap());
    locks.acquire("job").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_and_a_release_with_a_ticket_succeed_after_a_lost_answer() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    for lost in [1..=1, 1..=3] {
        let second = world.host().intercept(LoseAnswers::to("UpdateItem", lost.clone())).build();
        let locks = world.locks_with_quick_retries(&second).build().unwrap();
        let mut renewed = locks.renew_ticket(&ticket, 2 * LEASE).await;
        if lost == (1..=3) {
            assert_eq!(renewed.unwrap_err().kind(), ErrorKind::Unavailable);
            renewed = locks.renew_ticket(&ticket, 2 * LEASE).await;
        }
        let end = renewed.unwrap();
        let row = world.row("job").await.unwrap();
        assert_eq!(number(&row, "in_progress_expiration"), millis(end + CLOCK_SKEW));
    }
    let second = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    world.locks_with_quick_retries(&second).build().unwrap().release_ticket(&ticket).await.unwrap();
    assert_eq!(second.requests(), 2);
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_some());
}

#[tokio::test]
async fn a_lock_that_is_not_enforced_gives_a_ticket_that_sends_nothing() {
    let world = World::new().await;
    let first = world.host().build();
    let lock = world.locks(&first).enabled(false).build().unwrap().acquire("job").lease(LEASE).await.unwrap();
    let end = lock.expires_at();
    let ticket = passed_on(&lock.into_ticket().unwrap());
    assert!(!ticket.is_enforced());
    assert_eq!(ticket.fence(), 0);
    let (second, locks) = host(&world);
    let end_after = locks.renew_ticket(&ticket, LEASE).await.unwrap();
    assert!(end_after > second.now());
    let resumed = locks.resume(&ticket).await.unwrap();
    assert!(!resumed.is_enforced() && resumed.is_valid());
    assert_eq!((resumed.fence(), millis(resumed.expires_at())), (0, millis(end)));
    resumed.release().await.unwrap();
    locks.release_ticket(&ticket).await.unwrap();
    assert_eq!((first.requests(), second.requests()), (0, 0));
    second.advance_clock(LEASE);
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketEnded);
}

#[tokio::test]
async fn disabled_locks_resume_without_a_request() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let second = world.host().build();
    let locks = world.locks(&second).enabled(false).build().unwrap();
    assert!(!locks.resume(&ticket).await.unwrap().is_enforced());
    locks.renew_ticket(&ticket, LEASE).await.unwrap();
    locks.release_ticket(&ticket).await.unwrap();
    assert_eq!(second.requests(), 0);
}
