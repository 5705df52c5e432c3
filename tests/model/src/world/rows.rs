//! What a row says.

use lambda_lock::model::Clocks;
use serde_json::Value;

pub(super) fn millis(now: Clocks) -> u64 {
    u64::try_from(now.wall.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn number(value: &Value) -> Option<u64> {
    value["N"].as_str().and_then(|digits| digits.parse().ok())
}

pub(super) fn permits(row: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let all = row.as_object().into_iter().flatten();
    all.filter_map(|(name, permit)| Some((name.strip_prefix("permit:")?, &permit["M"])))
}

/// How many permits end after this time.
pub(super) fn permits_until(row: &Value, now: u64) -> usize {
    permits(row).filter(|(_, permit)| number(&permit["end"]) > Some(now)).count()
}

/// The number with which an owner has the place of this row, if it does.
pub(super) fn number_of(row: &Value, owner: &str) -> Option<u64> {
    if row["status"]["S"] == "SEMAPHORE" {
        let is_own = |(name, permit): &(&str, &Value)| {
            owner.strip_prefix(name).is_some_and(|nonce| nonce == permit["nonce"]["S"].as_str().unwrap_or_default())
        };
        let (_, permit) = permits(row).find(is_own)?;
        return number(&permit["no"]);
    }
    let is_own = row["status"]["S"] == "INPROGRESS" && row["owner"]["S"] == owner && row["released"] != row["fence"];
    number(&row["fence"]).filter(|_| is_own)
}

/// The start of an owner that has an identity.
pub(super) fn identity_of(owner: &str) -> Option<&str> {
    owner.rsplit_once('#').map(|(identity, _)| identity)
}

/// Whether an identity holds the place of this row at this time.
pub(super) fn is_held_by(row: &Value, identity: &str, now: u64) -> bool {
    let is_own = |owner: &str| identity_of(owner) == Some(identity);
    if row["status"]["S"] == "SEMAPHORE" {
        return permits(row).any(|(name, permit)| is_own(name) && number(&permit["end"]) > Some(now));
    }
    let is_held = number(&row["in_progress_expiration"]) > Some(now) && row["released"] != row["fence"];
    is_held && row["owner"]["S"].as_str().is_some_and(is_own)
}
