//! The owner of an acquisition: a nonce, after the identity if there is one.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::random::NONCE_DIGITS;

/// The longest identity that is written as it is, so that a row has room for data and for many permits.
const MAX_WRITTEN_BYTES: usize = 256;

/// Returns the owner of an acquisition for this identity.
pub(crate) fn owner_of(identity: Option<&str>, nonce: &str) -> String {
    identity.map(start_of).unwrap_or_default() + nonce
}

/// Returns the start of the owners of this identity. The length comes first, so that no identity is the start of another one.
pub(super) fn start_of(identity: &str) -> String {
    if identity.len() <= MAX_WRITTEN_BYTES {
        return format!("{}#{identity}#", identity.len());
    }
    let mut digest = String::from("sha256:");
    for byte in Sha256::digest(identity) {
        let _never_fails = write!(digest, "{byte:02x}");
    }
    start_of(&digest)
}

/// Returns the start of the owners of the same identity and the nonce, or nothing if this owner has no identity.
pub(super) fn split(owner: &str) -> Option<(&str, &str)> {
    let nonce_at = owner.len().checked_sub(NONCE_DIGITS).filter(|at| *at > 0)?;
    owner.split_at_checked(nonce_at)
}

/// Returns `true` if both owners have the same identity.
pub(super) fn is_same_identity(owner: &str, other: &str) -> bool {
    split(owner).is_some_and(|(start, _)| other.starts_with(start))
}
