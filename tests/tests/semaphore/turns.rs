//! Waiters for permits take turns.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use lambda_lock::embedded::{DynamoDb, Faults, Host};
use lambda_lock::{Acquire, Lock, Locks, Wait};
use tokio::time::sleep;

use crate::{KEY, digits, text};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const ENOUGH: Duration = Duration::from_secs(30);

fn in_turn() -> Wait {
    Wait::in_turn().up_to(ENOUGH)
}

/// A DynamoDB in paused time, on whose network a request takes 5 ms.
struct Stage {
    engine: DynamoDb,
    host: Host,
    locks: Locks,
}

impl Stage {
    async fn set() -> Self {
        fastrand::seed(7);
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
        let latency = Duration::from_micros(2500);
        let host = engine.host().faults(Faults::seeded(7).latency(latency..latency)).build();
        let locks = Locks::builder(host.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        Self { engine, host, locks }
    }

    fn asking(&self, permits: u32) -> Acquire {
        self.locks.semaphore(KEY, permits).acquire().lease(ENOUGH)
    }

    /// Acquires so many permits, one after the other.
    async fn held(&self, permits: u32) -> Vec<Lock> {
        let mut held = Vec::new();
        for _ in 0..permits {
            held.push(self.asking(permits).await.unwrap());
        }
        held
    }

    /// Makes the hold time known.
    async fn hold(&self, permits: u32, time: Duration) {
        for _ in 0..20 {
            self.asking(permits).run(async |_| sleep(time).await).await.unwrap();
        }
    }

    async fn set_queue(&self, tail: u32, head: u32) {
        let until = self.host.now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + ENOUGH;
        let key = text(KEY);
        let queue = self.engine.client().update_item().table_name("locks").key("id", key);
        let queue = queue.update_expression("SET tail = :tail, head = :head, tail_until = :until");
        let queue = queue.expression_attribute_values(":tail", digits(tail.into()));
        let queue = queue.expression_attribute_values(":head", digits(head.into()));
        queue
            .expression_attribute_values(":until", digits(u64::try_from(until.as_millis()).unwrap()))
            .send()
            .await
            .unwrap();
    }

    fn since(&self, started: SystemTime) -> Duration {
        self.host.now().duration_since(started).unwrap()
    }

    /// Lets so many wait, each a while after the one before. Returns who had a permit when.
    async fn serve(&self, permits: u32, waiters: u32, apart: Duration, hold: Duration) -> Vec<(u32, Duration)> {
        let (started, served) = (self.host.now(), Mutex::new(Vec::new()));
        let wait = async |number: u32| {
            sleep(apart * number).await;
            let permit = self.asking(permits).wait(in_turn()).await.unwrap();
            served.lock().unwrap().push((number, self.since(started)));
            sleep(hold).await;
            permit.release().await.unwrap();
        };
        join_all((0..waiters).map(wait)).await;
        served.into_inner().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_for_several_permits_are_served_in_order() {
    let stage = Stage::set().await;
    stage.hold(4, ms(80)).await;
    let served = stage.serve(4, 24, ms(10), ms(80)).await;
    assert!((0..24).zip(&served).all(|(place, (number, _))| u32::abs_diff(place, *number) <= 2), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn permits_that_are_released_together_are_taken_together() {
    let stage = Stage::set().await;
    stage.hold(4, ms(100)).await;
    let held = join_all((0..4).map(|_| stage.asking(4).into_future())).await;
    let (started, waiting) = (stage.host.now(), stage.serve(4, 4, ms(1), ms(100)));
    let release = async {
        sleep(ms(95)).await;
        join_all(held.iter().map(|permit| permit.as_ref().unwrap().release())).await;
        stage.since(started)
    };
    let (served, released) = tokio::join!(waiting, release);
    assert!(served.iter().all(|(_, at)| *at <= released + ms(15)), "{served:?} after {released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_takes_much_longer_does_not_stop_the_others() {
    let stage = Stage::set().await;
    stage.hold(2, ms(20)).await;
    let long = stage.asking(2).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let started = stage.host.now();
    stage.serve(2, 20, ms(0), ms(20)).await;
    assert!(stage.since(started) <= 20 * ms(40), "{:?}", stage.since(started));
    long.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn permits_whose_holders_died_free_their_places_in_turn() {
    let stage = Stage::set().await;
    let dead = stage.engine.host().build();
    let locks = Locks::builder(dead.client(), "locks").lease(Duration::from_secs(2)).build().unwrap();
    let started = stage.host.now();
    let mut lost = Vec::new();
    for _ in 0..2 {
        lost.push(locks.semaphore(KEY, 2).acquire().await.unwrap());
    }
    dead.crash();
    let sent = stage.host.requests();
    let served = stage.serve(2, 6, ms(10), ms(20)).await;
    let order: Vec<_> = served.iter().map(|(number, _)| *number).collect();
    // Both permits come free at the same time, so that waiters with the next places ask at about the same time.
    assert!((0..6).zip(&order).all(|(place, number)| u32::abs_diff(place, *number) <= 3), "{order:?}");
    // The lease and the skew.
    let first = served[0].1;
    assert!(first >= Duration::from_secs(3) && first <= Duration::from_millis(3050), "{first:?}");
    let asked = stage.host.requests() - sent;
    assert!(asked <= 6 * 12, "{asked} requests in {:?}", stage.since(started));
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_that_waits_leaves_a_released_permit_to_the_queue_for_a_moment() {
    let stage = Stage::set().await;
    stage.asking(2).await.unwrap().release().await.unwrap();
    stage.set_queue(1, 0).await;
    let (sent, started) = (stage.host.requests(), stage.host.now());
    let permit = stage.asking(2).wait(in_turn()).await.unwrap();
    assert!(stage.since(started) > ms(10) && stage.since(started) <= ms(45), "{:?}", stage.since(started));
    assert_eq!(stage.host.requests() - sent, 3, "an attempt, a place, and an attempt");
    permit.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_does_not_wait_takes_a_free_permit_at_once() {
    let stage = Stage::set().await;
    stage.asking(2).await.unwrap().release().await.unwrap();
    stage.set_queue(9, 0).await;
    let sent = stage.host.requests();
    stage.asking(2).await.unwrap().release().await.unwrap();
    assert_eq!(stage.host.requests() - sent, 2);
}

#[tokio::test(start_paused = true)]
async fn a_wait_does_not_end_without_a_permit_that_is_free() {
    for wait in [Wait::in_turn().up_to(ms(4)), Wait::in_turn().up_to(ms(6)), Wait::in_turn().max_attempts(2)] {
        let stage = Stage::set().await;
        let held = stage.held(2).await;
        held[0].release().await.unwrap();
        stage.set_queue(9, 0).await;
        stage.asking(2).wait(wait).await.unwrap().release().await.unwrap();
    }
}
