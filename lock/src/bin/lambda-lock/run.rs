//! `run`: the lock around a command.

use std::convert::Infallible;
use std::future::pending;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{self, ExitStatus};
use std::time::Duration;
use std::{env, io};

use lambda_lock::{Backoff, Error, Holder, Lock};
use nix::unistd::{Uid, User};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::arguments::{Run, TableOptions};
use crate::command::{Guard, Process, Running, Signals, Told, cannot_run, heed_children};
use crate::connect::{self, Connection};
use crate::operate::RELEASED_BY;
use crate::{BROKEN_OUTPUT, Failure, LOST, say, sentence};

/// What the command finds in its environment.
const FENCE: &str = "LOCK_FENCE";
const KEY: &str = "LOCK_KEY";
const TABLE: &str = "LOCK_TABLE_NAME";

/// From SIGTERM to SIGKILL, where someone else may have the key.
const AT_ONCE: Duration = Duration::from_millis(100);
/// For the answer to a release that was sent in the background.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The exit code: that of the command.
pub(crate) async fn run(options: &TableOptions, run: Run) -> Result<u8, Failure> {
    heed_children().map_err(Failure::of_the_system)?;
    if !connect::is_enabled()? {
        return Ok(without_lock(options, &run));
    }
    let lease = run.lease.map_or_else(connect::default_lease, Ok)?;
    let holder = run.holder.clone().unwrap_or_else(|| format!("{} {} {}", user(), process::id(), first_word(&run)));
    let Connection { locks, table } = connect::connect(options, holder).await?;
    let mut signals = Signals::listen().map_err(Failure::of_the_system)?;
    let mut guard = Guard::start().await.map_err(Failure::of_the_system)?;

    let mut acquire = locks.acquire(&run.key).lease(lease).hold_at_least(run.hold_at_least.unwrap_or_default());
    if let Some(wait) = run.wait {
        acquire = acquire.wait(Backoff::default().up_to(wait));
    }
    let mut acquiring = acquire.into_future();
    let taken = tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        taken = &mut acquiring => Ok(taken),
    };
    let outcome = match taken {
        Ok(Ok(lock)) => {
            let ended = under(&lock, lease, &run, &table, guard.as_mut(), &mut signals).await;
            // Before the release, which may take time: what the command left running is not the guard's.
            if let Some(guard) = guard.take() {
                guard.dismiss().await;
            }
            conclude(&lock, lease, ended).await
        }
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => {
            drop(acquiring);
            Ok(killed_by(signal.as_raw()))
        }
    };
    if let Some(guard) = guard {
        guard.dismiss().await;
    }
    // What was not answered may have taken the lock, and is released in the background.
    let _the_lease_ends_anyway = timeout(FLUSH_TIMEOUT, locks.flush()).await;
    outcome
}

/// How the command ended.
#[derive(Debug)]
enum Ended {
    InTime(ExitStatus),
    /// When the lease had ended, or was about to.
    Overrun(ExitStatus),
    /// Told to, because someone else has the key.
    Lost(Error, ExitStatus),
    /// Told to, because nobody would have ended it in place of this process.
    Unguarded(ExitStatus),
    /// It was not started, for the lease had ended already.
    TooLate,
}

/// Why the command has to end.
#[derive(Debug)]
enum Reason {
    LeaseEnds,
    Lost(Error),
    GuardDied,
}

/// Runs the command, until it ends or has to.
async fn under(
    lock: &Lock,
    lease: Duration,
    run: &Run,
    table: &str,
    mut guard: Option<&mut Guard>,
    signals: &mut Signals,
) -> io::Result<Ended> {
    if let Some(guard) = &mut guard {
        guard.told.allow(lock.remaining()).await?;
    }
    if !lock.is_valid() {
        return Ok(Ended::TooLate);
    }
    let fence = lock.fence().to_string();
    let variables = [(FENCE, fence.as_str()), (KEY, lock.key()), (TABLE, table)];
    let mut command = Running::start(&run.command, variables, guard.as_deref())?;
    let (mut told, mut life) = match guard {
        Some(Guard { told, life, .. }) => (Some(told), Some(life)),
        None => (None, None),
    };
    if let Some(told) = &mut told {
        // One that is gone is noticed below.
        let _it_may_be_gone = told.watch(&command).await;
    }
    let guard_died = async {
        match &mut life {
            Some(life) => life.ended().await,
            None => pending().await,
        }
    };
    // Time to clean up.
    let grace = (lease / 10).min(Duration::from_secs(10));
    let process = command.process();
    // It may have ended by the guard, while this process was stopped.
    let by_itself = |status| if lock.is_valid() { Ended::InTime(status) } else { Ended::Overrun(status) };
    let reason = tokio::select! {
        biased;
        status = command.ended(signals) => return Ok(by_itself(status?)),
        () = remaining_is(lock, grace) => Reason::LeaseEnds,
        Err(error) = renew(lock, lease, told, process), if run.renew => Reason::Lost(error),
        () = guard_died => Reason::GuardDied,
    };
    if matches!(reason, Reason::GuardDied)
        // What killed it may have killed the whole group.
        && let Ok(status) = timeout(AT_ONCE, command.ended(signals)).await
    {
        return Ok(by_itself(status?));
    }
    command.send(Signal::TERM);
    // One that is stopped cannot heed it.
    command.send(Signal::CONT);
    let the_end = async {
        match reason {
            Reason::LeaseEnds => lock.lost().await,
            Reason::Lost(_) => sleep(AT_ONCE).await,
            Reason::GuardDied => {
                let _either_way = timeout(grace, lock.lost()).await;
            }
        }
    };
    let status = tokio::select! {
        biased;
        status = command.ended(signals) => Some(status?),
        () = the_end => None,
    };
    // Also what is left of the group.
    command.send(Signal::KILL);
    let status = match status {
        Some(status) => status,
        None => command.ended(signals).await?,
    };
    Ok(match reason {
        Reason::LeaseEnds => Ended::Overrun(status),
        Reason::Lost(error) => Ended::Lost(error, status),
        Reason::GuardDied => Ended::Unguarded(status),
    })
}

/// Renews the lease as long as it is asked to, until the lock is lost.
async fn renew(
    lock: &Lock,
    lease: Duration,
    mut told: Option<&mut Told>,
    command: Process,
) -> Result<Infallible, Error> {
    let mut pause = lease / 3;
    let mut was_stopped = false;
    loop {
        sleep(pause).await;
        // Nobody would end it any more, if nobody knows that it waits.
        if command.is_stopped() {
            if !was_stopped {
                let end = humantime::format_rfc3339_seconds(lock.expires_at());
                say(format_args!("the lease ends at {end}, for it is not renewed while the command is stopped"));
            }
            was_stopped = true;
            pause = lease / 12;
            continue;
        }
        was_stopped = false;
        match lock.renew(lease).await {
            Ok(()) => {
                pause = lease / 3;
                if let Some(told) = &mut told {
                    // One that is gone kills nobody.
                    let _it_may_be_gone = told.allow(lock.remaining()).await;
                }
            }
            Err(error) if error.is_lost() => return Err(error),
            Err(error) => {
                let end = humantime::format_rfc3339_seconds(lock.expires_at());
                say(format_args!("the lease ends at {end}, for its renewal failed: {}", sentence(&error)));
                pause = lease / 12;
            }
        }
    }
}

async fn remaining_is(lock: &Lock, grace: Duration) {
    // Looked at again every second: the lease may have been renewed, and the wall clock may run ahead of the timer.
    loop {
        let left = lock.remaining().saturating_sub(grace);
        if left.is_zero() {
            return;
        }
        sleep(left.min(Duration::from_secs(1))).await;
    }
}

/// Releases the lock, and finds the exit code.
async fn conclude(lock: &Lock, lease: Duration, ended: io::Result<Ended>) -> Result<u8, Failure> {
    if !matches!(&ended, Ok(Ended::InTime(status)) if status.success()) {
        // It is to be done again.
        lock.clear_hold_at_least();
    }
    let released = lock.release().await;
    let key = lock.key();
    let ended = match ended {
        Ok(Ended::InTime(status)) => Ok(status),
        Ok(Ended::Lost(error, status)) => {
            let message = format!("{}, so the command was ended ({})", lost(&error), told(status));
            return Err(Failure::new(LOST, message));
        }
        Ok(Ended::Overrun(status)) => {
            let lease = humantime::format_duration(lease);
            let message = format!(
                "the lease of {lease} on key `{key}` was over before the command was done ({}): give it a longer --lease, or \
                 --renew",
                told(status)
            );
            return Err(Failure::new(LOST, message));
        }
        Ok(Ended::TooLate) => {
            let lease = humantime::format_duration(lease);
            let message = format!(
                "the lease of {lease} on key `{key}` was over before the command was started: give it a longer --lease"
            );
            return Err(Failure::new(LOST, message));
        }
        Ok(Ended::Unguarded(status)) => {
            let message =
                format!("the process that guards the command has died, so the command was ended ({})", told(status));
            Err(Failure::new(BROKEN_OUTPUT, message))
        }
        Err(error) => Err(Failure::of_the_system(error)),
    };
    match (ended, released) {
        (Ok(status), Err(error)) if error.is_lost() => {
            let message =
                format!("{}, before the command ended ({}): it may not have been alone", lost(&error), told(status));
            Err(Failure::new(LOST, message))
        }
        (ended, released) => {
            if let Err(error) = released {
                say(format_args!(
                    "the key stays held until its lease ends, for the release failed: {}",
                    sentence(&error)
                ));
            }
            ended.map(code)
        }
    }
}

/// By whom the lock was lost.
fn lost(error: &Error) -> String {
    match error.holder().and_then(Holder::name) {
        Some(name) if name.starts_with(RELEASED_BY) => {
            format!("the lock on key `{}` in table `{}` was {name}", error.key(), error.table())
        }
        _ => error.to_string(),
    }
}

fn without_lock(options: &TableOptions, run: &Run) -> u8 {
    say("LOCK_ENABLED is `false`: the command runs without a lock");
    let mut command = process::Command::new(&run.command[0]);
    command.args(&run.command[1..]).env(FENCE, "0").env(KEY, &run.key);
    if let Some(table) = &options.table {
        command.env(TABLE, table);
    }
    let error = command.exec();
    cannot_run(&run.command[0], &error)
}

fn code(status: ExitStatus) -> u8 {
    status
        .code()
        .map_or_else(|| killed_by(status.signal().unwrap_or_default()), |code| u8::try_from(code).unwrap_or(u8::MAX))
}

fn killed_by(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

/// Who runs this program, for others to read.
pub(crate) fn user() -> String {
    let variable = ["USER", "LOGNAME"].into_iter().find_map(|name| env::var(name).ok().filter(|name| !name.is_empty()));
    let id = Uid::current();
    // Some containers and schedulers set neither variable.
    let name = variable.or_else(|| User::from_uid(id).ok().flatten().map(|user| user.name));
    let name = name.unwrap_or_else(|| format!("uid {id}"));
    format!("{name}@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// Without its arguments: they may be what nobody wants in a table.
fn first_word(run: &Run) -> String {
    run.command[0].display().to_string().chars().take(100).collect()
}
