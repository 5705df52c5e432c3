//! The names under which this program holds and releases keys.

use std::ffi::OsStr;
use std::{env, process};

use nix::unistd::{Uid, User};

use crate::output::shortened;

/// The start of the holder's name in a row that an operator released.
const RELEASED_BY: &str = "released by ";

/// Returns the user and host of this process, `user@host`.
pub(crate) fn user() -> String {
    let variable = ["USER", "LOGNAME"].into_iter().find_map(|name| env::var(name).ok().filter(|name| !name.is_empty()));
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
    format!("{RELEASED_BY}{}", user())
}

/// Returns the name of a holder that completes the run of another.
pub(crate) fn completer() -> String {
    format!("completed by {}", user())
}

/// Returns whether a holder of this name released the key of another.
pub(crate) fn is_releaser(holder: &str) -> bool {
    holder.starts_with(RELEASED_BY)
}
