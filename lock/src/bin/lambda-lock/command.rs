//! The command of `run`: how it is started, told and ended, so that it does not outlive the lock.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::task::Poll;
use std::time::Duration;
use std::{env, fs};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpgrp, kill_current_process_group, kill_process, kill_process_group,
    test_kill_process, waitid,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix;

use crate::say;

/// What this program calls itself with, to be the guard.
pub(crate) const GUARD: &str = "__guard";
/// What it calls itself with, to become the command.
pub(crate) const EXEC: &str = "__exec";

/// The signals that are passed on to the command.
const PASSED_ON: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// Those of a terminal that has another group in the foreground.
const STOPPING: [Signal; 3] = [Signal::TTIN, Signal::TTOU, Signal::TSTP];

/// The signals that come while the command runs.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From here on they no longer end this process, except those that it was started to ignore, by nohup for example:
    /// these the command shall ignore too.
    pub(crate) fn listen() -> io::Result<Self> {
        Self::listen_to(&PASSED_ON)
    }

    fn listen_to(signals: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        let heeded = signals.iter().copied().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
        let streams = heeded.map(|signal| Ok((signal, unix::signal(unix::SignalKind::from_raw(signal.as_raw()))?)));
        streams.collect::<io::Result<_>>().map(Self)
    }

    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut came = self.0.iter_mut().filter_map(|(signal, stream)| {
                matches!(stream.poll_recv(context), Poll::Ready(Some(()))).then_some(*signal)
            });
            came.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Replaces an inherited "ignore SIGCHLD", under which the system forgets how a child ended. The command starts with the
/// default, because `exec` resets handlers.
pub(crate) fn heed_children() -> io::Result<()> {
    // The handler stays installed when the stream is dropped.
    unix::signal(unix::SignalKind::child()).map(drop)
}

/// The signals that this process ignores, a bit each, where the system tells.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// This program once more.
fn myself(task: &str) -> io::Result<Command> {
    // The link still leads to the program after it was replaced by another version.
    let program = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { env::current_exe()? };
    let mut command = Command::new(program);
    command.arg0("lambda-lock").arg(task);
    Ok(command)
}

/// A process that leads the command's group, and kills it when this process dies or does not renew the lease in time,
/// because it was stopped. While it is there, no other group can get the group's number.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    group: Pid,
    pub(crate) told: Told,
    pub(crate) life: Life,
}

/// What the guard is told.
#[derive(Debug)]
pub(crate) struct Told(ChildStdin);

impl Told {
    /// Until when the command may run, from now on.
    pub(crate) async fn allow(&mut self, remaining: Duration) -> io::Result<()> {
        self.line(&remaining.as_millis().to_string()).await
    }

    /// Whom to kill, for the command may leave the group.
    pub(crate) async fn watch(&mut self, command: &Running) -> io::Result<()> {
        self.line(&format!("{COMMAND}{}", command.pid)).await
    }

    async fn line(&mut self, line: &str) -> io::Result<()> {
        self.0.write_all(format!("{line}\n").as_bytes()).await
    }
}

/// How the line begins that names the command to the guard.
const COMMAND: &str = "command ";

/// Something that the guard has for as long as it lives.
#[derive(Debug)]
pub(crate) struct Life(ChildStdout);

impl Life {
    /// Until the guard has died. It is not waited for then: nobody else gets its group's number.
    pub(crate) async fn ended(&mut self) {
        while self.0.read_u8().await.is_ok() {}
    }
}

impl Guard {
    /// None if standard input is a terminal, from which a command in a group of its own could not read.
    pub(crate) async fn start() -> io::Result<Option<Self>> {
        if io::stdin().is_terminal() {
            return Ok(None);
        }
        let mut command = myself(GUARD)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).kill_on_drop(true);
        let mut process = command.spawn()?;
        let gone = || io::Error::from(ErrorKind::BrokenPipe);
        let (Some(group), Some(told), Some(mut life)) = (pid(&process), process.stdin.take(), process.stdout.take())
        else {
            return Err(gone());
        };
        // Before that, a signal for the group would end it.
        life.read_u8().await.map_err(|_| gone())?;
        Ok(Some(Self { process, group, told: Told(told), life: Life(life) }))
    }

    /// Ends the guard, and leaves alone what the command left running.
    pub(crate) async fn dismiss(mut self) {
        let _it_may_have_ended = self.process.kill().await;
    }
}

/// The guard's own life.
pub(crate) fn guard() -> ExitCode {
    let command = Cell::new(None);
    let live = async {
        let _they_are_for_the_command = Signals::listen()?;
        // A command that is stopped at a terminal takes its group with it.
        let _nor_these = Signals::listen_to(&STOPPING)?;
        io::stdout().write_all(&[1])?;
        io::stdout().flush()?;
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut limit = Duration::from_hours(48);
        while let Ok(Ok(Some(line))) = tokio::time::timeout(limit, lines.next_line()).await {
            match line.strip_prefix(COMMAND) {
                Some(pid) => command.set(pid.parse().ok().and_then(Pid::from_raw)),
                None => limit = Duration::from_millis(line.parse().map_err(io::Error::other)?),
            }
        }
        io::Result::Ok(())
    };
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
        let _either_way = runtime.block_on(live);
        // Not held up by the thread that reads standard input.
        runtime.shutdown_background();
    }
    // Its number is its own still: a program that was stopped has not waited for it, one that died did so just now, and
    // one that did wait for it ends this process at once.
    if let Some(command) = command.get() {
        let _it_may_lead_no_group = kill_process_group(command, Signal::KILL);
        let _it_may_have_ended = kill_process(command, Signal::KILL);
    }
    // Itself included.
    let _nothing_to_do_about_it = kill_current_process_group(Signal::KILL);
    ExitCode::FAILURE
}

/// Becomes the command: `parent` `program` `arguments`…
pub(crate) fn exec(mut words: Vec<OsString>) -> ExitCode {
    if words.len() < 2 {
        return ExitCode::FAILURE;
    }
    let arguments = words.split_off(2);
    #[cfg(target_os = "linux")]
    {
        // It stays when the program is replaced by the command.
        let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().to_string().into());
        if set.is_err() || parent.as_ref() != Some(&words[0]) {
            return ExitCode::FAILURE;
        }
    }
    let error = std::process::Command::new(&words[1]).args(arguments).exec();
    ExitCode::from(cannot_run(&words[1], &error))
}

/// In place of the command that could not be run, with the codes of env(1).
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

/// The command while it runs.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    pid: Pid,
    /// The guard's. Without one, the command shares the terminal's foreground group with this process, and with others.
    group: Option<Pid>,
    /// Where the command went instead, as `timeout` and `setsid` do.
    other_group: Cell<Option<Pid>>,
    is_refusal_told: Cell<bool>,
}

impl Running {
    /// With a guard, in its group.
    pub(crate) fn start(words: &[OsString], variables: [(&str, &str); 3], guard: Option<&Guard>) -> io::Result<Self> {
        let mut command = myself(EXEC)?;
        command.arg(std::process::id().to_string()).args(words).envs(variables).kill_on_drop(true);
        let group = guard.map(|guard| guard.group);
        if let Some(group) = group {
            command.process_group(group.as_raw_nonzero().get());
        }
        let child = command.spawn()?;
        let pid = pid(&child).ok_or(ErrorKind::NotFound)?;
        Ok(Self { child, pid, group, other_group: Cell::new(None), is_refusal_told: Cell::new(false) })
    }

    /// Until it has ended; meanwhile the signals are passed on.
    pub(crate) async fn ended(&mut self, signals: &mut Signals) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return status,
                signal = signals.next() => {
                    // From the terminal: the command has it already.
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

    pub(crate) fn send(&self, signal: Signal) {
        // Once it was waited for, another process may have its number.
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
        // Once is enough, but for the one that must not be missed.
        let has_it = self.group.or(self.other_group.get()).is_some() && signal != Signal::KILL;
        let sent = if has_it { test_kill_process(self.pid) } else { kill_process(self.pid, signal) };
        if sent == Err(Errno::PERM) && !self.is_refusal_told.replace(true) {
            say("the command gets no signals and cannot be ended: it runs as another user (for sudo, write \
                 `sudo lambda-lock …`, not `lambda-lock … sudo`)");
        }
    }

    pub(crate) fn process(&self) -> Process {
        Process(self.pid)
    }
}

/// The command's process, to look at until it was waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(Pid);

impl Process {
    /// Whether it waits to be continued, for it asked in the background for what only a terminal gives, for example.
    pub(crate) fn is_stopped(self) -> bool {
        let only_look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.0), only_look).is_ok_and(|status| status.is_some())
    }
}

fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}
