//! A scheduled singleton. It writes one report each night, no matter how often the schedule fires.

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::error::ConditionalCheckFailedException;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use lambda_lock::{HandlerError, LockLayer, Locks, WithLock};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use tower::{Layer, Service, service_fn};

use crate::failure::Failure;
use crate::input::non_empty;
use crate::settings::Simulation;

/// The input from the schedule.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReportRequest {
    /// The report to write.
    #[serde(deserialize_with = "non_empty")]
    pub report: String,
    /// The time to gather the figures, in milliseconds, as a simulation.
    #[serde(default)]
    pub gathering_ms: u64,
    /// Whether the handler panics before it writes the report, as a simulation of a bug.
    #[serde(default)]
    pub panics: bool,
}

/// The outcome of an invocation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Outcome {
    /// This invocation wrote the report.
    Written {
        /// The report.
        report: String,
        /// The fence of the lock.
        fence: u64,
        /// How many times the report has been written, this time included.
        times: u64,
    },
    /// Another invocation held the lock.
    Skipped {
        /// The holder and the end of its lease.
        reason: String,
    },
}

/// The store of reports: rows of the data table, under the function's own prefix.
#[derive(Clone, Debug)]
pub struct Reports {
    client: Client,
    table: String,
    prefix: String,
}

impl Reports {
    /// Creates a store in `table`, in rows whose `id` begins with `prefix`.
    pub fn new(client: Client, table: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { client, table: table.into(), prefix: prefix.into() }
    }

    /// Writes the report and counts it. The write is refused if a holder with a larger fence has written: this
    /// invocation was then paused for longer than its lease, and another has taken over. An `event` that has written the
    /// report does not write it again.
    async fn write(&self, report: &str, fence: u64, event: &str) -> Result<u64, Failure> {
        let written = self
            .client
            .update_item()
            .table_name(&self.table)
            .key("id", AttributeValue::S(format!("{}report#{report}", self.prefix)))
            .condition_expression("attribute_not_exists(fence) OR (fence < :fence AND #event <> :event)")
            .update_expression("SET fence = :fence, #event = :event ADD times :one")
            .expression_attribute_names("#event", "event")
            .expression_attribute_values(":event", AttributeValue::S(event.to_owned()))
            .expression_attribute_values(":fence", AttributeValue::N(fence.to_string()))
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let row = match written {
            Ok(written) => written.attributes.unwrap_or_default(),
            Err(error) => match error.into_service_error() {
                // The SDK retried the write after its answer was lost, or Lambda delivered the event twice.
                UpdateItemError::ConditionalCheckFailedException(ConditionalCheckFailedException {
                    item: Some(row),
                    ..
                }) if number(&row, "fence") == Some(fence) || is_by(&row, event) => row,
                error => return Err(not_written(error)),
            },
        };
        number(&row, "times").ok_or_else(|| not_written("the report's row has no attribute `times`"))
    }
}

/// Returns the function: the handler under its lock.
#[must_use]
pub fn nightly_report(
    locks: Locks,
    reports: Reports,
    simulation: Simulation,
) -> impl Service<
    LambdaEvent<ReportRequest>,
    Response = Outcome,
    Error = HandlerError<Failure>,
    Future: Future<Output = Result<Outcome, HandlerError<Failure>>> + Send,
> + Clone
+ Send {
    let reports = Arc::new(reports);
    LockLayer::new(locks)
        .key_from(|event: &LambdaEvent<ReportRequest>| event.payload.report.clone())
        // The holder of the lock writes the report. If it has crashed, Lambda retries its event, which is not skipped.
        .on_held(|held| Outcome::Skipped {
            reason: held.holder().map_or_else(|| held.to_string(), |holder| format!("held by {holder}")),
        })
        .layer(service_fn(move |event| write_report(Arc::clone(&reports), simulation, event)))
}

fn is_by(row: &HashMap<String, AttributeValue>, event: &str) -> bool {
    row.get("event").and_then(|by| by.as_s().ok()).is_some_and(|by| by == event)
}

fn not_written(error: impl Into<Error>) -> Failure {
    Failure::new("ReportNotWritten", error)
}

fn number(row: &HashMap<String, AttributeValue>, attribute: &str) -> Option<u64> {
    row.get(attribute)?.as_n().ok()?.parse().ok()
}

async fn write_report(
    reports: Arc<Reports>,
    simulation: Simulation,
    WithLock { input: event, lock, .. }: WithLock<LambdaEvent<ReportRequest>>,
) -> Result<Outcome, Failure> {
    let ReportRequest { report, gathering_ms, panics } = event.payload;
    let fence = lock.fence();
    tracing::info!(report, fence, "gathering");
    simulation.work(gathering_ms).await;
    assert!(!simulation.fails(panics), "a bug in the report");
    let times = reports.write(&report, fence, &event.context.request_id).await?;
    tracing::info!(report, fence, times, "written");
    Ok(Outcome::Written { report, fence, times })
}
