//! The names of a row's attributes, and their fixed values.

pub(crate) const DEFAULT_PARTITION_KEY: &str = "id";
/// [`IN_PROGRESS`], [`COMPLETED`], [`SEMAPHORE`] or [`RATE`].
pub(super) const STATUS: &str = "status";
/// The end of the lease, in milliseconds since the epoch.
pub(super) const LEASE_END: &str = "in_progress_expiration";
/// The TTL attribute, in seconds since the epoch. For a completed row, this is also the end of the result's window.
pub(crate) const EXPIRATION: &str = "expiration";
/// The nonce of the acquisition, after the identity if there is one.
pub(super) const OWNER: &str = "owner";
/// The number of the last release, or of the completion. The key is released while this is also its fence. A release whose
/// answer was lost recognises itself by it, even if the next holder was faster than its retry.
pub(super) const RELEASED: &str = "released";
/// How many requests the owner had sent with its last renewal or release: 0 after the acquire. A request that arrives after one
/// with a larger sequence is late, and is refused.
pub(super) const SEQUENCE: &str = "sequence";
/// The number of the acquisition whose holder was asked to run once more. Under any other number, it says nothing.
pub(super) const ASKED: &str = "asked";
/// Attempts with numbers up to this one were given up: their acquires have ended.
pub(super) const WITHDRAWN: &str = "withdrawn";
/// The number of the last acquisition of a key, or of the release that ended it. Of a semaphore, how many permits were
/// acquired, counted from the clock of the first acquire on.
pub(super) const FENCE: &str = "fence";
pub(super) const HOLDER: &str = "holder";
pub(super) const ACQUIRED_AT: &str = "acquired_at";
/// When the hold began that the owner has taken over from an earlier acquire of its identity, in milliseconds since the epoch.
pub(super) const HELD_SINCE: &str = "held_since";
pub(super) const DATA: &str = "data";
/// The digest of the payload fields that must match when a result is replayed.
pub(super) const VALIDATION: &str = "validation";
/// A stored error, which is replayed instead of a result.
pub(super) const ERROR: &str = "error";
/// The mean time of recent holds, in milliseconds with a fraction.
pub(super) const HOLD: &str = "hold";
/// The mean deviation of recent holds from [`HOLD`], in milliseconds with a fraction. 0 after the first hold.
pub(super) const HOLD_DEVIATION: &str = "hold_deviation";
/// The last place in the queue that was given to a waiter.
pub(super) const TAIL: &str = "tail";
/// The place of the last waiter that acquired the key in its turn.
pub(super) const HEAD: &str = "head";
/// Until when the waiter in the last place waits, in milliseconds since the epoch.
pub(super) const TAIL_UNTIL: &str = "tail_until";
/// Until when waiters leave the key to [`RESERVED_BY`], in milliseconds since the epoch.
pub(super) const RESERVED_UNTIL: &str = "reserved_until";
/// The owner of the waiter for several keys that has reserved this key.
pub(super) const RESERVED_BY: &str = "reserved_by";

/// When the next call of a rate is due if calls come evenly, in microseconds since the epoch.
pub(super) const DUE: &str = "due";
/// The number of permits in the row of a semaphore.
pub(super) const PERMITS: &str = "permits";
/// When the key or a permit was last freed, in milliseconds since the epoch. Waiters leave the key or permit to the waiters
/// ahead for a moment.
pub(super) const FREED_AT: &str = "freed_at";
/// The attributes of a semaphore that belong to one owner have names that begin with these, and end with the owner's nonce,
/// or with the [start of its owners](super::owner::start_of) if the owner has an identity: an identity has one permit.
/// Each permit is a map with the names of [`permit`].
pub(super) const PERMIT_PREFIX: &str = "permit:";
/// The fence of a permit: a number that the acquire counts, which a map in the same update cannot refer to.
pub(super) const PERMIT_FENCE_PREFIX: &str = "fence:";

/// The names within the map of a permit. They are short, because DynamoDB counts them in each write of each permit.
pub(super) mod permit {
    /// The number of the attempt that has acquired the permit.
    pub(crate) const NUMBER: &str = "no";
    pub(crate) const HOLDER: &str = "by";
    /// In milliseconds since the epoch, as is the end of the lease.
    pub(crate) const ACQUIRED_AT: &str = "since";
    pub(crate) const LEASE_END: &str = "end";
    /// Missing after the acquire.
    pub(crate) const SEQUENCE: &str = "sequence";
    /// The same as [`HELD_SINCE`](super::HELD_SINCE).
    pub(crate) const HELD_SINCE: &str = super::HELD_SINCE;
    /// The nonce of an owner that has an identity.
    pub(crate) const NONCE: &str = "nonce";
}

/// The names that are words of DynamoDB's expressions, so that a placeholder has to stand for them.
pub(super) const RESERVED_WORDS: [&str; 9] =
    [STATUS, OWNER, SEQUENCE, DATA, ERROR, HOLD, permit::NUMBER, permit::HOLDER, permit::LEASE_END];

pub(super) const IN_PROGRESS: &str = "INPROGRESS";
pub(super) const COMPLETED: &str = "COMPLETED";
pub(super) const SEMAPHORE: &str = "SEMAPHORE";
pub(super) const RATE: &str = "RATE";

/// The attributes that an acquire of a key writes or removes, apart from the queue and the caller's own.
pub(super) const OF_ACQUIRE: [&str; 12] =
    [STATUS, OWNER, FENCE, HOLDER, ACQUIRED_AT, HELD_SINCE, LEASE_END, EXPIRATION, SEQUENCE, DATA, VALIDATION, ERROR];

/// The other attributes of a row.
const NOT_OF_ACQUIRE: [&str; 13] = [
    RELEASED,
    WITHDRAWN,
    HOLD,
    HOLD_DEVIATION,
    TAIL,
    HEAD,
    TAIL_UNTIL,
    RESERVED_UNTIL,
    RESERVED_BY,
    PERMITS,
    FREED_AT,
    DUE,
    ASKED,
];

/// The largest time in a row: the end of the year 9999, in milliseconds.
pub(super) const LATEST: u64 = 253_402_300_799_999;
pub(super) const LATEST_MICROS: u64 = LATEST * 1000;
/// The end of a lease that a release has ended. Powertools may take 0 for none.
pub(super) const ENDED: u64 = 1;
/// The largest number of an attempt, and the largest fence.
pub(super) const MAX_FENCE: u64 = i64::MAX as u64;
/// The largest sequence.
pub(super) const MAX_SEQUENCE: u64 = i64::MAX as u64;
/// The largest place in the queue.
pub(super) const MAX_PLACE: u64 = i64::MAX as u64;

/// Returns `true` if the name is ours. Each name that a later version adds has a colon, so it is never the name of a caller's
/// attribute, but most names of the first version have no colon.
pub(crate) fn is_reserved(attribute: &str) -> bool {
    OF_ACQUIRE.contains(&attribute) || NOT_OF_ACQUIRE.contains(&attribute) || attribute.contains(':')
}
