//! `Background`: the requests that outlive the future which caused them, such as the release of a lock that was dropped.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{Instrument, Span};

use crate::error::Error;

/// The background requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Background(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    /// How many requests are in progress.
    requests: usize,
    /// The first error since the last flush.
    failed: Option<Error>,
}

impl Background {
    /// Counts a request until the value is dropped, which a runtime that shuts down also does.
    pub(super) fn begin(&self) -> InBackground {
        self.0.send_modify(|state| state.requests += 1);
        InBackground(self.clone())
    }

    /// Sends a request without waiting for its answer, if there is a runtime to send it.
    pub(super) fn send(
        &self,
        key: String,
        span: Span,
        request: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        if let Ok(runtime) = Handle::try_current() {
            let pending = self.begin();
            let request = async move {
                if let Err(error) = request.await {
                    tracing::debug!(key, ?error, "a background request failed");
                    pending.failed(error);
                }
            };
            runtime.spawn(request.instrument(span));
        }
    }

    /// Waits until all requests are answered, for at most `limit`. Returns `false` if some are not. Fails with the first error since
    /// the last flush.
    pub(super) async fn flush(&self, limit: Duration) -> Result<bool, Error> {
        let mut state = self.0.subscribe();
        // The receiver fails only if the sender is gone, and `self` has the sender.
        let are_answered = timeout(limit, state.wait_for(|state| state.requests == 0)).await.is_ok();
        let mut failed = None;
        self.0.send_modify(|state| failed = state.failed.take());
        failed.map_or(Ok(are_answered), Err)
    }
}

/// A background request in progress.
#[derive(Debug)]
pub(super) struct InBackground(Background);

impl InBackground {
    /// Tells the next flush. A lock that was lost is not held.
    fn failed(&self, error: Error) {
        if !error.is_lost() {
            self.0.0.send_modify(|state| {
                state.failed.get_or_insert(error);
            });
        }
    }
}

impl Drop for InBackground {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.requests -= 1);
    }
}
