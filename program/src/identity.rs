//! The names under which this program holds and releases keys.

use std::ffi::OsStr;
use std::{env, process};

use nix::unistd::{Uid, User};

use crate::output::shortened;

/// Returns the user and host of this process, `user@host`.
pub(crate) fn user() -> String {
    let variable = ["USER", "LOGNAME"].into_iter().find_map(|name| env::var_os(name).filter(|name| !name.is_empty()));
    let variable = variable.map(|name| name.to_string_lossy().into_owned());
    let id = Uid::current();
    // Some containers and schedulers set neither variable.
    let name = variable.or_else(|| User::from_uid(id).ok().flatten().map(|user| user.name));
    let name = name.unwrap_or_else(|| format!("uid {id}"));
    // The holder's name has a bound.
    let name = shortened(&name, 256);
    format!("{name}@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// Returns the default name of a holder that runs a command.
///
/// The name leaves out the command's arguments, because they may be secret.
pub(crate) fn holder(program: &OsStr) -> String {
    let program: String = program.display().to_string().chars().take(100).collect();
    format!("{} {} {program}", user(), process::id())
}

/// Returns the name of a holder that releases the key of another.
pub(crate) fn releaser() -> String {
    format!("released by {}", user())
}

/// Returns the name of a holder that completes the run of another.
pub(crate) fn completer() -> String {
    format!("completed by {}", user())
}
