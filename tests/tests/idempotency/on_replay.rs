//! The hook `on_replay`.

use std::sync::{Arc, Mutex};

use lambda_lock::Run;
use lambda_lock_tests::invocation::millis;

use crate::{Orders, eagerly, environment, number_in, order, orders, run_while_waited_for};

#[tokio::test]
async fn on_replay_gets_each_replayed_result_and_its_record_and_can_change_it() {
    for cache in [0, 10] {
        let (world, host, _) = environment().await;
        let locks = world.locks(&host).holder("the first").build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let hooked: Orders<u64> = orders(&locks).cache(cache).on_replay({
            let seen = Arc::clone(&seen);
            move |result, record| {
                seen.lock().unwrap().push((*result, record.clone()));
                *result += 1000;
            }
        });
        let mut acquired_at = None;
        let body = async |run: &Run| {
            acquired_at = Some(run.lock().acquired_at());
            Ok(run.lock().fence())
        };
        let fence = hooked.run(&order("a"), body).await.unwrap();
        assert!(seen.lock().unwrap().is_empty(), "the first result is no replay");
        let expiration = number_in(&world.row("a").await.unwrap(), "expiration");
        for _ in 0..2 {
            let replayed = hooked.run(&order("a"), async |_| panic!("it runs again")).await.unwrap();
            assert_eq!(replayed, fence + 1000);
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 2);
        for (result, record) in &*seen {
            // The completion has a larger number than the run.
            assert!(*result == fence && record.fence() > Some(fence));
            assert_eq!(record.name(), Some("the first"));
            assert_eq!(record.since(), acquired_at);
            assert_eq!(millis(record.until()), expiration * 1000);
            assert!(record.is_completed() && record.is_current());
            assert_eq!(record.data().unwrap().as_str(), Some(fence.to_string().as_str()));
        }
        assert_eq!(host.requests(), if cache == 0 { 4 } else { 2 });
    }
}

#[tokio::test]
async fn on_replay_gets_a_result_after_a_wait() {
    let (world, _host, locks) = environment().await;
    let other = world.host().build();
    let waiting: Orders<u32> =
        orders(&world.locks(&other).build().unwrap()).wait(eagerly()).on_replay(|result, _| *result += 1000);
    let (first, second) = run_while_waited_for(&orders(&locks), Ok(1), &waiting, &other).await;
    assert_eq!((first.unwrap(), second.unwrap()), (1, 1001));
}
