//! Tickets of permits.

use std::time::Duration;

use lambda_lock::embedded::Host;
use lambda_lock::{Lock, Ticket};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::LoseAnswers;

use crate::{CLOCK_SKEW, assert_contains, host, ms, passed_on};

const MINUTE: Duration = Duration::from_mins(1);

async fn permit(world: &World, lease: Duration) -> Lock {
    world.default_locks().semaphore("bank", 2).acquire().lease(lease).await.unwrap()
}

async fn ticket(world: &World, lease: Duration) -> Ticket {
    passed_on(&permit(world, lease).await.into_ticket())
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
        assert!(error.is_ticket_used(), "{error}");
    }
    assert!(resumed.is_valid());
    resumed.release().await.unwrap();
    assert!(locks.resume(&ticket).await.unwrap_err().is_ticket_released());
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
async fn the_ticket_of_a_permit_that_was_replaced_or_freed_is_refused() {
    let world = World::new().await;
    let (replaced, two) = (ticket(&world, MINUTE / 2).await, ticket(&world, MINUTE).await);
    let (later, locks) = host(&world);
    later.advance_clock(MINUTE / 2 + CLOCK_SKEW + ms(1));
    let one = locks.semaphore("bank", 2).acquire().await.unwrap();
    assert!(locks.resume(&replaced).await.unwrap_err().is_ticket_ended());
    let seen = locks.get("bank").await.unwrap().unwrap();
    assert!(locks.force_release("bank", &seen).await.unwrap());
    let error = locks.resume(&two).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(one.release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_permit_has_no_identity_and_no_lease_over_a_day() {
    let world = World::new().await;
    let (host, locks): (Host, _) = host(&world);
    let semaphore = locks.semaphore("bank", 2);
    let error = semaphore.acquire().owner_from("order-7").await.unwrap_err();
    assert!(error.is_invalid());
    assert_contains(&error, &["bank", "owner_from"]);
    let error = semaphore.acquire().lease(1500 * MINUTE).await.unwrap_err();
    assert_contains(&error, &["lease", "1day"]);
    assert_eq!(host.requests(), 0);
}
