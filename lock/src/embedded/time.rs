//! The clocks: true time, which DynamoDB has, and a host's clock, which may be wrong.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use dynoxide::storage_backend::Clock as DatabaseClock;
use tokio::time::Instant;

use crate::clock::{monotonic, since_epoch};

/// The reference for all clocks: a start time plus the time that tokio says has passed since, or the system's time,
/// which also advances while the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrueTime {
    /// `None` for the system's time.
    start: Option<SystemTime>,
    since: Instant,
}

impl TrueTime {
    pub(super) fn starting_at(start: SystemTime) -> Self {
        Self { start: Some(start), ..Self::of_system() }
    }

    pub(super) fn of_system() -> Self {
        Self { start: None, since: monotonic() }
    }

    pub(super) fn now(&self) -> SystemTime {
        self.start.map_or_else(|| SystemTimeSource::new().now(), |start| start + self.elapsed())
    }

    fn elapsed(&self) -> Duration {
        monotonic().saturating_duration_since(self.since)
    }
}

impl DatabaseClock for TrueTime {
    fn now_unix_secs(&self) -> u64 {
        since_epoch(self.now()).as_secs()
    }

    fn now_unix_secs_f64(&self) -> f64 {
        since_epoch(self.now()).as_secs_f64()
    }
}

/// A host's clock: its time plus an offset and a drift.
#[derive(Debug)]
pub(super) struct HostClock {
    time: TrueTime,
    /// How much later than true time it is for this host, in microseconds.
    later: AtomicI64,
    /// Microseconds; negative if the clock is behind.
    offset: AtomicI64,
    /// Seconds gained a second.
    drift: f64,
    max_error: Duration,
}

impl HostClock {
    pub(super) fn new(time: TrueTime) -> Self {
        Self { time, later: AtomicI64::new(0), offset: AtomicI64::new(0), drift: 0.0, max_error: Duration::MAX }
    }

    pub(super) fn pass(&self, time: Duration) {
        self.later.fetch_add(micros(time), Ordering::Relaxed);
    }

    /// Returns the time that is right for this host: that of its DynamoDB.
    pub(super) fn right(&self) -> SystemTime {
        self.time.now() + Duration::from_micros(self.later.load(Ordering::Relaxed).unsigned_abs())
    }

    pub(super) fn set_forward(&self, by: Duration) {
        self.offset.fetch_add(micros(by), Ordering::Relaxed);
    }

    pub(super) fn set_back(&self, by: Duration) {
        self.offset.fetch_sub(micros(by), Ordering::Relaxed);
    }

    pub(super) fn drift(&mut self, rate: f64, max_error: Duration) {
        self.drift = rate;
        self.max_error = max_error;
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a float that is too large saturates"
    )]
    pub(super) fn now(&self) -> SystemTime {
        let drifted = (self.time.elapsed().as_micros() as f64 * self.drift) as i64;
        let (offset, max_error) = (self.offset.load(Ordering::Relaxed), micros(self.max_error));
        // A clock that was set wrong stays so: only its drift has a bound.
        let ahead = offset.saturating_add(drifted).clamp(offset.min(-max_error), offset.max(max_error));
        let by = Duration::from_micros(ahead.unsigned_abs());
        if ahead < 0 { self.right() - by } else { self.right() + by }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
