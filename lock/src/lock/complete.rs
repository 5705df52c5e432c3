//! The end of a run of idempotent work: its lock is completed instead of released.

use std::time::Duration;

use aws_sdk_dynamodb::types::TransactWriteItem;
use tracing::Instrument;

use super::held::Lock;
use super::holding::Phase;
use super::wait::Backoff;
use crate::error::{Cause, Error};
use crate::row::{Completed, Completing, Outcome};

/// The waits before a completion is sent again.
const RESEND: Backoff = Backoff::new().base(Duration::from_millis(50)).cap(Duration::from_secs(1));

impl Lock {
    /// Stores the outcome of the run for `window` from now. One request, which is repeated until the lease ends while it is
    /// throttled or not answered: otherwise the work would run again.
    pub(crate) async fn complete(&self, window: Duration, outcome: Outcome) -> Result<Completed, Error> {
        let limit = self.time_to_answer();
        let (locks, now, last) = (&self.hold.locks, self.hold.now(), self.hold.release_number());
        let _until_it_is_answered = locks.0.background.begin();
        // An unanswered completion may have been applied, so no release may follow it.
        if self.hold.enter_from(&[Phase::Held, Phase::Lost, Phase::LostInPart], Phase::Released).is_err() {
            return Err(self.error(Cause::Lost(None)));
        }
        let end = self.hold.window_end(now, window);
        let mut last_error = None;
        let sent = async {
            let mut delays = RESEND.delays();
            let completing = || Completing::new(&self.hold.acquisition, last, now, end, &outcome);
            loop {
                let delay = match locks.0.table.run(completing(), || now).await {
                    Err(error) if error.is_retryable() => {
                        tracing::debug!(key = self.shown_key(), ?error, "repeating a completion");
                        last_error = Some(error);
                        delays.next(None)
                    }
                    answer => return answer,
                };
                tokio::time::sleep(delay).await;
            }
        };
        let answer = tokio::time::timeout(limit, Box::pin(sent.instrument(self.hold.span().clone()))).await;
        let answer = answer.unwrap_or_else(|_| Err(last_error.unwrap_or_else(|| self.error(Cause::Unavailable))));
        match &answer {
            Ok(_) => self.hold.telemetry.released("completed", Some((now, self.hold.now()))),
            Err(error) => self.hold.telemetry.release_failed(error),
        }
        answer
    }

    /// Returns the same completion as a part of the caller's transaction. For a lock that is not enforced, returns a check
    /// that always holds.
    pub(crate) fn completion(&self, window: Duration, outcome: Outcome) -> Result<TransactWriteItem, Error> {
        let item = TransactWriteItem::builder();
        Ok(if self.is_enforced() {
            let end = self.hold.window_end(self.hold.now(), window);
            let (table, last) = (&self.hold.locks.0.table, self.hold.release_number());
            item.update(table.completion(&self.hold.acquisition, last, end, outcome)?).build()
        } else {
            item.condition_check(self.condition_check()?).build()
        })
    }

    /// The caller's transaction has completed the record: no request is left to send.
    pub(crate) fn was_completed(&self) {
        if self.hold.enter_from(&[Phase::Held], Phase::Released).is_ok() {
            self.hold.telemetry.released("completed", None);
        }
    }

    /// Keeps the row unchanged until its lease ends.
    pub(crate) fn abandon(&self) {
        self.hold.enter(Phase::Released);
    }

    /// Returns `true` if the loss of this lock was already reported.
    pub(crate) fn is_known_lost(&self) -> bool {
        self.hold.telemetry.is_lost()
    }
}
