//! A function that locks with the SDK and two hand-written conditional updates. It does not wait, does not recognise a lost
//! answer, and does not stop when the lease ends.

use std::env;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use lambda_lock_cold_start::{config, report, warms_up};
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::new(&config().await);
    let table = env::var("LOCK_TABLE_NAME")?;
    if warms_up() {
        let never = "attribute_exists(id) AND attribute_not_exists(id)";
        let request = client.update_item().table_name(&table).key("id", string("warm-up")).condition_expression(never);
        // The condition never holds, so DynamoDB refuses the request.
        let _warm = request.send().await;
    }
    let work = service_fn(move |event| {
        let (client, table) = (client.clone(), table.clone());
        async move { alone(&client, &table, event).await }
    });
    Runtime::new(work).run_concurrent().await
}

/// Does the work, unless another invocation holds the key.
async fn alone(client: &Client, table: &str, event: LambdaEvent<Value>) -> Result<u64, Error> {
    let key = event.context.env_config.function_name.clone();
    let owner = event.context.request_id.clone();
    let (now, end) = (now()?, event.context.deadline + 1_000);
    let acquired = client
        .update_item()
        .table_name(table)
        .key("id", string(&key))
        .condition_expression("attribute_not_exists(id) OR lease_end <= :now")
        .update_expression(
            "SET #owner = :owner, acquired_at = :now, lease_end = :end, expiration = :expiration, \
             fence = if_not_exists(fence, :zero) + :one",
        )
        .return_values(ReturnValue::UpdatedNew)
        .expression_attribute_names("#owner", "owner")
        .expression_attribute_values(":owner", string(&owner))
        .expression_attribute_values(":now", number(now))
        .expression_attribute_values(":end", number(end))
        .expression_attribute_values(":expiration", number(end / 1_000 + 86_400))
        .expression_attribute_values(":zero", number(0))
        .expression_attribute_values(":one", number(1))
        .send()
        .await;
    let row = match acquired {
        Ok(output) => output.attributes.unwrap_or_default(),
        Err(error) if error.as_service_error().is_some_and(UpdateItemError::is_conditional_check_failed_exception) => {
            return Err("another invocation holds the key".into());
        }
        Err(error) => return Err(error.into()),
    };
    let fence = row.get("fence").and_then(|fence| fence.as_n().ok()).ok_or("there is no fence")?.parse()?;
    let answer = report(&event.payload, fence);
    client
        .update_item()
        .table_name(table)
        .key("id", string(&key))
        .condition_expression("#owner = :owner")
        .update_expression("SET lease_end = :now")
        .expression_attribute_names("#owner", "owner")
        .expression_attribute_values(":owner", string(&owner))
        .expression_attribute_values(":now", number(self::now()?))
        .send()
        .await?;
    Ok(answer)
}

/// Returns the milliseconds since the epoch.
#[expect(clippy::disallowed_methods, reason = "as hand-written code does")]
fn now() -> Result<u64, Error> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis())?)
}

fn string(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}
