//! The numbers add up in random histories.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Faults;
use lambda_lock::{Acquire, Backoff, Error, ErrorKind, Locks, Wait};
use lambda_lock_tests::invocation::Counter;
use tokio::time::{sleep, timeout};

use crate::traces::Span;
use crate::{Stage, lock_error, locks_on, ms, orders, s, settle};

/// The observations of the tasks of a history.
#[derive(Debug, Default)]
struct Seen {
    acquires: u64,
    locks: u64,
    refused: BTreeMap<&'static str, u64>,
    in_progress: u64,
    completed: u64,
    /// Releases that returned `Ok`, without those in the background.
    released: u64,
    /// Runs that failed, and locks that were dropped.
    failed: u64,
}

fn reason(error: &Error) -> &'static str {
    let reasons = [
        (error.is_held(), "held"),
        (error.kind() == ErrorKind::Throttled, "throttled"),
        (error.kind() == ErrorKind::Unavailable, "unavailable"),
        (error.kind() == ErrorKind::Conflict, "conflict"),
        (error.kind() == ErrorKind::Invalid, "invalid"),
    ];
    reasons.iter().find(|(is_it, _)| *is_it).unwrap_or_else(|| panic!("{error:?}")).1
}

impl Seen {
    fn refused(&mut self, error: &Error) {
        if error.kind() == ErrorKind::InProgress {
            self.in_progress += 1;
        } else {
            *self.refused.entry(reason(error)).or_default() += 1;
        }
    }
}

async fn worker(locks: Locks, seed: u64, tally: Arc<Mutex<Seen>>) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..6 {
        let key = format!("key {}", random.u8(..2));
        let budget = ms(random.u64(0..2000));
        let plain = Wait::backoff(Backoff::new().base(ms(20)));
        let wait = if random.bool() { Wait::in_turn() } else { plain }.up_to(budget);
        let lease = ms(random.u64(200..3000));
        let hold = ms(random.u64(0..4000));
        tally.lock().unwrap().acquires += 1;
        if random.u8(..3) == 0 {
            let records = orders(&locks).lease(lease).wait(wait).window(s(5)).prefix("record");
            let (ran, fails) = (Counter::default(), random.bool());
            let result = records
                .run(&key, async |_| {
                    ran.count();
                    sleep(hold).await;
                    if fails { Err("declined".to_owned()) } else { Ok("done".to_owned()) }
                })
                .await;
            let has_failed = result.is_err();
            let mut tally = tally.lock().unwrap();
            match result {
                _ if ran.get() == 1 => {
                    tally.locks += 1;
                    tally.failed += u64::from(has_failed);
                }
                Ok(_) => tally.completed += 1,
                other => tally.refused(&lock_error(other)),
            }
        } else {
            let acquire = locks.acquire(key).lease(lease).wait(wait);
            let patience = if random.u8(..4) == 0 { ms(random.u64(0..300)) } else { Duration::MAX };
            let Ok(result) = timeout(patience, Acquire::into_future(acquire)).await else {
                *tally.lock().unwrap().refused.entry("cancelled").or_default() += 1;
                continue;
            };
            let lock = match result {
                Ok(lock) => lock,
                Err(error) => {
                    tally.lock().unwrap().refused(&error);
                    continue;
                }
            };
            tally.lock().unwrap().locks += 1;
            sleep(hold).await;
            if random.bool() {
                let _answer = lock.renew(lease).await;
            }
            sleep(hold / 2).await;
            let releases = random.u8(..3);
            tally.lock().unwrap().failed += u64::from(releases == 0);
            for _ in 0..releases {
                let before = lock.remaining();
                if lock.release().await.is_ok() {
                    tally.lock().unwrap().released += 1;
                    break;
                }
                assert!(lock.remaining() <= before);
            }
        }
        sleep(ms(random.u64(0..1000))).await;
    }
}

/// Returns how many acquires took a place in the queue.
async fn history(seed: u64) -> usize {
    let stage = Stage::set().await;
    let tally = Arc::new(Mutex::new(Seen::default()));
    let workers = (0..4).map(|number| {
        let faults = Faults::seeded(seed * 10 + number).latency(ms(1)..ms(30)).lose_requests(0.05).lose_answers(0.08);
        let faults = faults.throttle(0.05).server_errors(0.05).late(0.05, s(2)).repeat(0.05, s(2));
        let host = stage.engine.host().faults(faults).clock_ahead(ms(100 * number));
        worker(locks_on(host).1, seed * 10 + number, Arc::clone(&tally))
    });
    join_all(workers).await;
    settle().await;
    let (counted, spans) = (stage.metrics.take(), stage.traces.locks());
    let tally = std::mem::take(&mut *tally.lock().unwrap());
    let context = format!("seed {seed}: {tally:?} {counted:?}");
    let count = |name: &str| counted.count(name);
    let measured = |name: &str| counted.values(name).len() as u64;

    // Every acquire ends once: with a lock, a refusal, a refusal as in progress, or a result.
    let ends = count("acquired") + counted.sum("refused") + count("in_progress_refusals") + count("replays");
    assert_eq!(ends, tally.acquires, "{context}");
    assert_eq!((count("acquired"), count("replays")), (tally.locks, tally.completed), "{context}");
    assert_eq!(count("in_progress_refusals"), tally.in_progress, "{context}");
    for (reason, &refused) in &tally.refused {
        assert_eq!(count(&format!("refused: {reason}")), refused, "{context}");
    }
    // Every lock has an acquire time and a hold time, and none is released twice.
    assert_eq!((measured("acquire_time"), measured("hold_time")), (tally.locks, tally.locks), "{context}");
    let released = count("released")..=count("released") + count("work_failed");
    assert!(released.contains(&measured("release_time")), "{context}");
    assert!((tally.released..=tally.locks).contains(&count("released")), "{context}");
    // Every acquire has one span. The outcomes of the spans match the counts.
    assert_eq!(spans.len() as u64, tally.acquires, "{context}");
    assert!(spans.iter().all(|span| span.is_closed), "{context}");
    let number = |span: &Span, name: &str| span.fields[name].parse::<u64>().unwrap();
    let retries: u64 = spans.iter().map(|span| number(span, "attempts").saturating_sub(1)).sum();
    assert_eq!(count("retry_attempts"), retries, "{context}");
    let waited = spans.iter().filter(|span| number(span, "waited_ms") > 0).count() as u64;
    assert_eq!(measured("wait_time"), waited, "{context}");
    assert_eq!(measured("waiters_ahead"), stage.traces.logged("took a place").len() as u64, "{context}");
    let in_the_queue = spans.iter().filter(|span| span.fields.contains_key("ahead")).count();
    assert!(in_the_queue <= counted.values("waiters_ahead").len(), "{context}");
    assert!(counted.sum("retries_exhausted") <= counted.sum("refused") + count("in_progress_refusals"), "{context}");
    let held: Vec<_> = spans.iter().filter(|span| span.fields.contains_key("held_ms")).collect();
    assert_eq!(held.len() as u64, tally.locks, "{context}");
    let ended = |outcomes: &[&str]| {
        held.iter().filter(|span| outcomes.contains(&span.fields["outcome"].as_str())).count() as u64
    };
    assert_eq!(ended(&["released", "completed", "release_failed", "lost"]), tally.locks, "{context}");
    assert_eq!(ended(&["lost"]), count("lost"), "{context}");
    assert_eq!(stage.traces.logged("lost").len() as u64, count("lost"), "{context}");
    // A lock that is neither lost nor failed was released. Some lost locks were released too.
    let released = ended(&["released", "completed"]);
    assert!((released..=released + count("lost")).contains(&measured("release_time")), "{context}");
    // Each run that failed, and each lock that was dropped, unless it was known as lost before.
    let failed = tally.failed.saturating_sub(count("lost"))..=tally.failed;
    assert!(failed.contains(&count("work_failed")), "{context}");
    assert!(ended(&["release_failed"]) <= counted.sum("release_failed"), "{context}");
    assert_eq!(stage.traces.logged("taken over").len() as u64, count("taken_over"), "{context}");
    assert_eq!(
        stage.traces.logged("not acquired").len() as u64,
        { counted.sum("refused") - count("refused: cancelled") + count("in_progress_refusals") },
        "{context}"
    );
    in_the_queue
}

/// Killed runs count nothing themselves: the next acquire counts them.
#[tokio::test(start_paused = true)]
async fn each_acquisition_is_released_or_taken_over() {
    let stage = Stage::set().await;
    let permits = |locks: &Locks| locks.semaphore("bank", 3).acquire().lease(s(1));
    for round in 0_u32..4 {
        let (killed, doomed) = locks_on(stage.engine.host());
        let locks = stage.locks();
        let mut held = Vec::new();
        for number in 0..3 {
            let locks = if number < round { &doomed } else { &locks };
            held.push((number < round, permits(locks).await.unwrap()));
            let key = format!("key {number}");
            held.push((number < round, locks.acquire(key).lease(s(1)).await.unwrap()));
        }
        killed.crash();
        for (is_killed, lock) in held {
            if !is_killed {
                lock.release().await.unwrap();
            }
        }
        sleep(s(3)).await;
    }
    let locks = stage.locks();
    permits(&locks).await.unwrap().release().await.unwrap();
    for number in 0..3 {
        locks.acquire(format!("key {number}")).await.unwrap().release().await.unwrap();
    }
    let counted = stage.metrics.take();
    assert_eq!(counted.count("taken_over"), 12, "{counted:?}");
    assert_eq!(counted.count("acquired"), counted.count("released") + counted.count("taken_over"), "{counted:?}");
}

#[test]
fn the_metrics_of_random_histories_add_up() {
    let mut in_the_queue = 0;
    for seed in 0..60 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        fastrand::seed(seed);
        in_the_queue += runtime.block_on(history(seed));
    }
    assert!(in_the_queue > 100, "{in_the_queue}");
}
