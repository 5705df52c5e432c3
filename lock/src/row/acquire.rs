//! The acquire: an attempt that takes what is free.

use tokio::time::timeout;

use super::claim::{Claim, Claimed};
use super::kind::Acquisition;
use super::names::FENCE;
use super::table::Table;
use super::write::Answer;
use crate::client::SdkAttempts;
use crate::error::{Cause, Error};

/// How often an attempt is adapted to rows that others change meanwhile.
const ADAPTATIONS: u32 = 4;

impl Table {
    /// Takes what is free. One request; up to four while others change the rows, to replace permits that have ended, or
    /// after fences that were proposed too small. `attempts` records which of the SDK's attempts were answered.
    pub(crate) async fn acquire(
        &self,
        acquisition: &mut Acquisition,
        claim: &Claim<'_>,
        attempts: &SdkAttempts,
    ) -> Result<Claimed, Error> {
        let answer = timeout(claim.time_limit(), Box::pin(self.claim(acquisition, claim, attempts))).await;
        answer.unwrap_or_else(|elapsed| Err(acquisition.error(Cause::Unavailable, self).with_source(elapsed)))
    }

    async fn claim(
        &self,
        acquisition: &mut Acquisition,
        claim: &Claim<'_>,
        attempts: &SdkAttempts,
    ) -> Result<Claimed, Error> {
        for _ in 0..ADAPTATIONS {
            let Acquisition { kind, owner, .. } = &mut *acquisition;
            let rules = kind.rules_mut();
            let write = rules.claim(self, owner, claim);
            match self.write_once(&write, Some(attempts)).await {
                Ok(Answer::Applied(before)) => return rules.granted(self, claim, before),
                Ok(Answer::Refused(refused)) => {
                    if let Some(claimed) = rules.denied(self, owner, claim, refused)? {
                        return Ok(claimed);
                    }
                }
                Err(error) if claim.has_endless_fence(&error) => {
                    let why = format!("`{FENCE}` is not a whole number that can be incremented");
                    return Err(error.with_cause(Cause::MalformedRow(why)));
                }
                Err(error) => return Err(error),
            }
        }
        // The rows have changed each time.
        Err(acquisition.error(Cause::Conflict, self))
    }
}
