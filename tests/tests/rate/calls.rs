//! When calls pass, in virtual time.

use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use futures_util::future::join_all;
use lambda_lock::embedded::{DynamoDb, Faults, Host, HostBuilder};
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::invocation::LoseAnswers;
use tokio::time::{sleep, timeout};

use crate::{KEY, SECOND, assert_refused, engine, ms, since, ten_a_second, with_table};

/// How long a request takes.
const LATENCY: Duration = ms(5);

fn near(engine: &DynamoDb) -> HostBuilder {
    let latency = LATENCY / 2;
    engine.host().faults(Faults::seeded(7).latency(latency..latency))
}

#[tokio::test(start_paused = true)]
async fn callers_pass_evenly_in_the_order_of_their_requests() {
    let engine = engine().await;
    let hosts: Vec<_> = (0..32).map(|_| near(&engine).build()).collect();
    let started = engine.now();
    // One comes soon after the other.
    let passed = join_all(hosts.iter().enumerate().map(async |(number, host)| {
        sleep(ms(2) * u32::try_from(number).unwrap()).await;
        ten_a_second(host).pass_within(Duration::MAX).await.unwrap();
        since(&engine, started)
    }));
    let passed = passed.await;
    assert_eq!(hosts.iter().map(Host::requests).sum::<u64>(), 32);
    assert!(passed.is_sorted(), "{passed:?}");
    // The first one passes when it is answered, and the others at their times.
    assert!(passed[1..].windows(2).all(|pair| pair[1] >= pair[0] + ms(99)), "{passed:?}");
    assert!(*passed.last().unwrap() <= ms(3100).mul_f64(1.02), "{passed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_too_early_is_told_when_to_come_back() {
    let engine = engine().await;
    let host = near(&engine).build();
    let bank = ten_a_second(&host);
    bank.pass().await.unwrap();
    let error = bank.pass().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(error.is_retryable());
    let text = error.to_string();
    assert!(text.starts_with("the rate of key `bank-api` in table `locks` is used up until "), "{text}");
    let until = error.holder().unwrap().until();
    sleep(until.duration_since(host.now()).unwrap()).await;
    bank.pass().await.unwrap();
    assert_refused(bank.pass().await);
}

#[tokio::test(start_paused = true)]
async fn a_new_caller_passes_exactly_when_the_next_call_is_due() {
    // Rates count microseconds, and clocks nanoseconds.
    let start = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let engine = with_table(DynamoDb::starting_at(start).unwrap()).await;
    let callers = [engine.host().build(), engine.host().build()];
    ten_a_second(&callers[0]).pass().await.unwrap();
    callers[1].advance_clock(SECOND / 10);
    ten_a_second(&callers[1]).pass().await.unwrap();
    assert_refused(ten_a_second(&callers[1]).pass().await);
}

#[tokio::test(start_paused = true)]
async fn a_burst_passes_at_once_after_a_quiet_time() {
    let engine = engine().await;
    let bank = ten_a_second(&near(&engine).build()).burst(5);
    for _ in 0..2 {
        for _ in 0..5 {
            bank.pass().await.unwrap();
        }
        assert_refused(bank.pass().await);
        sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_a_quiet_key_sends_one_request_once_it_knows() {
    let engine = engine().await;
    let host = near(&engine).build();
    let bank = ten_a_second(&host);
    bank.pass_within(SECOND).await.unwrap();
    for requests in 2..5 {
        sleep(SECOND).await;
        bank.pass_within(SECOND).await.unwrap();
        assert_eq!(host.requests(), requests);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_caller_of_a_quiet_key_sends_two_requests() {
    let engine = engine().await;
    ten_a_second(&near(&engine).build()).pass().await.unwrap();
    sleep(SECOND).await;
    let host = near(&engine).build();
    ten_a_second(&host).pass_within(SECOND).await.unwrap();
    assert_eq!(host.requests(), 2);
}

/// It knows that it can only begin anew.
#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_wait_sends_one_request() {
    let engine = engine().await;
    for pause in [Duration::ZERO, SECOND] {
        sleep(pause).await;
        let host = near(&engine).build();
        ten_a_second(&host).pass().await.unwrap();
        assert_refused(ten_a_second(&host).pass().await);
        assert_eq!(host.requests(), 2);
        sleep(SECOND).await;
    }
}

/// The interval is shorter than a request takes, so each caller finds that others have called meanwhile.
#[tokio::test(start_paused = true)]
async fn callers_of_a_fast_key_pass_without_a_conflict() {
    let engine = engine().await;
    let callers = (0..50).map(async |number| {
        let locks = Locks::builder(near(&engine).build().client(), "locks").build().unwrap();
        let fast = locks.rate(KEY, 500, SECOND);
        for _ in 0..20 {
            sleep(ms(200 + 7 * number % 50)).await;
            fast.pass_within(SECOND).await.unwrap();
        }
    });
    join_all(callers).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_wait_takes_no_call() {
    let engine = engine().await;
    let host = near(&engine).build();
    let bank = ten_a_second(&host);
    for _ in 0..10 {
        bank.reserve(SECOND).await.unwrap();
    }
    let started = engine.now();
    assert_refused(bank.pass_within(ms(500)).await);
    assert!(since(&engine, started) <= LATENCY + ms(1));
    let next = bank.reserve(2 * SECOND).await.unwrap();
    assert!(next <= SECOND, "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_says_how_long_to_sleep() {
    let engine = engine().await;
    let host = near(&engine).build();
    let bank = ten_a_second(&host);
    assert_eq!(bank.reserve(SECOND).await.unwrap(), Duration::ZERO);
    let waits = [bank.reserve(SECOND).await.unwrap(), bank.reserve(SECOND).await.unwrap()];
    // From the answer on: the requests took up to 20 ms.
    assert!((ms(80)..=ms(100)).contains(&waits[0]) && (ms(180)..=ms(200)).contains(&waits[1]), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_uses_up_its_time() {
    let engine = engine().await;
    let bank = ten_a_second(&near(&engine).build());
    bank.pass().await.unwrap();
    assert!(timeout(ms(50), bank.pass_within(SECOND)).await.is_err());
    sleep(ms(75)).await;
    assert_refused(bank.pass().await);
    sleep(ms(100)).await;
    bank.pass().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_uses_up_one_call() {
    let engine = engine().await;
    let host = near(&engine).intercept(LoseAnswers::to("UpdateItem", 1..=1)).build();
    let retries = RetryConfig::standard().with_initial_backoff(ms(1));
    let client = Client::from_conf(host.client().config().to_builder().retry_config(retries).build());
    let started = engine.now();
    Locks::builder(client, "locks").build().unwrap().rate(KEY, 10, SECOND).pass_within(SECOND).await.unwrap();
    assert!((ms(99)..=ms(111)).contains(&since(&engine, started)), "{:?}", since(&engine, started));
    ten_a_second(&near(&engine).build()).pass_within(SECOND).await.unwrap();
    assert!((ms(199)..=ms(211)).contains(&since(&engine, started)), "{:?}", since(&engine, started));
}

/// Of sixty calls, one each 400 ms, how many pass on a host whose clock is right, if another host calls as often, this much
/// earlier, with a clock that is 200 ms ahead.
async fn passed_beside_a_clock_ahead(wait: Duration, earlier: Duration) -> usize {
    let engine = engine().await;
    let (ahead, right) = (near(&engine).clock_ahead(ms(200)).build(), near(&engine).build());
    let (ahead, right) = (ten_a_second(&ahead), ten_a_second(&right));
    let mut passed = 0;
    for _ in 0..60 {
        let round = engine.now();
        ahead.pass_within(wait).await.unwrap();
        sleep(earlier.saturating_sub(since(&engine, round))).await;
        passed += usize::from(right.pass_within(wait).await.is_ok());
        sleep(ms(400).saturating_sub(since(&engine, round))).await;
    }
    passed
}

#[tokio::test(start_paused = true)]
async fn a_clock_behind_passes_if_the_wait_exceeds_the_difference() {
    for earlier in [ms(5), ms(100), ms(200)] {
        assert_eq!(passed_beside_a_clock_ahead(Duration::ZERO, earlier).await, 0, "{earlier:?}");
        assert_eq!(passed_beside_a_clock_ahead(ms(310), earlier).await, 60, "{earlier:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_call_passes_together_with_a_later_one() {
    let engine = engine().await;
    // Its answer takes as long as the next call has to wait.
    let late = engine.host().faults(Faults::seeded(7).latency(ms(50)..ms(50))).build();
    let started = engine.now();
    let passed = async |host: &Host| {
        ten_a_second(host).pass_within(SECOND).await.unwrap();
        since(&engine, started)
    };
    let near = near(&engine).build();
    let (first, second) = tokio::join!(passed(&late), async {
        sleep(ms(55)).await;
        passed(&near).await
    });
    assert!(second.saturating_sub(first) < ms(10), "{first:?} {second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_passes_no_call_and_takes_none() {
    let engine = engine().await;
    let right = ten_a_second(&near(&engine).build());
    right.pass().await.unwrap();
    for host in [near(&engine).clock_ahead(ms(3_600_000)), near(&engine).clock_behind(ms(3_600_000))] {
        let wrong = ten_a_second(&host.build());
        for wait in [ms(0), ms(400)] {
            assert_eq!(wrong.pass_within(wait).await.unwrap_err().kind(), ErrorKind::ClockSkew);
        }
        // The call before is over by now or by then, but not more.
        assert_refused(right.pass().await);
        right.pass_within(ms(100)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn callers_with_other_numbers_share_the_key() {
    let engine = engine().await;
    let host = near(&engine).build();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    let (old, new) = (locks.rate(KEY, 10, SECOND), locks.rate(KEY, 5, SECOND));
    new.pass().await.unwrap();
    let started = engine.now();
    old.pass_within(SECOND).await.unwrap();
    assert!((ms(190)..=ms(200)).contains(&since(&engine, started)), "{:?}", since(&engine, started));
    new.pass_within(SECOND).await.unwrap();
    assert!(since(&engine, started) <= ms(301), "{:?}", since(&engine, started));
}
