//! A lock that outlives its invocation: the first step of a workflow takes it, the last one frees it.

use std::time::Duration;

use anstream::println;
use lambda_lock::{ErrorKind, Lock, Locks, Ticket};
use lambda_runtime::Error;

use super::Cloud;
use crate::scene::{Scene, expect, short, table};

const KEY: &str = "deploy";

pub(crate) const SCENES: &[Scene] = &[Scene {
    name: "workflow",
    title: "The steps of a workflow hold one lock",
    world: "A deployment has three steps, each in its own environment, and passes its lock on as a ticket, which is a text \
            in JSON. Another deployment starts in the middle. Step 2 is delivered twice.",
    should: "All steps have the same fence. The other deployment is refused until the third step has released the lock. \
             The second delivery of step 2 is refused, because a ticket can be used once.",
    guide: "recipes/workflows",
    play: |cloud| Box::pin(steps(cloud)),
}];

async fn steps(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("workflow");
    let locks = || Locks::builder(cloud.host().client(), &cloud.table).key_prefix(&prefix).build();
    let mut table = table(["step", "outcome"]);

    let lock = locks()?.acquire(KEY).lease(Duration::from_secs(30)).holder("deployment-1").await?;
    let fence = lock.fence();
    let state = to_state(lock)?;
    table.add_row(["1. acquires".to_owned(), format!("fence {}", short(fence))]);

    let refused = locks()?.acquire(KEY).holder("deployment-2").await;
    expect(refused.as_ref().is_err_and(lambda_lock::Error::is_held), "another deployment was not refused")?;
    table.add_row(["another deployment".to_owned(), refused.err().map(|error| error.to_string()).unwrap_or_default()]);

    let lock = locks()?.resume(&from_state(&state)?).await?;
    expect(lock.fence() == fence, "the second step has another fence")?;
    lock.renew(Duration::from_mins(1)).await?;
    let next_state = to_state(lock)?;
    table.add_row(["2. resumes and renews".to_owned(), format!("fence {}", short(fence))]);

    let again = locks()?.resume(&from_state(&state)?).await;
    let is_used = |error: &lambda_lock::Error| error.kind() == ErrorKind::TicketUsed;
    expect(again.as_ref().is_err_and(is_used), "a ticket was used twice")?;
    table.add_row(["2. again".to_owned(), again.err().map(|error| error.to_string()).unwrap_or_default()]);

    locks()?.resume(&from_state(&next_state)?).await?.release().await?;
    table.add_row(["3. resumes and releases".to_owned(), format!("fence {}", short(fence))]);

    let next = locks()?.acquire(KEY).holder("deployment-2").await?;
    expect(next.fence() > fence, "the next deployment has no larger fence")?;
    table.add_row(["another deployment".to_owned(), format!("fence {}", short(next.fence()))]);
    next.release().await?;
    println!("{table}");
    Ok("One deployment at a time held the lock, across its three steps.".to_owned())
}

fn to_state(lock: Lock) -> Result<String, Error> {
    Ok(serde_json::to_string(&lock.into_ticket()?)?)
}

fn from_state(state: &str) -> Result<Ticket, Error> {
    Ok(serde_json::from_str(state)?)
}
