//! The guard: a second process of this program, which kills the command if the first one cannot.

use std::cell::Cell;
use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_current_process_group, kill_process, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::process::{pid, runtime, this_program};
use crate::signals::Signals;

/// The argument that makes this program the guard.
pub(crate) const GUARD: &str = "__guard";
/// The start of the line that tells the guard the command's process id.
const COMMAND: &str = "command ";

/// A process that leads the command's group.
///
/// It kills the group when this process dies, or is stopped and does not renew the lease in time. While the guard
/// exists, no other group can get the group's id.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    pub(crate) group: Pid,
    pub(crate) orders: Orders,
    pub(crate) life: Life,
}

impl Guard {
    /// Starts the guard. Returns `None` if standard input is a terminal: a command in its own group could not read
    /// from it.
    pub(crate) async fn start() -> io::Result<Option<Self>> {
        if io::stdin().is_terminal() {
            return Ok(None);
        }
        let mut command = this_program(GUARD)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).kill_on_drop(true);
        let mut process = command.spawn()?;
        let gone = || io::Error::from(ErrorKind::BrokenPipe);
        let (Some(group), Some(orders), Some(mut life)) = (pid(&process), process.stdin.take(), process.stdout.take())
        else {
            return Err(gone());
        };
        // The guard writes a byte when it listens to signals. An earlier signal to the group would end it.
        life.read_u8().await.map_err(|_| gone())?;
        Ok(Some(Self { process, group, orders: Orders(orders), life: Life(life) }))
    }

    /// Ends the guard, and leaves alone the children that the command left behind.
    pub(crate) async fn dismiss(mut self) {
        let _it_may_have_ended = self.process.kill().await;
    }
}

/// The guard's standard input.
#[derive(Debug)]
pub(crate) struct Orders(ChildStdin);

impl Orders {
    /// Sets how long the command may still run, from now on.
    pub(crate) async fn allow(&mut self, remaining: Duration) -> io::Result<()> {
        self.line(&remaining.as_millis().to_string()).await
    }

    /// Names the command's process, because the command may leave the group.
    pub(crate) async fn watch(&mut self, command: Pid) -> io::Result<()> {
        self.line(&format!("{COMMAND}{command}")).await
    }

    async fn line(&mut self, line: &str) -> io::Result<()> {
        self.0.write_all(format!("{line}\n").as_bytes()).await
    }
}

/// The guard's standard output, which stays open for as long as the guard lives.
#[derive(Debug)]
pub(crate) struct Life(ChildStdout);

impl Life {
    /// Waits until the guard has died. The dead process is not waited for, so that no other group gets its group's id.
    pub(crate) async fn ended(&mut self) {
        while self.0.read_u8().await.is_ok() {}
    }
}

/// Runs the guard itself.
pub(crate) fn main() -> ExitCode {
    let command = Cell::new(None);
    let live = async {
        let _for_the_command = Signals::passed_on()?;
        // A command that is stopped at a terminal stops its group too.
        let _nor_these = Signals::stopping()?;
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
    if let Ok(runtime) = runtime() {
        let _either_way = runtime.block_on(live);
        // The thread that reads standard input must not delay the kill.
        runtime.shutdown_background();
    }
    // The id still belongs to the command. If the first process was stopped, it has not waited for the command. If it
    // died, it died just now. Once it has waited for the command, it ends this process at once.
    if let Some(command) = command.get() {
        let _it_may_lead_no_group = kill_process_group(command, Signal::KILL);
        let _it_may_have_ended = kill_process(command, Signal::KILL);
    }
    // This process included.
    let _nothing_to_do_about_it = kill_current_process_group(Signal::KILL);
    ExitCode::FAILURE
}
