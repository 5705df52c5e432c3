//! A rate that somebody pauses, for example because its service has answered 429.

use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::World;

use crate::{KEY, SECOND};

const PAUSE: Duration = Duration::from_secs(30);

/// Returns until when the rate is used up, as a call is told.
async fn refused_until(locks: &Locks) -> std::time::SystemTime {
    locks.rate(KEY, 10, SECOND).pass().await.unwrap_err().holder().unwrap().until()
}

#[tokio::test]
async fn two_pauses_at_once_do_not_add_up() {
    let world = World::new().await;
    let hosts = [world.host().build(), world.host().build()];
    let locks = hosts.each_ref().map(|host| world.locks(host).build().unwrap());
    let bank = locks.each_ref().map(|locks| locks.rate(KEY, 10, SECOND));
    bank[0].pass().await.unwrap();
    let sent: u64 = hosts.iter().map(Host::requests).sum();
    let before = hosts[0].now();
    join_all(bank.iter().map(|bank| bank.pause_for(PAUSE))).await.into_iter().collect::<Result<(), _>>().unwrap();
    let after = hosts[0].now();
    assert_eq!(hosts.iter().map(Host::requests).sum::<u64>() - sent, 2);
    let until = refused_until(&locks[1]).await;
    assert!((before + PAUSE..=after + PAUSE + Duration::from_millis(1)).contains(&until), "{until:?}");
    hosts[1].advance_clock(PAUSE + SECOND);
    bank[1].pass().await.unwrap();
}

#[tokio::test]
async fn a_shorter_pause_does_not_end_a_longer_one() {
    let world = World::new().await;
    let locks = world.default_locks();
    let bank = locks.rate(KEY, 10, SECOND);
    bank.pause_for(PAUSE).await.unwrap();
    let until = refused_until(&locks).await;
    bank.pause_for(SECOND).await.unwrap();
    assert_eq!(refused_until(&locks).await, until);
    let row = world.row(KEY).await.unwrap();
    let number = |name: &str| row[name].as_n().unwrap().parse::<u64>().unwrap();
    // TTL keeps the row for the whole pause.
    assert!(number("expiration") > number("due") / 1_000_000, "{row:?}");
}

#[tokio::test]
async fn no_burst_comes_after_a_pause() {
    let world = World::new().await;
    let host = world.host().build();
    let bank = world.locks(&host).build().unwrap().rate(KEY, 1, Duration::from_hours(1)).burst(10);
    bank.pass().await.unwrap();
    bank.pause_for(PAUSE).await.unwrap();
    assert!(bank.pass().await.unwrap_err().is_held());
    host.advance_clock(PAUSE + SECOND);
    bank.pass().await.unwrap();
    assert!(bank.pass().await.unwrap_err().is_held());
}

#[tokio::test]
async fn a_pause_by_a_caller_of_many_points_holds_for_a_call_of_one_point() {
    let world = World::new().await;
    let bank = world.default_locks().rate(KEY, 1, Duration::from_hours(1)).burst(10);
    bank.clone().weight(10).pause_for(PAUSE).await.unwrap();
    assert!(bank.pass().await.unwrap_err().is_held());
}

#[tokio::test]
async fn a_pause_of_a_wrong_clock_is_taken_back() {
    let world = World::new().await;
    world.default_locks().rate(KEY, 10, SECOND).pass().await.unwrap();
    let before = world.row(KEY).await.unwrap()["due"].clone();
    let ahead = world.host().clock_ahead(Duration::from_hours(1)).build();
    let error = world.locks(&ahead).build().unwrap().rate(KEY, 10, SECOND).pause_for(PAUSE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClockSkew, "{error}");
    assert_eq!(world.row(KEY).await.unwrap()["due"], before);
}
