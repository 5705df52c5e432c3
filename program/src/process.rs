//! The runtime of this process; starting this program again, and looking at a child process.

use std::env;
use std::io;
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::process::{Child, Command};
use tokio::runtime::{Builder, Runtime};

/// Returns the runtime of this process. It has one thread, because the kernel kills the command when the thread that started
/// the command has died.
pub(crate) fn runtime() -> io::Result<Runtime> {
    // tokio opens up to eight files for its runtime, and panics if the system refuses the one for signals.
    let enough = [(); 4].map(|()| UnixStream::pair());
    enough.into_iter().collect::<io::Result<Vec<_>>>()?;
    Builder::new_current_thread().enable_all().build()
}

/// Returns a command that starts this program again, with this task as its first argument.
pub(crate) fn this_program(task: &str) -> io::Result<Command> {
    // The link still leads to this program after another version has replaced its file.
    let program = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { env::current_exe()? };
    let mut command = Command::new(program);
    command.arg0("lambda-lock").arg(task);
    Ok(command)
}

/// Returns the id of a child that has not been waited for.
pub(crate) fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Returns whether a child is stopped, for example because it read from a terminal in the background.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let only_look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), only_look).is_ok_and(|status| status.is_some())
}
