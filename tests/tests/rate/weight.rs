//! Calls that count as several.

use std::time::Duration;

use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Host};
use tokio::time::sleep;

use crate::{KEY, SECOND, assert_refused, engine, ms, ten_a_second};

/// A host of its own, in virtual time.
async fn host() -> (DynamoDb, Host) {
    let engine = engine().await;
    let host = engine.host().build();
    (engine, host)
}

#[tokio::test(start_paused = true)]
async fn the_next_call_waits_for_the_whole_weight_of_the_one_before() {
    let (_engine, host) = host().await;
    let bank = ten_a_second(&host);
    bank.clone().weight(7).pass().await.unwrap();
    let started = host.now();
    bank.pass_within(SECOND).await.unwrap();
    let waited = host.now().duration_since(started).unwrap();
    assert!((ms(699)..=ms(702)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_heavy_call_of_a_burst_comes_when_all_its_points_are_there() {
    let (_engine, host) = host().await;
    let shop = ten_a_second(&host).burst(20);
    let [light, heavy] = [8, 15].map(|weight| shop.clone().weight(weight));
    light.pass().await.unwrap();
    // 12 points are left, and three more come in 300 ms.
    assert_refused(heavy.pass().await);
    let started = host.now();
    heavy.pass_within(SECOND).await.unwrap();
    let waited = host.now().duration_since(started).unwrap();
    assert!((ms(299)..=ms(302)).contains(&waited), "{waited:?}");
    // None is left.
    assert_refused(shop.pass().await);
    sleep(ms(101)).await;
    shop.pass().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_heavier_than_the_burst_comes_when_no_call_is_due() {
    let (_engine, host) = host().await;
    let bank = ten_a_second(&host).burst(3);
    bank.pass().await.unwrap();
    assert_refused(bank.clone().weight(5).pass().await);
    sleep(ms(101)).await;
    bank.clone().weight(5).pass().await.unwrap();
    // Two calls of the burst may come early.
    let started = host.now();
    bank.pass_within(SECOND).await.unwrap();
    let waited = host.now().duration_since(started).unwrap();
    assert!((ms(299)..=ms(302)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn one_request_reserves_several_calls() {
    let (_engine, host) = host().await;
    let bank = ten_a_second(&host);
    // After these two, the client knows that calls are due.
    bank.reserve(SECOND).await.unwrap();
    bank.reserve(SECOND).await.unwrap();
    let sent = host.requests();
    let wait = bank.clone().weight(50).reserve(SECOND).await.unwrap();
    assert!((ms(199)..=ms(202)).contains(&wait), "{wait:?}");
    assert_eq!(host.requests() - sent, 1);
    // The calls at 200 ms, 300 ms, … 5.1 s are taken.
    let wait = bank.reserve(SECOND * 60).await.unwrap();
    assert!((ms(5199)..=ms(5202)).contains(&wait), "{wait:?}");
}

/// A client that asks for eight calls at a time has four times as many as the partition takes requests.
#[tokio::test(start_paused = true)]
async fn calls_in_bulk_pass_the_ceiling_of_a_partition() {
    const CEILING: u32 = 20;
    let engine = engine().await.limit_partitions(CEILING);
    let locks = Locks::builder(engine.host().build().client(), "locks").build().unwrap();
    let bulk = locks.rate(KEY, 4 * CEILING, SECOND).weight(8);
    let (mut calls, mut end) = (0, Duration::ZERO);
    let started = engine.now();
    while end < SECOND * 10 {
        let wait = bulk.reserve(SECOND).await.unwrap();
        end = engine.now().duration_since(started).unwrap() + wait;
        calls += 8;
        sleep(wait).await;
    }
    assert!(calls >= 4 * CEILING * 10, "{calls}");
}
