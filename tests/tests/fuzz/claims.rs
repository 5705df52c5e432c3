//! Claims: all ways to acquire a key, a permit or several keys.

use std::time::Duration;

use lambda_lock::{Attempt, Error, Lock, Locks, Turn};
use lambda_lock_tests::rows::text;
use tokio::time::sleep;

use crate::{IDENTITY, KEY, LEASE, OTHER};

/// What is claimed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    Key,
    Permit(u32),
    /// With [`OTHER`].
    Keys,
}

/// How it is claimed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    AtOnce,
    /// With data, another attribute and a minimum hold, as far as the kind has them.
    WithExtras,
    OfIdentity,
    TakeOver,
    /// For five seconds.
    Wait,
    /// One attempt of a wait.
    Attempt,
    /// Two of them, as far apart as the first one says.
    Attempts,
}

impl How {
    /// Returns `true` for a waiter, which changes the queue in the row of a holder.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Wait | Self::Attempt | Self::Attempts)
    }

    pub(crate) fn has_identity(self) -> bool {
        matches!(self, Self::OfIdentity | Self::TakeOver)
    }
}

/// What a claim has got.
pub(crate) enum Claimed {
    Lock(Lock),
    Turn(Turn),
}

impl From<Attempt> for Claimed {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Acquired(lock) => Self::Lock(lock),
            Attempt::Waiting(turn) => Self::Turn(turn),
        }
    }
}

/// A turn as a workflow keeps it.
pub(crate) fn kept(turn: &Turn) -> Turn {
    let read = serde_json::from_str(&serde_json::to_string(turn).unwrap()).unwrap();
    assert_eq!(turn, &read);
    read
}

pub(crate) async fn claim(locks: &Locks, what: What, how: How) -> Result<Claimed, Error> {
    let acquire = || match what {
        What::Key => locks.acquire(KEY),
        What::Permit(permits) => locks.semaphore(KEY, permits).acquire(),
        What::Keys => locks.acquire_all([KEY, OTHER]),
    };
    match how {
        How::AtOnce => acquire().await.map(Claimed::Lock),
        How::WithExtras => {
            let extras = acquire().holder("a name\nof two lines").lease(LEASE * 2);
            let extras = match what {
                What::Keys => extras,
                What::Permit(_) => extras.data("the new data").attribute("extra", text("new")),
                What::Key => extras.data("the new data").attribute("extra", text("new")).min_hold(LEASE * 2),
            };
            extras.await.map(Claimed::Lock)
        }
        How::OfIdentity => acquire().identity(IDENTITY).await.map(Claimed::Lock),
        How::TakeOver => acquire().identity(IDENTITY).take_over().await.map(Claimed::Lock),
        How::Wait => acquire().wait(Duration::from_secs(5)).await.map(Claimed::Lock),
        How::Attempt => acquire().attempt_in_turn(None).await.map(Claimed::from),
        How::Attempts => match acquire().attempt_in_turn(None).await? {
            Attempt::Waiting(turn) => {
                sleep(turn.delay()).await;
                acquire().attempt_in_turn(Some(kept(&turn))).await.map(Claimed::from)
            }
            acquired @ Attempt::Acquired(_) => Ok(acquired.into()),
        },
    }
}
