//! Metrics, spans and events of runs and their duplicates.

use std::future::pending;

use lambda_lock::idempotency::{OnMissingKey, StoredError};
use lambda_lock::{ErrorKind, HandlerError, Idempotency, OnError, OnUnfinished};
use lambda_lock_tests::drop_midway;
use lambda_lock_tests::invocation::LoseAnswers;
use tokio::time::sleep;
use tracing::Level;

use crate::{Stage, done, lock_error, locks_on, ms, orders, s, settle, take_away, without_jitter};

#[tokio::test(start_paused = true)]
async fn a_first_run_is_counted_as_a_lock_and_a_duplicate_as_a_replay() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks());
    done(&orders, "17").await.unwrap();
    let times = ["acquire_time [0.0]", "hold_time [250.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["acquired 1", "released 1"], &times[..]].concat());
    done(&orders, "17").await.unwrap();
    stage.metrics.assert(&["replays 1"]);
    let run = "attempts=1 fence=… held_ms=250 key=17 outcome=completed owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [run, "attempts=1 key=17 outcome=replayed waited_ms=0 closed"]);
    let [replay] = &stage.traces.logged("replaying")[..] else { panic!("once") };
    assert_eq!((replay.level, &*replay.fields["key"]), (Level::INFO, "17"));
    // It is that of the completed row: the number of the completion.
    let fence = |shown: &str| shown.parse::<u64>().unwrap();
    assert!(fence(&replay.fields["fence"]) > fence(&stage.traces.locks()[0].fields["fence"]));
    assert_eq!(stage.traces.logged_at_info(), ["INFO replaying the first run's result"]);
}

#[tokio::test(start_paused = true)]
async fn a_replay_from_the_cache_has_no_span() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks).cache(10).validate(|order: &String| order.clone());
    done(&orders, "17").await.unwrap();
    stage.metrics.take();
    done(&orders, "17").await.unwrap();
    stage.metrics.assert(&["replays 1"]);
    assert_eq!((host.requests(), stage.traces.locks().len()), (2, 1));
    assert_eq!(stage.traces.logged("replaying").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_of_a_run_in_progress_is_counted_as_in_progress() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let orders = orders(&locks);
    let wait = without_jitter().up_to(ms(100));
    let waiting = orders.clone().wait(wait);
    let at_once = async {
        sleep(ms(10)).await;
        done(&orders, "17").await
    };
    let in_vain = async {
        sleep(ms(20)).await;
        done(&waiting, "17").await
    };
    let (run, at_once, in_vain) = tokio::join!(done(&orders, "17"), at_once, in_vain);
    run.unwrap();
    assert_eq!([at_once, in_vain].map(|outcome| lock_error(outcome).kind()), [ErrorKind::InProgress; 2]);
    let refused = ["in_progress_refusals 2", "retry_attempts 1", "wait_time [100.0]"];
    let first = ["acquired 1", "released 1", "acquire_time [0.0]", "hold_time [250.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["retries_exhausted: in_progress 1"], &refused[..], &first].concat());
    assert_eq!(stage.traces.locks()[1].fields["outcome"], "in_progress");
    let logged = stage.traces.logged("not acquired");
    assert_eq!(logged.iter().map(|event| &*event.fields["reason"]).collect::<Vec<_>>(), ["in_progress"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waits_for_the_result_is_counted_as_a_replay() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks()).wait(without_jitter());
    let (run, duplicate) = tokio::join!(done(&orders, "17"), done(&orders, "17"));
    assert_eq!((run.unwrap(), duplicate.unwrap()), ("done".to_owned(), "done".to_owned()));
    // At 100 ms it is in progress, at 300 ms completed.
    let waited = ["replays 1", "retry_attempts 2", "wait_time [300.0]"];
    let first = ["acquired 1", "released 1", "acquire_time [0.0]", "hold_time [250.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&waited[..], &first].concat());
    assert_eq!(stage.traces.lock_lines()[1], "attempts=3 key=17 outcome=replayed waited_ms=300 closed");
    assert_eq!(stage.traces.logged_at_info(), ["INFO replaying the first run's result"]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_record_is_counted_by_its_reason() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let amounts: Idempotency<(u32, u32), String, String> =
        Idempotency::new(locks.clone(), OnMissingKey::Reject, |(id, _): &(u32, u32)| Some(id.to_string()));
    let amounts = amounts.validate(|(_, amount)| *amount);
    let paid = async |orders: &Idempotency<(u32, u32), String, String>, amount: u32| {
        orders.run(&(17, amount), async |_| Ok("paid".to_owned())).await
    };
    paid(&amounts, 1).await.unwrap();
    stage.metrics.take();
    assert_eq!(lock_error(paid(&amounts, 2).await).kind(), ErrorKind::Mismatch);
    stage.metrics.assert(&["refused: mismatch 1"]);

    // A refusal by the cache sends no request, and has no span.
    let cached = amounts.cache(1);
    paid(&cached, 1).await.unwrap();
    stage.metrics.assert(&["replays 1"]);
    let (requests, spans) = (host.requests(), stage.traces.locks().len());
    assert_eq!(lock_error(paid(&cached, 2).await).kind(), ErrorKind::Mismatch);
    stage.metrics.assert(&["refused: mismatch 1"]);
    assert_eq!((host.requests(), stage.traces.locks().len()), (requests, spans));

    let orders = orders(&locks).on_unfinished(OnUnfinished::Reject).lease(s(1));
    assert_eq!(lock_error(done(&orders, "none").await).kind(), ErrorKind::KeyMissing);
    stage.metrics.assert(&["refused: key_missing 1"]);

    let unfinished = orders.run(&"18".to_owned(), async |_| pending().await).await;
    assert!(lock_error(unfinished).is_lost());
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [1000.0]"];
    stage.metrics.assert(&[&acquired[..], &["lost 1", "work_failed 1"]].concat());
    sleep(s(2)).await;
    assert_eq!(lock_error(done(&orders, "18").await).kind(), ErrorKind::Unfinished);
    stage.metrics.assert(&["refused: unfinished 1"]);
    assert_eq!(stage.traces.logged("not acquired").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_input_with_an_invalid_key_is_a_refusal_without_a_span() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks());
    assert_eq!(lock_error(done(&orders.clone().window(s(1)), "17").await).kind(), ErrorKind::Invalid);
    stage.metrics.assert(&["refused: invalid 1"]);
    // The key is too long for DynamoDB.
    assert_eq!(lock_error(done(&orders, &"x".repeat(3000)).await).kind(), ErrorKind::Invalid);
    stage.metrics.assert(&["refused: invalid 1"]);
    assert_eq!(stage.traces.lock_lines(), [""; 0]);
    assert_eq!(stage.traces.logged_at_info(), ["INFO not acquired"; 2]);
    stage.traces.assert_not_logged(&"x".repeat(1000));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_releases_its_own_lock_counts_one_release() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks());
    let run = orders
        .run(&"17".to_owned(), async |run| {
            run.lock().release().await.unwrap();
            Ok("done".to_owned())
        })
        .await;
    run.unwrap();
    settle().await;
    let times = ["acquire_time [0.0]", "hold_time [0.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["acquired 1", "released 1"], &times[..]].concat());
    assert_eq!(stage.traces.logged_at_info(), ["WARN outcome not stored"]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "released");
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_is_counted_as_its_error_policy_says() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [0.0]"];
    let failed = ["work_failed 1", "release_time [0.0]"];
    let fail = async |policy: OnError| {
        let orders = orders(&locks).lease(s(1)).on_error(move |_| policy.clone());
        orders.run(&"17".to_owned(), async |_| Err("declined".to_owned())).await.unwrap_err()
    };
    let outcome = |place: usize| stage.traces.locks()[place].fields["outcome"].clone();

    fail(OnError::Release).await;
    stage.metrics.assert(&[&acquired[..], &failed].concat());
    assert_eq!(outcome(0), "released");

    // The record is not released: the next run takes it over after its lease.
    fail(OnError::Keep).await;
    settle().await;
    stage.metrics.assert(&[&acquired[..], &["work_failed 1"]].concat());
    assert_eq!(outcome(1), "left");

    fail(OnError::Store(StoredError::new("Declined", "by the bank"))).await;
    stage.metrics.assert(&[&["taken_over 1"], &acquired[..], &failed].concat());
    assert_eq!(outcome(2), "completed");
    assert!(matches!(fail(OnError::Release).await, HandlerError::Replayed(_)));
    stage.metrics.assert(&["replays 1"]);
    assert!(stage.traces.locks().iter().all(|span| span.is_closed));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_is_counted_as_failed() {
    let stage = Stage::set().await;
    let acquired = ["acquired 1", "work_failed 1", "acquire_time [0.0]", "hold_time [0.0]"];
    let dropped = async |policy: OnUnfinished| {
        drop_midway(&orders(&stage.locks()).on_unfinished(policy), &format!("{policy:?}"), || {}).await;
        settle().await;
    };
    dropped(OnUnfinished::RunAgain).await;
    stage.metrics.assert(&[&acquired[..], &["release_time [0.0]"]].concat());
    dropped(OnUnfinished::Reject).await;
    stage.metrics.assert(&acquired);
}

#[tokio::test(start_paused = true)]
async fn a_record_completed_by_a_transaction_has_no_release_time() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks);
    let run = orders
        .run(&"17".to_owned(), async |run| {
            sleep(ms(250)).await;
            let done = "done".to_owned();
            let write = host.client().transact_write_items().transact_items(run.complete_in(&done).unwrap());
            write.send().await.unwrap();
            Ok(done)
        })
        .await;
    run.unwrap();
    stage.metrics.assert(&["acquired 1", "released 1", "acquire_time [0.0]", "hold_time [250.0]"]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "completed");
    done(&orders, "17").await.unwrap();
    stage.metrics.assert(&["replays 1"]);

    // The transaction commits, and its answer is lost: the stored result replaces the handler's error. The log calls
    // that a replay, and the metrics count a run whose handler failed, and which is done.
    let run = orders
        .run(&"18".to_owned(), async |run| {
            let done = "done".to_owned();
            let write = host.client().transact_write_items().transact_items(run.complete_in(&done).unwrap());
            write.send().await.unwrap();
            Err("no answer".to_owned())
        })
        .await;
    assert_eq!(run.unwrap(), "done");
    let times = ["acquire_time [0.0]", "hold_time [0.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["acquired 1", "work_failed 1", "released 1"], &times[..]].concat());
    assert_eq!(stage.traces.locks()[2].fields["outcome"], "completed");
}

#[tokio::test(start_paused = true)]
async fn a_lost_record_is_counted_once_and_its_completion_as_failed() {
    let stage = Stage::set().await;
    let (locks, operator) = (stage.locks(), stage.locks());
    for policy in [None, Some(OnError::Release)] {
        let fails = policy.is_some();
        let run = orders(&locks)
            .run(&"17".to_owned(), async |_| {
                take_away(&operator, "17").await;
                if fails { Err("declined".to_owned()) } else { Ok("done".to_owned()) }
            })
            .await;
        assert_eq!(run.is_err(), fails);
        settle().await;
        let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [1.0]"];
        let failed = if fails { &["work_failed 1"][..] } else { &[] };
        stage.metrics.assert(&[&acquired[..], failed, &["lost 1", "release_failed: lost 1"]].concat());
    }
    assert_eq!(stage.traces.logged_at_info(), ["WARN released by force", "WARN lost"].repeat(2));
    assert!(stage.traces.locks().iter().all(|span| span.is_closed && span.fields["outcome"] == "lost"));
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_record_that_is_not_answered_is_logged() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 2..=u32::MAX)));
    let failed = orders(&locks).run(&"17".to_owned(), async |_| Err("declined".to_owned())).await;
    assert!(matches!(failed, Err(HandlerError::Handler(_))), "{failed:?}");
    assert_eq!(stage.traces.logged_at_info(), ["WARN record not released"]);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_counted_as_failed() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 2..=u32::MAX)));
    done(&orders(&locks), "17").await.unwrap();
    settle().await;
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [250.0]"];
    stage.metrics.assert(&[&["release_failed: unavailable 1"], &acquired[..]].concat());
    assert_eq!(stage.traces.logged_at_info(), ["WARN outcome not stored"]);

    // A completion that takes too long fails, too.
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks).deadline(host.now() + s(3));
    let crashing = orders
        .run(&"18".to_owned(), async |_| {
            host.crash();
            Ok("done".to_owned())
        })
        .await;
    crashing.unwrap();
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [0.0]"];
    stage.metrics.assert(&[&["release_failed: unavailable 1"], &acquired[..]].concat());
}
