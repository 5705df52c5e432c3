//! The command of `run`: how it is started, told and ended, so that it does not outlive the lock.

use std::ffi::{OsStr, OsString};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::task::Poll;
use std::time::Duration;
use std::{env, fs};

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix;

use crate::say;

/// What this program calls itself with, to be the guard.
pub(crate) const GUARD: &str = "__guard";
/// What it calls itself with, to become the command.
pub(crate) const EXEC: &str = "__exec";

/// The signals that are passed on to the command.
const PASSED_ON: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The signals that come while the command runs.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From here on they no longer end this process, except those that it was started to ignore, by nohup for example:
    /// these the command shall ignore too.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let heeded = PASSED_ON.into_iter().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
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
    told: ChildStdin,
    group: Pid,
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
        let (Some(group), Some(told), Some(mut ready)) = (pid(&process), process.stdin.take(), process.stdout.take())
        else {
            return Err(gone());
        };
        // Before that, a signal for the group would end it.
        ready.read_u8().await.map_err(|_| gone())?;
        Ok(Some(Self { process, told, group }))
    }

    /// Until when the command may run, from now on.
    pub(crate) async fn allow(&mut self, remaining: Duration) -> io::Result<()> {
        self.told.write_all(format!("{}\n", remaining.as_millis()).as_bytes()).await
    }

    /// Ends the guard, and leaves alone what the command left running.
    pub(crate) async fn dismiss(mut self) {
        let _it_may_have_ended = self.process.kill().await;
    }
}

/// The guard's own life.
pub(crate) fn guard() -> ExitCode {
    let live = async {
        let _they_are_for_the_command = Signals::listen()?;
        io::stdout().write_all(&[1])?;
        io::stdout().flush()?;
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut limit = Duration::from_hours(48);
        while let Ok(Ok(Some(line))) = tokio::time::timeout(limit, lines.next_line()).await {
            limit = Duration::from_millis(line.parse().map_err(io::Error::other)?);
        }
        io::Result::Ok(())
    };
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
        let _either_way = runtime.block_on(live);
        // Not held up by the thread that reads standard input.
        runtime.shutdown_background();
    }
    // Itself included.
    let _nothing_to_do_about_it = rustix::process::kill_current_process_group(Signal::KILL);
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
    target: Target,
}

/// Who gets the command's signals.
#[derive(Clone, Copy, Debug)]
enum Target {
    Group(Pid),
    /// It shares the terminal's foreground group with this process, and with others.
    Command(Pid),
}

impl Running {
    /// With a guard, in its group.
    pub(crate) fn start(words: &[OsString], variables: [(&str, &str); 3], guard: Option<&Guard>) -> io::Result<Self> {
        let mut command = myself(EXEC)?;
        command.arg(std::process::id().to_string()).args(words).envs(variables).kill_on_drop(true);
        if let Some(guard) = guard {
            command.process_group(guard.group.as_raw_nonzero().get());
        }
        let child = command.spawn()?;
        let target = match guard {
            Some(guard) => Target::Group(guard.group),
            None => Target::Command(pid(&child).ok_or(ErrorKind::NotFound)?),
        };
        Ok(Self { child, target })
    }

    /// Until it has ended; meanwhile the signals are passed on.
    pub(crate) async fn ended(&mut self, signals: &mut Signals) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return status,
                signal = signals.next() => match self.target {
                    // From the terminal: the command has it already.
                    Target::Command(_) if [Signal::INT, Signal::QUIT].contains(&signal) => {}
                    _ => self.send(signal),
                }
            }
        }
    }

    pub(crate) fn send(&self, signal: Signal) {
        let _it_may_have_ended = match self.target {
            Target::Group(group) => rustix::process::kill_process_group(group, signal),
            // Once it was waited for, another process may have its number.
            Target::Command(pid) if self.child.id().is_some() => rustix::process::kill_process(pid, signal),
            Target::Command(_) => Ok(()),
        };
    }
}

fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}
