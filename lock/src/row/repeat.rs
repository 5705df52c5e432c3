//! The requests of holders, which are sent again while DynamoDB prevents them.

use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};

use super::table::Table;
use super::write::{Answer, Refused, Write};
use crate::client::SdkAttempts;
use crate::error::{Cause, Error, ErrorKind};
use crate::limits::REQUEST_TIMEOUT;
use crate::random;

/// The delay before a request of a holder that was prevented is sent again, at most. It doubles each time, unless the request
/// was throttled. A key has one holder and many waiters, which are throttled as well: the holder asks more often than they
/// do, because nobody gets the key before its release.
const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_millis(500);

impl Table {
    /// Sends a request of a holder. Sends it again while DynamoDB throttles it or another request on the row prevents it, and in
    /// the background also after a failure of DynamoDB, for up to [`REQUEST_TIMEOUT`] in all. `attempts` records which of the SDK's
    /// attempts were answered.
    ///
    /// This is the one rule for all holders. Each of their requests recognises that it was applied before. The SDK itself
    /// repeats no conflict with a transaction and no transaction that was cancelled because of throttling, and here no
    /// throttled update and no conflict with a write of another region either.
    pub(super) async fn write(&self, write: impl Into<Write<'_>>, attempts: &SdkAttempts) -> Result<Answer, Error> {
        let write = write.into();
        let mut last = None;
        let answered = async {
            let mut delay = FIRST_DELAY;
            loop {
                let answer = match self.write_once(&write).await {
                    Ok(Answer::Refused(Refused { prevented: Some(error), .. })) => Err(error),
                    answer => answer,
                };
                let is_throttled = match answer {
                    Err(error) if error.is_prevented() || self.is_in_background && error.is_retryable() => {
                        last.insert(error).kind() == ErrorKind::Throttled
                    }
                    answer => return answer,
                };
                if is_throttled {
                    delay = FIRST_DELAY;
                }
                sleep(delay.mul_f64(random::unit())).await;
                delay = (2 * delay).min(LONGEST_DELAY);
            }
        };
        let answer = timeout(REQUEST_TIMEOUT, Box::pin(attempts.record(answered))).await;
        let unanswered = |elapsed: Elapsed| write.error(Cause::Unavailable, self).with_source(elapsed);
        answer.unwrap_or_else(|elapsed| Err(last.unwrap_or_else(|| unanswered(elapsed))))
    }
}
