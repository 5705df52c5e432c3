//! A durable function that holds a lock while it is suspended.

use std::time::Duration;

use aws_durable_execution_sdk::DurableContext;
use aws_durable_execution_sdk::test_util::LocalRunner;
use lambda_example::{Deployment, Done, Releases, Simulation, durable_deployment};
use lambda_lock::Locks;
use lambda_runtime::Error;

use super::{Cloud, expect, table};

const KEY: &str = "shop";
/// How often the result of an operation is lost.
const LOST: [usize; 3] = [0, 2, 5];

pub(crate) async fn show(cloud: &Cloud) -> Result<(), Error> {
    println!(
        "Deployments by a durable function, suspended while it rolls out; results that are not recorded are repeated"
    );
    let prefix = cloud.new_prefix("durable");
    let mut table = table(["lost result", "invocations", "outcome"]);
    let mut last = 0;
    for lost in LOST {
        let (host, prefix) = (cloud.host(), prefix.clone());
        let locks = Locks::builder(host.client(), &cloud.table).key_prefix(&prefix).build()?;
        let releases = Releases::new(host.client(), &cloud.data_table, prefix);
        let input =
            Deployment { key: KEY.to_owned(), version: format!("without {lost}"), rolling_out_ms: 1000, fails: false };
        let observer = locks.clone();
        let handler = move |input, ctx: DurableContext| {
            durable_deployment(locks.clone(), releases.clone(), Simulation::On, input, ctx)
        };
        let runner = LocalRunner::new().fail_checkpoints_after_retryable(lost, 1);
        let result = runner.run::<Deployment, Done, _, _>(handler, input).await;
        let outcome = match result.output() {
            Some(Done::Released { version, fence }) => {
                expect(*fence > last, "a fence is not larger than the one before")?;
                last = *fence;
                format!("version `{version}` with fence {fence}")
            }
            other => return Err(format!("{other:?}: {:?}", result.error_message()).into()),
        };
        let is_free = observer.get(KEY).await?.is_some_and(|holder| holder.has_released());
        expect(is_free, "the key is held after the execution")?;
        table.add_row([format!("number {}", lost + 1), result.invocation_count().to_string(), outcome]);
        // An execution of another moment.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{table}");
    Ok(())
}
