//! Requests of a ticket, and of the lock that became a ticket, that arrive late.

use std::sync::atomic::{AtomicU32, Ordering};

use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{ErrorKind, Lock, Locks};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{Late, World};
use serde_json::{Value, json};

use crate::{LEASE, acquired, host, number, passed_on, ticket};

/// What a ticket can hand over.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Lock,
    Permit,
}

impl Kind {
    async fn acquire(self, locks: &Locks) -> Lock {
        let acquire = match self {
            Self::Lock => locks.acquire("job"),
            Self::Permit => locks.semaphore("job", 2).acquire(),
        };
        acquire.lease(LEASE).await.unwrap()
    }
}

#[tokio::test]
async fn a_late_renewal_of_the_original_does_not_change_a_resumed_lock() {
    let world = World::new().await;
    let late = Late::updates(2..=4);
    let first = world.host().intercept(late.clone()).build();
    let lock = world.locks_with_quick_retries(&first).build().unwrap().acquire("job").lease(LEASE).await.unwrap();
    assert_eq!(lock.renew(3 * LEASE).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let ticket = passed_on(&lock.into_ticket().unwrap());
    // The row has a smaller sequence than the ticket, because the renewal has not arrived.
    assert_eq!(number(&world.row("job").await.unwrap(), "sequence"), 0);
    let resumed = world.default_locks().resume(&ticket).await.unwrap();
    let row = world.row("job").await;
    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("job").await, row);
    resumed.release().await.unwrap();
    assert!(!late.deliver(&world).await);
}

#[tokio::test]
async fn after_a_ticket_renewed_the_lease_stale_requests_are_rejected() {
    for releases in [false, true] {
        let world = World::new().await;
        let late = Late::updates(2..=4);
        let first = world.host().intercept(late.clone()).build();
        let lock = world.locks_with_quick_retries(&first).build().unwrap().acquire("job").lease(LEASE).await.unwrap();
        let unanswered = if releases { lock.release().await } else { lock.renew(LEASE / 2).await };
        assert_eq!(unanswered.unwrap_err().kind(), ErrorKind::Unavailable);
        let (locks, ticket) = (world.default_locks(), lock.into_ticket().unwrap());
        locks.renew_ticket(&ticket, 2 * LEASE).await.unwrap();
        let row = world.row("job").await;
        assert!(!late.deliver(&world).await);
        assert_eq!(world.row("job").await, row);
        locks.resume(&ticket).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn after_a_ticket_kept_the_lease_stale_requests_are_rejected() {
    for kind in [Kind::Lock, Kind::Permit] {
        for releases in [false, true] {
            let world = World::new().await;
            let late = Late::updates(2..=4);
            let first = world.host().intercept(late.clone()).build();
            let lock = kind.acquire(&world.locks_with_quick_retries(&first).build().unwrap()).await;
            let unanswered = if releases { lock.release().await } else { lock.renew(LEASE / 30).await };
            assert_eq!(unanswered.unwrap_err().kind(), ErrorKind::Unavailable);
            let ticket = passed_on(&lock.into_ticket().unwrap());
            let (host, locks) = host(&world);
            let end = locks.renew_ticket(&ticket, LEASE / 2).await.unwrap();
            assert_eq!(host.requests(), 2, "{kind:?}: the end stays, and the number is written");
            assert!(end > host.now() + LEASE * 3 / 4, "{kind:?}: the end is that of the acquire");
            let row = world.row("job").await;
            assert!(!late.deliver(&world).await, "{kind:?}");
            assert_eq!(world.row("job").await, row);
            // The row has the sequence now.
            locks.renew_ticket(&ticket, LEASE / 2).await.unwrap();
            assert_eq!(host.requests(), 3, "{kind:?}");
            locks.resume(&ticket).await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_renewal_of_the_original_that_arrives_before_the_resumption_counts() {
    let world = World::new().await;
    let late = Late::updates(2..=4);
    let first = world.host().intercept(late.clone()).build();
    let lock = world.locks_with_quick_retries(&first).build().unwrap().acquire("job").lease(LEASE).await.unwrap();
    assert_eq!(lock.renew(LEASE / 2).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let ticket = passed_on(&lock.into_ticket().unwrap());
    assert!(late.deliver(&world).await);
    let resumed = world.default_locks().resume(&ticket).await.unwrap();
    assert!(resumed.remaining() <= LEASE / 2);
    resumed.release().await.unwrap();
}

#[tokio::test]
async fn a_late_release_of_the_original_does_not_free_a_resumed_lock() {
    let world = World::new().await;
    let late = Late::updates(2..=4);
    let first = world.host().intercept(late.clone()).build();
    let lock = world.locks_with_quick_retries(&first).build().unwrap().acquire("job").lease(LEASE).await.unwrap();
    assert_eq!(lock.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let resumed = world.default_locks().resume(&lock.into_ticket().unwrap()).await.unwrap();
    assert!(!late.deliver(&world).await);
    assert!(world.default_locks().try_acquire("job").await.unwrap().is_none());
    resumed.release().await.unwrap();
}

#[tokio::test]
async fn a_late_resumption_does_not_take_the_lock_from_an_earlier_one() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let late = Late::updates(1..=3);
    let second = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&second).build().unwrap();
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let resumed = world.default_locks().resume(&ticket).await.unwrap();
    assert!(!late.deliver(&world).await);
    resumed.renew(LEASE).await.unwrap();
    resumed.release().await.unwrap();
    assert!(!late.deliver(&world).await);
}

#[tokio::test]
async fn a_late_renewal_of_the_ticket_does_not_shorten_the_lease() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let late = Late::updates(1..=3);
    let second = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&second).build().unwrap();
    assert_eq!(locks.renew_ticket(&ticket, 2 * LEASE).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let (_, others) = host(&world);
    others.renew_ticket(&ticket, 3 * LEASE).await.unwrap();
    let row = world.row("job").await;
    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("job").await, row);
    // The resumed lock may shorten it.
    let lock = others.resume(&ticket).await.unwrap();
    lock.renew(LEASE).await.unwrap();
    let row = world.row("job").await;
    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("job").await, row);
    lock.release().await.unwrap();
    let row = world.row("job").await;
    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("job").await, row);
}

#[tokio::test]
async fn a_late_release_of_the_ticket_does_not_free_a_resumed_lock() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let late = Late::updates(1..=3);
    let second = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&second).build().unwrap();
    assert_eq!(locks.release_ticket(&ticket).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let lock = world.default_locks().resume(&ticket).await.unwrap();
    assert!(!late.deliver(&world).await);
    lock.renew(LEASE).await.unwrap();
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_late_acquire_does_not_undo_a_resumption() {
    let world = World::new().await;
    let late = Late::updates(1..=1);
    let first = world.host().intercept(late.clone()).build();
    let lock = world.locks_with_quick_retries(&first).build().unwrap().acquire("job").lease(LEASE).await.unwrap();
    let resumed = world.default_locks().resume(&lock.into_ticket().unwrap()).await.unwrap();
    let row = world.row("job").await;
    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("job").await, row);
    resumed.release().await.unwrap();
    let lock = acquired(&world).await;
    assert!(lock.fence() > resumed.fence());
    lock.release().await.unwrap();
}

/// Answers the second write as if an operator had freed meanwhile what the identity has.
#[derive(Debug, Default)]
struct FreedMeanwhile(AtomicU32);

impl Intercept for FreedMeanwhile {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        let number = |number: u64| json!({ "N": number.to_string() });
        if operation == "UpdateItem" && self.0.fetch_add(1, Ordering::Relaxed) == 1 {
            let row = &mut answer.body["Item"];
            let fence: u64 = row["fence"]["N"].as_str().expect("it is refused").parse().unwrap();
            (row["fence"], row["released"]) = (number(fence + 1), number(fence + 1));
        }
    }
}

#[tokio::test]
async fn a_resumption_of_what_was_freed_before_its_answer_is_refused() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").lease(LEASE).identity("execution").await.unwrap();
    let network = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)).intercept(FreedMeanwhile::default());
    let locks = world.locks_with_quick_retries(&network.build()).build().unwrap();
    let error = locks.resume(&lock.into_ticket().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}
