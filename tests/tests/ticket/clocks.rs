//! Hosts whose clocks differ by up to the skew.

use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::{ErrorKind, Lock, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;

use crate::ms;

/// Longer than any of these tests.
const LEASE: Duration = Duration::from_mins(5);

/// Three hosts whose clocks differ by these milliseconds from the clock that is the furthest behind.
fn hosts(world: &World, ahead: [u64; 3]) -> [(Host, Locks); 3] {
    ahead.map(|ahead| {
        let host = world.host().clock_ahead(ms(ahead)).build();
        let locks = world.locks(&host).build().unwrap();
        (host, locks)
    })
}

#[tokio::test]
async fn a_resumed_lock_and_the_next_holder_are_never_both_valid() {
    let skew = 1000;
    for ahead in [[0, 0, skew], [skew, 0, skew], [0, skew, 0], [skew, skew, 0], [0, 0, 0], [skew, 0, 0]] {
        let world = World::new().await;
        let hosts = hosts(&world, ahead);
        let [(_, first), (_, second), (_, third)] = &hosts;
        let ticket = first.acquire("job").lease(LEASE).await.unwrap().into_ticket().unwrap();
        let resumed = second.resume(&ticket).await.unwrap();
        assert!(resumed.is_valid());
        let mut next: Option<Lock> = None;
        for (host, _) in &hosts {
            host.advance_clock(ms(296_000));
        }
        // The wall clocks go on together, in small steps; true time hardly does.
        for _ in 0..32 {
            for (host, _) in &hosts {
                host.advance_clock(ms(250));
            }
            if next.is_none() {
                next = third.acquire("job").lease(Duration::from_mins(5)).await.ok();
            }
            assert!(next.is_none() || !resumed.is_valid(), "{ahead:?}");
        }
        assert!(next.is_some(), "{ahead:?}");
        assert!(resumed.renew(LEASE).await.unwrap_err().is_lost());
    }
}

#[tokio::test]
async fn a_resumed_lock_ends_with_the_lease_by_the_new_hosts_clock() {
    let world = World::new().await;
    let [(_, first), (second, locks), _] = hosts(&world, [0, 700, 0]);
    let ticket = first.acquire("job").lease(LEASE).await.unwrap().into_ticket().unwrap();
    let lock = locks.resume(&ticket).await.unwrap();
    assert_eq!(millis(lock.expires_at()), millis(ticket.expires_at()));
    assert!(lock.remaining() <= ms(299_300));
    second.advance_clock(ms(299_300));
    assert!(!lock.is_valid());
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_resumed_lock_is_cancelled_at_the_end_of_the_lease() {
    let dynamodb = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365 * 56)).unwrap();
    let locks = || Locks::builder(dynamodb.client(), "locks").build().unwrap();
    locks().create_table().await.unwrap();
    let ticket = locks().acquire("job").lease(LEASE).await.unwrap().into_ticket().unwrap();
    tokio::time::sleep(LEASE / 2).await;
    let lock = locks().resume(&ticket).await.unwrap();
    assert!(tokio::time::timeout(ms(149_900), lock.until_lost()).await.is_err(), "too early");
    assert!(lock.is_valid());
    assert!(tokio::time::timeout(ms(200), lock.until_lost()).await.is_ok(), "too late");
}

#[tokio::test]
async fn a_ticket_is_not_used_up_in_the_skew_after_its_lease() {
    let world = World::new().await;
    let [(_, first), (second, locks), _] = hosts(&world, [0; 3]);
    let ticket = first.acquire("job").lease(LEASE).await.unwrap().into_ticket().unwrap();
    second.advance_clock(LEASE);
    assert_eq!(locks.resume(&ticket).await.unwrap_err().kind(), ErrorKind::TicketEnded);
    // A host whose clock is behind can still resume it.
    let lock = first.resume(&ticket).await.unwrap();
    lock.release().await.unwrap();
}
