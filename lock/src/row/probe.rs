//! Requests that never change a row. They show that the table answers, and what the caller may do.

use std::time::Duration;

use aws_sdk_dynamodb::operation::get_item::builders::GetItemFluentBuilder;
use aws_sdk_dynamodb::operation::scan::builders::ScanFluentBuilder;
use aws_sdk_dynamodb::operation::transact_write_items::builders::TransactWriteItemsFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{ReturnValue, TransactWriteItem};

use super::expression::{Attribute as _, Condition, Update, all};
use super::table::{Item, Table, in_time};
use super::write::send;
#[cfg(feature = "lambda")]
use crate::connections::close;
use crate::error::Error;
use crate::random;

/// The key of these requests.
pub(crate) const PROBE_KEY: &str = "lambda-lock-check";

pub(crate) fn probe_key(prefix: &str) -> String {
    format!("{prefix}{PROBE_KEY}")
}

impl Table {
    /// Sends a probe. Its refusal shows that the table was reached.
    pub(crate) async fn reach(&self, limit: Duration) -> Result<(), Error> {
        let probe = self.refused_update(PROBE_KEY);
        match in_time(limit, send(self.request(&probe))).await {
            Ok(_) => Ok(()),
            Err(error) => self.refused(error, &probe).map(drop),
        }
    }

    /// Closes the idle connections of the client, if it knows them. Sends nothing.
    #[cfg(feature = "lambda")]
    pub(crate) async fn close_connections(&self) {
        close(&self.sender, send(self.probe_update(PROBE_KEY))).await;
    }

    /// A condition that neither a row nor a missing row meets.
    fn never(&self) -> Condition<'static> {
        let key = || self.key_path();
        all([key().exists(), key().missing()])
    }

    /// Builds an update that is always refused, so that the refusal shows the row.
    pub(super) fn refused_update<'a>(&self, key: &'a str) -> Update<'a> {
        Update::new(key).when(self.never()).returning(ReturnValue::AllOld)
    }

    /// Builds an update that is refused if it is allowed.
    pub(crate) fn probe_update(&self, key: &str) -> UpdateItemFluentBuilder {
        self.request(&self.refused_update(key))
    }

    pub(crate) fn probe_get(&self, key: &str) -> GetItemFluentBuilder {
        self.sender.get_item().table_name(&self.name).set_key(Some(self.key(key)))
    }

    /// Builds a scan of one row.
    pub(crate) fn probe_scan(&self) -> ScanFluentBuilder {
        self.sender.scan().table_name(&self.name).limit(1)
    }

    /// Returns the key of a row, without the prefix, if these locks could have it.
    pub(crate) fn key_of(&self, row: &Item) -> Option<String> {
        let text = |name: &String| row.get(name)?.as_s().ok();
        let is_ours = self.fixed_attribute().is_none_or(|(name, value)| text(name) == Some(value));
        text(self.key_attribute())?.strip_prefix(&self.key_prefix).filter(|_| is_ours).map(str::to_owned)
    }

    /// Builds a transaction that is refused if its condition check is allowed.
    pub(crate) fn probe_condition_check(&self) -> Result<TransactWriteItemsFluentBuilder, Error> {
        let check = self.check(PROBE_KEY, &self.never())?;
        let item = TransactWriteItem::builder().condition_check(check).build();
        let token = random::nonce().ok();
        Ok(self.sender.transact_write_items().transact_items(item).set_client_request_token(token))
    }
}
