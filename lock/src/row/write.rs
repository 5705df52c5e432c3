//! Sending updates once: one, or several that are applied together.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata as _, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::{UpdateItemError, UpdateItemOutput};
use aws_sdk_dynamodb::types::{
    self, CancellationReason, ConditionCheck, ReturnValuesOnConditionCheckFailure as OnRefusal, TransactWriteItem,
};
use futures_util::future::BoxFuture;

use super::expression::{Condition, Update};
use super::read::NOT_UNICODE;
use super::rendered::Rendered;
use super::table::{Item, Table};
use crate::clock::Moment;
use crate::error::{Cause, Error, ONE_KEY_INSTEAD, cause_of_invalid};
use crate::holder::Holder;
use crate::text::printable;

#[cfg(feature = "model")]
#[path = "../../../tests/model/lock/exchange.rs"]
pub(crate) mod exchange;

/// Updates that are applied together or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Write<'a> {
    updates: Vec<Update<'a>>,
    /// Sends the updates as a transaction. Without this function, there is one update.
    transact: Option<Transact>,
}

/// The operations that need a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transactional {
    SeveralKeys,
    ConditionCheck,
    Completion,
}

impl Transactional {
    /// Allows the transaction, unless the table has none. This is the one rule for transactions: all their parts, also in the
    /// caller's own transactions, are built in this file and ask here.
    fn allowed_in(self, table: &Table, key: &str) -> Result<(), Error> {
        if !table.has_strong_regions {
            return Ok(());
        }
        let (needs, instead) = match self {
            Self::SeveralKeys => ("several keys need", ONE_KEY_INSTEAD),
            Self::ConditionCheck => ("a condition check needs", "let the write itself compare the fence of the lock"),
            Self::Completion => (
                "`complete_in` needs",
                "return the result, which the run then stores, and make the work safe to repeat",
            ),
        };
        let (key, name) = (table.place().printable_key(key), printable(&table.name));
        Err(Error::invalid(format!(
            "key `{key}` in table `{name}`: {needs} a transaction, which a table with multi-Region strong consistency does \
             not have: {instead}, or use a table in one region"
        )))
    }
}

/// Sends a `TransactWriteItems`, which costs twice as much as an `UpdateItem` and returns no row. Only the kinds of locks that
/// need a transaction name the function, so that a program without them does not link the SDK's transactions, 200 KB of machine
/// code.
pub(super) type Transact = for<'w> fn(&'w Table, &'w Write<'w>) -> BoxFuture<'w, Result<Answer, Error>>;

/// The answer of DynamoDB to a write.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Applied, with the row if the update returns it.
    Applied(Item),
    Refused(Refused),
}

impl Answer {
    /// Returns the row that the update returns, if it was applied.
    pub(crate) fn into_applied(self) -> Option<Item> {
        match self {
            Self::Applied(item) => Some(item),
            Self::Refused(_) => None,
        }
    }
}

/// The refusal of a write, of which nothing was applied.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// The keys whose condition failed, with their rows.
    rows: Vec<(String, Result<Option<Item>, Error>)>,
    /// The keys whose condition was met.
    pub(super) willing: Vec<String>,
    /// Why nothing is known about the other keys, such as a conflict with another transaction.
    pub(super) prevented: Option<Error>,
}

impl Refused {
    /// Returns the keys whose condition failed, with their rows.
    pub(super) fn into_each(
        self,
        table: &Table,
        now: Moment,
    ) -> impl Iterator<Item = (String, Result<Option<Holder>, Error>)> {
        self.rows.into_iter().map(move |(key, row)| {
            let read = |item| Holder::read(item, now).map_err(|why| table.malformed(&key, why));
            let row = row.and_then(|item| item.map(read).transpose());
            (key, row)
        })
    }

    /// Returns the rows, or the error of a row that cannot be read.
    pub(super) fn into_rows(self, table: &Table, now: Moment) -> Result<Vec<(String, Option<Holder>)>, Error> {
        self.into_each(table, now).map(|(key, row)| Ok((key, row?))).collect()
    }

    /// Returns a key that has no row.
    pub(super) fn without_row(&self) -> Option<&str> {
        self.rows.iter().find(|(_, row)| matches!(row, Ok(None))).map(|(key, _)| key.as_str())
    }

    /// Returns the row of the only key.
    pub(super) fn into_row(self, table: &Table, now: Moment) -> Result<Option<Holder>, Error> {
        Ok(self.into_rows(table, now)?.into_iter().next().and_then(|(_, row)| row))
    }
}

impl<'a> Write<'a> {
    pub(super) fn new(updates: Vec<Update<'a>>, transact: Option<Transact>) -> Self {
        Self { updates, transact }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.updates.iter().map(|update| update.key)
    }

    /// Returns the error of all keys.
    pub(super) fn error(&self, cause: Cause, table: &Table) -> Error {
        let mut keys = self.keys();
        Error::new(cause, table.place(), keys.next().unwrap_or_default()).with_others(keys)
    }
}

impl<'a> From<Update<'a>> for Write<'a> {
    fn from(update: Update<'a>) -> Self {
        Self::new(vec![update], None)
    }
}

impl Table {
    /// Returns the row that has refused this update. Only this function finds an endpoint that does not return the rows of
    /// refusals.
    fn row_of(&self, update: &Update<'_>, item: Option<Item>) -> Result<Option<Item>, Error> {
        match item {
            None if update.is_refused_by_rows_only() => {
                Err(Error::new(Cause::RowNotReturned, self.place(), update.key))
            }
            item => Ok(item),
        }
    }

    /// Sends one write, without a limit of its time.
    pub(crate) async fn write_once(&self, write: &Write<'_>) -> Result<Answer, Error> {
        match (write.transact, write.updates.first()) {
            (Some(transact), _) => transact(self, write).await,
            (None, None) => Ok(Answer::Applied(Item::new())),
            (None, Some(update)) => {
                let send = || send(self.request(update));
                let answer = match send().await {
                    // DynamoDB applied the update, and the SDK cannot read the row in the answer. The same request, sent again,
                    // finds its own row.
                    Err(error) if error.raw_response().is_some_and(|answer| answer.status().is_success()) => {
                        send().await
                    }
                    answer => answer,
                };
                match answer {
                    Ok(output) => Ok(Answer::Applied(output.attributes.unwrap_or_default())),
                    Err(error) => self.refused(error, update).map(Answer::Refused),
                }
            }
        }
    }

    /// Builds the request of an update. A refusal returns the row.
    pub(super) fn request(&self, update: &Update<'_>) -> UpdateItemFluentBuilder {
        let (key, returns) = (self.key(update.key), update.returns.clone());
        let Rendered { update, condition, names, values } = Rendered::of_update(update);
        self.sender
            .update_item()
            .table_name(&self.name)
            .set_key(Some(key))
            .set_update_expression(update)
            .set_condition_expression(condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(values)
            .set_return_values(returns)
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
    }

    /// Builds an update as a part of a transaction.
    pub(super) fn part(&self, of: Transactional, update: &Update<'_>) -> Result<types::Update, Error> {
        let key = update.key;
        of.allowed_in(self, key)?;
        let Rendered { update, condition, names, values } = Rendered::of_update(update);
        types::Update::builder()
            .table_name(&self.name)
            .set_key(Some(self.key(key)))
            .set_update_expression(update)
            .set_condition_expression(condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(values)
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
            .build()
            .map_err(|error| Error::new(Cause::Rejected, self.place(), key).with_source(error))
    }

    /// Builds a check as a part of a transaction.
    pub(super) fn check(&self, key: &str, condition: &Condition<'_>) -> Result<ConditionCheck, Error> {
        Transactional::ConditionCheck.allowed_in(self, key)?;
        let Rendered { condition, names, values, .. } = Rendered::of(condition);
        ConditionCheck::builder()
            .table_name(&self.name)
            .set_key(Some(self.key(key)))
            .set_condition_expression(condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(values)
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
            .build()
            .map_err(|error| Error::new(Cause::Rejected, self.place(), key).with_source(error))
    }

    /// Returns the refusal, or the error if the request failed for another reason.
    pub(super) fn refused(&self, error: SdkError<UpdateItemError>, update: &Update<'_>) -> Result<Refused, Error> {
        let key = update.key;
        let row = match error {
            SdkError::ServiceError(context) if context.err().is_conditional_check_failed_exception() => {
                match context.into_err() {
                    UpdateItemError::ConditionalCheckFailedException(refused) => self.row_of(update, refused.item),
                    _ => Ok(None),
                }
            }
            error if is_unreadable(&error) => Err(self.malformed(key, NOT_UNICODE).with_source(error)),
            error => return Err(Error::from_sdk(error, self.place(), key)),
        };
        Ok(Refused { rows: vec![(key.to_owned(), row)], ..Refused::default() })
    }

    /// Sends a transaction. DynamoDB recognises a repetition by the SDK or the network by its token, for ten minutes.
    pub(super) fn transact<'w>(&'w self, write: &'w Write<'w>) -> BoxFuture<'w, Result<Answer, Error>> {
        Box::pin(async move {
            let part = |update: &Update<'_>| {
                let part = self.part(Transactional::SeveralKeys, update)?;
                Ok(TransactWriteItem::builder().update(part).build())
            };
            let parts = write.updates.iter().map(part).collect::<Result<_, Error>>()?;
            // A cancelled transaction was not applied, so the next transaction needs another token. The SDK's own token comes
            // from a generator that a snapshot of this process clones.
            let token = self.nonce(write.keys().next().unwrap_or_default())?;
            let request =
                self.sender.transact_write_items().set_transact_items(Some(parts)).client_request_token(token);
            match request.send().await {
                Ok(_) => Ok(Answer::Applied(Item::new())),
                Err(error) => self.cancelled(write, error).map(Answer::Refused),
            }
        })
    }

    /// Reads why a transaction was cancelled. DynamoDB gives one reason for each key, in their order.
    fn cancelled(&self, write: &Write<'_>, error: SdkError<TransactWriteItemsError>) -> Result<Refused, Error> {
        let reasons = match &error {
            SdkError::ServiceError(context) => match context.err() {
                TransactWriteItemsError::TransactionCanceledException(why) => why.cancellation_reasons().to_vec(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let of_all = |error| {
            let mut keys = write.keys();
            Error::from_sdk(error, self.place(), keys.next().unwrap_or_default()).with_others(keys)
        };
        if reasons.is_empty() {
            let is_invalid = error.code() == Some("ValidationException");
            let error = of_all(error);
            return Err(if is_invalid { error.into_rejected_transaction() } else { error });
        }
        let (mut refused, mut preventing) = (Refused::default(), Vec::new());
        for (update, CancellationReason { item, code, message, .. }) in write.updates.iter().zip(reasons) {
            let key = update.key;
            match code.as_deref() {
                None | Some("None") => refused.willing.push(key.to_owned()),
                Some("ConditionalCheckFailed") => refused.rows.push((key.to_owned(), self.row_of(update, item))),
                Some("TransactionConflict") => preventing.push((key, Cause::Conflict)),
                Some("ThrottlingError" | "ProvisionedThroughputExceeded") => preventing.push((key, Cause::Throttled)),
                Some(_) => preventing.insert(0, (key, cause_of_invalid(message.as_deref(), self.place()))),
            }
        }
        let mut preventing = preventing.into_iter();
        refused.prevented = match preventing.next() {
            Some((key, cause)) => {
                let error = Error::from_sdk(error, self.place(), key).with_cause(cause);
                Some(error.with_others(preventing.map(|(key, _)| key)))
            }
            // DynamoDB has named no reason, and applied nothing.
            None if refused.rows.is_empty() => Some(of_all(error).with_cause(Cause::Conflict)),
            None => None,
        };
        Ok(refused)
    }
}

/// Returns `true` if this is a refusal by a row that the SDK cannot read. The error then has no code.
fn is_unreadable(error: &SdkError<UpdateItemError>) -> bool {
    const CODE: &[u8] = b"ConditionalCheckFailedException";
    let SdkError::ServiceError(context) = error else { return false };
    let answer = context.raw().body().bytes().unwrap_or_default();
    context.err().code().is_none() && answer.windows(CODE.len()).any(|text| text == CODE)
}

type Sent = BoxFuture<'static, Result<UpdateItemOutput, SdkError<UpdateItemError>>>;

/// Sends an update. The box hides the type of the future: otherwise each crate that polls the request compiles the SDK's request
/// loop again, 150 KB of machine code.
pub(super) fn send(request: UpdateItemFluentBuilder) -> Sent {
    Box::pin(request.send())
}
