//! The table, and how a request to it is built and sent.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::scan::builders::ScanFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::{UpdateItemError, UpdateItemOutput};
use aws_sdk_dynamodb::types::builders::ConditionCheckBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValuesOnConditionCheckFailure as OnRefusal};
use futures_util::future::BoxFuture;
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};

use super::names::DATA;
use crate::client::SdkAttempts;
use crate::error::{Cause, Error, is_prevented};
use crate::holder::Data;
use crate::limits::REQUEST_TIMEOUT;
use crate::random;

/// The longest delay before a request of a holder that was prevented is sent again. It doubles each time.
const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_millis(500);

pub(super) type Item = HashMap<String, AttributeValue>;

/// Where the rows are.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) partition_key: String,
    /// The name and the fixed value of the sort key, if the table has one.
    pub(crate) sort_key: Option<(String, String)>,
    pub(crate) key_prefix: String,
}

/// Omits the client, which prints its whole configuration.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client: _, name, partition_key, sort_key, key_prefix } = self;
        f.debug_struct("Table")
            .field("name", name)
            .field("partition_key", partition_key)
            .field("sort_key", sort_key)
            .field("key_prefix", key_prefix)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// Starts an update of the row of `key`. A refusal returns the row.
    pub(super) fn update(&self, key: &str) -> UpdateItemFluentBuilder {
        self.client
            .update_item()
            .table_name(&self.name)
            .set_key(Some(self.key(key)))
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
    }

    pub(super) fn key(&self, key: &str) -> Item {
        let mut item = Item::from([(self.partition_key.clone(), string(&format!("{}{key}", self.key_prefix)))]);
        if let Some((name, value)) = &self.sort_key {
            item.insert(name.clone(), string(value));
        }
        item
    }

    /// Draws a nonce: 128 bits in hexadecimal.
    pub(crate) fn nonce(&self, key: &str) -> Result<String, Error> {
        random::nonce().map_err(|error| Error::new(Cause::Unavailable, &self.name, key).with_source(error))
    }

    pub(super) fn malformed(&self, key: &str, why: impl Into<String>) -> Error {
        Error::new(Cause::MalformedRow(why.into()), &self.name, key)
    }
}

/// Adds several names or values to an expression at once.
pub(super) trait Expression: Sized {
    fn name(self, placeholder: &str, attribute: &str) -> Self;
    fn value(self, placeholder: &str, value: AttributeValue) -> Self;

    fn names<const N: usize>(self, names: [(&str, &str); N]) -> Self {
        names.into_iter().fold(self, |request, (placeholder, name)| request.name(placeholder, name))
    }

    fn values<const N: usize>(self, values: [(&str, AttributeValue); N]) -> Self {
        values.into_iter().fold(self, |request, (placeholder, value)| request.value(placeholder, value))
    }
}

macro_rules! expression {
    ($($builder:ty)*) => {
        $(impl Expression for $builder {
            fn name(self, placeholder: &str, attribute: &str) -> Self {
                self.expression_attribute_names(placeholder, attribute)
            }

            fn value(self, placeholder: &str, value: AttributeValue) -> Self {
                self.expression_attribute_values(placeholder, value)
            }
        })*
    };
}

expression! { UpdateItemFluentBuilder ConditionCheckBuilder ScanFluentBuilder }

/// Sets the update expression, and the data if there is any.
pub(super) fn with_data(request: UpdateItemFluentBuilder, set: &str, data: Option<&Data>) -> UpdateItemFluentBuilder {
    match data {
        Some(Data(data)) => {
            request.update_expression(format!("{set}, #data = :data")).name("#data", DATA).value(":data", data.clone())
        }
        None => request.update_expression(set),
    }
}

pub(super) fn string(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(super) fn number(value: impl Into<u128>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

/// A time of a hold, in milliseconds with a fraction.
pub(super) fn hold_number(duration: Duration) -> AttributeValue {
    AttributeValue::N(format!("{:.3}", duration.as_secs_f64() * 1000.0))
}

/// Limits the time of a request. Without a limit, the SDK can wait forever for an answer on a dead connection. The
/// future of an SDK request is large, so the caller boxes it.
#[expect(clippy::result_large_err, reason = "this is the SDK's error")]
pub(crate) fn in_time<T, E>(
    limit: Duration,
    request: impl Future<Output = Result<T, SdkError<E>>> + Unpin,
) -> impl Future<Output = Result<T, SdkError<E>>> {
    let answer = timeout(limit, request);
    async { answer.await.unwrap_or_else(|elapsed| Err(SdkError::timeout_error(elapsed))) }
}

type Sent = BoxFuture<'static, Result<UpdateItemOutput, SdkError<UpdateItemError>>>;

/// Sends an update. The type of the future is hidden: otherwise every crate that polls one of our futures compiles the
/// SDK's request loop again, 150 KB of machine code.
pub(super) fn send(request: UpdateItemFluentBuilder) -> Sent {
    Box::pin(request.send())
}

/// Sends an update of the holder, and [repeats](repeat) it. Each of these updates recognises that it was applied before.
pub(super) fn insist(update: UpdateItemFluentBuilder) -> Sent {
    insist_by(move || send(update.clone()))
}

/// Sends an update as [`insist`] does, and records which of the SDK's attempts were answered.
pub(super) fn insist_counted(update: UpdateItemFluentBuilder, attempts: SdkAttempts) -> Sent {
    insist_by(move || send_counted(update.clone(), attempts.clone()))
}

fn insist_by(send: impl Fn() -> Sent + Send + Sync + 'static) -> Sent {
    Box::pin(async move {
        let is_prevented = |answer: &Result<_, _>| answer.as_ref().is_err_and(is_prevented);
        match repeat(send, is_prevented).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(SdkError::timeout_error(elapsed)),
        }
    })
}

/// Sends a request of the holder. Repeats it while DynamoDB throttles it or another transaction on the row prevents it, for
/// up to [`REQUEST_TIMEOUT`] in all. Returns the last answer.
///
/// This is the one rule for all holders. The SDK itself repeats neither a conflict nor a transaction that was cancelled
/// because of throttling.
pub(super) async fn repeat<A, F: Future<Output = A>>(
    send: impl Fn() -> F,
    is_prevented: impl Fn(&A) -> bool,
) -> Result<A, Elapsed> {
    let mut last = None;
    let answered = async {
        let mut delay = FIRST_DELAY;
        loop {
            let answer = send().await;
            if !is_prevented(&answer) {
                return answer;
            }
            last = Some(answer);
            sleep(delay.mul_f64(random::unit())).await;
            delay = (delay * 2).min(LONGEST_DELAY);
        }
    };
    let answer = timeout(REQUEST_TIMEOUT, Box::pin(answered)).await;
    answer.or_else(|elapsed| last.ok_or(elapsed))
}

/// Sends an update and records which of the SDK's attempts were answered.
pub(super) fn send_counted(request: UpdateItemFluentBuilder, attempts: SdkAttempts) -> Sent {
    Box::pin(request.customize().interceptor(attempts).send())
}
