//! A durable function that holds a lock while it is suspended.

use std::time::Duration;

use anstream::println;
use aws_durable_execution_sdk::DurableContext;
use aws_durable_execution_sdk::test_util::LocalRunner;
use lambda_example::{Deployment, Done, Releases, Simulation, durable_deployment};
use lambda_lock::Locks;
use lambda_runtime::Error;

use super::Cloud;
use crate::scene::{Scene, expect, short, table};

const KEY: &str = "shop";
/// The operation whose result is lost, for each deployment.
const LOST: [usize; 3] = [0, 2, 5];

pub(crate) const SCENES: &[Scene] = &[Scene {
    name: "durable",
    title: "A durable function holds a lock while it is suspended",
    world: "Three deployments run one after the other. Each one is suspended for a second while it rolls out, and in each \
            one Lambda fails to record one result, so the function repeats that operation.",
    should: "Each deployment rolls out with its own, larger fence, and the key is free after each one.",
    guide: "recipes/workflows",
    play: |cloud| Box::pin(deployments(cloud)),
}];

async fn deployments(cloud: &Cloud) -> Result<String, Error> {
    let prefix = cloud.new_prefix("durable");
    let mut table = table(["lost result", "invocations", "rolled out", "fence"]);
    let mut last = 0;
    for (number, lost) in LOST.into_iter().enumerate() {
        let (host, prefix) = (cloud.host(), prefix.clone());
        let locks = Locks::builder(host.client(), &cloud.table).key_prefix(&prefix).build()?;
        let releases = Releases::new(host.client(), &cloud.data_table, prefix);
        let input = Deployment {
            key: KEY.to_owned(),
            version: format!("version {}", number + 1),
            rolling_out_ms: 1000,
            fails: false,
        };
        let observer = locks.clone();
        let handler = move |input, ctx: DurableContext| {
            durable_deployment(locks.clone(), releases.clone(), Simulation::On, input, ctx)
        };
        let runner = LocalRunner::new().fail_checkpoints_after_retryable(lost, 1);
        let result = runner.run::<Deployment, Done, _, _>(handler, input).await;
        let (version, fence) = match result.output() {
            Some(Done::Released { version, fence }) => {
                expect(*fence > last, "a fence is not larger than the one before")?;
                last = *fence;
                (version.clone(), short(*fence))
            }
            other => return Err(format!("{other:?}: {:?}", result.error_message()).into()),
        };
        let is_free = observer.get(KEY).await?.is_some_and(|holder| holder.has_released());
        expect(is_free, "the key is held after the execution")?;
        table.add_row([format!("of operation {}", lost + 1), result.invocation_count().to_string(), version, fence]);
        // An execution of another moment.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{table}");
    Ok("Each deployment rolled out once with the lock, and freed it.".to_owned())
}
