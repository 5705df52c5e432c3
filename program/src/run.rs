//! The command `run`: acquires the lock, runs a command under it, and releases the lock.

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{self, ExitStatus};
use std::time::Duration;

use lambda_lock::{Error, Lock, Locks};

use crate::arguments::{Run, TableOptions};
use crate::command::cannot_run;
use crate::connect::{self, Connection};
use crate::failure::{BROKEN_OUTPUT, Failure, LOST, sentence};
use crate::guard::Guard;
use crate::identity;
use crate::output::say;
use crate::signals::{Signals, heed_children};
use crate::supervise::{Ended, FENCE, Job, KEY, PREFIX, TABLE};

/// How long the program waits for the answer to a release that was sent in the background.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the exit code, which is that of the command.
pub(crate) async fn run(options: &TableOptions, run: Run) -> Result<u8, Failure> {
    heed_children().map_err(Failure::of_the_system)?;
    if !connect::is_enabled()? {
        return Ok(without_lock(options, &run));
    }
    let lease = run.lease.map_or_else(connect::default_lease, Ok)?;
    let holder = run.holder.clone().unwrap_or_else(|| identity::holder(&run.command[0]));
    let Connection { locks, table, key_prefix } = connect::connect(options, holder).await?;
    let mut signals = Signals::passed_on().map_err(Failure::of_the_system)?;
    let under = Under { locks: &locks, table: &table, key_prefix: &key_prefix, lease, run: &run };
    // The code of the last run.
    let (mut last, mut tries) = (None, 0);
    let outcome = loop {
        match under.once(&mut signals, run.wait.filter(|_| last.is_none() && tries == 0)).await {
            // The signal came before the further run had begun.
            Ok(Next::Signalled(code)) => {
                if last.is_some() {
                    under.ends_early();
                }
                break Ok(code);
            }
            Ok(Next::Ended(code)) => break Ok(code),
            Ok(Next::RunsAgain(code)) => {
                if let Some(signal) = signals.ends() {
                    under.ends_early();
                    break Ok(killed_by(signal.as_raw()));
                }
                (last, tries) = (Some(code), 0);
                let why = "the command runs once more, for others that were skipped";
                say(format_args!("key `{}`: the command ended with code {code}; {why}", run.key));
            }
            Ok(Next::Refused(error)) => match under.leave(error, &mut tries).await {
                Ok(Some(left)) => {
                    say(left);
                    break Ok(last.unwrap_or(0));
                }
                Ok(None) => {}
                Err(failure) => break Err(failure),
            },
            Err(failure) => break Err(failure),
        }
    };
    // An acquire without an answer may have taken the lock. Its release runs in the background.
    let _the_lease_ends_anyway = locks.flush(FLUSH_TIMEOUT).await;
    outcome
}

/// How often the program looks for another holder that it can leave its command to.
const COALESCE_TRIES: u32 = 3;

/// What follows an acquire.
enum Next {
    Ended(u8),
    /// A signal has ended the acquire. This is its code.
    Signalled(u8),
    /// The command has ended with this code, and others were skipped meanwhile.
    RunsAgain(u8),
    Refused(Error),
}

/// What each run of the command has in common.
struct Under<'a> {
    locks: &'a Locks,
    table: &'a str,
    key_prefix: &'a str,
    lease: Duration,
    run: &'a Run,
}

impl Under<'_> {
    /// Acquires the lock, and runs the command under it.
    async fn once(&self, signals: &mut Signals, wait: Option<Duration>) -> Result<Next, Failure> {
        let Self { locks, table, key_prefix, lease, run } = *self;
        let mut guard = Guard::start().await.map_err(Failure::of_the_system)?;
        let acquire = match run.at_most {
            Some(permits) => locks.semaphore(&run.key, permits).acquire(),
            None => locks.acquire(&run.key),
        };
        let mut acquire = acquire.lease(lease).min_hold(run.min_hold.unwrap_or_default());
        if let Some(wait) = wait {
            acquire = acquire.wait(wait);
        }
        let mut acquiring = acquire.into_future();
        let acquired = tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            acquired = &mut acquiring => Ok(acquired),
        };
        let outcome = match acquired {
            Ok(Ok(lock)) => {
                let job = Job { lock: &lock, table, key_prefix, words: &run.command, lease, renew: run.renew };
                let ended = job.run(guard.as_mut(), signals).await;
                // Before the release, which may take time: the guard must not kill the children that the command left
                // behind.
                if let Some(guard) = guard.take() {
                    guard.dismiss().await;
                }
                conclude(&lock, table, lease, ended, run.coalesce).await
            }
            Ok(Err(error)) => Ok(Next::Refused(error)),
            Err(signal) => {
                drop(acquiring);
                Ok(Next::Signalled(killed_by(signal.as_raw())))
            }
        };
        if let Some(guard) = guard {
            guard.dismiss().await;
        }
        outcome
    }

    /// Says that work of others is left.
    fn ends_early(&self) {
        let why = "the command was told to end, and does not run once more for others that were skipped";
        say(format_args!("key `{}`: {why}: run it again", self.run.key));
    }

    /// Leaves the command to the holder that has refused it, if it may, and says so. Returns nothing if that holder has gone
    /// meanwhile.
    async fn leave(&self, error: Error, tries: &mut u32) -> Result<Option<String>, Failure> {
        let Some(holder) = error.holder().filter(|_| self.run.coalesce && error.is_held() && *tries < COALESCE_TRIES)
        else {
            return Err(error.into());
        };
        *tries += 1;
        if !self.locks.coalesce(&self.run.key, holder).await? {
            return Ok(None);
        }
        Ok(Some(format!("{}; the command is left to that holder, whose own runs once more", sentence(&error))))
    }
}

/// Releases the lock. Returns the exit code, unless the command is to run again.
async fn conclude(
    lock: &Lock,
    table: &str,
    lease: Duration,
    ended: io::Result<Ended>,
    coalesces: bool,
) -> Result<Next, Failure> {
    if !matches!(&ended, Ok(Ended::InTime(status)) if status.success()) {
        // The command has to run again.
        lock.clear_min_hold();
    }
    // A skipped command may leave its work to any holder, also to one that does not coalesce.
    let released = lock.release_coalescing().await;
    let key = lock.key();
    let lease = humantime::format_duration(lease);
    let lost = |message: String| Err(Failure::new(LOST, message));
    let ended = match ended {
        Ok(Ended::InTime(status)) => Ok(status),
        Ok(Ended::Lost(error, status)) => {
            return lost(format!("{error}; the command was ended ({})", describe(status)));
        }
        Ok(Ended::Overrun(status)) => {
            return lost(format!(
                "lost the lock on key `{key}` in table `{table}`: the lease of {lease} ended before the command did ({}); \
                 give a longer --lease, or add --renew",
                describe(status)
            ));
        }
        Ok(Ended::TooLate) => {
            return lost(format!(
                "lost the lock on key `{key}` in table `{table}`: the lease of {lease} ended before the command started; \
                 give a longer --lease"
            ));
        }
        Ok(Ended::Unguarded(status)) => {
            let status = describe(status);
            let message = format!("the process that guards the command died, so the command was ended ({status})");
            Err(Failure::new(BROKEN_OUTPUT, message))
        }
        Err(error) => Err(Failure::of_the_system(error)),
    };
    match (ended, released) {
        (Ok(status), Err(error)) if error.is_lost() => lost(format!(
            "{error}; the command ended after that ({}), and another holder may have run at the same time",
            describe(status)
        )),
        (Ok(status), Ok(true)) if coalesces => Ok(Next::RunsAgain(code(status))),
        (ended, released) => {
            match released {
                Ok(false) => {}
                Ok(true) => {
                    let why = "others were skipped and left their work to this command, which does not run once more";
                    let with = if coalesces { "" } else { ", with --coalesce" };
                    say(format_args!("key `{key}`: {why}: run it again{with}"));
                }
                Err(error) => {
                    let why = sentence(&error);
                    say(format_args!("the release failed; the key stays held until its lease ends: {why}"));
                    // A command may have been skipped.
                    if coalesces && ended.as_ref().is_ok_and(ExitStatus::success) {
                        return Err(error.into());
                    }
                }
            }
            ended.map(code).map(Next::Ended)
        }
    }
}

fn without_lock(options: &TableOptions, run: &Run) -> u8 {
    say("LOCK_ENABLED is `false`: the command runs without a lock");
    let mut command = process::Command::new(&run.command[0]);
    command.args(&run.command[1..]).env(FENCE, "0").env(KEY, &run.key);
    if let Some(table) = &options.table {
        command.env(TABLE, table);
    }
    if let Some(prefix) = &options.key_prefix {
        command.env(PREFIX, prefix);
    }
    let error = command.exec();
    cannot_run(&run.command[0], &error)
}

fn code(status: ExitStatus) -> u8 {
    status
        .code()
        .map_or_else(|| killed_by(status.signal().unwrap_or_default()), |code| u8::try_from(code).unwrap_or(u8::MAX))
}

pub(crate) fn killed_by(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}
