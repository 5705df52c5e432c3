//! The true time, which faketime does not change: rustix reads the clocks without libc.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, Timespec, clock_gettime};

fn since_start(time: Timespec) -> Duration {
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap()
}

/// The true time since the start of the machine, in nanoseconds.
pub(crate) fn now() -> u64 {
    nanos(since_start(clock_gettime(ClockId::Monotonic)))
}

/// The wall clock of this process, as all code in it sees it.
#[expect(clippy::disallowed_methods, reason = "a real process, whose clock is wrong on purpose")]
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

/// How far the wall clock of this process is ahead of the machine's, in milliseconds.
pub(crate) fn ahead() -> i64 {
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap();
    loop {
        let before = now();
        let difference = micros(wall()) - micros(since_start(clock_gettime(ClockId::Realtime)));
        // Otherwise the process was stopped between the two.
        if now() - before < 1_000_000 {
            return difference / 1000;
        }
    }
}
