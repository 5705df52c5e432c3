//! The deletion of old rows, for a table without TTL.

use aws_sdk_dynamodb::error::ProvideErrorMetadata as _;
use futures_util::future::join_all;

use super::expression::{Attribute as _, Condition, all, any, count, not};
use super::names::{EXPIRATION, LEASE_END};
use super::read::{is_written_by_locks, string_at};
use super::rendered::Rendered;
use super::table::{Item, Table, in_time};
use crate::client::SdkAttempts;
use crate::clock::{Moment, millis};
use crate::error::{Cause, Error, is_conflict};
use crate::limits::REQUEST_TIMEOUT;

/// How many rows are deleted at once.
const DELETIONS_AT_A_TIME: usize = 10;

impl Table {
    /// Deletes the old rows of the next page, after this row. Returns how many, and the last row before the next page, if there is
    /// a next page. One scan of up to 1 MiB, and one request for each old row.
    pub(crate) async fn delete_expired(&self, after: Option<Item>, now: Moment) -> Result<(u64, Option<Item>), Error> {
        let is_old = self.is_ours().and(is_written_by_locks()).and(self.is_expired(now));
        let (key, filter) = Rendered::of_list(&[self.key_path()], &is_old);
        // Not consistent, at half the price: the deletion of a row that has changed is refused.
        let attempts = SdkAttempts::default();
        let page = attempts.record(self.scan_page(after, key, filter, false)).await?;
        if let Some(offset) = attempts.wrong_clock(self.clock_skew) {
            return Err(Error::new(Cause::ClockSkew(offset, self.clock_skew), self.place(), ""));
        }
        let keys = page.items.unwrap_or_default().into_iter().filter_map(|mut row| {
            let id = string_at(&mut row, self.key_attribute()).ok()??;
            id.strip_prefix(&self.key_prefix).map(str::to_owned)
        });
        let keys: Vec<_> = keys.collect();
        let mut deleted = 0;
        for some in keys.chunks(DELETIONS_AT_A_TIME) {
            for answer in join_all(some.iter().map(|key| self.delete(key, &is_old))).await {
                deleted += u64::from(answer?);
            }
        }
        Ok((deleted, page.last_evaluated_key))
    }

    /// Returns the key of a row that neither this crate nor Powertools has written, if there is one. A scan of up to 1 MiB for
    /// each part of the table, until one is found.
    pub(crate) async fn row_of_others(&self) -> Result<Option<String>, Error> {
        let mut after = None;
        loop {
            let (key, filter) = Rendered::of_list(&[self.key_path()], &not(is_written_by_locks()));
            let page = self.scan_page(after, key, filter, true).await?;
            let mut keys = page.items.unwrap_or_default().into_iter();
            if let Some(key) = keys.find_map(|mut row| string_at(&mut row, self.key_attribute()).ok()?) {
                return Ok(Some(key));
            }
            after = page.last_evaluated_key;
            if after.is_none() {
                return Ok(None);
            }
        }
    }

    /// The row is old enough for TTL to delete it, by every clock. A lease that goes on keeps the row, such as a lease that was
    /// written by hand.
    fn is_expired(&self, now: Moment) -> Condition<'static> {
        let now = now.wall.saturating_sub(self.clock_skew);
        all([
            EXPIRATION.below(count("now_seconds", now.as_secs())),
            any([LEASE_END.missing(), LEASE_END.at_most(count("now", millis(now)))]),
        ])
    }

    /// Returns `false` if the row has changed meanwhile, or changes at this moment: it is in use.
    async fn delete(&self, key: &str, condition: &Condition<'_>) -> Result<bool, Error> {
        let Rendered { condition, names, values, .. } = Rendered::of(condition);
        let request = self
            .sender
            .delete_item()
            .table_name(&self.name)
            .set_key(Some(self.key(key)))
            .set_condition_expression(condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(values);
        match in_time(REQUEST_TIMEOUT, Box::pin(request.send())).await {
            Ok(_) => Ok(true),
            Err(error) => match error.code() {
                Some("ConditionalCheckFailedException") => Ok(false),
                Some(code) if is_conflict(code) => Ok(false),
                _ => Err(Error::from_sdk(error, self.place(), key)),
            },
        }
    }
}
