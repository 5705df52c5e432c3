//! A lock that outlives its invocation: the first step of a workflow takes it, the last one frees it.

use std::time::Duration;

use lambda_lock::{Lock, Locks, Ticket};
use lambda_runtime::Error;

use super::{Cloud, expect, table};

const KEY: &str = "deploy";

pub(crate) async fn show(cloud: &Cloud) -> Result<(), Error> {
    println!("Three steps of a workflow, each in its own environment; the state between them is a ticket in JSON");
    let prefix = cloud.new_prefix("workflow");
    let locks = || Locks::builder(cloud.host().client(), &cloud.table).key_prefix(&prefix).build();
    let mut table = table(["step", "outcome"]);

    let lock = locks()?.acquire(KEY).lease(Duration::from_secs(30)).holder("execution-1").await?;
    let fence = lock.fence();
    let state = to_state(lock)?;
    table.add_row(["1. acquire".to_owned(), format!("fence {fence}")]);

    let refused = locks()?.acquire(KEY).holder("execution-2").await;
    expect(refused.as_ref().is_err_and(lambda_lock::Error::is_held), "another execution was not refused")?;
    table.add_row(["another execution".to_owned(), refused.err().map(|error| error.to_string()).unwrap_or_default()]);

    let lock = locks()?.resume(&from_state(&state)?).await?;
    expect(lock.fence() == fence, "the second step has another fence")?;
    lock.renew(Duration::from_mins(1)).await?;
    let next_state = to_state(lock)?;
    table.add_row(["2. resume and renew".to_owned(), format!("fence {fence}")]);

    let again = locks()?.resume(&from_state(&state)?).await;
    expect(again.is_err(), "a ticket was used twice")?;
    table.add_row(["2. delivered again".to_owned(), again.err().map(|error| error.to_string()).unwrap_or_default()]);

    locks()?.resume(&from_state(&next_state)?).await?.release().await?;
    table.add_row(["3. resume and release".to_owned(), format!("fence {fence}")]);

    let next = locks()?.acquire(KEY).holder("execution-2").await?;
    expect(next.fence() > fence, "the next execution has no larger fence")?;
    table.add_row(["another execution".to_owned(), format!("fence {}", next.fence())]);
    next.release().await?;
    println!("{table}");
    Ok(())
}

fn to_state(lock: Lock) -> Result<String, Error> {
    Ok(serde_json::to_string(&lock.into_ticket()?)?)
}

fn from_state(state: &str) -> Result<Ticket, Error> {
    Ok(serde_json::from_str(state)?)
}
