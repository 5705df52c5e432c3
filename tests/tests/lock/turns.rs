//! Waiters take turns.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use lambda_lock::embedded::{Answer, DynamoDb, Faults, Host, Intercept};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Attempt, Error, Idempotency, Lock, Locks, Wait};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;
use lambda_lock_tests::request::{Purpose, purpose_of};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::{ms, number, text};

const ENOUGH: Duration = Duration::from_secs(30);

fn in_turn() -> Wait {
    Wait::in_turn().up_to(ENOUGH)
}

fn wait(locks: &Locks) -> JoinHandle<Result<Lock, Error>> {
    tokio::spawn(locks.acquire("job").wait(in_turn()).into_future())
}

fn in_ms(value: &AttributeValue) -> f64 {
    value.as_n().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_waiter_for_a_result_takes_no_place() {
    let world = World::new().await;
    let once =
        |locks: Locks| Idempotency::new(locks, OnMissingKey::Reject, |key: &String| Some(key.clone())).wait(in_turn());
    let (ours, theirs) = (once(world.default_locks()), once(world.default_locks()));
    let host = world.host().build();
    let third = once(world.locks(&host).build().unwrap());
    let key = "order 7".to_owned();
    let work = async |_: &lambda_lock::Run| {
        sleep(ms(200)).await;
        Ok::<_, std::io::Error>(7)
    };
    let (first, second, third) = tokio::join!(ours.run(&key, work), theirs.run(&key, work), third.run(&key, work));
    assert_eq!((first.unwrap(), second.unwrap(), third.unwrap()), (7, 7, 7));
    let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
    assert!(rows.iter().all(|row| !row.contains_key("tail")));
}

/// A DynamoDB in paused time, a host, and locks whose row was released a millisecond ago and has this queue.
async fn released_with_queue(tail: u32, tail_until: Duration) -> (DynamoDb, Host, Locks) {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    let host = engine.host().build();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    locks.acquire("job").await.unwrap().release().await.unwrap();
    sleep(ms(1)).await;
    set_queue(&engine, tail, 0, tail_until).await;
    (engine, host, locks)
}

async fn set_queue(engine: &DynamoDb, tail: u32, head: u32, tail_until: Duration) {
    let now = engine.host().build().now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let number = |number: u128| AttributeValue::N(number.to_string());
    let queue = engine.client().update_item().table_name("locks").key("id", text("job"));
    let queue = queue.update_expression("SET tail = :tail, head = :head, tail_until = :until");
    queue
        .expression_attribute_values(":tail", number(tail.into()))
        .expression_attribute_values(":head", number(head.into()))
        .expression_attribute_values(":until", number((now + tail_until).as_millis()))
        .send()
        .await
        .unwrap();
}

async fn row(engine: &DynamoDb) -> HashMap<String, AttributeValue> {
    let row = engine.client().get_item().table_name("locks").key("id", text("job")).send().await.unwrap();
    row.item.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_last_of_two_attempts_is_made_in_turn() {
    let (_engine, _host, locks) = released_with_queue(0, Duration::ZERO).await;
    for _ in 0..20 {
        locks.acquire("job").run(async |_| sleep(ms(100)).await).await.unwrap();
    }
    let lock = locks.acquire("job").await.unwrap();
    let waiting = tokio::spawn(locks.acquire("job").wait(in_turn().max_attempts(2)).into_future());
    sleep(ms(40)).await;
    lock.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_takes_longer_than_usual_is_asked_for_less_and_less_often() {
    let (_engine, host, locks) = released_with_queue(0, Duration::ZERO).await;
    for _ in 0..40 {
        locks.acquire("job").run(async |_| sleep(Duration::from_secs(10)).await).await.unwrap();
    }
    let lock = locks.acquire("job").lease(Duration::from_mins(1)).await.unwrap();
    let waiting = wait(&locks);
    let sent = host.requests();
    sleep(Duration::from_secs(19)).await;
    let asked = host.requests() - sent;
    lock.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(asked < 60, "{asked} requests");
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_waiters_have_stopped_waiting_counts_as_empty() {
    let (_engine, host, locks) = released_with_queue(9, Duration::ZERO).await;
    assert_eq!(locks.get("job").await.unwrap().unwrap().waiters(), 0);
    let sent = host.requests();
    let lock = locks.acquire("job").wait(in_turn()).await.unwrap();
    assert_eq!(host.requests() - sent, 1);
    // By then, it is over by all clocks. The next waiter is the first of a new queue.
    sleep(Duration::from_secs(1)).await;
    let waiting = wait(&locks);
    sleep(ms(100)).await;
    assert_eq!(locks.get("job").await.unwrap().unwrap().waiters(), 1);
    lock.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_clock_ahead_within_the_skew_joins_the_queue() {
    let (engine, _host, locks) = released_with_queue(0, ENOUGH).await;
    let _lock = locks.acquire("job").await.unwrap();
    set_queue(&engine, 3, 1, ms(500)).await;
    let ahead = engine.host().clock_ahead(ms(900)).build();
    let waiting = wait(&Locks::builder(ahead.client(), "locks").build().unwrap());
    sleep(ms(100)).await;
    let row = row(&engine).await;
    assert_eq!((number(&row, "tail"), number(&row, "head")), (4, 1));
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_release_stores_the_mean_hold_and_its_deviation() {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    let locks = Locks::builder(engine.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    for (hold, mean, deviation) in [(100, 100.0, 0.0), (200, 150.0, 50.0), (60, 138.75, 55.0), (4, 64.0, 64.0)] {
        let lock = locks.acquire("job").await.unwrap();
        sleep(ms(hold)).await;
        lock.release().await.unwrap();
        let row = row(&engine).await;
        let close = |name: &str, expected: f64| (in_ms(&row[name]) - expected).abs() < 0.01;
        assert!(close("hold", mean) && close("hold_deviation", deviation), "{row:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_counts_at_most_4_ms_of_its_first_request() {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
    let host = engine.host().faults(Faults::seeded(1).latency(ms(50)..ms(50))).build();
    let lock = Locks::builder(host.client(), "locks").build().unwrap().acquire("job").await.unwrap();
    sleep(ms(20)).await;
    lock.release().await.unwrap();
    let hold = in_ms(&row(&engine).await["hold"]);
    assert!((hold - 24.0).abs() < 1.0, "{hold}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_a_dead_holder_has_its_keys_when_the_lease_ends() {
    for (seed, is_set) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        fastrand::seed(seed);
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let network = Faults::seeded(seed).latency(Duration::from_micros(2500)..Duration::from_micros(2500));
        let (dead, host) = (engine.host().build(), engine.host().faults(network).build());
        let locks = |host: &Host| Locks::builder(host.client(), "locks").lease(Duration::from_secs(2)).build().unwrap();
        let acquire = |host: &Host| {
            if is_set { locks(host).acquire_all(["job", "report"]) } else { locks(host).acquire("job") }
        };
        locks(&host).create_table().await.unwrap();
        let sent = host.requests();
        let _held = acquire(&dead).await.unwrap();
        dead.crash();
        let started = host.now();
        let lock = acquire(&host).wait(in_turn()).await.unwrap();
        let waited = host.now().duration_since(started).unwrap();
        lock.release().await.unwrap();
        assert!(waited <= Duration::from_millis(3050), "{waited:?}, set: {is_set}");
        assert!(host.requests() - sent <= 5 + u64::from(is_set), "{} requests, set: {is_set}", host.requests() - sent);
    }
}

/// Refuses some requests of this kind with this code, and applies none of them.
#[derive(Debug)]
struct Refusals {
    random: Mutex<Rng>,
    chance: f64,
    /// Only requests for this.
    only: Option<Purpose>,
    code: &'static str,
}

impl Intercept for Refusals {
    fn request(&self, operation: &str, request: &mut Value) {
        let is_meant = self.only.is_none() || self.only == purpose_of(operation, request);
        if is_meant && self.random.lock().unwrap().f64() < self.chance {
            request["TableName"] = json!("refused");
        }
    }

    fn answer(&self, _: &str, request: &Value, answer: &mut Answer) {
        if request["TableName"] == "refused" {
            answer.status = if self.code == "InternalServerError" { 500 } else { 400 };
            answer.body = json!({ "__type": self.code, "message": "simulated" });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_join_failed_joins_again() {
    let conflicts = ["TransactionConflictException", "ReplicatedWriteConflictException"];
    for code in conflicts.into_iter().chain(["ThrottlingException", "InternalServerError"]) {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let refusals = Refusals { random: Mutex::new(Rng::with_seed(7)), chance: 0.8, only: Some(Purpose::Join), code };
        let (host, other) = (engine.host().intercept(refusals).build(), engine.host().build());
        let locks = |host: &Host| Locks::builder(host.client(), "locks").build().unwrap();
        locks(&other).create_table().await.unwrap();
        let lock = locks(&other).acquire("job").lease(ENOUGH).await.unwrap();
        let waiting = wait(&locks(&host));
        sleep(ENOUGH / 2).await;
        assert_eq!(locks(&other).get("job").await.unwrap().unwrap().waiters(), 1, "{code}");
        lock.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_may_not_join_waits_without_a_place() {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    let code = "AccessDeniedException";
    let refusals = Refusals { random: Mutex::new(Rng::with_seed(7)), chance: 1.0, only: Some(Purpose::Join), code };
    let (host, other) = (engine.host().intercept(refusals).build(), engine.host().build());
    let locks = |host: &Host| Locks::builder(host.client(), "locks").build().unwrap();
    locks(&other).create_table().await.unwrap();
    let lock = locks(&other).acquire("job").lease(ENOUGH).await.unwrap();
    let waiting = wait(&locks(&host));
    sleep(ms(500)).await;
    lock.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Returns the longest wait of seven waiters that acquire the key again and again for 20 ms ± 20 %, if this share of all
/// requests conflicts with transactions on the row.
fn longest_wait(conflicts: f64, seed: u64) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    fastrand::seed(seed);
    runtime.block_on(async {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let code = "TransactionConflictException";
        let refusals = Refusals { random: Mutex::new(Rng::with_seed(seed)), chance: conflicts, only: None, code };
        let network = Faults::seeded(seed).latency(Duration::from_micros(2500)..Duration::from_micros(2500));
        let host = engine.host().faults(network).intercept(refusals).build();
        Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
        let locks = Locks::builder(host.client(), "locks").build().unwrap();
        let mut waiters = JoinSet::new();
        for _ in 0..7 {
            let (locks, host) = (locks.clone(), host.clone());
            waiters.spawn(async move {
                let mut longest = Duration::ZERO;
                for _ in 0..30 {
                    let came = host.now();
                    let patience = Wait::in_turn().up_to(Duration::from_mins(5));
                    let lock = locks.acquire("job").wait(patience).await.unwrap();
                    longest = longest.max(host.now().duration_since(came).unwrap());
                    sleep(Duration::from_micros(fastrand::u64(16_000..24_000))).await;
                    lock.release().await.unwrap();
                }
                longest
            });
        }
        waiters.join_all().await.into_iter().max().unwrap()
    })
}

#[test]
fn conflicts_do_not_starve_a_waiter() {
    let longest = |conflicts| (0..3).map(|seed| longest_wait(conflicts, seed)).max().unwrap();
    let (without, with) = (longest(0.0), longest(0.05));
    println!("longest wait: {without:?} without conflicts, {with:?} with them");
    assert!(with <= 2 * without, "{with:?} with conflicts, {without:?} without");
}

#[tokio::test]
async fn a_place_is_behind_those_that_were_served_and_those_whose_waiters_have_stopped() {
    // The latter, and a tail that is behind the head.
    for (tail, head, until) in [("5", "2", "1000"), ("2", "5", "253402300799999")] {
        let world = World::new().await;
        let locks = world.default_locks();
        let lock = locks.acquire("job").await.unwrap();
        let mut row = world.row("job").await.unwrap();
        for (name, value) in [("tail", tail), ("head", head), ("tail_until", until)] {
            row.insert(name.to_owned(), AttributeValue::N(value.to_owned()));
        }
        world.put_row(row).await;
        let waiting = wait(&locks);
        let joined = async {
            while number(&world.row("job").await.unwrap(), "tail").to_string() == tail {
                sleep(ms(2)).await;
            }
        };
        timeout(ENOUGH, joined).await.unwrap();
        let row = world.row("job").await.unwrap();
        assert_eq!((number(&row, "tail"), number(&row, "head")), (6, 5));
        lock.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reserved_key_is_free_from_the_end_of_the_reservation_on() {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    let host = engine.host().build();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    for (later, takes) in [(0, true), (1, false)] {
        locks.acquire("job").await.unwrap().release().await.unwrap();
        let until = millis(host.now()) + later;
        let update = engine.client().update_item().table_name("locks").key("id", text("job"));
        let update = update.update_expression("SET reserved_by = :by, reserved_until = :until");
        let update = update.expression_attribute_values(":by", text("another"));
        update.expression_attribute_values(":until", AttributeValue::N(until.to_string())).send().await.unwrap();
        let is_taken = match locks.acquire("job").attempt_in_turn(None).await.unwrap() {
            Attempt::Acquired(lock) => lock.release().await.is_ok(),
            Attempt::Waiting(_) => false,
        };
        assert_eq!(is_taken, takes, "{later}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_deviation_of_holds_counts_up_to_twice_their_mean() {
    for (deviation, counts) in [("150000", 150_000.0), ("250000", 200_000.0)] {
        let world = World::in_virtual_time().await;
        let locks = world.default_locks();
        locks.acquire("job").await.unwrap().release().await.unwrap();
        let mut row = world.row("job").await.unwrap();
        row.insert("hold".to_owned(), AttributeValue::N("100000".to_owned()));
        row.insert("hold_deviation".to_owned(), AttributeValue::N(deviation.to_owned()));
        world.put_row(row).await;
        let lock = locks.acquire("job").lease(10 * ENOUGH).await.unwrap();
        sleep(Duration::from_secs(100)).await;
        lock.release().await.unwrap();
        // This hold is as long as the mean, and counts for an eighth.
        let after = in_ms(&world.row("job").await.unwrap()["hold_deviation"]);
        assert!((after - counts * 0.875).abs() < 100.0, "{after} after {deviation}");
    }
}
