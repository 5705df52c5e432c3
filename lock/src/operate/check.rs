//! `Locks::check`: checks the table, the clock and the permissions.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::config::Region;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::get_item::GetItemOutput;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{TableDescription, TableStatus, TimeToLiveStatus};
use humantime::format_duration;

use super::create_table::{compare_keys, has_strong_regions};
use crate::client::SdkAttempts;
use crate::clock::{Reading, millis};
use crate::error::{Cause, Error, ErrorKind, REMEDY, is_conflict};
use crate::limits::REQUEST_TIMEOUT;
use crate::lock::Locks;
use crate::panics;
use crate::row::{EXPIRATION, PROBE_KEY, Table, in_time, probe_key};

/// The report of [`Locks::check`]: one line for each finding, with the remedy for a problem.
#[derive(Clone, Debug)]
pub struct CheckReport {
    findings: Vec<Finding>,
}

impl CheckReport {
    /// Returns `true` if locks work: no finding [failed](Verdict::Failed).
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Failed)
    }

    /// Returns the findings, in the order of the checks.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// Prints one line for each finding.
impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}{finding}")?;
        }
        Ok(())
    }
}

/// One line of a [`CheckReport`].
#[derive(Clone, Debug)]
pub struct Finding {
    subject: String,
    verdict: Verdict,
    message: String,
}

impl Finding {
    /// Returns what was checked, such as `table`, `TTL`, `clock`, `panics` or `dynamodb:UpdateItem`.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns what was found, with the remedy for a problem.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// `failed  TTL: …`
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7} {}: {}", self.verdict.to_string(), self.subject, self.message)
    }
}

/// The verdict of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// No problem.
    Passed,
    /// Locks work, but something is missing or could not be checked.
    Warning,
    /// Locks do not work, or are not safe.
    Failed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Warning => "warning",
            Self::Failed => "failed",
        })
    }
}

impl Locks {
    /// Checks everything that locks depend on: the table with its state, keys and TTL, the caller's permissions, and this
    /// host's clock, which it compares with the `Date` of DynamoDB's answers. Call it when a program starts.
    ///
    /// ```
    /// # async fn example(locks: lambda_lock::Locks) {
    /// let report = locks.check().await;
    /// println!("{report}");
    /// if !report.is_healthy() {
    ///     std::process::exit(1);
    /// }
    /// # }
    /// ```
    ///
    /// The finding `panics` warns if the calling program was built with `panic = "abort"`: a panic then ends the process and
    /// leaves its locks until their leases end. To check a function for it, call this in the function.
    ///
    /// The finding `regions` says where a lock holds in a global table. With multi-Region strong consistency, it is in all
    /// regions, and there is neither TTL nor a transaction; otherwise it is in one region.
    ///
    /// The finding `dynamodb:UpdateItem` fails at an emulator that does not return the row of a refused write, because locks
    /// read there who holds a key. Only a table with a row shows it.
    ///
    /// A problem is a finding, not an error, even if the network does not answer. Changes nothing. Sends six requests, two
    /// of them writes that are never applied, or four without TTL and transactions; and one more such write if the first row
    /// of the table has the key prefix. Each takes up to 10 s with the SDK's retries. It needs these IAM actions, and reports
    /// each one that is denied:
    ///
    /// | IAM action | needed for | if denied |
    /// | --- | --- | --- |
    /// | `dynamodb:UpdateItem` | every lock | failed |
    /// | `dynamodb:GetItem` | [`get`](Self::get), and [`list`](Self::list) for semaphores | warning |
    /// | `dynamodb:Scan` | [`list`](Self::list) | warning |
    /// | `dynamodb:ConditionCheckItem` | [`Lock::condition_check`](crate::Lock::condition_check) | warning |
    /// | `dynamodb:DescribeTable`, `dynamodb:DescribeTimeToLive` | this check | warning |
    ///
    /// The requests use the key `lambda-lock-check`, after the prefix. If a policy only allows other keys, the check reports a
    /// denial.
    pub async fn check(&self) -> CheckReport {
        let mut check = Check::new(self);
        if !self.0.enabled {
            check.found("locking", Verdict::Warning, "disabled: work runs without locks");
        }
        check.panics(panics::WARNING);
        if Box::pin(check.table()).await {
            Box::pin(check.time_to_live()).await;
            Box::pin(check.permissions()).await;
        }
        check.clock();
        CheckReport { findings: check.findings }
    }
}

/// A check in progress.
struct Check<'a> {
    locks: &'a Locks,
    findings: Vec<Finding>,
    /// The last answer that had the time at DynamoDB.
    reading: Option<Reading>,
    /// The table has multi-Region strong consistency: by its description, or by the setting without one.
    has_strong_regions: bool,
}

/// The setting that the check names, and its variable.
const SETTING: &str = "LocksBuilder::multi_region_strong_consistency (LOCK_MULTI_REGION_STRONG_CONSISTENCY)";

impl<'a> Check<'a> {
    fn new(locks: &'a Locks) -> Self {
        let has_strong_regions = locks.0.table.has_strong_regions;
        Self { locks, findings: Vec::new(), reading: None, has_strong_regions }
    }

    fn found(&mut self, subject: &str, verdict: Verdict, message: impl Into<String>) {
        self.findings.push(Finding { subject: subject.to_owned(), verdict, message: message.into() });
    }

    fn panics(&mut self, warning: Option<&str>) {
        if let Some(warning) = warning {
            self.found("panics", Verdict::Warning, warning);
        }
    }

    /// Sends a request. The refusal of a request that is never applied is a result too.
    async fn ask<T, E>(&mut self, request: impl Future<Output = Result<T, SdkError<E>>>) -> Result<Option<T>, Error>
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let attempts = SdkAttempts::default();
        let answer = in_time(REQUEST_TIMEOUT, Box::pin(attempts.record(request))).await;
        self.reading = attempts.reading().or(self.reading);
        let error = match answer {
            Ok(output) => return Ok(Some(output)),
            Err(error) => error,
        };
        let code = error.code().unwrap_or_default();
        if is_conflict(code) || matches!(code, "ConditionalCheckFailedException" | "TransactionCanceledException") {
            return Ok(None);
        }
        Err(Error::from_sdk(error, self.locks.0.table.place(), ""))
    }

    /// Returns `true` if there is a table to check further.
    async fn table(&mut self) -> bool {
        let Table { sender, name, .. } = &self.locks.0.table;
        let region = sender.config().region().map_or("no region", Region::as_ref).to_owned();
        let description = match self.ask(sender.describe_table().table_name(name).send()).await {
            Ok(output) => output.and_then(|output| output.table).unwrap_or_else(|| TableDescription::builder().build()),
            Err(error) if error.is_denied() => {
                let without = "its state and its keys were not checked";
                self.denied("table", Verdict::Warning, "dynamodb:DescribeTable", without, &error);
                return true;
            }
            // DescribeTable has low limits of its own.
            Err(error) if error.kind() == ErrorKind::Throttled => {
                self.found("table", Verdict::Warning, described(&error));
                return true;
            }
            Err(error) => {
                let subject = if error.kind() == ErrorKind::AccessDenied { "credentials" } else { "table" };
                self.found(subject, Verdict::Failed, format!("{}, region {region}", described(&error)));
                return false;
            }
        };
        let (verdict, message) = match &description.table_status {
            Some(TableStatus::Active | TableStatus::Updating) => (Verdict::Passed, "active".to_owned()),
            Some(TableStatus::Creating) => (Verdict::Failed, "being created: wait until it is active".to_owned()),
            status => {
                let status = status.as_ref().map_or("in no state", TableStatus::as_str);
                (Verdict::Failed, format!("{status}: make it active again, or use another table"))
            }
        };
        self.found("table", verdict, format!("`{name}` in {region} is {message}"));
        self.keys(&description);
        self.regions(&description);
        true
    }

    /// Says where a lock holds, if that is not only the region of the table.
    fn regions(&mut self, description: &TableDescription) {
        let is_set = self.has_strong_regions;
        self.has_strong_regions = has_strong_regions(description);
        let (verdict, message) = match (self.has_strong_regions, is_set) {
            (true, _) => {
                let replicas = description.replicas().iter().filter_map(|replica| replica.region_name());
                let witnesses = description.global_table_witnesses().iter().filter_map(|witness| witness.region_name());
                let regions = replicas.map(str::to_owned).chain(witnesses.map(|name| format!("{name} (witness)")));
                let remedy = if is_set {
                    String::new()
                } else {
                    format!(": set {SETTING}, so that they fail before anything is sent")
                };
                let message = format!(
                    "multi-Region strong consistency with {}: a lock holds in all regions; several keys, condition checks and \
                     `complete_in` fail, because the table has no transactions{remedy}",
                    regions.collect::<Vec<_>>().join(", ")
                );
                (Verdict::Passed, message)
            }
            (false, true) => {
                let message = format!(
                    "the table does not have multi-Region strong consistency, so a lock does not hold in other regions: use a \
                     table that has it, or the locks in one region only without {SETTING}"
                );
                (Verdict::Failed, message)
            }
            (false, false) if description.replicas().is_empty() => return,
            (false, false) => {
                let message =
                    "the table has replicas in other regions, which see a lock late: use the locks in one region only";
                (Verdict::Warning, message.to_owned())
            }
        };
        self.found("regions", verdict, message);
    }

    fn keys(&mut self, description: &TableDescription) {
        match compare_keys(&self.locks.0.table, description) {
            Ok(keys) => self.found("keys", Verdict::Passed, keys),
            Err(why) => self.found("keys", Verdict::Failed, why),
        }
    }

    /// Locks work without TTL, but old rows stay in the table.
    async fn time_to_live(&mut self) {
        if self.has_strong_regions {
            let message = "none in a table with multi-Region strong consistency, so old rows stay until Locks::delete_expired \
                           (lambda-lock delete-expired) deletes them";
            return self.found("TTL", Verdict::Passed, message);
        }
        let Table { sender, name, .. } = &self.locks.0.table;
        let description = match self.ask(sender.describe_time_to_live().table_name(name).send()).await {
            Ok(output) => output.and_then(|output| output.time_to_live_description),
            Err(error) if error.is_denied() => {
                let without = "TTL was not checked";
                return self.denied("TTL", Verdict::Warning, "dynamodb:DescribeTimeToLive", without, &error);
            }
            Err(error) => return self.found("TTL", Verdict::Warning, described(&error)),
        };
        let attribute = description.and_then(|ttl| match ttl.time_to_live_status {
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling) => ttl.attribute_name,
            _ => None,
        });
        match attribute {
            Some(attribute) if attribute == EXPIRATION => {
                self.found("TTL", Verdict::Passed, format!("on for attribute `{attribute}`"));
            }
            Some(attribute) => {
                let message = format!(
                    "on for attribute `{attribute}`, not `{EXPIRATION}`, so old rows are never deleted: turn it off there, and \
                     on for `{EXPIRATION}`"
                );
                self.found("TTL", Verdict::Warning, message);
            }
            None => {
                let message = format!(
                    "off, so old rows are never deleted: turn it on for attribute `{EXPIRATION}`, unless other programs have rows \
                     in this table (Locks::create_table, lambda-lock create-table, looks for them first)"
                );
                self.found("TTL", Verdict::Warning, message);
            }
        }
    }

    async fn permissions(&mut self) {
        let table = &self.locks.0.table;
        let update = self.ask(table.probe_update(PROBE_KEY).send()).await.map(drop);
        let get = self.ask(table.probe_get(PROBE_KEY).send()).await.map(drop);
        let scan = self.ask(table.probe_scan().send()).await;
        let rows = scan.as_ref().ok().and_then(|page| page.as_ref()?.items.as_deref()).unwrap_or_default();
        let some_key = rows.iter().find_map(|row| table.key_of(row)).filter(|_| update.is_ok());
        if let Some(key) = some_key
            && self.hides_row(&key).await
        {
            let error = Error::new(Cause::RowNotReturned, table.place(), "");
            self.found("dynamodb:UpdateItem", Verdict::Failed, error.to_string());
        } else {
            self.permission("dynamodb:UpdateItem", Verdict::Failed, "nothing can be locked", update);
        }
        self.permission("dynamodb:GetItem", Verdict::Warning, "a holder cannot be read", get);
        self.permission("dynamodb:Scan", Verdict::Warning, "locks cannot be listed", scan.map(drop));
        if !self.has_strong_regions
            && let Ok(probe) = table.probe_condition_check()
        {
            let answer = self.ask(probe.send()).await.map(drop);
            let without = "`condition_check` fails";
            self.permission("dynamodb:ConditionCheckItem", Verdict::Warning, without, answer);
        }
    }

    /// Returns `true` if the refusal of an update of this row does not have the row.
    async fn hides_row(&mut self, key: &str) -> bool {
        let table = &self.locks.0.table;
        let mut has_row = true;
        let probe = async {
            let answer = table.probe_update(key).send().await;
            if let Err(SdkError::ServiceError(error)) = &answer
                && let UpdateItemError::ConditionalCheckFailedException(refused) = error.err()
            {
                has_row = refused.item.is_some();
            }
            answer
        };
        let _allowed_or_denied = self.ask(probe).await.map(drop);
        // It may have been deleted since the scan.
        let is_there = async || table.probe_get(key).consistent_read(true).send().await;
        !has_row && matches!(self.ask(is_there()).await, Ok(Some(GetItemOutput { item: Some(_), .. })))
    }

    fn permission(&mut self, action: &str, verdict: Verdict, without: &str, answer: Result<(), Error>) {
        match answer {
            Ok(()) => self.found(action, Verdict::Passed, "allowed"),
            Err(error) if error.is_denied() => self.denied(action, verdict, action, without, &error),
            Err(error) if error.kind() == ErrorKind::Throttled => {
                self.found(action, Verdict::Warning, described(&error));
            }
            Err(error) => self.found(action, verdict, described(&error)),
        }
    }

    fn denied(&mut self, subject: &str, verdict: Verdict, action: &str, without: &str, error: &Error) {
        let Table { name, key_prefix, .. } = &self.locks.0.table;
        let keys = if action.ends_with("Item") {
            format!(" (a policy that restricts keys must also allow `{}`)", probe_key(key_prefix))
        } else {
            String::new()
        };
        let cause = error.source_message().unwrap_or_default();
        let message = format!("{without}: allow {action} on table `{name}`{keys} ({cause})");
        self.found(subject, verdict, message);
    }

    fn clock(&mut self) {
        let Some(reading) = self.reading else {
            return self.found("clock", Verdict::Warning, "not checked: no answer had a date");
        };
        let (offset, skew) = (reading.offset(), self.locks.0.table.clock_skew);
        let [at_least, at_most, allowed] =
            [offset.by, reading.most(), skew].map(|time| format_duration(Duration::from_millis(millis(time))));
        if offset.by > skew {
            let message =
                format!("{offset}, more than the clock skew of {allowed}, so nothing is locked here: {REMEDY}");
            self.found("clock", Verdict::Failed, message);
        } else if offset.by > skew / 2 {
            let message = format!(
                "{offset}, more than half of the clock skew of {allowed}: another host can be as far off in the other \
                 direction: {REMEDY}"
            );
            self.found("clock", Verdict::Warning, message);
        } else {
            let message = format!(
                "differs from DynamoDB's, which tells whole seconds, by {at_least} to {at_most}; the clock skew is {allowed}"
            );
            self.found("clock", Verdict::Passed, message);
        }
    }
}

/// Describes an error with its remedy, and adds a remedy for errors that usually pass.
fn described(error: &Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::Throttled => ": check again in a minute",
        ErrorKind::Unavailable => ": check the endpoint, and the network to it",
        _ => "",
    };
    // With the message of DynamoDB.
    format!("{error:?}{remedy}")
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::config::{BehaviorVersion, Config};

    use super::*;

    #[test]
    fn a_build_whose_panics_abort_gets_a_warning() {
        let client = Client::from_conf(Config::builder().behavior_version(BehaviorVersion::latest()).build());
        let locks = Locks::builder(client, "locks").build().unwrap();
        let mut check = Check::new(&locks);
        check.panics(None);
        assert!(check.findings.is_empty());
        check.panics(Some("a panic ends this process"));
        assert_eq!(check.findings[0].to_string(), "warning panics: a panic ends this process");
    }
}
