//! A scheduled singleton: writes a report each night, once, however often the schedule fires.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use lambda_lock::{HandlerError, LockLayer, LockedEvent, Locks};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use tower::{Layer, Service, service_fn};

use crate::fenced_rows::FencedRows;

/// The input that the schedule gives.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReportRequest {
    /// Which report to write.
    pub report: String,
    /// How long the figures take to gather, in milliseconds. They are not gathered here: this stands for it.
    #[serde(default)]
    pub gathering_ms: u64,
}

/// What became of an invocation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Outcome {
    /// This invocation wrote the report.
    Written {
        /// The report.
        report: String,
        /// The fence it was written under.
        fence: u64,
        /// How many times it has been written in all, this time included.
        times: u64,
    },
    /// Another invocation was at it.
    Skipped {
        /// By whom the lock was held, and until when.
        reason: String,
    },
}

/// Where the reports are kept: rows in the lock table, under the function's own prefix.
#[derive(Clone, Debug)]
pub struct Reports(FencedRows);

impl Reports {
    /// Reports in `table`, in rows whose `id` begins with `prefix`.
    pub fn new(client: Client, table: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self(FencedRows { client, table: table.into(), prefix: prefix.into() })
    }
}

/// The function: the handler under its lock.
#[must_use]
pub fn nightly_report(
    locks: Locks,
    reports: Reports,
) -> impl Service<
    LambdaEvent<ReportRequest>,
    Response = Outcome,
    Error = HandlerError<Error>,
    Future: Future<Output = Result<Outcome, HandlerError<Error>>> + Send,
> + Clone
+ Send {
    let reports = Arc::new(reports);
    LockLayer::new(locks)
        // Apart from the reports' own rows.
        .key_from(|event: &LambdaEvent<ReportRequest>| format!("lock#{}", event.payload.report))
        .answer_when_held(|held| Outcome::Skipped {
            reason: held.holder().map_or_else(|| held.to_string(), |holder| format!("held by {holder}")),
        })
        .layer(service_fn(move |event| write_report(Arc::clone(&reports), event)))
}

async fn write_report(reports: Arc<Reports>, event: LockedEvent<ReportRequest>) -> Result<Outcome, Error> {
    let ReportRequest { report, gathering_ms } = event.payload;
    let fence = event.lock.fence();
    tracing::info!(report, fence, "gathering");
    tokio::time::sleep(Duration::from_millis(gathering_ms)).await;
    let times = reports.0.write(&format!("report#{report}"), fence).await?;
    tracing::info!(report, fence, times, "written");
    Ok(Outcome::Written { report, fence, times })
}
