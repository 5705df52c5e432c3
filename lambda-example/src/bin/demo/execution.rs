//! A lock that outlives its invocation: the first step of a workflow takes it, the last one frees it.

use std::time::Duration;

use anstream::println;
use lambda_lock::{Acquire, Error as LockError, Locks};
use lambda_runtime::Error;

use super::Cloud;
use crate::scene::{Scene, expect, short, table};

const KEY: &str = "deploy";

pub(crate) const SCENES: &[Scene] = &[Scene {
    name: "workflow",
    title: "The steps of a workflow hold one lock",
    world: "A deployment has three steps, each in its own environment. The deployment holds the lock, and not a process: each \
            step acquires with the name of the deployment. Another deployment starts in the middle. Step 2 crashes and \
            is repeated, and then it comes once more, after the end.",
    should: "Each attempt of a step takes the lock over at once, with a larger fence. The other deployment is refused until \
             the third step has released the lock. The late copy of step 2 is refused.",
    guide: "recipes/workflows",
    play: |cloud| Box::pin(steps(cloud)),
}];

async fn steps(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("workflow");
    // Each call is another environment.
    let acquire = |deployment: &str| -> Result<Acquire, LockError> {
        let locks = Locks::builder(cloud.host().client(), &cloud.table).key_prefix(&prefix).build()?;
        Ok(locks.acquire(KEY).identity(deployment).holder(deployment).lease(Duration::from_secs(30)))
    };
    let mut table = table(["step", "outcome"]);
    let refusal = |refused: Option<LockError>| refused.map(|error| error.to_string()).unwrap_or_default();

    let lock = acquire("deployment-1")?.await?;
    let first = lock.fence();
    lock.keep();
    table.add_row(["1. acquires".to_owned(), format!("fence {}", short(first))]);

    let refused = acquire("deployment-2")?.await.err();
    expect(refused.as_ref().is_some_and(LockError::is_held), "another deployment was not refused")?;
    table.add_row(["another deployment".to_owned(), refusal(refused)]);

    let crashed = acquire("deployment-1")?.take_over_from(first).await?;
    let second = crashed.fence();
    crashed.keep(); // a process that crashes sends nothing either
    table.add_row(["2. takes over, crashes".to_owned(), format!("larger fence {}", short(second))]);

    let lock = acquire("deployment-1")?.take_over_from(first).await?;
    let third = lock.fence();
    lock.keep();
    expect(first < second && second < third, "the fences do not grow")?;
    table.add_row(["2. takes over again".to_owned(), format!("larger fence {}", short(third))]);

    acquire("deployment-1")?.take_over_from(third).await?.release().await?;
    table.add_row(["3. takes over, releases".to_owned(), "released".to_owned()]);

    let late = acquire("deployment-1")?.take_over_from(first).await.err();
    expect(late.as_ref().is_some_and(LockError::is_lost), "a late step took a free key")?;
    table.add_row(["2. comes once more".to_owned(), refusal(late)]);

    let next = acquire("deployment-2")?.await?;
    expect(next.fence() > third, "the next deployment has no larger fence")?;
    table.add_row(["another deployment".to_owned(), format!("larger fence {}", short(next.fence()))]);
    next.release().await?;
    println!("{table}");
    Ok("One deployment at a time held the lock, across its three steps.".to_owned())
}
