//! `SnapStartResource` for `Locks`: what must not be in a snapshot, of which Lambda makes many environments.

use std::time::Duration;

use lambda_runtime::{BoxFuture, Error, SnapStartResource};

use crate::lock::Locks;
use crate::random;

/// The limit of the requests before a snapshot: as long as one in the background takes.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// For a function with Lambda's `SnapStart`. One call registers these locks and their clones. Feature `lambda`.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use lambda_lock::{LockLayer, Locks};
/// # use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn, tower::Layer};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// let locks = Locks::from_env().await?;
/// let layer = LockLayer::new(locks.clone());
/// Runtime::new(layer.layer(service_fn(handler))).register_snapstart_resource(Arc::new(locks)).run().await
/// # }
/// # async fn handler(_: LambdaEvent<()>) -> Result<(), Error> { Ok(()) }
/// ```
///
/// *Before the snapshot*, all locks that are held are released, as by [`Locks::release_all`]: in a snapshot, each would have
/// a holder in every environment. All background requests are waited for. Both take at most 10 s together; an error is
/// logged at level `warn`. Then the idle connections of a client with [`client_config`](crate::client_config) are given up.
///
/// *After a restore*, [`Locks::warm_up`] opens a connection. A failure is logged at level `debug`, and the first acquire then
/// opens it. No hook fails.
///
/// Owners, tokens and the delays of a wait come from the operating system, so they differ between environments with and
/// without these hooks. So do the delays of the SDK's retries with [`client_config`](crate::client_config). Those of another
/// client differ only on the thread of the hook.
impl SnapStartResource for Locks {
    fn before_snapshot(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let _logged = self.release_all(SNAPSHOT_TIMEOUT).await;
            self.0.table.close_connections().await;
            Ok(())
        })
    }

    fn after_restore(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            self.warm_up().await;
            // The SDK's delays of this thread, with any client.
            random::reseed();
            Ok(())
        })
    }
}
