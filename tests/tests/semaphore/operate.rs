//! What operators see of a semaphore, and its release by force.

use std::time::Duration;

use lambda_lock::{Data, Holder, Locks};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::LoseAnswers;
use tokio::time::sleep;

use crate::{CLOCK_SKEW, KEY, acquire_all, after_the_lease, owners, permits, release_all, row};

async fn seen(locks: &Locks) -> Holder {
    locks.get(KEY).await.unwrap().unwrap()
}

fn names(holder: &Holder) -> Vec<&str> {
    holder.permits().iter().map(|permit| permit.name().unwrap()).collect()
}

#[tokio::test]
async fn get_shows_the_permits() {
    let world = World::new().await;
    let locks = world.default_locks();
    let held = acquire_all(&locks, 2).await;
    let holder = seen(&locks).await;
    assert_eq!(names(&holder), ["holder 0", "holder 1"]);
    assert!(holder.is_current() && !holder.has_released() && !holder.is_completed());
    assert_eq!((holder.name(), holder.fence()), (Some("holder 0"), Some(held[0].fence())));
    assert!(format!("{holder:?}").contains("holder 1"));

    let crashed = seen(&after_the_lease(&world).1).await;
    assert_eq!(names(&crashed), ["holder 0", "holder 1"]);
    assert!(!crashed.is_current() && !crashed.has_released());
    assert_eq!(crashed.name(), Some("holder 1"), "the one that ended last");

    release_all(held).await;
    let free = seen(&locks).await;
    assert!(free.permits().is_empty() && !free.is_current() && free.has_released());
    assert_eq!((free.owner(), free.fence()), (None, holder.permits()[1].fence()));
}

#[tokio::test]
async fn get_shows_the_data_of_the_semaphore() {
    let world = World::new().await;
    let locks = world.default_locks();
    let held = locks.semaphore(KEY, 2).acquire().data("page 7").await.unwrap();
    assert_eq!(seen(&locks).await.data().and_then(Data::as_str), Some("page 7"));
    held.release().await.unwrap();
    assert_eq!(seen(&locks).await.data().and_then(Data::as_str), Some("page 7"));
}

#[tokio::test]
async fn a_list_has_the_permits_without_data() {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).key_prefix("app#").build().unwrap();
    for number in 0..12 {
        let semaphore = locks.semaphore(format!("semaphore {number}"), 2);
        semaphore.acquire().data("secret").holder("one").await.unwrap().renew(crate::DAY).await.unwrap();
    }
    locks.flush(Duration::from_mins(1)).await.unwrap();
    let bank = locks.semaphore(KEY, 2);
    let _held =
        [bank.acquire().data("secret").holder("one").await.unwrap(), bank.acquire().holder("two").await.unwrap()];
    let lock = locks.acquire("lock").await.unwrap();
    let sent = host.requests();
    let mut rows = locks.list().next_page().await.unwrap().unwrap();
    assert_eq!(host.requests(), sent + 1 + 13, "a scan, and a read of each semaphore");
    rows.retain(|row| row.key == KEY || row.key == "lock");
    rows.sort_by(|one, other| one.key.cmp(&other.key));
    let [semaphore, other] = &rows[..] else { panic!("{rows:?}") };
    let holder = semaphore.holder.as_ref().unwrap();
    assert_eq!(names(holder), ["one", "two"]);
    assert!(holder.data().is_none());
    assert_eq!(other.holder.as_ref().unwrap().fence(), Some(lock.fence()));
}

#[tokio::test]
async fn an_operator_releases_all_permits() {
    let world = World::new().await;
    let held = acquire_all(&world.default_locks(), 3).await;
    let host = world.host().build();
    let tools = world.locks(&host).build().unwrap();
    let holder = seen(&tools).await;
    assert!(tools.force_release(KEY, &holder).await.unwrap());
    assert_eq!(host.requests(), 2);
    assert!(permits(&row(&world).await).is_empty());
    let free = seen(&tools).await;
    assert!(!free.is_current() && free.has_released());
    assert!(tools.force_release(KEY, &holder).await.unwrap(), "they are free");

    let renewal = held[0].renew(crate::LEASE).await.unwrap_err();
    let release = held[1].release().await.unwrap_err();
    for error in [renewal, release] {
        assert!(error.is_lost());
    }
    let next = tools.semaphore(KEY, 1).acquire().await.unwrap();
    assert_eq!(permits(&row(&world).await), owners([&next]));
}

#[tokio::test]
async fn a_release_by_force_of_a_semaphore_without_permits_frees_nothing() {
    let world = World::new().await;
    let host = world.host().build();
    let tools = world.locks(&host).build().unwrap();
    release_all(acquire_all(&tools, 1).await).await;
    let holder = seen(&tools).await;
    let (requests, before) = (host.requests(), row(&world).await);
    assert!(!tools.force_release(KEY, &holder).await.unwrap());
    assert_eq!((host.requests(), row(&world).await), (requests, before));
}

#[tokio::test]
async fn an_operator_releases_one_permit() {
    let world = World::new().await;
    let mut held = acquire_all(&world.default_locks(), 3).await;
    let tools = world.default_locks();
    let holder = seen(&tools).await;
    let one = holder.permits().iter().find(|permit| permit.name() == Some("holder 1")).unwrap();
    assert!(tools.force_release(KEY, one).await.unwrap());
    let freed = held.remove(1);
    assert_eq!(permits(&row(&world).await), owners(&held));
    assert!(freed.release().await.unwrap_err().is_lost());
    release_all(held).await;
}

#[tokio::test]
async fn a_release_by_force_spares_later_permits() {
    let world = World::new().await;
    let locks = world.default_locks();
    let mut held = acquire_all(&locks, 3).await;
    let holder = seen(&locks).await;
    held.remove(0).release().await.unwrap();
    let later = locks.semaphore(KEY, 3).acquire().await.unwrap();
    let host = world.host().build();
    let tools = world.locks(&host).build().unwrap();
    assert!(tools.force_release(KEY, &holder).await.unwrap());
    assert_eq!(host.requests(), 2);
    assert_eq!(permits(&row(&world).await), owners([&later]));

    world.delete_row(KEY).await;
    assert!(!tools.force_release(KEY, &holder).await.unwrap(), "the row is gone");
    let _lock = locks.acquire(KEY).await.unwrap();
    assert!(!tools.force_release(KEY, &holder).await.unwrap(), "the key is a lock now");
}

#[tokio::test]
async fn after_a_forced_release_a_clock_far_ahead_blocks_nobody() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let ahead = world.locks(&world.host().later(Duration::from_hours(1)).build()).build().unwrap();
    let _held = ahead.semaphore(KEY, 1).acquire().identity("run").await.unwrap();
    let tools = world.default_locks();
    assert!(tools.force_release(KEY, &seen(&tools).await).await.unwrap());
    sleep(CLOCK_SKEW).await;
    tools.semaphore(KEY, 1).acquire().identity("run").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_for_an_identity_with_a_lost_answer_is_done() {
    let world = World::new().await;
    let bank = world.default_locks().semaphore(KEY, 2);
    let released = bank.acquire().identity("run 1").await.unwrap();
    let other = bank.acquire().await.unwrap();
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    let tools = world.locks_with_quick_retries(&host).build().unwrap();
    assert!(tools.release_identity(KEY, "run 1").await.unwrap());
    assert_eq!(permits(&row(&world).await), owners([&other]));
    assert!(released.release().await.unwrap_err().is_lost());
    other.release().await.unwrap();
}
