//! What a durable lock claims: a key, a permit or several keys.

use std::fmt;
use std::time::Duration;

use lambda_lock::{Acquire, Attempt, Error, Locks, Turn};
use serde::{Deserialize, Serialize};

use crate::lease::Lease;
use crate::name::digest;

const DAY: Duration = Duration::from_hours(24);

/// The fences of a lock that is held. Each attempt of a step has larger ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fences(Vec<(String, u64)>);

impl Fences {
    /// Returns the fence of the key, or of the first of several in alphabetical order.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.first().map_or(0, |(_, fence)| *fence)
    }

    /// Returns the fence of this key, if it was acquired.
    #[must_use]
    pub fn of(&self, key: &str) -> Option<u64> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, fence)| *fence)
    }
}

/// What is claimed, in which table and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) locks: Locks,
    pub(crate) kind: Kind,
    pub(crate) lease: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Key(String),
    Permit(String, u32),
    Keys(Vec<String>),
}

/// The outcome of one attempt, as the history has it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Asked {
    Acquired,
    Waiting(Box<Turn>),
}

impl Claim {
    fn acquire(&self, identity: &str, lease: Duration) -> Acquire {
        let acquire = match &self.kind {
            Kind::Key(key) => self.locks.acquire(key),
            Kind::Permit(key, permits) => self.locks.semaphore(key, *permits).acquire(),
            Kind::Keys(keys) => self.locks.acquire_all(keys),
        };
        acquire.identity(identity).lease(lease)
    }

    /// Makes one attempt to acquire, and leaves the lock held. Takes over what an earlier attempt of the identity has.
    pub(crate) async fn attempt(&self, identity: &str, wait: Duration, turn: Option<Turn>) -> Result<Asked, Error> {
        Ok(match self.acquire(identity, self.lease).wait(wait).attempt_in_turn(turn).await? {
            Attempt::Acquired(lock) => {
                lock.keep();
                Asked::Acquired
            }
            Attempt::Waiting(turn) => Asked::Waiting(Box::new(turn)),
        })
    }

    /// Takes over what the identity has, with larger fences. The lease begins after this wait of the execution, and is not
    /// longer than the longest.
    pub(crate) async fn take_over(&self, identity: &str, wait: Duration) -> Result<(Fences, Lease), Error> {
        let lease = self.lease.saturating_add(wait).min(self.longest_lease());
        let lock = self.acquire(identity, lease).wait(Duration::ZERO).take_over().await?;
        let fences = lock.keys().iter().map(|key| (key.clone(), lock.fence_of(key).unwrap_or_default()));
        let fences = Fences(fences.collect());
        let lease = Lease::new(&self.locks, lock.expires_at(), lock.remaining());
        lock.keep();
        Ok((fences, lease))
    }

    /// Frees what the identity has: all that can be freed. Returns the first error.
    pub(crate) async fn release(&self, identity: &str) -> Result<(), Error> {
        let mut outcome = Ok(());
        for key in self.keys() {
            let released = self.locks.release_identity(key, identity).await;
            outcome = outcome.and(released.map(drop));
        }
        outcome
    }

    /// Names this lock among the locks of an execution.
    pub(crate) fn id(&self, identity: &str) -> String {
        digest(&format!("{identity} {:?}", self.keys()), 8)
    }

    fn keys(&self) -> &[String] {
        match &self.kind {
            Kind::Key(key) | Kind::Permit(key, _) => std::slice::from_ref(key),
            Kind::Keys(keys) => keys,
        }
    }

    /// Returns the longest wait that one takeover covers. With a lease close to the longest, half of that is for the wait,
    /// and the other half for the invocation after it.
    pub(crate) fn longest_wait(&self) -> Duration {
        let longest = self.longest_lease();
        longest.saturating_sub(self.lease).max(longest / 2)
    }

    fn longest_lease(&self) -> Duration {
        match self.kind {
            Kind::Key(_) => 366 * DAY,
            Kind::Permit(..) | Kind::Keys(_) => DAY,
        }
    }
}

/// Names the keys for people.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keys() {
            [key] => f.write_str(key),
            keys => write!(f, "{} keys", keys.len()),
        }
    }
}
