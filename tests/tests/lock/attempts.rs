//! Waits of which each attempt is in another process.

use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Acquire, Attempt, Backoff, ErrorKind, Jitter, Lock, Locks, Turn, Wait};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{StepsClock, World, engine_with_latency};
use serde_json::{Value, json};
use tokio::time::sleep;

const KEY: &str = "deploy";
const LEASE: Duration = Duration::from_mins(10);

/// What is acquired: the key, or the only permit of a semaphore.
type Acquires = fn(&Locks) -> Acquire;
const KINDS: [Acquires; 2] =
    [|locks| locks.acquire(KEY).lease(LEASE), |locks| locks.semaphore(KEY, 1).acquire().lease(LEASE)];

fn waiting(attempt: Attempt) -> Turn {
    match attempt {
        Attempt::Waiting(turn) => turn,
        other @ Attempt::Acquired(_) => panic!("{other:?}"),
    }
}

fn acquired(attempt: Attempt) -> Lock {
    match attempt {
        Attempt::Acquired(lock) => lock,
        other @ Attempt::Waiting(_) => panic!("{other:?}"),
    }
}

/// The turn as the state of a workflow has it.
fn through_json(turn: &Turn) -> Turn {
    serde_json::from_str(&serde_json::to_string(turn).unwrap()).unwrap()
}

#[tokio::test]
async fn a_turn_keeps_its_place_in_another_process() {
    for kind in KINDS {
        let world = World::new().await;
        let held = kind(&world.default_locks()).await.unwrap();
        let turn = waiting(kind(&world.default_locks()).attempt_in_turn(None).await.unwrap());
        assert_eq!((turn.keys().collect::<Vec<_>>(), turn.attempts()), (vec![KEY], 1));
        assert!((Duration::from_secs(1)..=Duration::from_mins(15)).contains(&turn.delay()), "{:?}", turn.delay());
        let again = waiting(kind(&world.default_locks()).attempt_in_turn(Some(through_json(&turn))).await.unwrap());
        assert_eq!(again.attempts(), 2);
        let holder = world.default_locks().get(KEY).await.unwrap().unwrap();
        assert_eq!(holder.waiters(), 1, "it took one place");
        held.release().await.unwrap();
        let lock = acquired(kind(&world.default_locks()).attempt_in_turn(Some(through_json(&again))).await.unwrap());
        assert_eq!(world.default_locks().get(KEY).await.unwrap().unwrap().waiters(), 0);
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_grant_that_is_answered_after_its_lease_is_freed_before_the_next_attempt() {
    tokio::time::pause();
    // The attempts are given up, and then the key or the permit is freed. TTL could delete the row of the key soon, which the
    // first refusal shows.
    for (kind, withdrawal) in KINDS.into_iter().zip([3, 2]) {
        let world = World::in_virtual_time().await;
        let host = StepsClock::host(world.host(), 1, |host| host.advance_clock(2 * LEASE));
        let turn = waiting(kind(&world.locks(&host).build().unwrap()).attempt_in_turn(None).await.unwrap());
        assert_eq!((turn.attempts(), host.requests()), (1, 1 + withdrawal));
        assert!(world.default_locks().get(KEY).await.unwrap().unwrap().has_released());
        let locks = world.locks(&world.host().later(2 * LEASE).build()).build().unwrap();
        acquired(kind(&locks).attempt_in_turn(Some(turn)).await.unwrap()).release().await.unwrap();
    }
}

/// An execution waits in one process after another. The first one has crashed, and its clock was ahead by less than the skew.
#[tokio::test]
async fn an_execution_takes_over_from_a_clock_ahead_at_once() {
    for kind in KINDS {
        let world = World::new().await;
        let asking = |locks: &Locks| kind(locks).lease(LEASE).identity("execution 1");
        let ahead = world.locks(&world.host().clock_ahead(Duration::from_millis(900)).build()).build().unwrap();
        let crashed = asking(&ahead).await.unwrap();
        let host = world.host().build();
        let lock = acquired(asking(&world.locks(&host).build().unwrap()).attempt_in_turn(None).await.unwrap());
        assert_eq!(host.requests(), 2, "the first shows what to take over");
        assert!(lock.fence() > crashed.fence());
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_turn_that_is_used_twice_gives_the_key_once() {
    for kind in KINDS {
        let world = World::new().await;
        let held = kind(&world.default_locks()).await.unwrap();
        let turn = waiting(kind(&world.default_locks()).attempt_in_turn(None).await.unwrap());
        held.release().await.unwrap();
        let lock = acquired(kind(&world.default_locks()).attempt_in_turn(Some(turn.clone())).await.unwrap());
        let other = waiting(kind(&world.default_locks()).attempt_in_turn(Some(turn)).await.unwrap());
        lock.release().await.unwrap();
        acquired(kind(&world.default_locks()).attempt_in_turn(Some(other)).await.unwrap()).release().await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_in_several_processes_ends_with_its_budget() {
    tokio::time::pause();
    let (engine, locks) = virtual_locks().await;
    let held = locks.acquire(KEY).lease(LEASE).await.unwrap();
    let acquire = || locks.acquire(KEY).wait(Duration::from_secs(30));
    let (began, mut turn) = (engine.now(), None);
    let error = loop {
        match acquire().attempt_in_turn(turn).await {
            Ok(attempt) => {
                let next = waiting(attempt);
                sleep(next.delay()).await;
                turn = Some(next);
            }
            Err(error) => break error,
        }
    };
    assert!(error.is_held(), "{error}");
    let waited = engine.now().duration_since(began).unwrap();
    assert!((Duration::from_secs(30)..Duration::from_secs(31)).contains(&waited), "{waited:?}");
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_turn_of_another_key_is_invalid() {
    let world = World::new().await;
    let locks = world.default_locks();
    let held = locks.acquire(KEY).await.unwrap();
    let turn = waiting(locks.acquire(KEY).attempt_in_turn(None).await.unwrap());
    let error = locks.acquire("another").attempt_in_turn(Some(turn)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`deploy`") && error.to_string().contains("`another`"), "{error}");
    held.release().await.unwrap();
}

#[test]
fn json_that_does_not_describe_a_turn_is_rejected() {
    for (json, named) in
        [("5", "expected a turn"), (r#""turn""#, "expected a turn"), (r#"{"keys":[5]}"#, "a key of a turn")]
    {
        let error = serde_json::from_str::<Turn>(json).unwrap_err().to_string();
        assert!(error.contains(named) && !error.contains("Written"), "{error}");
    }
}

#[tokio::test]
async fn a_turn_of_another_version_or_with_a_field_out_of_bounds_is_rejected() {
    let world = World::new().await;
    let held = world.default_locks().acquire(KEY).await.unwrap();
    let turn = waiting(world.default_locks().acquire(KEY).attempt_in_turn(None).await.unwrap());
    held.release().await.unwrap();
    let written = serde_json::to_value(&turn).unwrap();
    for (name, value, is_read) in [
        ("version", json!(2), false),
        ("version", Value::Null, false),
        ("key", Value::Null, false),
        ("began", json!(u64::MAX), false),
        ("began", json!(-1), false),
        ("hold", json!(u64::MAX), false),
        ("delay", json!("soon"), false),
        ("keys", Value::Null, false),
        ("attempts", json!(u32::MAX), true),
        ("hold", json!(86_400_000), true),
        ("seen", json!(253_402_300_799_999_u64), true),
        // No queue reaches it, so it is ignored.
        ("place", json!(u64::MAX), true),
    ] {
        let mut changed = written.clone();
        let fields = if changed.get(name).is_some() { &mut changed } else { &mut changed["keys"][0] };
        fields[name] = value.clone();
        assert_eq!(serde_json::from_value::<Turn>(changed).is_ok(), is_read, "{name} = {value}");
    }
}

/// The deadline is that of the process that makes the attempt, and the wait goes on in others.
#[tokio::test]
async fn a_wait_in_several_processes_outlasts_their_deadlines() {
    tokio::time::pause();
    let (engine, locks) = virtual_locks().await;
    let held = locks.acquire(KEY).lease(LEASE).await.unwrap();
    let (mut turn, began) = (None, engine.now());
    while engine.now().duration_since(began).unwrap() < Duration::from_mins(5) {
        let deadline = engine.now() + Duration::from_secs(10);
        let acquire = locks.acquire(KEY).deadline(deadline).wait(Duration::from_hours(1));
        let next = waiting(acquire.attempt_in_turn(turn).await.unwrap());
        sleep(next.delay()).await;
        turn = Some(through_json(&next));
    }
    let error =
        locks.acquire(KEY).wait(Wait::in_turn().max_attempts(1)).attempt_in_turn(turn.clone()).await.unwrap_err();
    assert_eq!(error.attempts(), turn.unwrap().attempts() + 1);
    held.release().await.unwrap();
}

/// Each attempt is an invocation, and a workflow has a limited number of steps.
#[tokio::test]
async fn a_wait_for_a_long_hold_has_few_attempts() {
    tokio::time::pause();
    let minutes = Duration::from_mins;
    // The holds before, and the one that is awaited.
    for (before, awaited, most) in [(Some(60), 150, 15), (Some(60), 61, 4), (None, 1440, 200), (None, 60, 70)] {
        for kind in KINDS {
            let (engine, locks) = virtual_locks().await;
            let acquire = || kind(&locks).lease(minutes(1440));
            if let Some(before) = before {
                let lock = acquire().await.unwrap();
                sleep(minutes(before)).await;
                lock.release().await.unwrap();
            }
            let (held, began, mut turn) = (acquire().await.unwrap(), engine.now(), None);
            let mut attempts = 0;
            while engine.now().duration_since(began).unwrap() + minutes(1) < minutes(awaited) {
                let next = waiting(acquire().attempt_in_turn(turn).await.unwrap());
                attempts = next.attempts();
                sleep(next.delay()).await;
                turn = Some(next);
            }
            println!("{attempts} for {awaited} minutes after {before:?}");
            assert!(attempts <= most, "{attempts} for {awaited} minutes after {before:?}");
            held.release().await.unwrap();
        }
    }
}

/// Without a place, there is nothing to compute a turn from.
#[tokio::test]
async fn without_a_turn_delays_grow_from_process_to_process() {
    tokio::time::pause();
    let (_, locks) = virtual_locks().await;
    let held = locks.acquire(KEY).lease(LEASE).await.unwrap();
    let backoff = Backoff::new().jitter(Jitter::None).cap(Duration::from_mins(1));
    let (mut turn, mut delays) = (None, Vec::new());
    for _ in 0..8 {
        let acquire = locks.acquire(KEY).wait(Wait::backoff(backoff).up_to(Duration::from_hours(1)));
        let next = waiting(acquire.attempt_in_turn(turn).await.unwrap());
        delays.push(next.delay().as_millis());
        turn = Some(through_json(&next));
    }
    assert_eq!(delays, [1000, 1000, 1000, 1000, 1600, 3200, 6400, 12_800]);
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_turn_names_its_table_by_name_or_arn() {
    let world = World::new().await;
    let held = world.default_locks().acquire(KEY).await.unwrap();
    let turn = waiting(world.default_locks().acquire(KEY).attempt_in_turn(None).await.unwrap());
    let mut written = serde_json::to_value(&turn).unwrap();
    let arn = format!("arn:aws:dynamodb:us-east-1:123456789012:table/{}", world.table);
    let of_another = arn.replace(&world.table, "another");
    for (name, is_same) in [(arn, true), ("another".to_owned(), false), (of_another, false)] {
        written["table"] = json!(name);
        let turn = serde_json::from_value(written.clone()).unwrap();
        let attempt = world.default_locks().acquire(KEY).attempt_in_turn(Some(turn)).await;
        assert_eq!(attempt.is_ok(), is_same, "{attempt:?}");
    }
    held.release().await.unwrap();
}

/// An engine in virtual time, and locks of a host whose requests take 5 ms.
async fn virtual_locks() -> (DynamoDb, Locks) {
    fastrand::seed(7);
    let (engine, host) = engine_with_latency(None::<LoseAnswers>);
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
    (engine, locks)
}
