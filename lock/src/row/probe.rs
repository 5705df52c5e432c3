//! Requests that never change a row. They show that the table answers, and what the caller may do.

use std::time::Duration;

use aws_sdk_dynamodb::operation::get_item::builders::GetItemFluentBuilder;
use aws_sdk_dynamodb::operation::transact_write_items::builders::TransactWriteItemsFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{ReturnValue, TransactWriteItem};

use super::expression::{Attribute as _, Condition, Update, all};
use super::table::{Table, in_time};
use super::write::send;
#[cfg(feature = "lambda")]
use crate::connections::Close;
use crate::error::Error;
use crate::random;

/// The key of these requests.
const PROBE_KEY: &str = "lambda-lock-check";

pub(crate) fn probe_key(prefix: &str) -> String {
    format!("{prefix}{PROBE_KEY}")
}

impl Table {
    /// Sends a probe. Its refusal shows that the table was reached.
    pub(crate) async fn reach(&self, limit: Duration) -> Result<(), Error> {
        match in_time(limit, send(self.probe_update(), None)).await {
            Ok(_) => Ok(()),
            Err(error) => self.refused(error, PROBE_KEY).map(drop),
        }
    }

    /// Closes the idle connections of the client, if it knows them. Sends nothing.
    #[cfg(feature = "lambda")]
    pub(crate) async fn close_connections(&self) {
        let _it_is_never_sent = Box::pin(self.probe_update().customize().interceptor(Close).send()).await;
    }

    /// A condition that neither a row nor a missing row meets.
    fn never(&self) -> Condition<'static> {
        let key = || self.partition_key_path();
        all([key().exists(), key().missing()])
    }

    /// Builds an update that is refused if it is allowed.
    pub(crate) fn probe_update(&self) -> UpdateItemFluentBuilder {
        self.request(&Update::new(PROBE_KEY).when(self.never()).returning(ReturnValue::AllOld))
    }

    pub(crate) fn probe_get(&self) -> GetItemFluentBuilder {
        self.client.get_item().table_name(&self.name).set_key(Some(self.key(PROBE_KEY)))
    }

    /// Builds a transaction that is refused if its condition check is allowed.
    pub(crate) fn probe_condition_check(&self) -> Result<TransactWriteItemsFluentBuilder, Error> {
        let check = self.check(PROBE_KEY, &self.never())?;
        let item = TransactWriteItem::builder().condition_check(check).build();
        let token = random::request_token();
        Ok(self.client.transact_write_items().transact_items(item).set_client_request_token(token))
    }
}
