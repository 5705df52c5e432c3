//! The end of a lease, for the work under it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::SharedTimeSource;
use lambda_lock::Locks;
use tokio::time::{sleep, timeout};

/// The lease of a lock that the process has handed over to the identity.
#[derive(Debug)]
pub(crate) struct Lease {
    ends_at: SystemTime,
    left: Duration,
    clock: SharedTimeSource,
}

impl Lease {
    pub(crate) fn new(locks: &Locks, ends_at: SystemTime, left: Duration) -> Self {
        Self { ends_at, left, clock: locks.client().config().time_source().unwrap_or_default() }
    }

    /// Runs the work until it ends, or cancels it at its next await point when the lease has ended. Returns `None` then, also
    /// if the work has blocked its thread and returns after the lease. After a freeze, the next step of the work does not run
    /// before the clock is read.
    pub(crate) async fn limit<T>(self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let next_step = poll_fn(|context| {
            if self.left_now().is_zero() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        });
        let limited = async {
            tokio::select! {
                biased;
                value = next_step => value,
                () = self.ended() => None,
            }
        };
        let value = timeout(self.left, limited).await.ok().flatten()?;
        (!self.left_now().is_zero()).then_some(value)
    }

    /// Waits for the wall clock. It is asked every second, because it runs on while Lambda freezes the environment.
    async fn ended(&self) {
        loop {
            let left = self.left_now();
            if left.is_zero() {
                return;
            }
            sleep(left.min(Duration::from_secs(1))).await;
        }
    }

    fn left_now(&self) -> Duration {
        self.ends_at.duration_since(self.clock.now()).unwrap_or_default()
    }
}
