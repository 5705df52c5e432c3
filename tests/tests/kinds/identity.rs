//! Acquires of one identity: the later one takes over what the earlier one has.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{Error, ErrorKind, Locks, Wait};
use lambda_lock_tests::invocation::all_tries_from;
use lambda_lock_tests::{Late, World};
use serde_json::Value;
use tokio::join;
use tokio::time::{sleep, timeout};

use crate::late::{assert_withdrawn_by_a_clock_set_back, free_by_force};
use crate::subject::Subject;
use crate::{AFTER_THE_LEASE, LEASE, ahead, assert_free, assert_held_by, assert_withdrawn, at_pauses, rows};

const IDENTITY: &str = "execution 1";

/// Acquires for the identity.
async fn acquired<S: Subject>(locks: &Locks) -> S {
    S::acquire_for(locks, LEASE, IDENTITY, None).await.unwrap_or_else(|error| panic!("{error}"))
}

/// How a later acquire of the identity asks for what the earlier one has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asks {
    Acquire,
    TakeOver,
    /// With the fence that the row has.
    TakeOverFrom,
}

impl Asks {
    const ALL: [Self; 3] = [Self::Acquire, Self::TakeOver, Self::TakeOverFrom];
    const TAKEOVERS: [Self; 2] = [Self::TakeOver, Self::TakeOverFrom];

    async fn send<S: Subject>(self, locks: &Locks, wait: Option<Wait>) -> Result<S, Error> {
        let from = match self {
            Self::Acquire => return S::acquire_for(locks, LEASE, IDENTITY, wait).await,
            Self::TakeOver => None,
            Self::TakeOverFrom => fence(locks, S::KEYS[0]).await.or(Some(1)),
        };
        S::take_over(locks, IDENTITY, from, wait).await
    }

    async fn sent<S: Subject>(self, locks: &Locks) -> S {
        self.send(locks, None).await.unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

/// Returns the fence in the row, if there is one.
async fn fence(locks: &Locks, key: &str) -> Option<u64> {
    locks.get(key).await.unwrap()?.fence()
}

/// Asserts that each fence is larger than before.
fn assert_larger(fences: &[u64], before: &[u64]) {
    assert!(fences.iter().zip(before).all(|(fence, before)| fence > before), "{fences:?} after {before:?}");
}

pub(crate) async fn a_later_acquire_of_the_identity_takes_over<S: Subject>() {
    for asks in Asks::ALL {
        let world = World::new().await;
        let mut earlier: S = acquired(&world.default_locks()).await;
        let (host, locks) = crate::host(&world);
        let mut lock: S = asks.sent(&locks).await;
        // A refusal shows what to take over, unless the fence of a key is known. The test reads that fence.
        let is_one_key = S::KEYS.len() == 1 && !S::IS_PERMIT;
        assert_eq!(host.requests(), if asks == Asks::TakeOverFrom && !is_one_key { 3 } else { 2 }, "{asks:?}");
        assert_larger(&lock.fences(), &earlier.fences());
        assert_eq!(earlier.renew(LEASE).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(earlier.release().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_held_by(&world, &lock).await;
        lock.renew(LEASE).await.unwrap();
        lock.release().await.unwrap();
        assert_free::<S>(&world).await;
    }
}

/// Deletes a row when a refusal has shown it.
#[derive(Debug)]
struct DeletesOnce {
    world: Arc<World>,
    key: Mutex<Option<&'static str>>,
}

impl Intercept for DeletesOnce {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if answer.status == 400
            && let Some(key) = self.key.lock().unwrap().take()
        {
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let delete = || runtime().block_on(self.world.delete_row(key));
            thread::scope(|scope| scope.spawn(delete).join().unwrap());
        }
    }
}

pub(crate) async fn a_takeover_of_a_row_that_was_deleted_meanwhile_acquires<S: Subject>() {
    let world = Arc::new(World::new().await);
    let earlier: S = acquired(&world.default_locks()).await;
    let deletes = DeletesOnce { world: Arc::clone(&world), key: Mutex::new(Some(S::KEYS[0])) };
    let host = world.host().intercept(deletes).build();
    let mut lock: S = acquired(&world.locks(&host).build().unwrap()).await;
    assert_larger(&lock.fences(), &earlier.fences());
    assert_held_by(&world, &lock).await;
    // A refusal, a takeover of a row that is gone, and an acquire of a free key. The other key of a set refuses that one.
    assert_eq!(host.requests(), if S::KEYS.len() == 1 { 3 } else { 4 });
    lock.release().await.unwrap();
    drop(earlier);
}

/// Whatever fence it names.
pub(crate) async fn another_identity_is_refused<S: Subject>() {
    let world = World::new().await;
    let mut lock: S = acquired(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    for other in ["execution 2", "execution", "execution 10", "11#execution 1"] {
        let Err(error) = S::acquire_for(&world.default_locks(), LEASE, other, None).await else { panic!("{other}") };
        assert!(error.is_held(), "{error}");
        for from in [None, Some(lock.fences()[0])] {
            let Err(error) = S::take_over(&world.default_locks(), other, from, None).await else { panic!("{other}") };
            assert!(error.is_lost(), "{error}");
        }
        for key in S::KEYS {
            assert!(!world.default_locks().release_identity(*key, other).await.unwrap());
        }
        assert_eq!(rows::<S>(&world).await, before, "{other}");
    }
    lock.release().await.unwrap();
}

pub(crate) async fn an_identity_acquires_again_after_its_release_and_after_its_lease<S: Subject>() {
    let world = World::new().await;
    let mut first: S = acquired(&world.default_locks()).await;
    first.release().await.unwrap();
    let second: S = acquired(&world.default_locks()).await;
    assert_larger(&second.fences(), &first.fences());
    let mut third: S = acquired(&ahead(&world, AFTER_THE_LEASE + Duration::from_millis(100))).await;
    assert_larger(&third.fences(), &second.fences());
    third.release().await.unwrap();
    drop(second);
}

pub(crate) async fn a_takeover_that_is_never_answered_keeps_the_lock<S: Subject>() {
    for asks in Asks::TAKEOVERS {
        let world = World::new().await;
        let _earlier: S = acquired(&world.default_locks()).await;
        let host = world.host().clock_ahead(Duration::from_millis(100)).intercept(S::lose_answers(1..=6)).build();
        let locks = world.locks(&host).build().unwrap();
        let Err(error) = asks.send::<S>(&locks, None).await else { panic!("it was answered") };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        locks.flush(Duration::from_secs(10)).await.unwrap();
        asks.sent::<S>(&ahead(&world, Duration::from_millis(200))).await.release().await.unwrap();
    }
}

pub(crate) async fn a_takeover_whose_answer_was_lost_succeeds<S: Subject>() {
    for asks in Asks::ALL {
        for lost in 1..=3 {
            let world = World::new().await;
            let earlier: S = acquired(&world.default_locks()).await;
            let host = world.host().clock_ahead(Duration::from_millis(100));
            let host = host.intercept(S::lose_answers(lost..=lost)).build();
            let mut lock: S = asks.sent(&world.locks_with_quick_retries(&host).build().unwrap()).await;
            assert_larger(&lock.fences(), &earlier.fences());
            lock.release().await.unwrap();
        }
    }
}

pub(crate) async fn a_takeover_of_what_the_identity_has_not_is_lost<S: Subject>() {
    let world = World::new().await;
    let assert_lost = async || {
        let before = rows::<S>(&world).await;
        for asks in Asks::TAKEOVERS {
            let Err(error) = asks.send::<S>(&world.default_locks(), None).await else { panic!("it was granted") };
            assert_eq!(error.kind(), ErrorKind::Lost, "{asks:?}: {error}");
            assert_eq!(rows::<S>(&world).await, before, "{asks:?}");
        }
    };
    // There is no row.
    assert_lost().await;
    let mut lock: S = acquired(&world.default_locks()).await;
    lock.release().await.unwrap();
    assert_lost().await;
    let mut other = S::acquire(&world.default_locks(), LEASE).await.unwrap_or_else(|error| panic!("{error}"));
    assert_lost().await;
    other.release().await.unwrap();
    // The lease has ended.
    let ended: S = acquired(&world.default_locks()).await;
    for asks in Asks::TAKEOVERS {
        let Err(error) = asks.send::<S>(&ahead(&world, AFTER_THE_LEASE * 2), None).await else { panic!("granted") };
        assert_eq!(error.kind(), ErrorKind::Lost, "{asks:?}: {error}");
    }
    drop(ended);
}

/// The step before may have been repeated since, so that the row has a larger fence than the caller knows.
pub(crate) async fn a_takeover_from_another_fence_takes_two_requests<S: Subject>() {
    let world = World::new().await;
    let first: S = acquired(&world.default_locks()).await;
    let mut second: S = acquired(&world.default_locks()).await;
    for from in [first.fences()[0], second.fences()[0] + 1_000_000_000] {
        let (host, locks) = crate::host(&world);
        let lock = S::take_over(&locks, IDENTITY, Some(from), None).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(host.requests(), 2);
        assert_larger(&lock.fences(), &second.fences());
        assert!(second.renew(LEASE).await.unwrap_err().is_lost());
        second = lock;
    }
    second.release().await.unwrap();
}

pub(crate) async fn an_acquire_by_an_earlier_clock_takes_over<S: Subject>() {
    for asks in Asks::ALL {
        let world = World::new().await;
        let mut earlier: S = acquired(&ahead(&world, Duration::from_hours(1))).await;
        let mut lock: S = asks.sent(&world.default_locks()).await;
        assert_larger(&lock.fences(), &earlier.fences());
        assert!(earlier.renew(LEASE).await.unwrap_err().is_lost());
        lock.renew(LEASE).await.unwrap();
        lock.release().await.unwrap();
        assert_free::<S>(&world).await;
    }
}

pub(crate) async fn an_acquire_by_an_earlier_clock_has_what_its_identity_has_released<S: Subject>() {
    let world = World::new().await;
    let mut first: S = acquired(&ahead(&world, Duration::from_hours(1))).await;
    first.release().await.unwrap();
    let (host, locks) = crate::host(&world);
    let mut lock: S = acquired(&locks).await;
    assert!(host.requests() <= 2, "{} requests", host.requests());
    lock.release().await.unwrap();
}

pub(crate) async fn a_late_acquire_of_the_earlier_holder_takes_nothing_back<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(all_tries_from(1)));
    let first = world.host().intercept(late.clone()).build();
    let Err(error) =
        S::acquire_for(&world.locks_with_quick_retries(&first).build().unwrap(), LEASE, IDENTITY, None).await
    else {
        panic!("it was granted")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The process dies before it can withdraw.
    first.crash();
    let mut lock: S = acquired(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    lock.release().await.unwrap();
    if S::IS_PERMIT {
        return;
    }
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    assert_free::<S>(&world).await;
}

/// Its renewal or its release arrives after the takeover, and after the release of the later holder.
pub(crate) async fn late_requests_of_the_earlier_holder_change_nothing_after_a_takeover<S: Subject>() {
    for (asks, releases) in Asks::ALL.into_iter().flat_map(|asks| [(asks, false), (asks, true)]) {
        let (world, late) = (World::new().await, S::hold_back(all_tries_from(2)));
        let host = world.host().intercept(late.clone()).build();
        let mut held: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
        let unanswered = if releases { held.release().await } else { held.renew(2 * LEASE).await };
        assert_eq!(unanswered.unwrap_err().kind(), ErrorKind::Unavailable);
        let mut lock: S = asks.sent(&world.default_locks()).await;
        let before = rows::<S>(&world).await;
        assert!(!late.deliver(&world).await, "{asks:?}");
        assert_eq!(rows::<S>(&world).await, before, "{asks:?}");
        lock.release().await.unwrap();
        assert!(!late.deliver(&world).await, "{asks:?}");
        assert_free::<S>(&world).await;
    }
}

/// The first attempt of the dead acquire has the lock. Its second attempt is late, and has a larger number than the later
/// acquire, whose clock is behind.
pub(crate) async fn a_late_attempt_of_a_dead_acquire_takes_nothing_over<S: Subject>() {
    let (world, late) = (World::in_virtual_time().await, S::hold_back(all_tries_from(4)));
    tokio::time::pause();
    let host = world.host().clock_ahead(Duration::from_millis(900));
    let host = host.intercept(S::lose_answers(all_tries_from(1))).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let mut dying = Box::pin(S::acquire_for(&locks, LEASE, IDENTITY, Some(at_pauses(PAUSE, LEASE))));
    assert!(timeout(PAUSE * 3 / 2, &mut dying).await.is_err(), "it has ended before its third attempt");
    host.crash();
    drop(dying);
    let mut later: S = acquired(&world.default_locks()).await;
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert_eq!(rows::<S>(&world).await, before);
    later.renew(LEASE).await.unwrap();
    later.release().await.unwrap();
}

/// The takeover ended without an answer, and its requests arrive late: while the earlier holder has the lock, and after its
/// release.
pub(crate) async fn a_late_takeover_that_was_withdrawn_takes_nothing<S: Subject>() {
    for asks in Asks::ALL {
        let (world, late) = (World::new().await, S::hold_back(all_tries_from(1)));
        let mut earlier: S = acquired(&world.default_locks()).await;
        let host = world.host().clock_ahead(Duration::from_millis(900)).intercept(late.clone()).build();
        withdraw::<S>(&world.locks_with_quick_retries(&host).build().unwrap(), asks).await;
        assert!(!late.deliver(&world).await);
        assert_held_by(&world, &earlier).await;
        earlier.renew(LEASE).await.unwrap();
        earlier.release().await.unwrap();
        assert!(!late.deliver(&world).await);
        assert_free::<S>(&world).await;
    }
}

/// The earlier holder has crashed, and others have had the key since its lease. They have replaced what it left.
pub(crate) async fn a_late_acquire_that_was_withdrawn_takes_nothing_after_others<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(all_tries_from(1)));
    let crashed: S = acquired(&world.default_locks()).await;
    let host =
        world.host().later(AFTER_THE_LEASE).clock_ahead(Duration::from_millis(900)).intercept(late.clone()).build();
    withdraw::<S>(&world.locks_with_quick_retries(&host).build().unwrap(), Asks::Acquire).await;
    // Their clock is behind, so that their own numbers would be smaller than that of the request.
    let others = ahead(&world, AFTER_THE_LEASE);
    let mut other = S::acquire(&others, LEASE).await.unwrap_or_else(|error| panic!("{error}"));
    other.release().await.unwrap();
    assert!(!late.deliver(&world).await);
    drop(crashed);
}

/// Acquires without an answer, and withdraws.
async fn withdraw<S: Subject>(locks: &Locks, asks: Asks) {
    assert_withdrawn(locks, asks.send::<S>(locks, None).await).await;
}

/// The answer to the release of the earlier holder is lost, so it is sent twice.
pub(crate) async fn a_release_after_a_takeover_is_lost_whatever_was_answered<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(2..=2)).build();
    let mut earlier: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    let mut lock: S = acquired(&world.default_locks()).await;
    assert_eq!(earlier.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_held_by(&world, &lock).await;
    lock.release().await.unwrap();
}

/// The later holder has released the lock meanwhile.
pub(crate) async fn a_release_after_a_takeover_and_its_release_is_lost_whatever_was_answered<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(2..=2)).build();
    let mut earlier: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    let mut lock: S = acquired(&world.default_locks()).await;
    lock.release().await.unwrap();
    assert_eq!(earlier.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_free::<S>(&world).await;
}

/// The later holder has crashed, and others have had the key since its lease, which was shorter.
pub(crate) async fn a_release_after_a_takeover_and_its_lease_is_lost_whatever_was_answered<S: Subject>() {
    let world = World::new().await;
    let host = world.host().intercept(S::lose_answers(2..=2)).build();
    let mut earlier: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    let crashing = world.host().clock_ahead(Duration::from_millis(100)).build();
    let locks = world.locks(&crashing).build().unwrap();
    let crashed = S::acquire_for(&locks, LEASE / 5, IDENTITY, None).await.unwrap_or_else(|error| panic!("{error}"));
    crashing.crash();
    let others = ahead(&world, LEASE / 2);
    let mut other = S::acquire(&others, LEASE).await.unwrap_or_else(|error| panic!("{error}"));
    other.release().await.unwrap();
    assert_eq!(earlier.release().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(crashed);
}

pub(crate) async fn an_identity_frees_what_it_has_without_a_nonce<S: Subject>() {
    let (world, late) = (World::new().await, S::hold_back(1..=2));
    let first = world.host().intercept(late.clone()).build();
    let mut stopped = S::acquire_for(&world.locks_with_quick_retries(&first).build().unwrap(), LEASE, IDENTITY, None)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let locks = world.default_locks();
    for key in S::KEYS {
        assert!(locks.release_identity(*key, IDENTITY).await.unwrap());
        assert!(!locks.release_identity(*key, IDENTITY).await.unwrap(), "it was freed twice");
    }
    let before = rows::<S>(&world).await;
    assert!(!late.deliver(&world).await);
    assert!(stopped.renew(LEASE).await.unwrap_err().is_lost());
    assert_eq!(rows::<S>(&world).await, before);
    assert_free::<S>(&world).await;
}

pub(crate) async fn an_identity_frees_what_a_clock_an_hour_ahead_has_acquired<S: Subject>() {
    let world = World::new().await;
    let _held: S = acquired(&ahead(&world, Duration::from_hours(1))).await;
    free_for_identity::<S>(&world.default_locks()).await;
    assert_free::<S>(&world).await;
}

pub(crate) async fn a_release_of_what_was_freed_for_the_identity_is_lost<S: Subject>() {
    let world = World::new().await;
    let mut stopped: S = acquired(&world.default_locks()).await;
    free_for_identity::<S>(&world.default_locks()).await;
    let mut next: S = crate::acquired(&world.default_locks()).await;
    assert_eq!(stopped.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.renew(LEASE).await.unwrap();
    next.release().await.unwrap();
}

pub(crate) async fn a_loss_by_a_release_for_the_identity_names_no_holder<S: Subject>() {
    let world = World::new().await;
    let mut stopped: S = acquired(&world.default_locks()).await;
    free_for_identity::<S>(&world.default_locks()).await;
    let error = stopped.renew(LEASE).await.unwrap_err();
    assert_eq!((error.kind(), error.holders().count()), (ErrorKind::Lost, 0), "{error}");
    assert!(error.to_string().contains("it was freed"), "{error}");
}

pub(crate) async fn a_release_for_an_identity_that_is_not_answered_is_not_repeated<S: Subject>() {
    let world = World::new().await;
    let _held: S = acquired(&world.default_locks()).await;
    // The three of the SDK.
    let host = world.host().clock_ahead(Duration::from_millis(100)).intercept(Late::updates(all_tries_from(1))).build();
    let tools = world.locks_with_quick_retries(&host).build().unwrap();
    let error = tools.release_identity(S::KEYS[0], IDENTITY).await.unwrap_err();
    assert_eq!((error.kind(), host.requests()), (ErrorKind::Unavailable, 4), "{error}");
    assert!(tools.release_identity(S::KEYS[0], IDENTITY).await.unwrap());
}

async fn free_for_identity<S: Subject>(tools: &Locks) {
    for key in S::KEYS {
        assert!(tools.release_identity(*key, IDENTITY).await.unwrap());
    }
}

/// Acquires with a grant that is not answered, which the tools free for its identity. Others then go on before the second
/// attempt, which is the last one.
async fn freed_while_it_waits<S: Subject>(
    world: &World,
    tools: &Locks,
    others: impl Future<Output = ()>,
) -> Result<S, Error> {
    // The three attempts of the SDK, of which the first takes the key.
    let host = world.host().intercept(S::lose_answers(all_tries_from(1))).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let freed = async {
        sleep(LEASE / 5).await;
        free_for_identity::<S>(tools).await;
        others.await;
    };
    let wait = at_pauses(4 * LEASE, 4 * LEASE);
    join!(S::acquire_for(&locks, LEASE, IDENTITY, Some(wait)), freed).0
}

pub(crate) async fn an_acquire_whose_unanswered_grant_was_freed_begins_anew<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let crash = async {
        let crashing = world.host().clock_ahead(Duration::from_millis(200)).build();
        let crashed = S::acquire(&world.locks(&crashing).build().unwrap(), LEASE).await;
        let _crashed = crashed.unwrap_or_else(|error| panic!("{error}"));
        crashing.crash();
    };
    let waited: Result<S, _> = freed_while_it_waits(&world, &world.default_locks(), crash).await;
    let mut held = waited.unwrap_or_else(|error| panic!("{error}"));
    held.renew(LEASE).await.unwrap();
    assert_held_by(&world, &held).await;
    held.release().await.unwrap();
}

pub(crate) async fn an_acquire_whose_unanswered_grant_was_freed_is_refused_by_the_next_holder<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let mut next: Option<S> = None;
    let hold = async {
        let acquired = S::acquire(&ahead(&world, Duration::from_millis(200)), 100 * LEASE).await;
        next = Some(acquired.unwrap_or_else(|error| panic!("{error}")));
    };
    let refused: Result<S, _> = freed_while_it_waits(&world, &world.default_locks(), hold).await;
    let error = refused.err().unwrap();
    assert!(error.is_held() && error.holder().is_some(), "{error}");
    assert_eq!(error.attempts(), 2);
    next.unwrap().release().await.unwrap();
}

/// The pause between two attempts of an acquire whose clock is ahead.
const PAUSE: Duration = Duration::from_millis(600);

/// How others free what an acquire has.
#[derive(Clone, Copy, Debug)]
enum Free {
    ForIdentity,
    ByForce,
}

/// Acquires with a grant that is not answered, perhaps of a takeover, and that others free. The second attempt is late.
async fn freed_before_a_late_attempt<S: Subject>(
    world: &World,
    late: &Late,
    free: Free,
    asks: Asks,
    budget: Duration,
) -> (Error, Locks) {
    let _earlier: Option<S> = if asks == Asks::Acquire { None } else { Some(acquired(&world.default_locks()).await) };
    let lost = S::lose_answers(all_tries_from(1));
    let host = world.host().clock_ahead(Duration::from_millis(900)).intercept(lost).intercept(late.clone()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let wait = Some(at_pauses(PAUSE, budget));
    let freed = async {
        sleep(PAUSE / 20).await;
        let tools = world.default_locks();
        match free {
            Free::ForIdentity => free_for_identity::<S>(&tools).await,
            Free::ByForce => free_by_force::<S>(&tools).await,
        }
    };
    let (refused, ()) = join!(asks.send::<S>(&locks, wait), freed);
    (refused.err().unwrap(), locks)
}

/// The clock of the next holder is behind, so that its own number would be smaller than that of the second attempt. It
/// acquires before the third one, which learns of it.
pub(crate) async fn a_late_acquire_whose_grant_was_freed_takes_nothing_after_a_holder<S: Subject>() {
    tokio::time::pause();
    for free in [Free::ForIdentity, Free::ByForce] {
        let (world, late) = (World::in_virtual_time().await, S::hold_back(all_tries_from(4)));
        let next = async {
            sleep(PAUSE * 3 / 2).await;
            crate::acquired::<S>(&world.default_locks()).await
        };
        let ((error, _), mut next) =
            join!(freed_before_a_late_attempt::<S>(&world, &late, free, Asks::Acquire, 2 * PAUSE), next);
        assert!(error.is_held(), "{free:?}: {error}");
        next.release().await.unwrap();
        assert!(!late.deliver(&world).await, "{free:?}");
    }
}

/// The same after the end of the wait. The next holder may have the same identity, so that the second attempt could take its
/// lock over.
pub(crate) async fn a_late_acquire_whose_grant_was_freed_takes_nothing_after_its_wait<S: Subject>() {
    tokio::time::pause();
    for case in 0..12 {
        let free = if case & 1 == 0 { Free::ForIdentity } else { Free::ByForce };
        let (is_same, asks) = (case & 2 == 0, Asks::ALL[case / 4]);
        let (world, late) = (World::in_virtual_time().await, S::hold_back(all_tries_from(4)));
        let (error, locks) = freed_before_a_late_attempt::<S>(&world, &late, free, asks, PAUSE).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        locks.flush(Duration::from_mins(1)).await.unwrap();
        sleep(PAUSE / 2).await;
        let locks = world.default_locks();
        let mut next: S = if is_same { acquired(&locks).await } else { crate::acquired(&locks).await };
        assert!(!late.deliver(&world).await, "{free:?}, {is_same}, {asks:?}");
        next.release().await.unwrap();
        assert!(!late.deliver(&world).await, "{free:?}, {is_same}, {asks:?}");
        assert_free::<S>(&world).await;
        assert!(!late.deliver(&world).await, "{free:?}, {is_same}, {asks:?}");
    }
}

pub(crate) async fn a_late_acquire_takes_nothing_after_a_withdrawal_by_a_clock_set_back<S: Subject>() {
    assert_withdrawn_by_a_clock_set_back(async |locks: &Locks| S::acquire_for(locks, LEASE, IDENTITY, None).await)
        .await;
}

pub(crate) async fn a_late_acquire_that_was_freed_by_force_takes_nothing_after_the_next<S: Subject>() {
    let (world, late) = (World::in_virtual_time().await, S::hold_back(1..=1));
    tokio::time::pause();
    let host = world.host().clock_ahead(Duration::from_millis(900)).intercept(late.clone()).build();
    let _held: S = acquired(&world.locks_with_quick_retries(&host).build().unwrap()).await;
    let tools = world.default_locks();
    free_by_force::<S>(&tools).await;
    acquired::<S>(&tools).await.release().await.unwrap();
    assert!(!late.deliver(&world).await);
}

pub(crate) async fn a_takeover_that_can_have_no_larger_fence_is_malformed<S: Subject>() {
    let world = World::new().await;
    let _earlier: S = acquired(&world.default_locks()).await;
    for key in S::KEYS {
        let mut row = world.row(key).await.unwrap();
        row.insert("fence".to_owned(), AttributeValue::N((1_u64 << 63).to_string()));
        world.put_row(row).await;
    }
    let before = rows::<S>(&world).await;
    for answer in [
        S::acquire_for(&world.default_locks(), LEASE, IDENTITY, None).await,
        Asks::TakeOver.send(&world.default_locks(), None).await,
        Asks::TakeOverFrom.send(&world.default_locks(), None).await,
    ] {
        let Err(error) = answer else { panic!("it was granted") };
        assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error}");
    }
    assert_eq!(rows::<S>(&world).await, before);
}

pub(crate) async fn a_late_release_for_an_identity_frees_no_later_acquisition<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    // The first attempt of the SDK.
    let late = Late::updates(1..=1);
    let host = world.host().clock_ahead(Duration::from_millis(100)).intercept(late.clone()).build();
    let tools = world.locks_with_quick_retries(&host).build().unwrap();
    let others = async {
        let mut next: S = crate::acquired(&ahead(&world, Duration::from_millis(200))).await;
        next.release().await.unwrap();
    };
    let waited: Result<S, _> = freed_while_it_waits(&world, &tools, others).await;
    let mut held = waited.unwrap_or_else(|error| panic!("{error}"));
    assert!(!late.deliver(&world).await);
    held.renew(LEASE).await.unwrap();
    held.release().await.unwrap();
}

/// Answers the second read as the first one.
#[derive(Debug, Default)]
struct Stale(Mutex<Vec<Value>>);

impl Intercept for Stale {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "GetItem" {
            let mut answers = self.0.lock().unwrap();
            answers.push(answer.body.clone());
            if answers.len() == 2 {
                answer.body = answers[0].clone();
            }
        }
    }
}

pub(crate) async fn a_release_of_what_the_identity_has_taken_over_meanwhile_frees_it<S: Subject>() {
    for key in S::KEYS {
        let world = World::new().await;
        let _first: S = acquired(&world.default_locks()).await;
        let host = world.host().clock_ahead(Duration::from_millis(200)).intercept(Stale::default()).build();
        let tools = world.locks(&host).build().unwrap();
        tools.get(*key).await.unwrap();
        let mut second: S = acquired(&world.default_locks()).await;
        assert!(tools.release_identity(*key, IDENTITY).await.unwrap());
        assert!(second.renew(LEASE).await.unwrap_err().is_lost());
    }
}
