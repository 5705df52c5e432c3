//! Requests that never change a row. They show that the table answers, and what the caller may do.

use std::time::Duration;

use aws_sdk_dynamodb::operation::get_item::builders::GetItemFluentBuilder;
use aws_sdk_dynamodb::operation::transact_write_items::builders::TransactWriteItemsFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{ConditionCheck, ReturnValue, TransactWriteItem};

use super::table::{Expression as _, Table, in_time, send};
use crate::error::{Cause, Error};
use crate::random;

/// The key of these requests.
const PROBE_KEY: &str = "lambda-lock-check";

/// A condition that neither a row nor a missing row meets.
const NEVER: &str = "attribute_exists(#id) AND attribute_not_exists(#id)";

pub(crate) fn probe_key(prefix: &str) -> String {
    format!("{prefix}{PROBE_KEY}")
}

impl Table {
    /// Sends a probe. Its refusal shows that the table was reached.
    pub(crate) async fn reach(&self, limit: Duration) -> Result<(), Error> {
        match in_time(limit, send(self.probe_update())).await {
            Ok(_) => Ok(()),
            Err(error) => self.refusal(error, PROBE_KEY).map(drop),
        }
    }

    /// Builds an update that is refused if it is allowed.
    pub(crate) fn probe_update(&self) -> UpdateItemFluentBuilder {
        let probe = self.update(PROBE_KEY).condition_expression(NEVER).return_values(ReturnValue::AllOld);
        probe.name("#id", &self.partition_key)
    }

    pub(crate) fn probe_get(&self) -> GetItemFluentBuilder {
        self.client.get_item().table_name(&self.name).set_key(Some(self.key(PROBE_KEY)))
    }

    /// Builds a transaction that is refused if its condition check is allowed.
    pub(crate) fn probe_condition_check(&self) -> Result<TransactWriteItemsFluentBuilder, Error> {
        let check = ConditionCheck::builder().table_name(&self.name).set_key(Some(self.key(PROBE_KEY)));
        let check = check.condition_expression(NEVER).name("#id", &self.partition_key).build();
        let check = check.map_err(|error| Error::new(Cause::Rejected, &self.name, PROBE_KEY).with_source(error))?;
        let item = TransactWriteItem::builder().condition_check(check).build();
        let token = random::request_token();
        Ok(self.client.transact_write_items().transact_items(item).set_client_request_token(token))
    }
}
