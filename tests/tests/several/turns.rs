//! Waiters for several keys take turns with waiters for one of them, and reserve their keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use lambda_lock::embedded::Host;
use lambda_lock::{Backoff, Lock, Locks, Wait};
use lambda_lock_tests::history::Mutation;
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::{Late, World, engine_with_latency};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{KEYS, assert_free, ms, number, rows, text};

const ENOUGH: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_millis(200);

/// Acquires each key on a host of its own. Holds are known to take as long as this.
async fn holders(world: &World, hold: Duration) -> [Lock; 2] {
    for key in KEYS {
        world.default_locks().acquire(key).await.unwrap().release().await.unwrap();
        let mut row = world.row(key).await.unwrap();
        row.insert("hold".to_owned(), AttributeValue::N(hold.as_millis().to_string()));
        row.insert("hold_deviation".to_owned(), AttributeValue::N("1".to_owned()));
        world.put_row(row).await;
    }
    let [first, second] = KEYS.map(|key| world.default_locks().acquire(key).into_future());
    [first.await.unwrap(), second.await.unwrap()]
}

/// Waits until both rows have this attribute.
async fn both_have(world: &World, name: &str) {
    let both = async {
        while !rows(world).await.iter().flatten().all(|row| row.contains_key(name)) {
            sleep(ms(2)).await;
        }
    };
    timeout(ENOUGH, both).await.unwrap_or_else(|_| panic!("no `{name}`"));
}

/// Reserves both keys for another waiter for so long. Returns when the reservation ends, in milliseconds.
async fn reserve(world: &World, owner: &str, time: Duration) -> u64 {
    let until = millis(world.host().build().now() + time);
    for mut row in rows(world).await.into_iter().flatten() {
        row.insert("reserved_until".to_owned(), AttributeValue::N(until.to_string()));
        row.insert("reserved_by".to_owned(), text(owner));
        world.put_row(row).await;
    }
    until
}

#[tokio::test]
async fn a_set_takes_a_place_with_each_holder_and_is_served() {
    let world = World::new().await;
    let held = holders(&world, HOLD).await;
    let waiting = tokio::spawn(world.default_locks().acquire_all(KEYS).wait(ENOUGH).into_future());
    both_have(&world, "tail").await;
    for lock in held {
        lock.release().await.unwrap();
    }
    let set = waiting.await.unwrap().unwrap();
    for row in rows(&world).await.iter().flatten() {
        assert_eq!((number(row, "tail"), number(row, "head")), (1, 1));
        assert!(!row.contains_key("reserved_until") && !row.contains_key("reserved_by"));
    }
    set.release().await.unwrap();
}

#[tokio::test]
async fn a_set_takes_one_place_while_one_holder_has_all_keys() {
    let world = World::new().await;
    let holder = world.default_locks().acquire_all(KEYS).await.unwrap();
    let waiting = tokio::spawn(world.default_locks().acquire_all(KEYS).wait(ENOUGH).into_future());
    let joined = async {
        while !world.row(KEYS[0]).await.unwrap().contains_key("tail") {
            sleep(ms(2)).await;
        }
    };
    timeout(ENOUGH, joined).await.unwrap();
    holder.release().await.unwrap();
    let set = waiting.await.unwrap().unwrap();
    let [first, second] = rows(&world).await.map(Option::unwrap);
    assert_eq!(number(&first, "head"), 1);
    assert!(!second.contains_key("tail"), "{second:?}");
    set.release().await.unwrap();
}

#[tokio::test]
async fn the_hold_time_of_a_set_is_that_of_its_keys() {
    let world = World::new().await;
    world.default_locks().acquire_all(KEYS).await.unwrap().release().await.unwrap();
    assert!(rows(&world).await.iter().flatten().all(|row| row.contains_key("hold")));
    let [first, second] = holders(&world, HOLD).await;
    first.release().await.unwrap();
    second.release().await.unwrap();
    let before = rows(&world).await.map(|row| row.unwrap()["hold"].clone());
    // It has not seen the rows, so it leaves the hold time that it does not know.
    world.default_locks().acquire_all(KEYS).await.unwrap().release().await.unwrap();
    assert_eq!(rows(&world).await.map(|row| row.unwrap()["hold"].clone()), before);
}

#[tokio::test]
async fn a_set_that_is_next_reserves_its_keys_until_they_should_be_free() {
    let world = World::new().await;
    let held = holders(&world, Duration::from_secs(10)).await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    let waiting = tokio::spawn(locks.acquire_all(KEYS).wait(ENOUGH).into_future());
    both_have(&world, "reserved_until").await;
    let [first, second] = rows(&world).await.map(Option::unwrap);
    assert_eq!(first["reserved_by"], second["reserved_by"]);
    assert_eq!(number(&first, "reserved_until"), number(&second, "reserved_until"));
    let left = number(&first, "reserved_until").saturating_sub(millis(host.now()));
    assert!((5_000..=15_000).contains(&left), "{left}");
    waiting.abort();
    for lock in held {
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn waiters_in_turn_leave_a_reserved_key_until_the_reservation_ends() {
    let world = World::new().await;
    assert_free(&world).await;
    let until = reserve(&world, "another", ms(400)).await;
    let clock = world.host().build();
    let lock = world.default_locks().acquire(KEYS[0]).wait(ENOUGH).await.unwrap();
    assert!((until..until + 5000).contains(&millis(clock.now())), "{until}");
    lock.release().await.unwrap();
    let until = reserve(&world, "another", ms(400)).await;
    let set = world.default_locks().acquire_all(KEYS).wait(ENOUGH).await.unwrap();
    assert!((until..until + 5000).contains(&millis(clock.now())), "{until}");
    set.release().await.unwrap();
}

#[tokio::test]
async fn single_last_and_backoff_attempts_ignore_a_reservation() {
    let world = World::new().await;
    let locks = world.default_locks();
    assert_free(&world).await;
    reserve(&world, "another", Duration::from_secs(50)).await;
    locks.acquire(KEYS[0]).await.unwrap().release().await.unwrap();
    locks.acquire_all(KEYS).await.unwrap().release().await.unwrap();
    let plain = Wait::backoff(Backoff::new()).max_attempts(2);
    locks.acquire(KEYS[0]).wait(plain).await.unwrap().release().await.unwrap();
    locks.acquire_all(KEYS).wait(plain).await.unwrap().release().await.unwrap();
    locks.acquire(KEYS[0]).wait(ms(100)).await.unwrap().release().await.unwrap();
    locks.acquire_all(KEYS).wait(ms(100)).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_reservation_that_is_longer_than_any_does_not_count() {
    let world = World::new().await;
    assert_free(&world).await;
    reserve(&world, "another", Duration::from_hours(1)).await;
    let lock = timeout(ms(5000), world.default_locks().acquire(KEYS[0]).wait(ENOUGH).into_future()).await;
    lock.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_reservation_needs_the_rows_of_locks() {
    let world = World::new().await;
    let held = holders(&world, Duration::from_secs(10)).await;
    // After the first attempt. The SDK repeats it.
    let late = Late::transactions(2..=9);
    let host = world.host().intercept(late.clone()).build();
    let locks = world.locks(&host).build().unwrap();
    let waiting = tokio::spawn(locks.acquire_all(KEYS).wait(ENOUGH).into_future());
    // An attempt, two places, the reservation, and its repetition.
    let reserves = async {
        while host.requests() < 5 {
            sleep(ms(2)).await;
        }
    };
    timeout(ENOUGH, reserves).await.unwrap();
    waiting.abort();
    for lock in held {
        lock.release().await.unwrap();
    }
    world.delete_row(KEYS[1]).await;
    assert!(!late.deliver(&world).await);
    let [first, second] = rows(&world).await;
    assert!(second.is_none() && !first.unwrap().contains_key("reserved_until"));
}

/// A host whose requests take 5 ms, and its locks.
async fn host_with_latency(mutation: Option<Mutation>) -> (Host, Locks) {
    fastrand::seed(7);
    let (engine, host) = engine_with_latency(mutation);
    Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    (host, locks)
}

/// Three waiters in turn for each key, which use it again and again.
struct Others {
    tasks: JoinSet<()>,
    holds: Arc<AtomicU32>,
}

impl Others {
    fn start(locks: &Locks) -> Self {
        let (mut tasks, holds) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
        for number in 0..6 {
            let (locks, holds) = (locks.clone(), Arc::clone(&holds));
            let mut random = Rng::with_seed(number.into());
            tasks.spawn(async move {
                sleep(ms(37) * number).await;
                loop {
                    let lock = locks.acquire(KEYS[number as usize % 2]).wait(Duration::from_mins(5)).await.unwrap();
                    sleep(HOLD.mul_f64(0.5 + random.f64())).await;
                    lock.release().await.unwrap();
                    holds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { tasks, holds }
    }

    /// Returns how often they had a key.
    async fn stop(mut self) -> u32 {
        self.tasks.abort_all();
        while let Some(ended) = self.tasks.join_next().await {
            assert!(ended.unwrap_err().is_cancelled());
        }
        self.holds.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn sets_do_not_starve_beside_waiters_for_their_keys() {
    tokio::time::pause();
    let (host, locks) = host_with_latency(None).await;
    let others = Others::start(&locks);
    let (mut longest, mut total) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..10 {
        let asked = host.now();
        let set = locks.acquire_all(KEYS).wait(Duration::from_mins(10)).await.unwrap();
        let waited = host.now().duration_since(asked).unwrap();
        longest = longest.max(waited);
        total += waited;
        sleep(HOLD).await;
        set.release().await.unwrap();
    }
    others.stop().await;
    // Without reservations: at least 6.9 s, and 22 s.
    assert!(longest < Duration::from_secs(5) && total < Duration::from_secs(15), "{longest:?} of {total:?}");
}

#[tokio::test]
async fn sets_in_a_circle_get_equal_shares() {
    const CIRCLE: [[&str; 2]; 3] = [["a", "b"], ["b", "c"], ["c", "a"]];
    tokio::time::pause();
    let (_, locks) = host_with_latency(None).await;
    let served: Arc<[AtomicU32; 6]> = Arc::default();
    let mut workers = JoinSet::new();
    for worker in 0..6 {
        let (locks, served) = (locks.clone(), Arc::clone(&served));
        workers.spawn(async move {
            loop {
                let set = locks.acquire_all(CIRCLE[worker % 3]).wait(Duration::from_mins(5)).await.unwrap();
                served[worker].fetch_add(1, Ordering::Relaxed);
                sleep(ms(300)).await;
                set.release().await.unwrap();
            }
        });
    }
    sleep(Duration::from_mins(1)).await;
    workers.abort_all();
    let served: Vec<_> = served.iter().map(|served| served.load(Ordering::Relaxed)).collect();
    let least = served.iter().min().copied().unwrap();
    assert!(12 * least >= served.iter().sum::<u32>(), "{served:?}");
}

#[tokio::test]
async fn a_mistake_in_a_reservation_costs_others_little() {
    tokio::time::pause();
    for mutation in Mutation::RESERVATIONS {
        let (host, locks) = host_with_latency(Some(mutation)).await;
        let (others, started) = (Others::start(&locks), host.now());
        for _ in 0..10 {
            if let Ok(set) = locks.acquire_all(KEYS).wait(Duration::from_secs(3)).await {
                set.release().await.unwrap();
            }
        }
        let took = host.now().duration_since(started).unwrap();
        let holds = others.stop().await;
        // Without the sets, each key has a hold every 210 ms on average.
        let without = 2.0 * took.as_secs_f64() / 0.21;
        assert!(f64::from(holds) >= 0.7 * without, "{mutation:?}: {holds} of {without:.0}");
    }
}

/// Gives each key a row of its own last owner, with this hold time.
async fn both_were_held(host: &Host, locks: &Locks, hold: Duration) {
    for key in KEYS {
        locks.acquire(key).await.unwrap().release().await.unwrap();
        let hold = AttributeValue::N(hold.as_millis().to_string());
        set_attributes(host, key, [("hold", hold), ("hold_deviation", AttributeValue::N("1".to_owned()))]).await;
    }
}

async fn set_attributes<const N: usize>(host: &Host, key: &str, attributes: [(&str, AttributeValue); N]) {
    for (name, value) in attributes {
        let update = host.client().update_item().table_name("locks").key("id", AttributeValue::S(key.to_owned()));
        let update = update.update_expression("SET #name = :value").expression_attribute_names("#name", name);
        update.expression_attribute_values(":value", value).send().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_at_the_end_of_the_wait_does_not_outlast_it() {
    for budget in (1..=60).map(ms) {
        let (host, locks) = host_with_latency(None).await;
        both_were_held(&host, &locks, ms(20)).await;
        for key in KEYS {
            let until = AttributeValue::N((millis(host.now()) + 50_000).to_string());
            let by = AttributeValue::S("another".to_owned());
            set_attributes(&host, key, [("reserved_until", until), ("reserved_by", by)]).await;
        }
        let (before, started) = (host.requests(), host.now());
        let waiting = timeout(ENOUGH, locks.acquire_all(KEYS).wait(budget).into_future()).await;
        // The last attempt owes nothing to a reservation.
        waiting.unwrap_or_else(|_| panic!("it waits for longer than {budget:?}")).unwrap().release().await.unwrap();
        let waited = host.now().duration_since(started).unwrap();
        assert!(waited <= budget + ms(25), "{waited:?} of {budget:?}");
        assert!(host.requests() - before <= 15, "{} requests in {budget:?}", host.requests() - before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_without_an_owner_costs_time_and_no_requests() {
    let (host, locks) = host_with_latency(None).await;
    both_were_held(&host, &locks, ms(20)).await;
    let until = AttributeValue::N((millis(host.now()) + 30_000).to_string());
    set_attributes(&host, KEYS[0], [("reserved_until", until)]).await;
    let before = host.requests();
    let lock = locks.acquire(KEYS[0]).wait(Duration::from_mins(1)).await.unwrap();
    assert!(host.requests() - before <= 15, "{} requests", host.requests() - before);
    lock.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_set_looks_every_five_seconds_at_a_key_that_is_held_for_long() {
    let (host, locks) = host_with_latency(None).await;
    both_were_held(&host, &locks, ms(20)).await;
    set_attributes(&host, KEYS[1], [("hold", AttributeValue::N("600000".to_owned()))]).await;
    let (first, second) = (locks.acquire(KEYS[0]).await.unwrap(), locks.acquire(KEYS[1]).await.unwrap());
    let started = host.now();
    let release = async {
        sleep(ms(20)).await;
        first.release().await.unwrap();
        sleep(Duration::from_secs(3)).await;
        second.release().await.unwrap();
    };
    let (set, ()) = tokio::join!(locks.acquire_all(KEYS).wait(Duration::from_mins(5)).into_future(), release);
    let waited = host.now().duration_since(started).unwrap();
    assert!(waited < Duration::from_secs(9), "{waited:?}");
    set.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_of_a_set_ends_its_reservation() {
    let (host, locks) = host_with_latency(None).await;
    both_were_held(&host, &locks, ms(200)).await;
    let (first, second) = (locks.acquire(KEYS[0]).await.unwrap(), locks.acquire(KEYS[1]).await.unwrap());
    let release = async {
        sleep(ms(100)).await;
        first.release().await.unwrap();
        second.release().await.unwrap();
    };
    let wait = Wait::in_turn().up_to(ENOUGH).max_attempts(2);
    let (set, ()) = tokio::join!(locks.acquire_all(KEYS).wait(wait).into_future(), release);
    let row = host.client().get_item().table_name("locks").key("id", AttributeValue::S(KEYS[0].to_owned()));
    let row = row.send().await.unwrap().item.unwrap();
    assert!(!row.contains_key("reserved_until"), "{row:?}");
    set.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_attempt_that_leaves_the_keys_to_nobody_leaves_the_reservation_of_another() {
    let world = World::new().await;
    world.default_locks().acquire_all(KEYS).await.unwrap().release().await.unwrap();
    let until = reserve(&world, "another", ENOUGH).await;
    let set = world.default_locks().acquire_all(KEYS).await.unwrap();
    for row in rows(&world).await.iter().flatten() {
        assert_eq!((number(row, "reserved_until"), &row["reserved_by"]), (until, &text("another")));
    }
    set.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_key_of_a_set_keeps_a_hold_time_of_its_own() {
    let world = World::in_virtual_time().await;
    // They never release their keys, so the rows keep these times.
    let _crashed = holders(&world, HOLD).await;
    let mut slow = world.row(KEYS[1]).await.unwrap();
    slow.insert("hold".to_owned(), AttributeValue::N("600000".to_owned()));
    world.put_row(slow).await;
    let set = world.default_locks().acquire_all(KEYS).lease(10 * ENOUGH).wait(2 * ENOUGH).await.unwrap();
    sleep(3 * ENOUGH).await;
    set.release().await.unwrap();
    let [quick, slow] = rows(&world).await.map(|row| row.unwrap()["hold"].as_n().unwrap().parse::<f64>().unwrap());
    assert!(quick < 30_000.0 && slow > 300_000.0, "{quick} and {slow}");
}
