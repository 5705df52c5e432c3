//! The claim to a record of idempotency: how it differs from the claim to a lock.

use std::error::Error as _;
use std::time::Duration;

use super::expression::{Attribute as _, Condition, Update, all, any, count, text};
use super::names::{ACQUIRED_AT, DATA, ERROR, EXPIRATION, FENCE, RELEASED, VALIDATION};
use super::read::NOT_UNICODE;
use crate::clock::{Moment, millis};
use crate::error::{Cause, Error};
use crate::holder::Holder;

/// The part of a claim that only a record has.
#[derive(Clone, Debug)]
pub(crate) struct RecordClaim {
    /// The [digests](differ) to store, and to compare with the stored digests.
    pub(crate) validation: Option<String>,
    /// For how long after its start an unfinished run is refused. `None`: its record is free when its lease has ended.
    pub(crate) reject_unfinished: Option<Duration>,
}

impl RecordClaim {
    /// The lease has ended. A record whose last run did not finish stays taken for the window, if unfinished runs are rejected;
    /// a record that Powertools wrote stays taken until its TTL.
    pub(super) fn is_record_over<'a>(&self, lease_is_over: Condition<'a>, now: Moment) -> Condition<'a> {
        let Some(window) = self.reject_unfinished else { return lease_is_over };
        let window_ago = millis(now.wall.saturating_sub(window));
        let has_expired = EXPIRATION.at_most(count("now_seconds", now.wall.as_secs()));
        all([
            lease_is_over,
            any([
                RELEASED.is(FENCE),
                ACQUIRED_AT.at_most(count("window_ago", window_ago)),
                all([ACQUIRED_AT.missing(), has_expired]),
            ]),
        ])
    }

    /// Removes the outcome of the last run.
    pub(super) fn begin<'a>(&'a self, update: Update<'a>) -> Update<'a> {
        let update = update.remove(DATA).remove(ERROR);
        match &self.validation {
            Some(validation) => update.set(VALIDATION, text("validation", validation)),
            None => update.remove(VALIDATION),
        }
    }

    /// Returns the end of the time for which an unfinished run is refused, if it is. TTL does not delete the row before.
    pub(super) fn window_end(&self, now: Moment) -> Option<Duration> {
        self.reject_unfinished.map(|window| now.wall.saturating_add(window))
    }

    /// Returns the record if it has the result. Otherwise returns the error that a refusal by this record means.
    pub(crate) fn refusal(&self, record: Holder) -> Result<Holder, Box<Cause>> {
        let (stored, ours) = (record.validation.as_deref(), self.validation.as_deref());
        if stored.zip(ours).is_some_and(|(stored, ours)| differ(stored, ours)) {
            Err(Box::new(Cause::Mismatch(record)))
        } else if record.completed {
            Ok(record)
        } else if record.is_current() {
            Err(Box::new(Cause::InProgress(record)))
        } else {
            Err(Box::new(Cause::Unfinished(record)))
        }
    }

    /// Returns the error of a record that cannot be read. If the SDK could not read the row, which the source of the error says,
    /// the row has a stored result.
    pub(super) fn unreadable(error: Error) -> Error {
        if error.source().is_none() {
            return error;
        }
        error.with_cause(Cause::UnusableResult(format!(
            "the stored result cannot be read ({NOT_UNICODE}): let the function that wrote it return whole characters"
        )))
    }
}

/// Whether these digests are of two inputs. A text has one digest, or several, each after the name of the digested part:
/// `name:digest name:digest`.
///
/// Digests of different things say nothing about each other, and neither does a record without a digest: a deployment has
/// changed the validated fields, and the duplicate may be identical.
fn differ(stored: &str, ours: &str) -> bool {
    fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
        text.split(' ').map(|digest| digest.rsplit_once(':').unwrap_or(("", digest)))
    }
    named(stored).any(|(name, digest)| named(ours).any(|(other, own)| name == other && digest != own))
}
