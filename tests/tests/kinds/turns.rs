//! Waiters take turns, if the kind has a queue.

use std::sync::Mutex;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{Backoff, Locks, Wait};
use lambda_lock_tests::history::Mutation;
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::{World, engine_with_latency, ms};
use tokio::join;
use tokio::time::{sleep, timeout};

use crate::subject::Subject;
use crate::{LEASE, acquired, host, rows};

const ENOUGH: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(10);

fn in_turn() -> Wait {
    Wait::in_turn().up_to(ENOUGH)
}

async fn waited<S: Subject>(locks: &Locks) -> S {
    let waiting = timeout(SOON, S::wait(locks, LEASE, in_turn())).await;
    waiting.expect("it waits too long").unwrap_or_else(|error| panic!("{error}"))
}

async fn number<S: Subject>(world: &World, name: &str) -> Option<u64> {
    world.row(S::KEYS[0]).await?.get(name)?.as_n().unwrap().parse().ok()
}

/// Waits until this many places were given.
async fn places_given<S: Subject>(world: &World, places: u64) {
    let given = async {
        while number::<S>(world, "tail").await < Some(places) {
            sleep(ms(2)).await;
        }
    };
    timeout(ENOUGH, given).await.unwrap();
}

pub(crate) async fn a_waiter_takes_a_place_until_it_is_served<S: Subject>() {
    let world = World::new().await;
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    let mut first = acquired::<S>(&ours).await;
    let serve = async {
        places_given::<S>(&world, 1).await;
        assert_eq!(ours.get(S::KEYS[0]).await.unwrap().unwrap().waiters(), 1);
        first.release().await.unwrap();
    };
    let (mut next, ()) = join!(waited::<S>(&theirs), serve);
    assert_eq!((number::<S>(&world, "tail").await, number::<S>(&world, "head").await), (Some(1), Some(1)));
    let holder = ours.get(S::KEYS[0]).await.unwrap().unwrap();
    assert_eq!(holder.waiters(), 0);
    assert!(holder.hold_time().is_some());
    next.release().await.unwrap();
}

/// A world in which somebody released the keys a millisecond ago, after this hold, and so many waiters have places. Nobody serves
/// them.
async fn released_with_queue<S: Subject>(waiters: u32, hold: Duration) -> (World, Host, Locks) {
    let world = World::in_virtual_time().await;
    let mut earlier = acquired::<S>(&world.default_locks()).await;
    sleep(hold).await;
    earlier.release().await.unwrap();
    sleep(ms(1)).await;
    let (host, locks) = host(&world);
    let until = millis(host.now() + ENOUGH);
    for mut row in rows::<S>(&world).await.into_iter().flatten() {
        let queue = [("tail", waiters.into()), ("head", 0), ("tail_until", until)];
        row.extend(queue.map(|(name, value)| (name.to_owned(), AttributeValue::N(value.to_string()))));
        world.put_row(row).await;
    }
    (world, host, locks)
}

pub(crate) async fn a_newcomer_that_waits_leaves_a_free_key_to_the_queue_for_a_moment<S: Subject>() {
    tokio::time::pause();
    let (_world, host, locks) = released_with_queue::<S>(1, Duration::ZERO).await;
    let started = host.now();
    let mut held = waited::<S>(&locks).await;
    let waited = host.now().duration_since(started).unwrap();
    assert!(waited > Duration::ZERO && waited <= ms(30), "{waited:?}");
    // An attempt, a place, and an attempt. A set may reserve its keys, too.
    assert!((3..=2 + S::KEYS.len() as u64).contains(&host.requests()), "{} requests", host.requests());
    held.release().await.unwrap();
}

pub(crate) async fn an_acquire_that_does_not_wait_takes_a_free_key_at_once<S: Subject>() {
    tokio::time::pause();
    let (_world, host, locks) = released_with_queue::<S>(9, Duration::ZERO).await;
    acquired::<S>(&locks).await.release().await.unwrap();
    assert_eq!(host.requests(), 2);
}

pub(crate) async fn a_wait_does_not_end_without_a_key_that_is_free<S: Subject>() {
    tokio::time::pause();
    for wait in [Wait::in_turn().up_to(ms(4)), Wait::in_turn().up_to(ms(6)), Wait::in_turn().max_attempts(2)] {
        // Whoever has a place leaves the keys to those ahead for 6 ms then.
        let (_world, _host, locks) = released_with_queue::<S>(9, ms(100)).await;
        S::wait(&locks, LEASE, wait).await.unwrap_or_else(|error| panic!("{wait:?}: {error}")).release().await.unwrap();
    }
}

pub(crate) async fn plain_backoff_takes_no_place<S: Subject>() {
    let world = World::new().await;
    let mut first = acquired::<S>(&world.default_locks()).await;
    let plain = Wait::backoff(Backoff::new().base(ms(10))).up_to(ms(100));
    let Err(error) = S::wait(&world.default_locks(), LEASE, plain).await else { panic!("it was granted") };
    assert!(error.is_held());
    assert_eq!(number::<S>(&world, "tail").await, None);
    first.release().await.unwrap();
}

pub(crate) async fn lying_hints_cost_time_only<S: Subject>() {
    World::skip_waits();
    // Each hint in a table of its own, so that their times do not add up.
    let names = ["tail", "head", "tail_until", "hold", "hold_deviation", "freed_at", "reserved_until"];
    join_all(names.map(|name| Box::pin(a_lying_hint_costs_time_only::<S>(name)))).await;
}

async fn a_lying_hint_costs_time_only<S: Subject>(name: &str) {
    let world = World::new().await;
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    for value in [
        AttributeValue::N("-1".to_owned()),
        AttributeValue::N("9e125".to_owned()),
        AttributeValue::N("0.5".to_owned()),
        AttributeValue::N("9000000000000000000".to_owned()),
        AttributeValue::N("253402300799999".to_owned()),
        AttributeValue::S("soon".to_owned()),
        AttributeValue::L(vec![]),
    ] {
        acquired::<S>(&ours).await.release().await.unwrap();
        let mut row = world.row(S::KEYS[0]).await.unwrap();
        row.insert(name.to_owned(), value.clone());
        row.insert("reserved_by".to_owned(), AttributeValue::S("somebody".to_owned()));
        world.put_row(row).await;
        let mut first = acquired::<S>(&ours).await;
        let release = async {
            sleep(ms(20)).await;
            first.release().await.unwrap();
        };
        println!("{name} = {value:?}");
        let (mut next, ()) = join!(waited::<S>(&theirs), release);
        next.release().await.unwrap();
        let hold = ours.get(S::KEYS[0]).await.unwrap().unwrap().hold_time();
        assert!(hold < Some(Duration::from_secs(20)), "{name} = {value:?}: {hold:?}");
    }
}

pub(crate) async fn a_place_that_nobody_fills_is_passed_over<S: Subject>() {
    let world = World::new().await;
    let mut first = acquired::<S>(&world.default_locks()).await;
    let dead = world.host().build();
    let locks = world.locks(&dead).build().unwrap();
    tokio::select! {
        _ = S::wait(&locks, LEASE, in_turn()) => panic!("it was granted"),
        () = places_given::<S>(&world, 1) => dead.crash(),
    }
    let serve = async {
        places_given::<S>(&world, 2).await;
        first.release().await.unwrap();
    };
    let theirs = world.default_locks();
    let (mut next, ()) = join!(waited::<S>(&theirs), serve);
    assert_eq!((number::<S>(&world, "tail").await, number::<S>(&world, "head").await), (Some(2), Some(2)));
    next.release().await.unwrap();
}

pub(crate) async fn a_place_whose_answer_was_lost_does_not_stop_its_waiter<S: Subject>() {
    let world = World::new().await;
    let mut first = acquired::<S>(&world.default_locks()).await;
    // The SDK repeats the request.
    let host = world.host().intercept(S::lose_place()).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let serve = async {
        places_given::<S>(&world, 2).await;
        first.release().await.unwrap();
    };
    let (mut next, ()) = join!(waited::<S>(&locks), serve);
    next.release().await.unwrap();
}

pub(crate) async fn a_waiter_whose_place_was_passed_does_not_set_the_queue_back<S: Subject>() {
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let ours = world.default_locks();
    for _ in 0..20 {
        let mut held = acquired::<S>(&ours).await;
        sleep(ms(100)).await;
        held.release().await.unwrap();
    }
    let mut first = acquired::<S>(&ours).await;
    // The waiter has the first place, and sleeps until the hold should end.
    let serve = async {
        sleep(ms(50)).await;
        let mut row = world.row(S::KEYS[0]).await.unwrap();
        row.extend(["tail", "head"].map(|name| (name.to_owned(), AttributeValue::N("5".to_owned()))));
        world.put_row(row).await;
        first.release().await.unwrap();
    };
    let (host, theirs) = host(&world);
    let (mut next, ()) = join!(waited::<S>(&theirs), serve);
    // An attempt, a place, and two attempts. A set also reserves its keys.
    assert!(host.requests() <= 5, "{} requests", host.requests());
    next.release().await.unwrap();
    assert_eq!((number::<S>(&world, "tail").await, number::<S>(&world, "head").await), (Some(5), Some(5)));
}

pub(crate) async fn a_waiter_whose_row_is_deleted_is_served<S: Subject>() {
    let world = World::new().await;
    let mut first = acquired::<S>(&world.default_locks()).await;
    let delete = async {
        places_given::<S>(&world, 1).await;
        for key in S::KEYS {
            world.delete_row(key).await;
        }
    };
    let theirs = world.default_locks();
    let (mut next, ()) = join!(waited::<S>(&theirs), delete);
    assert!(first.release().await.is_err());
    next.release().await.unwrap();
}

/// Lets so many wait, each a while after the one before, for holds of 20 ms. Returns the order in which they were served,
/// and the time that it took.
async fn serve<S: Subject>(waiters: u32, apart: Duration, mutation: Option<Mutation>) -> (Vec<u32>, Duration) {
    fastrand::seed(7);
    let (engine, host) = engine_with_latency(mutation);
    Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    let (started, served) = (host.now(), Mutex::new(Vec::new()));
    let wait = async |number: u32| {
        sleep(apart * number).await;
        let patience = Wait::in_turn().up_to(Duration::from_mins(2));
        let mut held = S::wait(&locks, LEASE, patience).await.unwrap_or_else(|error| panic!("{error}"));
        served.lock().unwrap().push(number);
        sleep(ms(20)).await;
        held.release().await.unwrap();
    };
    join_all((0..waiters).map(wait)).await;
    let took = host.now().duration_since(started).unwrap();
    (served.into_inner().unwrap(), took)
}

pub(crate) async fn waiters_are_served_in_the_order_of_their_arrival<S: Subject>() {
    tokio::time::pause();
    let (served, _) = serve::<S>(16, ms(10), None).await;
    assert!((0..16).zip(&served).all(|(place, number)| u32::abs_diff(place, *number) <= 2), "{served:?}");
}

pub(crate) async fn a_mistake_in_the_queue_costs_each_waiter_at_most_a_longest_delay<S: Subject>() {
    tokio::time::pause();
    for mutation in Mutation::QUEUE {
        let (_, took) = serve::<S>(8, Duration::ZERO, Some(mutation)).await;
        println!("{mutation:?}: {took:?}");
        assert!(took <= 8 * (ms(30) + Duration::from_secs(5)), "{mutation:?}: {took:?}");
    }
}
