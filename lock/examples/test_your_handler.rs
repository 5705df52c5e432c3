//! Tests of your own handler, with the real client and protocol, on an engine in the test's process: duplicates,
//! crashes, a slow run and a bad network, without waiting.
//!
//! ```sh
//! cargo test --package lambda-lock --example test_your_handler --features lambda,embedded
//! ```
//!
//! Your function needs `lambda-lock = { version = "0.1", features = ["embedded"] }` and
//! `tokio = { version = "1", features = ["test-util"] }` among the `[dev-dependencies]`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lambda_lock::{HandlerError, LockLayer, Locks};
use lambda_runtime::tower::{Layer, Service};
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};

/// Returns the function under test: the handler with its lock. The parameters differ between production and a test.
fn nightly_report(
    locks: Locks,
    written: Arc<AtomicU64>,
) -> impl Service<
    LambdaEvent<()>,
    Response = &'static str,
    Error = HandlerError<Error>,
    Future: Future<Output = Result<&'static str, HandlerError<Error>>> + Send,
> + Clone
+ Send {
    let layer = LockLayer::new(locks).key("nightly-report").on_held(|_| "skipped");
    layer.layer(service_fn(move |_: LambdaEvent<()>| {
        let written = Arc::clone(&written);
        async move {
            tokio::time::sleep(Duration::from_secs(20)).await; // the work
            written.fetch_add(1, Ordering::Relaxed);
            Ok("written")
        }
    }))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    Runtime::new(nightly_report(Locks::from_env().await?, Arc::default())).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::{DynamoDb, Faults, Host};
    use lambda_runtime::Context;
    use lambda_runtime::tower::ServiceExt;

    use super::*;

    async fn engine_with_table() -> DynamoDb {
        let engine = DynamoDb::new().unwrap();
        Locks::builder(engine.client(), "locks").build().unwrap().create_table().await.unwrap();
        engine
    }

    fn locks(host: &Host) -> Locks {
        Locks::builder(host.client(), "locks").build().unwrap()
    }

    /// Returns an invocation as Lambda starts it, with this much time until the deadline.
    fn invocation(host: &Host, request_id: &str, time_left: Duration) -> LambdaEvent<()> {
        let deadline = (host.now() + time_left).duration_since(std::time::UNIX_EPOCH).unwrap();
        let mut context = Context::default();
        context.deadline = deadline.as_millis().try_into().unwrap();
        context.request_id = request_id.to_owned();
        LambdaEvent::new((), context)
    }

    const TIMEOUT: Duration = Duration::from_mins(1);

    // Time is paused, so the twenty seconds of work take no real time.
    #[tokio::test(start_paused = true)]
    async fn one_of_two_concurrent_invocations_is_skipped() {
        let (engine, written) = (engine_with_table().await, Arc::default());
        let (one, other) = (engine.host().build(), engine.host().build());
        let answers = tokio::join!(
            nightly_report(locks(&one), Arc::clone(&written)).oneshot(invocation(&one, "1", TIMEOUT)),
            nightly_report(locks(&other), Arc::clone(&written)).oneshot(invocation(&other, "2", TIMEOUT)),
        );
        assert_eq!((answers.0.unwrap(), answers.1.unwrap()), ("written", "skipped"));
        assert_eq!(written.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_retry_after_a_crash_runs() {
        let (engine, written) = (engine_with_table().await, Arc::default());
        let (first, retry) = (engine.host().build(), engine.host().build());
        let crashed = nightly_report(locks(&first), Arc::clone(&written)).oneshot(invocation(&first, "1", TIMEOUT));
        // The host crashes in the middle of its work, and never releases the lock.
        let crash = tokio::time::timeout(Duration::from_secs(5), async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            first.crash();
            std::future::pending::<()>().await;
        });
        tokio::select! {
            _ = crashed => panic!("the invocation ended before the crash"),
            _ = crash => {}
        }
        // Lambda retries with the same request id. A retry that comes too early fails, so that Lambda retries it again.
        let call = nightly_report(locks(&retry), Arc::clone(&written)).oneshot(invocation(&retry, "1", TIMEOUT));
        assert!(matches!(call.await, Err(HandlerError::Lock(error)) if error.is_held()));
        tokio::time::sleep(TIMEOUT).await;
        let answer =
            nightly_report(locks(&retry), Arc::clone(&written)).oneshot(invocation(&retry, "1", TIMEOUT)).await;
        assert_eq!(answer.unwrap(), "written");
        assert_eq!(written.load(Ordering::Relaxed), 1);
    }

    // The same seed gives the same faults.
    #[tokio::test(start_paused = true)]
    async fn a_bad_network_does_not_cause_two_runs_at_once() {
        let mut times = 0;
        for seed in 0..100 {
            let (engine, written) = (engine_with_table().await, Arc::default());
            let latency = Duration::from_millis(2)..Duration::from_millis(40);
            let faults = |seed| Faults::seeded(seed).latency(latency.clone()).lose_answers(0.3).repeat(0.3, TIMEOUT);
            let one = engine.host().faults(faults(seed)).clock_ahead(Duration::from_millis(400)).build();
            let other = engine.host().faults(faults(seed + 1000)).clock_behind(Duration::from_millis(400)).build();
            let answers = tokio::join!(
                nightly_report(locks(&one), Arc::clone(&written)).oneshot(invocation(&one, "1", TIMEOUT)),
                nightly_report(locks(&other), Arc::clone(&written)).oneshot(invocation(&other, "2", TIMEOUT)),
            );
            let written = written.load(Ordering::Relaxed);
            assert!(written <= 1, "seed {seed}: {answers:?}");
            times += written;
        }
        // Sometimes both invocations lose the answer that gives them the lock. Lambda would retry them.
        assert!(times > 90, "{times}");
    }
}
