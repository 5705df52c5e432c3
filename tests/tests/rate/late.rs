//! Calls that are late for their time, because an answer came late.

use std::error::Error as _;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::ErrorKind;
use lambda_lock::embedded::{DynamoDb, Faults, Host, Intercept};
use serde_json::Value;
use tokio::time::sleep;

use crate::{SECOND, assert_refused, engine, ms, since, ten_a_second};

/// A host whose requests take this long in each direction.
fn host(engine: &DynamoDb, seed: u64, latency: Range<Duration>) -> Host {
    engine.host().faults(Faults::seeded(seed).latency(latency)).build()
}

/// Returns the most calls that passed within any second.
fn most_in_a_second(passed: &[Duration]) -> usize {
    let within = |from: Duration| passed.iter().filter(|time| (from..from + SECOND).contains(*time)).count();
    passed.iter().map(|from| within(*from)).max().unwrap()
}

/// Twenty hosts have answers that take up to 3 s, and twenty have quick ones. Each calls five times, as soon as it can.
async fn passed_with_late_answers(seed: u64) -> Vec<Duration> {
    let engine = engine().await;
    let started = engine.now();
    let calls = join_all((0..40).map(async |number| {
        let latency = if number % 2 == 0 { ms(0)..ms(1500) } else { ms(2)..ms(3) };
        let host = host(&engine, 40 * seed + number, latency);
        let bank = ten_a_second(&host);
        let mut passed = Vec::new();
        for _ in 0..5 {
            match bank.pass_within(60 * SECOND).await {
                Ok(()) => passed.push(since(&engine, started)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
        passed
    }));
    calls.await.concat()
}

#[tokio::test(start_paused = true)]
async fn a_second_has_at_most_two_calls_more_although_answers_are_late() {
    for seed in 0..5 {
        let passed = passed_with_late_answers(seed).await;
        assert!(passed.len() > 120, "{}", passed.len());
        let most = most_in_a_second(&passed);
        assert!(most <= 12, "{most} calls in a second, with seed {seed}");
    }
}

/// Twenty callers on a host whose clock is behind come first, and then twenty on a host with the right time.
#[tokio::test(start_paused = true)]
async fn a_second_has_the_calls_of_the_difference_of_two_clocks_more() {
    let engine = engine().await;
    let started = engine.now();
    let hosts = [engine.host().clock_behind(ms(400)).build(), engine.host().build()];
    let calls = hosts.iter().flat_map(|host| (0..20).map(move |_| host)).map(async |host| {
        ten_a_second(host).pass_within(60 * SECOND).await.unwrap();
        since(&engine, started)
    });
    let most = most_in_a_second(&join_all(calls).await);
    assert!((13..=12 + 4).contains(&most), "{most} calls in a second");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answers_all_take_long_passes_at_its_third_time() {
    let engine = engine().await;
    let far = host(&engine, 7, ms(100)..ms(100));
    let started = engine.now();
    ten_a_second(&far).pass().await.unwrap();
    // Three answers. The time of the third one is as far ahead as the answer before has taken.
    assert_eq!(far.requests(), 3);
    assert!((ms(600)..ms(610)).contains(&since(&engine, started)), "{:?}", since(&engine, started));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_frozen_beyond_its_time_asks_again() {
    let engine = engine().await;
    let host = engine.host().build();
    let bank = ten_a_second(&host);
    bank.pass().await.unwrap();
    let frozen = async {
        sleep(ms(50)).await;
        host.advance_clock(SECOND);
    };
    let (passed, ()) = tokio::join!(bank.pass_within(SECOND), frozen);
    passed.unwrap();
    // Two requests for each time that the call was given, because the key had become busy, and then quiet.
    assert_eq!(host.requests(), 1 + 2 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_late_after_its_sleep_is_refused_if_its_wait_is_over() {
    let engine = engine().await;
    let host = engine.host().build();
    let bank = ten_a_second(&host);
    bank.pass().await.unwrap();
    let frozen = async {
        sleep(ms(50)).await;
        for _ in 0..20 {
            bank.reserve(3 * SECOND).await.unwrap();
        }
        host.advance_clock(SECOND);
    };
    let (passed, ()) = tokio::join!(bank.pass_within(ms(150)), frozen);
    assert_refused(passed);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answers_take_long_waits_no_longer_than_it_may() {
    let engine = engine().await;
    let (far, near) = (host(&engine, 7, ms(100)..ms(100)), host(&engine, 8, ms(1)..ms(1)));
    let (started, bank) = (engine.now(), ten_a_second(&near));
    let others = async {
        // Before the second and the third time that the call asks. The third time, its turn comes after more than a second.
        for (at, calls) in [(ms(150), 1), (ms(610), 5)] {
            sleep(at.saturating_sub(since(&engine, started))).await;
            for _ in 0..calls {
                bank.reserve(SECOND).await.unwrap();
            }
        }
    };
    let called = async {
        let passed = ten_a_second(&far).pass_within(ms(800)).await;
        (passed, since(&engine, started))
    };
    let ((passed, took), ()) = tokio::join!(called, others);
    assert!(took <= ms(810), "{took:?}: {passed:?}");
    assert_refused(passed);
}

/// Freezes the process while each of its requests is under way.
#[derive(Clone, Debug, Default)]
struct Freezes(Arc<OnceLock<Host>>);

impl Intercept for Freezes {
    fn request(&self, _: &str, _: &mut Value) {
        self.0.get().unwrap().advance_clock(ms(200));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_late_three_times_does_not_pass() {
    let engine = engine().await;
    let freezes = Freezes::default();
    let host = engine.host().intercept(freezes.clone()).build();
    freezes.0.set(host.clone()).unwrap();
    let error = ten_a_second(&host).pass().await.unwrap_err();
    assert_eq!((error.kind(), host.requests()), (ErrorKind::Unavailable, 3), "{error}");
    let source = error.source().unwrap().to_string();
    assert_eq!(source, "each answer came too late for the time that it gave the call");
}
