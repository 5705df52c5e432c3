//! The two clocks a lease is counted by.
//!
//! The wall clock is the SDK client's time source, so that whoever builds the client owns the time. The
//! monotonic clock is tokio's, so that a paused runtime owns it. A lease ends when either says so: the wall clock
//! can be set back, and the monotonic clock may stand still while a Lambda sandbox is frozen.

use std::time::{Duration, SystemTime};

use aws_smithy_async::time::SharedTimeSource;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Clock(SharedTimeSource);

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Since the Unix epoch.
    pub(crate) wall: Duration,
    pub(crate) monotonic: Instant,
}

/// When a lease ends for its holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    wall: Duration,
    monotonic: Instant,
}

impl Clock {
    pub(crate) fn new(time_source: Option<SharedTimeSource>) -> Self {
        Self(time_source.unwrap_or_default())
    }

    pub(crate) fn now(&self) -> Moment {
        Moment {
            wall: since_epoch(self.0.now()),
            #[expect(clippy::disallowed_methods, reason = "the one reading of the monotonic clock")]
            monotonic: Instant::now(),
        }
    }
}

impl Moment {
    pub(crate) fn millis(self) -> u64 {
        millis(self.wall)
    }

    pub(crate) fn deadline_after(self, lease: Duration) -> Deadline {
        // Whole milliseconds, as in the row, so that the two agree.
        let wall = Duration::from_millis(millis(self.wall.saturating_add(lease)));
        Deadline { wall, monotonic: self.monotonic + lease }
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.monotonic.saturating_duration_since(earlier.monotonic)
    }
}

impl Deadline {
    /// What is left of the lease by the clock that is further on.
    pub(crate) fn remaining(self, now: Moment) -> Duration {
        let wall = self.wall.saturating_sub(now.wall);
        wall.min(self.monotonic.saturating_duration_since(now.monotonic))
    }

    pub(crate) fn earlier(self, other: Self) -> Self {
        Self { wall: self.wall.min(other.wall), monotonic: self.monotonic.min(other.monotonic) }
    }

    pub(crate) fn wall(self) -> Duration {
        self.wall
    }
}

pub(crate) fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Whole milliseconds, for the row.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
