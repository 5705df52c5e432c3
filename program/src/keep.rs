//! The commands `acquire` and `renew`, and `release` with an identity: a lock for the steps of a pipeline, which are separate
//! processes.

use std::time::Duration;

use lambda_lock::{Acquire, Lock, Locks};
use serde_json::json;

use crate::arguments::{self, Kept, Renew, TableOptions};
use crate::connect::{Connection, Key, connect_if, default_lease, is_enabled};
use crate::failure::{BROKEN_OUTPUT, Failure, sentence};
use crate::identity;
use crate::output::{escaped, json_line, line, print, printable, say};
use crate::run::{FLUSH_TIMEOUT, killed_by};
use crate::signals::Signals;

/// Prints the identity of the lock, and keeps the lock. Returns the exit code.
pub(crate) async fn acquire(options: &TableOptions, acquire: arguments::Acquire) -> Result<u8, Failure> {
    let arguments::Acquire { key, identity, wait, kept } = acquire;
    let (connection, lease) = connect(options, &kept).await?;
    let key = connection.key(key);
    let (locks, is_random) = (connection.locks, identity.is_none());
    let mut attempt = begin(&locks, &key, &kept).lease(lease);
    attempt = match identity {
        Some(identity) => attempt.identity(identity),
        None => attempt.random_identity(),
    };
    if let Some(wait) = wait {
        attempt = attempt.wait(wait);
    }
    let mut signals = Signals::passed_on().map_err(Failure::of_the_system)?;
    let mut acquiring = attempt.into_future();
    let acquired = tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        acquired = &mut acquiring => Ok(acquired),
    };
    drop(acquiring);
    let outcome = match acquired {
        Ok(Ok(lock)) => hand_out(lock, &key, kept.json, is_random).await.map(|()| 0),
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => Ok(killed_by(signal.as_raw())),
    };
    // An acquire without an answer may have taken the lock. Its release runs in the background.
    let _the_lease_ends_anyway = locks.flush(FLUSH_TIMEOUT).await;
    outcome
}

/// Prints the identity and keeps the lock. Releases the lock if a random identity cannot be printed, because no other process then
/// knows it. The lock of an identity that was given may be in use by a later step.
async fn hand_out(lock: Lock, key: &Key, is_json: bool, is_random: bool) -> Result<(), Failure> {
    if !lock.is_enforced() {
        say("LOCK_ENABLED is `false`: the identity does not hold a lock");
    }
    // A shell compares the identity as it is.
    let text = if is_json { object(&lock, key) } else { format!("{}\n", lock.identity().unwrap_or_default()) };
    let Err(Failure { message: why, .. }) = print(text.as_bytes()) else {
        lock.keep();
        return Ok(());
    };
    let then = if is_random {
        match lock.release().await {
            Ok(()) => "was released".to_owned(),
            Err(error) => format!("stays held until the lease ends, because the release failed: {}", sentence(&error)),
        }
    } else {
        lock.keep();
        "stays held for the identity".to_owned()
    };
    let why = if why.is_empty() { "standard output is closed".to_owned() } else { why };
    let key = printable(&key.of_row);
    Err(Failure::new(BROKEN_OUTPUT, format!("the identity was not written ({why}); key `{key}` {then}")))
}

/// Takes the lock over from the step before, and keeps it.
pub(crate) async fn renew(options: &TableOptions, renew: Renew) -> Result<(), Failure> {
    let Renew { key, identity, kept } = renew;
    let (connection, lease) = connect(options, &kept).await?;
    let key = connection.named_key(&key);
    let taken = begin(&connection.locks, &key, &kept).lease(lease).identity(identity).take_over().await;
    // The takeover without an answer is withdrawn in the background.
    let _the_lease_ends_anyway = connection.locks.flush(FLUSH_TIMEOUT).await;
    let lock = taken?;
    let text = if kept.json { object(&lock, &key) } else { renewed(&lock, &key, &connection.table) };
    if !lock.is_enforced() {
        say("LOCK_ENABLED is `false`: the identity does not hold a lock");
    }
    lock.keep();
    print(text.as_bytes())
}

/// Frees the key, or the permit, that the identity holds.
pub(crate) async fn release(options: &TableOptions, key: &str, identity: &str) -> Result<(), Failure> {
    let is_enabled = is_enabled()?;
    let connection = connect_if(is_enabled, options, identity::user()).await?;
    let Key { name, of_row: key } = connection.named_key(key);
    let Connection { locks, table, .. } = connection;
    let was_held = locks.release_identity(name, identity).await?;
    if was_held {
        line(&format!("released: key `{key}` in table `{table}`"))
    } else if is_enabled {
        line(&format!("key `{key}` in table `{table}` is not held for `{}`", printable(identity)))
    } else {
        say(format!("LOCK_ENABLED is `false`: key `{key}` was not released"));
        Ok(())
    }
}

/// Connects with the name of the holder. Returns the lease, too.
async fn connect(options: &TableOptions, kept: &Kept) -> Result<(Connection, Duration), Failure> {
    let is_enabled = is_enabled()?;
    let lease = kept.lease.map_or_else(default_lease, Ok)?;
    let holder = kept.holder.clone().unwrap_or_else(identity::user);
    Ok((connect_if(is_enabled, options, holder).await?, lease))
}

fn begin(locks: &Locks, key: &Key, kept: &Kept) -> Acquire {
    match kept.at_most {
        Some(permits) => locks.semaphore(&key.name, permits).acquire(),
        None => locks.acquire(&key.name),
    }
}

/// Returns the lock as a JSON object, in a line.
fn object(lock: &Lock, key: &Key) -> String {
    json_line(&json!({
        "key": key.of_row,
        "identity": lock.identity(),
        "fence": lock.fence(),
        "until": humantime::format_rfc3339_millis(lock.expires_at()).to_string(),
    }))
}

fn renewed(lock: &Lock, key: &Key, table: &str) -> String {
    let (key, end) = (&key.of_row, humantime::format_rfc3339_millis(lock.expires_at()));
    let text = format!("renewed: key `{key}` in table `{table}` until {end} with fence {}", lock.fence());
    escaped(&text).into_owned() + "\n"
}
