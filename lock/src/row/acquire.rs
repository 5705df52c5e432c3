//! The acquire: an attempt that takes what is free.

use tokio::time::timeout;

use super::claim::{Claim, Claimed};
use super::kind::Acquisition;
use super::names::FENCE;
use super::owner::is_same_identity;
use super::table::Table;
use super::write::Answer;
use crate::client::SdkAttempts;
use crate::error::{Cause, Error};
use crate::holder::Holder;

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
                Ok(Answer::Applied(before)) => return rules.granted(self, owner, claim, before),
                Ok(Answer::Refused(refused)) => {
                    if let Some(key) = refused.without_row().filter(|_| claim.takes_over) {
                        return Err(Error::new(Cause::Lost(None), self.place(), key));
                    }
                    // An earlier attempt was applied, and others have freed the key since.
                    if refused.is_released_by(owner) {
                        return Ok(Claimed::Lost);
                    }
                    match rules.denied(self, owner, claim, refused) {
                        Ok(Some(claimed)) => return Ok(claimed),
                        Ok(None) => {}
                        Err(error) if claim.takes_over && !is_held_by_identity(&error, owner) => {
                            return Err(error.into_lost());
                        }
                        Err(error) => return Err(error),
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

/// Returns `true` if an earlier acquire of the same identity has what refused this owner. The clock of its host was ahead, so
/// a later attempt succeeds.
fn is_held_by_identity(error: &Error, owner: &str) -> bool {
    let is_own = |holder: &Holder| {
        let is_same = holder.owner.as_deref().is_some_and(|other| is_same_identity(owner, other));
        is_same && holder.current && !holder.released
    };
    error.holders().all(|(_, holder)| is_own(holder) || holder.permits.iter().any(is_own))
}
