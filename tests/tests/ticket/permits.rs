//! Tickets of permits.

use std::time::Duration;

use lambda_lock::embedded::{Faults, Host};
use lambda_lock::{ErrorKind, Lock, Ticket};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{Late, World};
use serde_json::Value;

use crate::{CLOCK_SKEW, assert_contains, host, ms, number_of, passed_on};

const MINUTE: Duration = Duration::from_mins(1);

async fn permit(world: &World, lease: Duration) -> Lock {
    world.default_locks().semaphore("bank", 2).acquire().lease(lease).await.unwrap()
}

async fn ticket(world: &World, lease: Duration) -> Ticket {
    passed_on(&permit(world, lease).await.into_ticket().unwrap())
}

async fn held(world: &World) -> usize {
    world.default_locks().get("bank").await.unwrap().unwrap().permits().len()
}

#[tokio::test]
async fn a_resumed_permit_is_renewed_and_released() {
    let world = World::new().await;
    let (ticket, other) = (ticket(&world, MINUTE).await, permit(&world, MINUTE).await);
    let (host, locks) = host(&world);
    let resumed = locks.resume(&ticket).await.unwrap();
    assert_eq!((resumed.fence(), host.requests()), (ticket.fence(), 1));
    assert!(resumed.remaining() <= MINUTE && resumed.remaining() > MINUTE / 2);
    resumed.renew(2 * MINUTE).await.unwrap();
    assert!(locks.semaphore("bank", 2).try_acquire().await.unwrap().is_none());
    resumed.release().await.unwrap();
    assert_eq!(held(&world).await, 1);
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_ticket_of_a_permit_is_used_once() {
    let world = World::new().await;
    let ticket = ticket(&world, MINUTE).await;
    let (_, locks) = host(&world);
    let resumed = locks.resume(&ticket).await.unwrap();
    for error in [
        locks.resume(&ticket).await.unwrap_err(),
        locks.renew_ticket(&ticket, MINUTE).await.unwrap_err(),
        locks.release_ticket(&ticket).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TicketUsed, "{error}");
    }
    assert!(resumed.is_valid());
    resumed.release().await.unwrap();
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketReleased);
}

/// The release of this ticket gives up no number, so it has nothing to leave out, and is sent once.
#[tokio::test]
async fn a_used_ticket_of_a_permit_is_refused_after_others_gave_up_their_numbers() {
    let world = World::new().await;
    let (used, other) = (ticket(&world, MINUTE).await, permit(&world, MINUTE).await);
    let (host, locks) = host(&world);
    let resumed = locks.resume(&used).await.unwrap();
    let seen = locks.get("bank").await.unwrap().unwrap();
    let freed = seen.permits().iter().find(|permit| permit.owner() == Some(other.owner())).unwrap();
    assert!(locks.force_release("bank", freed).await.unwrap());
    let requests = host.requests();
    assert_eq!(locks.release_ticket(&used).await.unwrap_err().kind(), ErrorKind::TicketUsed);
    assert_eq!(host.requests(), requests + 1);
    resumed.release().await.unwrap();
}

#[tokio::test]
async fn a_resumption_of_a_permit_whose_answer_is_lost_recognises_itself() {
    let world = World::new().await;
    let ticket = ticket(&world, MINUTE).await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    let resumed = world.locks(&host).build().unwrap().resume(&ticket).await.unwrap();
    assert_eq!(host.requests(), 2);
    resumed.release().await.unwrap();
    assert_eq!(held(&world).await, 0);
}

#[tokio::test]
async fn a_renewal_with_the_ticket_of_a_permit_extends_the_lease_and_leaves_the_ticket() {
    let world = World::new().await;
    let ticket = ticket(&world, MINUTE).await;
    let (host, locks) = host(&world);
    let end = locks.renew_ticket(&ticket, 5 * MINUTE).await.unwrap();
    assert!(end > host.now() + 4 * MINUTE);
    assert_eq!(locks.renew_ticket(&ticket, MINUTE).await.unwrap(), end, "never shortened");
    assert_eq!(locks.get("bank").await.unwrap().unwrap().until(), end + CLOCK_SKEW);
    assert_contains(&locks.renew_ticket(&ticket, 1500 * MINUTE).await.unwrap_err(), &["1day", "lease"]);
    let resumed = locks.resume(&ticket).await.unwrap();
    assert!(resumed.remaining() > 4 * MINUTE);
    resumed.release().await.unwrap();
}

#[tokio::test]
async fn a_release_with_the_ticket_of_a_permit_frees_it_and_can_be_repeated() {
    let world = World::new().await;
    let (ticket, other) = (ticket(&world, MINUTE).await, permit(&world, MINUTE).await);
    let (host, locks) = host(&world);
    locks.release_ticket(&ticket).await.unwrap();
    locks.release_ticket(&ticket).await.unwrap();
    assert_eq!((held(&world).await, host.requests()), (1, 2));
    other.release().await.unwrap();
}

#[tokio::test]
async fn permits_are_released_in_any_order_with_one_request_each() {
    let world = World::new().await;
    let (host, locks) = host(&world);
    let (one, two) = (ticket(&world, MINUTE).await, ticket(&world, MINUTE).await);
    locks.release_ticket(&two).await.unwrap();
    locks.release_ticket(&one).await.unwrap();
    assert_eq!((held(&world).await, host.requests()), (0, 2));
}

#[tokio::test]
async fn the_ticket_of_a_permit_that_was_replaced_or_freed_is_refused() {
    let world = World::new().await;
    let (replaced, two) = (ticket(&world, MINUTE / 2).await, ticket(&world, MINUTE).await);
    let (later, locks) = host(&world);
    later.advance_clock(MINUTE / 2 + CLOCK_SKEW + ms(1));
    let one = locks.semaphore("bank", 2).acquire().await.unwrap();
    assert_eq!(locks.resume(&replaced).await.unwrap_err().kind(), ErrorKind::TicketEnded);
    let seen = locks.get("bank").await.unwrap().unwrap();
    assert!(locks.force_release("bank", &seen).await.unwrap());
    let error = locks.resume(&two).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(one.release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_release_that_outlasts_the_lease_finds_that_it_has_ended() {
    let world = World::new().await;
    let ticket = ticket(&world, CLOCK_SKEW + ms(400)).await;
    let (later, locks) = host(&world);
    later.advance_clock(MINUTE);
    let other = locks.semaphore("bank", 2).acquire().await.unwrap();
    let replaces_it = locks.semaphore("bank", 2).acquire().await.unwrap();
    let slow = world.host().faults(Faults::seeded(1).latency(ms(300)..ms(300))).build();
    let error = world.locks(&slow).build().unwrap().release_ticket(&ticket).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TicketEnded, "{error}");
    assert_eq!(held(&world).await, 2);
    other.release().await.unwrap();
    replaces_it.release().await.unwrap();
}

#[tokio::test]
async fn a_permit_has_no_lease_over_a_day() {
    let world = World::new().await;
    let (host, locks): (Host, _) = host(&world);
    let semaphore = locks.semaphore("bank", 2);
    let error = semaphore.acquire().lease(1500 * MINUTE).await.unwrap_err();
    assert_contains(&error, &["lease", "1day"]);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn after_a_ticket_renewed_a_permit_stale_renewals_are_rejected() {
    let world = World::new().await;
    let late = Late::updates(2..=4);
    let first = world.host().intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&first).build().unwrap();
    let permit = locks.semaphore("bank", 2).acquire().lease(2 * MINUTE).await.unwrap();
    assert_eq!(permit.renew(MINUTE).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let (locks, ticket) = (world.default_locks(), permit.into_ticket().unwrap());
    locks.renew_ticket(&ticket, 5 * MINUTE).await.unwrap();
    let row = world.row("bank").await;
    assert!(!late.deliver(&world).await);
    assert_eq!(world.row("bank").await, row);
    locks.resume(&ticket).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_row_whose_permits_are_freed_by_tickets_does_not_grow() {
    let world = World::new().await;
    let locks = world.default_locks();
    let ticket = locks.semaphore("bank", 2).acquire().await.unwrap().into_ticket().unwrap();
    locks.release_ticket(&ticket).await.unwrap();
    let row = world.row("bank").await.unwrap();
    assert!(!row.keys().any(|name| name.contains(':')), "{row:?}");
}

#[tokio::test]
async fn a_minimum_hold_goes_with_the_ticket_of_a_permit() {
    let world = World::new().await;
    let locks = world.default_locks();
    let permit = locks.semaphore("bank", 1).acquire().min_hold(MINUTE).await.unwrap();
    let ticket = passed_on(&permit.into_ticket().unwrap());
    locks.release_ticket(&ticket).await.unwrap();
    locks.release_ticket(&ticket).await.unwrap();
    assert!(locks.semaphore("bank", 1).try_acquire().await.unwrap().is_none());
    let later = world.host().later(MINUTE + 2 * CLOCK_SKEW).build();
    let later = world.locks(&later).build().unwrap();
    assert!(later.semaphore("bank", 1).try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_forged_ticket_of_a_permit_has_no_permit() {
    let world = World::new().await;
    let (ticket, locks) = (ticket(&world, MINUTE).await, world.default_locks());
    // Without a permit of its owner, it looks released.
    for (field, value, kind) in [
        ("number", Value::from(number_of(&ticket) + 1), ErrorKind::TicketUnknown),
        ("owner", "0".into(), ErrorKind::TicketReleased),
    ] {
        let forged = crate::with(&ticket, field, value);
        assert_eq!(locks.resume(&forged).await.unwrap_err().kind(), kind, "{field}");
        assert_eq!(locks.renew_ticket(&forged, MINUTE).await.unwrap_err().kind(), kind, "{field}");
    }
    locks.release_ticket(&crate::with(&ticket, "owner", "0")).await.unwrap();
    assert_eq!(held(&world).await, 1);
    locks.resume(&ticket).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_forged_ticket_of_a_released_permit_has_not_released_it() {
    let world = World::new().await;
    let locks = world.default_locks();
    let permit = locks.semaphore("bank", 1).acquire().min_hold(MINUTE).await.unwrap();
    let ticket = passed_on(&permit.into_ticket().unwrap());
    locks.release_ticket(&ticket).await.unwrap();
    let forged = crate::with(&ticket, "number", number_of(&ticket) + 2);
    assert_eq!(locks.release_ticket(&forged).await.unwrap_err().kind(), ErrorKind::TicketUnknown);
    locks.release_ticket(&ticket).await.unwrap();
}

#[tokio::test]
async fn a_ticket_with_the_largest_number_leaves_the_row_readable() {
    let world = World::new().await;
    let (first, other, locks) = (permit(&world, MINUTE).await, permit(&world, MINUTE).await, world.default_locks());
    let largest = 1_u64 << 48;
    let forged = crate::with(&first.into_ticket().unwrap(), "sequence", largest);
    let resumed = locks.resume(&forged).await.unwrap();
    for _ in 0..3 {
        resumed.renew(MINUTE).await.unwrap();
    }
    assert_eq!(held(&world).await, 2);
    other.renew(MINUTE).await.unwrap();
    other.release().await.unwrap();
    resumed.release().await.unwrap();
    assert_eq!(held(&world).await, 0);
}
