//! `run`: the lock around a command.

use std::convert::Infallible;
use std::env;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::pin::pin;
use std::process::{self, ExitStatus};
use std::time::Duration;

use lambda_lock::{Backoff, Error, Lock};
use rustix::process::Signal;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::arguments::{Run, TableOptions};
use crate::command::{Guard, Running, Signals, cannot_run};
use crate::connect::{self, Connection};
use crate::{Failure, LOST, say, sentence};

/// The exit code: that of the command.
pub(crate) async fn run(options: &TableOptions, run: Run) -> Result<u8, Failure> {
    if !connect::is_enabled()? {
        return Ok(without_lock(options, &run));
    }
    let lease = run.lease.map_or_else(connect::default_lease, Ok)?;
    let holder = run.holder.clone().unwrap_or_else(|| format!("{} {} {}", user(), process::id(), first_word(&run)));
    let Connection { locks, table } = connect::connect(options, holder).await?;
    let mut signals = Signals::listen().map_err(Failure::of_the_system)?;
    let guard = if Running::has_own_group() { Some(Guard::start().await.map_err(Failure::of_the_system)?) } else { None };

    let mut acquire = locks.acquire(&run.key).lease(lease).hold_at_least(run.hold_at_least.unwrap_or_default());
    if let Some(wait) = run.wait {
        acquire = acquire.wait(Backoff::default().up_to(wait));
    }
    let mut acquiring = acquire.into_future();
    let lock = tokio::select! {
        biased;
        signal = signals.next() => {
            let before = Handle::current().metrics().num_alive_tasks();
            drop(acquiring);
            released_in_background(before).await;
            return Ok(died_of(signal.as_raw()));
        }
        lock = &mut acquiring => lock?,
    };

    let ended = under(&lock, lease, &run, &table, guard, &mut signals).await;
    conclude(&lock, ended).await
}

/// How the command ended.
#[derive(Debug)]
enum Ended {
    ByItself(ExitStatus),
    /// Told to, because the lock was about to be lost, or was.
    Told(Why, ExitStatus),
}

#[derive(Debug)]
enum Why {
    LeaseEnds,
    Lost(Error),
}

/// Runs the command, until it ends or has to.
async fn under(
    lock: &Lock,
    lease: Duration,
    run: &Run,
    table: &str,
    mut guard: Option<Guard>,
    signals: &mut Signals,
) -> std::io::Result<Ended> {
    // Time to clean up.
    let grace = (lease / 10).min(Duration::from_secs(10));
    if let Some(guard) = &mut guard {
        guard.allow(lock.remaining()).await?;
    }
    let fence = lock.fence().to_string();
    let variables = [("LOCK_FENCE", fence.as_str()), ("LOCK_KEY", lock.key()), ("LOCK_TABLE_NAME", table)];
    let mut command = Running::start(&run.command, variables, guard.as_ref())?;
    let mut must_end = pin!(async {
        tokio::select! {
            biased;
            Err(error) = renew(lock, lease, run.renew, guard.as_mut()) => Why::Lost(error),
            () = remaining_is(lock, grace) => Why::LeaseEnds,
        }
    });
    let mut kill = pin!(async {});
    todo!()
}
