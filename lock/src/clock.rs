//! The two clocks that count a lease, and the lease itself.
//!
//! The wall clock is the SDK client's time source, so the code that builds the client controls it. The monotonic clock is
//! tokio's, so a paused runtime controls it. A lease ends when either clock says so: the wall clock can be set back, and
//! the monotonic clock can stand still while Lambda freezes the environment.
//!
//! Each answer of DynamoDB has its time. A host whose clock cannot be right by this time knows that no lease means anything
//! there.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::SharedTimeSource;
use aws_smithy_runtime_api::http::Headers;
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use humantime::format_duration;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Clock(SharedTimeSource);

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The time since the Unix epoch.
    pub(crate) wall: Duration,
    pub(crate) monotonic: Instant,
}

/// The end of a lease for its holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    wall: Duration,
    monotonic: Instant,
}

/// A lease as its holder counts it and as the row stores it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) deadline: Deadline,
    /// The end for other hosts: the deadline plus the clock skew, in milliseconds since the epoch.
    pub(crate) end: u64,
    /// The TTL, in seconds since the epoch.
    pub(crate) expiration: u64,
}

/// The time at DynamoDB when it wrote an answer, which lies between two readings of this host's clock. All are since the Unix
/// epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    sent: Duration,
    received: Duration,
    /// Whole seconds.
    date: Duration,
}

/// How far this host's clock is from DynamoDB's, at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offset {
    pub(crate) by: Duration,
    pub(crate) is_ahead: bool,
}

impl Reading {
    /// Returns `None` if the answer has no time of its own, such as an answer from a cache.
    pub(crate) fn new(sent: Duration, received: Duration, answer: &Headers) -> Option<Self> {
        let date = answer.get("date").filter(|_| answer.get("age").is_none())?;
        let date = DateTime::from_str(date, Format::HttpDate).ok()?;
        Some(Self { sent, received, date: Duration::from_secs(u64::try_from(date.secs()).ok()?) })
    }

    /// Returns the smallest offset that explains the reading. DynamoDB's clock was within the second of the date.
    pub(crate) fn offset(self) -> Offset {
        let ahead = self.sent.saturating_sub(self.next_second());
        Offset { by: ahead.max(self.date.saturating_sub(self.received)), is_ahead: !ahead.is_zero() }
    }

    /// Returns the largest offset that explains the reading.
    pub(crate) fn most(self) -> Duration {
        self.received.saturating_sub(self.date).max(self.next_second().saturating_sub(self.sent))
    }

    fn next_second(self) -> Duration {
        self.date + Duration::from_secs(1)
    }
}

impl Offset {
    /// Returns the same moment with the wall clock set right, or later by about a second if the clock is ahead.
    pub(crate) fn correct(self, now: Moment) -> Moment {
        let wall = if self.is_ahead { now.wall.saturating_sub(self.by) } else { now.wall.saturating_add(self.by) };
        Moment { wall, ..now }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.is_ahead { "ahead of" } else { "behind" };
        write!(f, "at least {} {direction} DynamoDB's", format_duration(Duration::from_millis(millis(self.by))))
    }
}

impl Clock {
    pub(crate) fn new(time_source: Option<SharedTimeSource>) -> Self {
        Self(time_source.unwrap_or_default())
    }

    pub(crate) fn now(&self) -> Moment {
        Moment { wall: since_epoch(self.0.now()), monotonic: monotonic() }
    }
}

/// Reads the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "this is the only reading of the monotonic clock")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

impl Moment {
    pub(crate) fn millis(self) -> u64 {
        millis(self.wall)
    }

    /// Returns the moment of an earlier time of the wall clock.
    pub(crate) fn earlier(self, wall: Duration) -> Self {
        let ago = self.wall.saturating_sub(wall);
        Self { wall, monotonic: self.monotonic.checked_sub(ago).unwrap_or(self.monotonic) }
    }

    pub(crate) fn later(self, by: Duration) -> Self {
        Self { wall: self.wall.saturating_add(by), monotonic: self.monotonic + by }
    }

    pub(crate) fn deadline_after(self, lease: Duration) -> Deadline {
        // The row stores whole milliseconds; the holder counts the same ones.
        let wall = Duration::from_millis(millis(self.wall.saturating_add(lease)));
        Deadline { wall, monotonic: self.monotonic + lease }
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.monotonic.saturating_duration_since(earlier.monotonic)
    }
}

impl Deadline {
    /// Returns the time that is left, by the clock that is further ahead.
    pub(crate) fn remaining(self, now: Moment) -> Duration {
        let wall = self.wall.saturating_sub(now.wall);
        wall.min(self.monotonic.saturating_duration_since(now.monotonic))
    }

    /// Returns how long ago this was, by the clock that is further ahead.
    pub(crate) fn passed_since(self, now: Moment) -> Duration {
        let wall = now.wall.saturating_sub(self.wall);
        wall.max(now.monotonic.saturating_duration_since(self.monotonic))
    }

    pub(crate) fn has_passed(self, now: Moment) -> bool {
        self.remaining(now).is_zero()
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

/// Returns whole microseconds, rounded down.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns whole milliseconds, rounded down.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns whole milliseconds, rounded up: a clock skew can be shorter than a millisecond.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    millis(duration.saturating_add(Duration::from_nanos(999_999)))
}

/// Returns whole seconds, rounded up: a TTL must not be early.
pub(crate) fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
