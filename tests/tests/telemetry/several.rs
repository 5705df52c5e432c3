//! Metrics, spans and events of several keys.

use tokio::time::sleep;

use crate::{Stage, ms, settle, take_away};

#[tokio::test(start_paused = true)]
async fn several_keys_count_as_one_lock_and_have_one_span() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let set = locks.acquire_all(["d", "b", "a", "c"]).await.unwrap();
    stage.metrics.assert(&["acquired 1", "acquire_time [0.0]"]);
    assert!(locks.acquire_all(["a", "e", "f"]).await.unwrap_err().is_held());
    stage.metrics.assert(&["refused: held 1"]);
    sleep(ms(250)).await;
    set.release().await.unwrap();
    stage.metrics.assert(&["released 1", "hold_time [250.0]", "release_time [0.0]"]);
    assert_eq!(stage.traces.locks()[0].fields["fence"], set.fence_of("a").unwrap().to_string());
    drop(set);
    settle().await;
    assert_eq!(
        stage.traces.lock_lines(),
        [
            "attempts=1 fence=… held_ms=250 key=a, b, c and 1 more outcome=released owner=… waited_ms=0 closed",
            "attempts=1 key=a, e, f outcome=held waited_ms=0 closed"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_a_key_lost_counts_one_loss() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let set = locks.acquire_all(["a", "b"]).await.unwrap();
    take_away(&locks, "b").await;
    stage.metrics.take();
    assert!(set.renew(ms(1000)).await.unwrap_err().is_lost());
    stage.metrics.assert(&["lost 1", "hold_time [1.0]"]);
    assert!(set.release().await.unwrap_err().is_lost());
    stage.metrics.assert(&["release_failed: lost 1"]);
    drop(set);
    settle().await;
    stage.metrics.assert(&[]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "lost");
}
