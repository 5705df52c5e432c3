//! What the functions write: rows beside the locks, each refusing a writer that has been overtaken.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::error::ConditionalCheckFailedException;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use lambda_runtime::Error;

/// Rows in the lock table, under the function's own prefix.
#[derive(Clone, Debug)]
pub(crate) struct FencedRows {
    pub(crate) client: Client,
    pub(crate) table: String,
    pub(crate) prefix: String,
}

impl FencedRows {
    /// Writes the row and counts it: how many times in all, this one included. Refused if a larger fence has written
    /// before: this invocation was then paused for longer than its lease, and another has taken over.
    pub(crate) async fn write(&self, key: &str, fence: u64) -> Result<u64, Error> {
        let written = self
            .client
            .update_item()
            .table_name(&self.table)
            .key("id", AttributeValue::S(format!("{}{key}", self.prefix)))
            .condition_expression("attribute_not_exists(fence) OR fence < :fence")
            .update_expression("SET fence = :fence ADD times :one")
            .expression_attribute_values(":fence", AttributeValue::N(fence.to_string()))
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let row = match written {
            Ok(written) => written.attributes.unwrap_or_default(),
            Err(error) => match error.into_service_error() {
                // Our own write, whose answer was lost and which the SDK tried again.
                UpdateItemError::ConditionalCheckFailedException(ConditionalCheckFailedException {
                    item: Some(row),
                    ..
                }) if number(&row, "fence") == Some(fence) => row,
                error => return Err(error.into()),
            },
        };
        number(&row, "times").ok_or_else(|| format!("the row of {key} has no count").into())
    }
}

fn number(row: &HashMap<String, AttributeValue>, attribute: &str) -> Option<u64> {
    row.get(attribute)?.as_n().ok()?.parse().ok()
}
