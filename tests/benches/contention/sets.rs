//! Sets of keys beside waiters for one of them, and beside other sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::Wait;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::scene::{Contended, Fault, Hold, Stage, Way, request_time, runtime, seed_thread};

const KEYS: [&[&str]; 3] = [&["a", "b"], &["b", "c"], &["c", "a"]];
const SETS: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Default)]
struct Counter(Arc<AtomicU32>);

impl Counter {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How sets fared beside waiters for their keys.
pub(crate) struct Beside {
    /// How many sets were acquired.
    pub(crate) served: u32,
    pub(crate) longest_wait: Duration,
    /// Which share of the time of the keys nobody used.
    pub(crate) idle: f64,
}

/// Ten sets of two keys, one after the other, beside three waiters in turn for each of the keys.
pub(crate) fn beside_waiters(wait: Wait, hold: Hold, seed: u64) -> Beside {
    seed_thread(seed);
    let mut random = Rng::with_seed(seed);
    runtime().block_on(async {
        let way = Way::Lock(wait);
        let stage = Stage::set(Duration::from_mins(1), Contended::Keys(KEYS[0])).await;
        let holds = Counter::default();
        let mut others = JoinSet::new();
        for key in [&KEYS[0][..1], &KEYS[0][1..]] {
            for _ in 0..3 {
                let waiter = stage.contender_for(Contended::Keys(key), way, Fault::None, &mut random, None);
                let (holds, mut random) = (holds.clone(), random.fork());
                others.spawn(async move {
                    sleep(hold.mean().mul_f64(random.f64())).await;
                    loop {
                        waiter.work(hold.draw(&mut random)).await;
                        holds.add();
                    }
                });
            }
        }
        let set = stage.contender(way, Fault::None, &mut random, None);
        sleep(hold.mean() * 10).await;
        let (start, before, mut longest_wait, mut served) = (stage.now(), holds.get(), Duration::ZERO, 0);
        for _ in 0..SETS {
            let asked = stage.now();
            let acquired = set.ask(Some(wait.up_to(PATIENCE))).await;
            longest_wait = longest_wait.max(stage.now().duration_since(asked).unwrap_or_default());
            if let Ok(acquired) = acquired {
                set.finish(Some(acquired), hold.draw(&mut random)).await;
                served += 1;
            }
        }
        let took = stage.now().duration_since(start).unwrap_or_default();
        let used = (hold.mean() + 2 * request_time()) * (holds.get() - before + 2 * served);
        others.abort_all();
        Beside { served, longest_wait, idle: 1.0 - used.as_secs_f64() / (2 * took).as_secs_f64() }
    })
}

/// Six workers that want two of three keys each, in a circle, for a minute. Returns how many holds the slowest had, as a
/// share of the mean, and the mean.
pub(crate) fn circle(way: Way, hold: Hold, seed: u64) -> (f64, f64) {
    seed_thread(seed);
    let mut random = Rng::with_seed(seed);
    runtime().block_on(async {
        let stage = Stage::set(Duration::from_mins(1), Contended::Key).await;
        let (mut workers, mut counters) = (JoinSet::new(), Vec::new());
        for keys in KEYS.into_iter().chain(KEYS) {
            let worker = stage.contender_for(Contended::Keys(keys), way, Fault::None, &mut random, None);
            let (holds, mut random) = (Counter::default(), random.fork());
            counters.push(holds.clone());
            workers.spawn(async move {
                sleep(hold.mean().mul_f64(random.f64())).await;
                loop {
                    worker.work(hold.draw(&mut random)).await;
                    holds.add();
                }
            });
        }
        sleep(Duration::from_mins(1)).await;
        workers.abort_all();
        let mean = f64::from(counters.iter().map(Counter::get).sum::<u32>()) / 6.0;
        (f64::from(counters.iter().map(Counter::get).min().unwrap_or_default()) / mean, mean)
    })
}
