//! The end of an environment.

use std::time::Duration;

use lambda_lock::Locks;

/// Lambda ends the process 500 ms after SIGTERM.
const LIMIT: Duration = Duration::from_millis(400);

/// Releases what these locks hold when Lambda ends the environment, for example after a timeout. Call it before the
/// runtime runs.
///
/// Lambda sends SIGTERM only if the function has an extension, so this registers one that does nothing. If that fails, as
/// in an emulation without extensions, a warning is logged, and the leases end as after a crash.
pub async fn release_at_shutdown(locks: &Locks) {
    let locks = locks.clone();
    let handler = lambda_runtime::spawn_graceful_shutdown_handler(move || async move {
        let _logged = locks.release_all(LIMIT).await;
    });
    // It panics if the registration fails.
    if let Err(error) = tokio::spawn(handler).await {
        tracing::warn!(?error, "locks are not released at SIGTERM");
    }
}
