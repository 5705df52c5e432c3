//! The command of `run`: how it starts, receives signals and ends.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::process::{self, ExitCode, ExitStatus};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process, kill_process_group, test_kill_process};
use tokio::process::Child;

use crate::output::say;
use crate::process::{pid, this_program};
use crate::signals::Signals;

/// The argument with which this program replaces itself with the command.
pub(crate) const EXEC: &str = "__exec";

/// A running command.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    pub(crate) pid: Pid,
    /// The guard's group. Without a guard, the command shares the terminal's foreground group with this process and
    /// others.
    group: Option<Pid>,
    /// The group to which the command moved, as `timeout` and `setsid` do.
    other_group: Cell<Option<Pid>>,
    has_reported_refusal: Cell<bool>,
}

impl Running {
    /// Starts the command, in the guard's group if there is a guard.
    pub(crate) fn start(words: &[OsString], variables: [(&str, &str); 4], group: Option<Pid>) -> io::Result<Self> {
        let mut command = this_program(EXEC)?;
        command.arg(process::id().to_string()).args(words).envs(variables).kill_on_drop(true);
        if let Some(group) = group {
            command.process_group(group.as_raw_nonzero().get());
        }
        let child = command.spawn()?;
        let pid = pid(&child).ok_or(ErrorKind::NotFound)?;
        Ok(Self { child, pid, group, other_group: Cell::new(None), has_reported_refusal: Cell::new(false) })
    }

    /// Waits until the command has ended, and passes signals on until then.
    pub(crate) async fn ended(&mut self, signals: &mut Signals) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return status,
                signal = signals.next() => {
                    // The terminal has sent these to the command already.
                    if !(self.is_in_the_foreground() && [Signal::INT, Signal::QUIT].contains(&signal)) {
                        self.send(signal);
                    }
                }
            }
        }
    }

    fn is_in_the_foreground(&self) -> bool {
        self.group.is_none() && getpgid(Some(self.pid)) == Ok(getpgrp())
    }

    /// Sends a signal to the command, to its group and to the group to which it moved.
    pub(crate) fn send(&self, signal: Signal) {
        // After the command was waited for, another process may have its id.
        let is_there = self.child.id().is_some();
        if is_there && let Ok(group) = getpgid(Some(self.pid)) {
            self.other_group.set(Some(group).filter(|group| Some(*group) != self.group && *group != getpgrp()));
        }
        for group in [self.group, self.other_group.get()].into_iter().flatten() {
            let _it_may_have_ended = kill_process_group(group, signal);
        }
        if !is_there {
            return;
        }
        // The command gets the signal once, with its group. Only SIGKILL is sent again, because it must not be missed.
        let has_it = self.group.or(self.other_group.get()).is_some() && signal != Signal::KILL;
        let sent = if has_it { test_kill_process(self.pid) } else { kill_process(self.pid, signal) };
        if sent == Err(Errno::PERM) && !self.has_reported_refusal.replace(true) {
            say("cannot send signals to the command or end it: it runs as another user; for sudo, write \
                 `sudo lambda-lock …`, not `lambda-lock … sudo`");
        }
    }
}

/// Replaces this process with the command. `words` are the parent's process id, the program and its arguments.
pub(crate) fn exec(mut words: Vec<OsString>) -> ExitCode {
    if words.len() < 2 {
        return ExitCode::FAILURE;
    }
    let arguments = words.split_off(2);
    #[cfg(target_os = "linux")]
    {
        // The setting survives the replacement.
        let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().to_string().into());
        if set.is_err() || parent.as_ref() != Some(&words[0]) {
            return ExitCode::FAILURE;
        }
    }
    let error = process::Command::new(&words[1]).args(arguments).exec();
    ExitCode::from(cannot_run(&words[1], &error))
}

/// Reports a command that cannot be run. Returns the exit code, which is that of env(1).
pub(crate) fn cannot_run(program: &OsStr, error: &io::Error) -> u8 {
    let program = program.display();
    if error.kind() == ErrorKind::NotFound {
        say(format_args!("the command `{program}` was not found: check its name and PATH"));
        127
    } else {
        say(format_args!("the command `{program}` cannot be run: {error}"));
        126
    }
}
