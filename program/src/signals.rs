//! The signals that this process receives while a command runs.

use std::future::poll_fn;
use std::task::Poll;
use std::{fs, io};

use rustix::process::Signal;
use tokio::signal::unix;

/// The signals that are passed on to the command.
const PASSED_ON: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// The signals by which a terminal stops a background process.
const STOPPING: [Signal; 3] = [Signal::TTIN, Signal::TTOU, Signal::TSTP];

/// Signals that no longer end or stop this process.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// The last signal that asks for an end.
    ends: Option<Signal>,
}

impl Signals {
    /// Listens to the signals that are passed on.
    ///
    /// A signal that this process inherited as ignored, from nohup for example, stays ignored: the command must ignore
    /// it too.
    pub(crate) fn passed_on() -> io::Result<Self> {
        Self::listen(&PASSED_ON)
    }

    /// Listens to the signals by which a terminal stops a process.
    pub(crate) fn stopping() -> io::Result<Self> {
        Self::listen(&STOPPING)
    }

    fn listen(signals: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        let heeded = signals.iter().copied().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
        let streams = heeded.map(|signal| Ok((signal, unix::signal(unix::SignalKind::from_raw(signal.as_raw()))?)));
        Ok(Self { streams: streams.collect::<io::Result<_>>()?, ends: None })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        let signal = poll_fn(|context| {
            let mut came = self.streams.iter_mut().filter_map(|(signal, stream)| {
                matches!(stream.poll_recv(context), Poll::Ready(Some(()))).then_some(*signal)
            });
            came.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        if ![Signal::USR1, Signal::USR2].contains(&signal) {
            self.ends = Some(signal);
        }
        signal
    }

    /// Returns the last signal that asked for an end, if there was one.
    pub(crate) fn ends(&self) -> Option<Signal> {
        self.ends
    }
}

/// Replaces an inherited "ignore SIGCHLD", under which the system discards the exit status of a child. The command
/// starts with the default, because `exec` resets handlers.
pub(crate) fn heed_children() -> io::Result<()> {
    // The handler stays installed when the stream is dropped.
    unix::signal(unix::SignalKind::child()).map(drop)
}

/// Returns the signals that this process ignores, a bit each. The result is 0 where the system has no `/proc`.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
