//! Waiters for permits take turns.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::{Acquire, Locks, Wait};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::{engine_with_latency, ms};
use tokio::time::sleep;

use crate::KEY;

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
        let (engine, host) = engine_with_latency(None::<LoseAnswers>);
        let locks = Locks::builder(host.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        Self { engine, host, locks }
    }

    fn asking(&self, permits: u32) -> Acquire {
        self.locks.semaphore(KEY, permits).acquire().lease(ENOUGH)
    }

    /// Makes the hold time known.
    async fn hold(&self, permits: u32, time: Duration) {
        for _ in 0..20 {
            self.asking(permits).run(async |_| sleep(time).await).await.unwrap();
        }
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
async fn waiters_do_not_ask_for_a_permit_that_is_overdue() {
    let stage = Stage::set().await;
    stage.hold(3, ms(400)).await;
    let overdue = stage.asking(3).await.unwrap();
    let before = stage.host.requests();
    stage.serve(3, 12, ms(0), ms(400)).await;
    let requests = stage.host.requests() - before;
    assert!(requests <= 12 * 6, "{requests} requests");
    overdue.release().await.unwrap();
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
