//! A command under a lock: it runs until it ends or has to end, and never longer than the lease.

use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use lambda_lock::{Error, Lock};
use rustix::process::{Pid, Signal};
use tokio::time::{sleep, timeout};

use crate::command::Running;
use crate::failure::sentence;
use crate::guard::{Guard, Life, Orders};
use crate::output::say;
use crate::process::is_stopped;
use crate::signals::Signals;

/// The variables that the command finds in its environment.
pub(crate) const FENCE: &str = "LOCK_FENCE";
pub(crate) const KEY: &str = "LOCK_KEY";
pub(crate) const TABLE: &str = "LOCK_TABLE_NAME";
/// Without it, a `lambda-lock` in the command would lock another key.
pub(crate) const PREFIX: &str = "LOCK_KEY_PREFIX";

/// The time from SIGTERM to SIGKILL when another holder may have the key.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The command, and the terms on which it runs.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) lock: &'a Lock,
    pub(crate) table: &'a str,
    pub(crate) key_prefix: &'a str,
    pub(crate) words: &'a [OsString],
    pub(crate) lease: Duration,
    pub(crate) renew: bool,
}

/// How the command ended.
#[derive(Debug)]
pub(crate) enum Ended {
    InTime(ExitStatus),
    /// At or just before the end of the lease.
    Overrun(ExitStatus),
    /// By a signal, because another holder has the key.
    Lost(Error, ExitStatus),
    /// By a signal, because the guard died.
    Unguarded(ExitStatus),
    /// Not started, because the lease had ended already.
    TooLate,
}

/// Why the command has to end.
#[derive(Debug)]
enum Reason {
    LeaseEnds,
    Lost(Error),
    GuardDied,
}

impl Job<'_> {
    /// Runs the command until it ends or has to end.
    pub(crate) async fn run(&self, mut guard: Option<&mut Guard>, signals: &mut Signals) -> io::Result<Ended> {
        if let Some(guard) = &mut guard {
            guard.orders.allow(self.lock.remaining()).await?;
        }
        if !self.lock.is_valid() {
            return Ok(Ended::TooLate);
        }
        let fence = self.lock.fence().to_string();
        let variables =
            [(FENCE, fence.as_str()), (KEY, self.lock.key()), (TABLE, self.table), (PREFIX, self.key_prefix)];
        let mut command = Running::start(self.words, variables, guard.as_ref().map(|guard| guard.group))?;
        if let Some(guard) = &mut guard {
            // `reason_to_end` notices a guard that has died.
            let _it_may_have_died = guard.orders.watch(command.pid).await;
        }
        let pid = command.pid;
        let reason = tokio::select! {
            biased;
            status = command.ended(signals) => return Ok(self.ended_unasked(status?)),
            reason = self.reason_to_end(guard, pid) => reason,
        };
        if matches!(reason, Reason::GuardDied)
            // What killed the guard may have killed the whole group.
            && let Ok(status) = timeout(AT_ONCE, command.ended(signals)).await
        {
            return Ok(self.ended_unasked(status?));
        }
        let status = self.end(&mut command, signals, &reason).await?;
        Ok(match reason {
            Reason::LeaseEnds => Ended::Overrun(status),
            Reason::Lost(error) => Ended::Lost(error, status),
            Reason::GuardDied => Ended::Unguarded(status),
        })
    }

    fn ended_unasked(&self, status: ExitStatus) -> Ended {
        // The guard may have ended the command while this process was stopped.
        if self.lock.is_valid() { Ended::InTime(status) } else { Ended::Overrun(status) }
    }

    /// Waits until the command has to end, and renews the lease until then.
    async fn reason_to_end(&self, guard: Option<&mut Guard>, command: Pid) -> Reason {
        let (orders, life) = match guard {
            Some(Guard { orders, life, .. }) => (Some(orders), Some(life)),
            None => (None, None),
        };
        tokio::select! {
            biased;
            () = self.grace_begins() => Reason::LeaseEnds,
            error = self.keep_renewing(orders, command), if self.renew => Reason::Lost(error),
            () = ended(life) => Reason::GuardDied,
        }
    }

    /// Sends SIGTERM and, when the time to clean up is over, SIGKILL. Returns how the command ended.
    async fn end(&self, command: &mut Running, signals: &mut Signals, reason: &Reason) -> io::Result<ExitStatus> {
        command.send(Signal::TERM);
        // A stopped command cannot heed SIGTERM.
        command.send(Signal::CONT);
        let time_is_over = async {
            match reason {
                Reason::LeaseEnds => self.lock.until_lost().await,
                Reason::Lost(_) => sleep(AT_ONCE).await,
                Reason::GuardDied => {
                    let _either_way = timeout(self.grace(), self.lock.until_lost()).await;
                }
            }
        };
        let status = tokio::select! {
            biased;
            status = command.ended(signals) => Some(status?),
            () = time_is_over => None,
        };
        // Other processes of the group may outlive the command.
        command.send(Signal::KILL);
        match status {
            Some(status) => Ok(status),
            None => command.ended(signals).await,
        }
    }

    /// The time to clean up before the lease ends.
    fn grace(&self) -> Duration {
        (self.lease / 10).min(Duration::from_secs(10))
    }

    /// Waits until only the time to clean up remains.
    async fn grace_begins(&self) {
        // Checked at least every second: a renewal may have extended the lease, and the wall clock may run ahead of the
        // timer.
        loop {
            let left = self.lock.remaining().saturating_sub(self.grace());
            if left.is_zero() {
                return;
            }
            sleep(left.min(Duration::from_secs(1))).await;
        }
    }

    /// Renews the lease until the lock is lost. Returns the error that says so.
    async fn keep_renewing(&self, mut orders: Option<&mut Orders>, command: Pid) -> Error {
        let Self { lock, lease, .. } = *self;
        let mut pause = lease / 3;
        let mut was_stopped = false;
        loop {
            sleep(pause).await;
            // A command that waits unnoticed would keep its lease forever.
            if is_stopped(command) {
                if !was_stopped {
                    let end = humantime::format_rfc3339_seconds(lock.expires_at());
                    say(format_args!("the lease is not renewed while the command is stopped: it ends at {end}"));
                }
                was_stopped = true;
                pause = lease / 12;
                continue;
            }
            was_stopped = false;
            match lock.renew(lease).await {
                Ok(()) => {
                    pause = lease / 3;
                    if let Some(orders) = &mut orders {
                        // A guard that has died kills nothing.
                        let _it_may_have_died = orders.allow(lock.remaining()).await;
                    }
                }
                Err(error) if error.is_lost() || !lock.is_valid() => return error,
                Err(error) => {
                    let end = humantime::format_rfc3339_seconds(lock.expires_at());
                    let why = sentence(&error);
                    say(format_args!(
                        "the renewal failed; unless a later one succeeds, the lease ends at {end}: {why}"
                    ));
                    pause = lease / 12;
                }
            }
        }
    }
}

/// Waits until the guard has died, or forever without a guard.
async fn ended(guard: Option<&mut Life>) {
    match guard {
        Some(life) => life.ended().await,
        None => pending().await,
    }
}
