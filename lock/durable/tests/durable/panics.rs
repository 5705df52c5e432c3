//! Bodies that panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_durable_execution_sdk::BoxError;
use lambda_lock_durable::{Error, ErrorKind};

use crate::{KINDS, Table, run};

#[tokio::test(start_paused = true)]
async fn a_panic_frees_the_key_and_is_the_same_error_on_replay() {
    for kind in KINDS {
        let table = Table::new().await;
        let (locks, panics) = (table.locks.clone(), Arc::new(AtomicU32::new(0)));
        let counter = Arc::clone(&panics);
        let result = run(move |ctx| {
            let (locks, panics) = (locks.clone(), Arc::clone(&counter));
            async move {
                let panicked: Result<(), Error> = kind(&ctx, &locks).run(|_| mistake(panics)).await;
                ctx.wait(Duration::from_secs(1)).await?;
                let error = panicked.unwrap_err();
                Ok(format!("{:?}, {error}", error.kind()))
            }
        })
        .await;
        let expected = format!("{:?}, the body panicked: a mistake", ErrorKind::Panic);
        assert_eq!(result.output(), Some(&expected), "{:?}", result.error_message());
        assert_eq!(result.invocation_count(), 2);
        assert_eq!(panics.load(Ordering::SeqCst), 1, "it was repeated");
        assert!(!table.is_held().await);
    }
}

#[expect(clippy::unused_async, reason = "it is the work of a step")]
async fn mistake(count: Arc<AtomicU32>) -> Result<(), BoxError> {
    count.fetch_add(1, Ordering::SeqCst);
    panic!("a mistake")
}

/// Each invocation replays the step, and the last one frees the key.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_step_is_recorded_before_the_body_goes_on() {
    for kind in KINDS {
        let table = Table::new().await;
        let (locks, panics) = (table.locks.clone(), Arc::new(AtomicU32::new(0)));
        let counter = Arc::clone(&panics);
        let result = run(move |ctx| {
            let (locks, panics) = (locks.clone(), Arc::clone(&counter));
            async move {
                let lock = kind(&ctx, &locks).run(move |held| async move {
                    let panicked = held.step("work", |_| mistake(panics)).await;
                    held.wait(Duration::from_secs(1)).await?;
                    Ok(panicked?)
                });
                let panicked: Result<(), Error> = lock.await;
                Ok(format!("{:?}", panicked.unwrap_err().kind()))
            }
        })
        .await;
        assert_eq!(result.output().map(String::as_str), Some("Panic"), "{:?}", result.error_message());
        assert_eq!(result.invocation_count(), 2);
        assert_eq!(panics.load(Ordering::SeqCst), 1, "it was repeated");
        assert!(!table.is_held().await);
    }
}
