//! The commands `acquire`, and `renew` and `release` with a ticket: a lock for steps that are separate processes.

use std::fs;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use lambda_lock::{Attempt, ErrorKind, Lock, Locks, Ticket, Turn};

use crate::arguments::{Acquire, TableOptions};
use crate::connect::{self, Connection};
use crate::failure::{BROKEN_OUTPUT, CONFIGURATION, Failure, HELD, USAGE, sentence};
use crate::identity;
use crate::output::{line, print, printable, say};
use crate::run::{FLUSH_TIMEOUT, killed_by};
use crate::signals::Signals;

/// More than any ticket has.
const MAX_TICKET_BYTES: u64 = 64 * 1024;

/// Prints the ticket. Returns the exit code.
pub(crate) async fn acquire(options: &TableOptions, acquire: Acquire) -> Result<u8, Failure> {
    let is_enabled = connect::is_enabled()?;
    let lease = acquire.lease.map_or_else(connect::default_lease, Ok)?;
    let holder = acquire.holder.unwrap_or_else(identity::user);
    let Connection { locks, .. } = connect::connect_if(is_enabled, options, holder).await?;
    let attempt = match acquire.at_most {
        Some(permits) => locks.semaphore(acquire.key, permits).acquire(),
        None => locks.acquire(acquire.key),
    };
    let mut attempt = attempt.lease(lease).min_hold(acquire.min_hold.unwrap_or_default());
    if let Some(identity) = acquire.identity {
        attempt = attempt.identity(identity);
    }
    if let Some(wait) = acquire.wait {
        attempt = attempt.wait(wait);
    }
    let mut signals = Signals::passed_on().map_err(Failure::of_the_system)?;
    let file = acquire.turn;
    let turn = file.as_deref().map_or(Ok(None), read_turn)?;
    let mut acquiring = Box::pin(async {
        let Some(file) = &file else { return Ok(attempt.await?) };
        match attempt.attempt_in_turn(turn).await {
            Ok(Attempt::Acquired(lock)) => Ok(lock),
            Ok(Attempt::Waiting(turn)) => Err(keep_turn(file, &turn)),
            Err(error) => {
                // The turn may be that of another key.
                if error.kind() != ErrorKind::Invalid {
                    end_wait(file);
                }
                Err(error.into())
            }
        }
    });
    let acquired = tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        acquired = &mut acquiring => Ok(acquired),
    };
    let outcome = match acquired {
        Ok(Ok(lock)) => {
            drop(acquiring);
            let handed_over = hand_over(&locks, lock).await;
            if let Some(file) = &file {
                end_wait(file);
            }
            handed_over.map(|()| 0)
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => {
            drop(acquiring);
            Ok(killed_by(signal.as_raw()))
        }
    };
    // An acquire without an answer may have taken the lock. Its release runs in the background.
    let _the_lease_ends_anyway = locks.flush(FLUSH_TIMEOUT).await;
    outcome
}

/// Reads the turn of the last attempt. There is none before the second one.
fn read_turn(file: &Path) -> Result<Option<Turn>, Failure> {
    let json = match fs::read(file) {
        Ok(json) => json,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of_the_system(error)),
    };
    let turn = serde_json::from_slice(&json).map_err(|why| {
        let (file, why) = (file.display().to_string(), why.to_string());
        let (file, why) = (printable(&file), printable(&why));
        let message = format!("the turn in `{file}` is not valid: {why}; delete the file, which gives up the turn");
        Failure::new(CONFIGURATION, message)
    })?;
    Ok(Some(turn))
}

/// Deletes the turn, so that the next wait does not begin with it.
fn end_wait(file: &Path) {
    let _unless_there_was_no_wait = fs::remove_file(file);
}

/// Writes the turn for the next attempt. Returns the refusal.
fn keep_turn(file: &Path, turn: &Turn) -> Failure {
    let key = turn.keys().next().map(printable).unwrap_or_default().into_owned();
    // Replaces the file as a whole: half a turn is not valid, and would end the wait.
    let new = file.with_added_extension("new");
    let written = serde_json::to_vec(turn).map_err(io::Error::other).and_then(|json| fs::write(&new, json));
    let written = written.and_then(|()| fs::rename(&new, file));
    match written {
        Ok(()) => Failure::new(
            HELD,
            format!("key `{key}` was not acquired yet: try again with this turn in {} s", turn.delay_in_seconds()),
        ),
        Err(error) => Failure::of_the_system(error),
    }
}

async fn hand_over(locks: &Locks, lock: Lock) -> Result<(), Failure> {
    let ticket = lock.into_ticket()?;
    if !ticket.is_enforced() {
        say("LOCK_ENABLED is `false`: the ticket does not hold a lock");
    }
    let written = match serde_json::to_string(&ticket) {
        Ok(json) => print(format!("{json}\n").as_bytes()).map_err(|failure| failure.message),
        Err(error) => Err(error.to_string()),
    };
    let Err(why) = written else { return Ok(()) };
    // No other process has the ticket, so none could release the key.
    let key = ticket.key();
    let then = match locks.release_ticket(&ticket).await {
        Ok(()) => "was released".to_owned(),
        Err(error) => format!("stays held until the lease ends, because the release failed: {}", sentence(&error)),
    };
    let why = if why.is_empty() { "standard output is closed".to_owned() } else { why };
    Err(Failure::new(BROKEN_OUTPUT, format!("the ticket was not written ({why}); key `{key}` {then}")))
}

pub(crate) async fn renew(options: &TableOptions, lease: Option<Duration>) -> Result<(), Failure> {
    let lease = lease.map_or_else(connect::default_lease, Ok)?;
    let ticket = read("renew")?;
    let Connection { locks, table, .. } = connect::connect_for(&ticket, options, identity::user()).await?;
    let end: SystemTime = locks.renew_ticket(&ticket, lease).await?;
    let end = humantime::format_rfc3339_millis(end);
    line(&format!("renewed: key `{}` in table `{table}` until {end}", ticket.key()))
}

pub(crate) async fn release(options: &TableOptions, if_held: bool) -> Result<(), Failure> {
    let ticket = read("release")?;
    let Connection { locks, table, .. } = connect::connect_for(&ticket, options, identity::user()).await?;
    if !if_held {
        locks.release_ticket(&ticket).await?;
    } else if !locks.release_ticket_if_held(&ticket).await? {
        return line(&format!("lost before: key `{}` in table `{table}`", ticket.key()));
    }
    line(&format!("released: key `{}` in table `{table}`", ticket.key()))
}

/// Reads the ticket from standard input.
fn read(command: &str) -> Result<Ticket, Failure> {
    if io::stdin().is_terminal() {
        let message = format!(
            "no ticket is given: write `lambda-lock {command} < ticket.json`, with the ticket that `acquire` printed"
        );
        return Err(Failure::new(USAGE, message));
    }
    let mut json = Vec::new();
    io::stdin().lock().take(MAX_TICKET_BYTES).read_to_end(&mut json).map_err(Failure::of_the_system)?;
    let ticket = if json.trim_ascii().is_empty() {
        Err("it is empty".to_owned())
    } else {
        serde_json::from_slice::<Ticket>(&json).map_err(|error| error.to_string())
    };
    ticket.map_err(|why| {
        let why = printable(&why);
        let message = format!("the ticket on standard input is not valid: {why}; give the line that `acquire` printed");
        Failure::new(CONFIGURATION, message)
    })
}
