//! `Locks::check`: whether the table, the clock and the permissions are as the locks need them.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use aws_sdk_dynamodb::config::Region;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{KeyType, MultiRegionConsistency, TableDescription, TableStatus, TimeToLiveStatus};
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use humantime::format_duration;

use crate::clock::millis;
use crate::error::Error;
use crate::locks::Locks;
use crate::panics;
use crate::protocol::{self, EXPIRATION, REQUEST_TIMEOUT, Table, in_time};

/// What [`Locks::check`] found: a line for each finding, the way out with those that are not well.
#[derive(Clone, Debug)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Whether locks work: nothing [failed](Verdict::Failed).
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Failed)
    }

    /// Each finding, in the order in which they were looked at.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// A line for each finding.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}{finding}")?;
        }
        Ok(())
    }
}

/// One line of a [`Report`].
#[derive(Clone, Debug)]
pub struct Finding {
    subject: String,
    verdict: Verdict,
    message: String,
}

impl Finding {
    /// What was looked at, such as `table`, `TTL`, `clock`, `panics` or `dynamodb:UpdateItem`.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// How it is.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What was found, and the way out where it is not well.
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

/// How a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// As it shall be.
    Passed,
    /// Locks work, but something is missing, or could not be looked at.
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
    /// Looks at everything that locks depend on: the table and its state, its keys, its TTL, what the caller is allowed to
    /// do, and this host's clock, by the `Date` of DynamoDB's answers. For the start of a program, or a person.
    ///
    /// If the program was built with `panic = "abort"`, a panic ends it and leaves its locks until their leases end: the
    /// finding `panics` then warns of it. It is about the program that calls this: a function that is to be checked for
    /// it calls this itself.
    ///
    /// What is wrong is a finding, not an error; so is a network that does not answer. It writes nothing: six requests, with
    /// the SDK's tries of each up to 10 s, two of them writes that cannot be applied. IAM actions, each of which is reported if it is denied:
    /// `dynamodb:DescribeTable` and `dynamodb:DescribeTimeToLive` for the check alone, `dynamodb:UpdateItem` for every
    /// lock, `dynamodb:GetItem` for [`get`](Self::get), `dynamodb:Scan` for [`list`](Self::list) and
    /// `dynamodb:ConditionCheckItem` for [`Lock::condition_check`](crate::Lock::condition_check). A function needs the third
    /// alone, so a denial of the others is but a warning. They are asked for with the key `lambda-lock-check`, after the
    /// prefix: a policy that allows other keys alone is reported as a denial.
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
    pub async fn check(&self) -> Report {
        let mut check = Check { locks: self, findings: Vec::new(), heard: None };
        if !self.0.enabled {
            check.found("locking", Verdict::Warning, "switched off: work runs without locks");
        }
        check.panics(panics::WARNING);
        if Box::pin(check.table()).await {
            Box::pin(check.time_to_live()).await;
            Box::pin(check.permissions()).await;
        }
        check.clock();
        Report { findings: check.findings }
    }
}

/// A check that is under way.
struct Check<'a> {
    locks: &'a Locks,
    findings: Vec<Finding>,
    /// The last answer that said what time it is at DynamoDB.
    heard: Option<Heard>,
}

/// All since the Unix epoch, the first two by this host's clock.
struct Heard {
    sent: Duration,
    received: Duration,
    /// In whole seconds.
    date: Duration,
}

/// Why a request had no result.
struct Failure {
    error: Error,
    /// Denied to these credentials, rather than to any that are like them.
    is_denied: bool,
}

impl Check<'_> {
    fn found(&mut self, subject: &str, verdict: Verdict, message: impl Into<String>) {
        self.findings.push(Finding { subject: subject.to_owned(), verdict, message: message.into() });
    }

    /// Of this program, and so of a function that checks itself.
    fn panics(&mut self, warning: Option<&str>) {
        if let Some(warning) = warning {
            self.found("panics", Verdict::Warning, warning);
        }
    }

    /// Sends a request. The refusal of one that cannot be applied is a result too.
    async fn ask<T, E>(&mut self, request: impl Future<Output = Result<T, SdkError<E>>>) -> Result<Option<T>, Failure>
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let settings = &self.locks.0;
        let sent = settings.clock.now().wall;
        let answer = in_time(REQUEST_TIMEOUT, Box::pin(request)).await;
        let received = settings.clock.now().wall;
        let error = match answer {
            Ok(output) => return Ok(Some(output)),
            Err(error) => error,
        };
        let date = error.raw_response().and_then(|response| response.headers().get("date"));
        let date = date.and_then(|text| DateTime::from_str(text, Format::HttpDate).ok());
        if let Some(date) = date.and_then(|date| u64::try_from(date.secs()).ok()) {
            self.heard = Some(Heard { sent, received, date: Duration::from_secs(date) });
        }
        let code = error.code().unwrap_or_default();
        if matches!(
            code,
            "ConditionalCheckFailedException" | "TransactionCanceledException" | "TransactionConflictException"
        ) {
            return Ok(None);
        }
        let is_denied = code == "AccessDeniedException";
        Err(Failure { error: Error::from_sdk(error, &settings.table.name, ""), is_denied })
    }

    /// Whether there is a table to look at further.
    async fn table(&mut self) -> bool {
        let Table { client, name, .. } = &self.locks.0.table;
        let region = client.config().region().map_or("no region", Region::as_ref).to_owned();
        let description = match self.ask(client.describe_table().table_name(name).send()).await {
            Ok(output) => output.and_then(|output| output.table).unwrap_or_else(|| TableDescription::builder().build()),
            Err(failure) if failure.is_denied => {
                let without = "its state and its keys could not be looked at";
                self.denied("table", Verdict::Warning, "dynamodb:DescribeTable", without, &failure);
                return true;
            }
            // That of descriptions has limits of its own, which are low.
            Err(failure) if failure.error.is_throttled() => {
                self.found("table", Verdict::Warning, failure.to_string());
                return true;
            }
            Err(failure) => {
                let subject = if failure.error.is_access_denied() { "credentials" } else { "table" };
                self.found(subject, Verdict::Failed, format!("{failure}, region {region}"));
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
        let is_one = matches!(description.multi_region_consistency, Some(MultiRegionConsistency::Strong));
        if !description.replicas.unwrap_or_default().is_empty() && !is_one {
            let message =
                "the table has replicas in other regions, which learn of a lock late: use it in one region alone";
            self.found("regions", Verdict::Warning, message);
        }
        true
    }

    fn keys(&mut self, description: &TableDescription) {
        let Table { partition_key, sort_key, .. } = &self.locks.0.table;
        let key = |wanted: KeyType| {
            let element = description.key_schema().iter().find(|element| *element.key_type() == wanted)?;
            let mut definitions = description.attribute_definitions().iter();
            let definition = definitions.find(|definition| definition.attribute_name() == element.attribute_name());
            let kind = definition.map_or("", |definition| definition.attribute_type().as_str());
            Some(format!("`{}` ({kind})", element.attribute_name()))
        };
        let told = |partition_key: &str, sort_key: Option<String>| match sort_key {
            Some(sort_key) => format!("partition key {partition_key}, sort key {sort_key}"),
            None => format!("partition key {partition_key}, no sort key"),
        };
        let has = told(&key(KeyType::Hash).unwrap_or_default(), key(KeyType::Range));
        let wanted =
            told(&format!("`{partition_key}` (S)"), sort_key.as_ref().map(|(name, _)| format!("`{name}` (S)")));
        if has == wanted {
            self.found("keys", Verdict::Passed, has);
        } else {
            let message = format!(
                "the table has {has}, the locks are set to {wanted}: set LocksBuilder::partition_key (--partition-key) and \
                 sort_key (--sort-key) as the table has them, which must be strings, or use another table"
            );
            self.found("keys", Verdict::Failed, message);
        }
    }

    /// Locks do not depend on it: rows alone do, which would stay for ever.
    async fn time_to_live(&mut self) {
        let Table { client, name, .. } = &self.locks.0.table;
        let description = match self.ask(client.describe_time_to_live().table_name(name).send()).await {
            Ok(output) => output.and_then(|output| output.time_to_live_description),
            Err(failure) if failure.is_denied => {
                let without = "it could not be looked at";
                return self.denied("TTL", Verdict::Warning, "dynamodb:DescribeTimeToLive", without, &failure);
            }
            Err(failure) => return self.found("TTL", Verdict::Warning, failure.to_string()),
        };
        let attribute = description.and_then(|ttl| match ttl.time_to_live_status {
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling) => ttl.attribute_name,
            _ => None,
        });
        match attribute {
            Some(attribute) if attribute == EXPIRATION => {
                self.found("TTL", Verdict::Passed, format!("on, on attribute `{attribute}`"));
            }
            Some(attribute) => {
                let message = format!(
                    "on attribute `{attribute}`, not `{EXPIRATION}`, so that old rows are never deleted: turn it off there \
                     and on for `{EXPIRATION}`"
                );
                self.found("TTL", Verdict::Warning, message);
            }
            None => {
                let message =
                    format!("off, so that old rows are never deleted: turn it on for attribute `{EXPIRATION}`");
                self.found("TTL", Verdict::Warning, message);
            }
        }
    }

    async fn permissions(&mut self) {
        let table = &self.locks.0.table;
        let answer = self.ask(table.probe_update().send()).await.map(drop);
        self.permission("dynamodb:UpdateItem", Verdict::Failed, "nothing can be locked", answer);
        let answer = self.ask(table.probe_get().send()).await.map(drop);
        self.permission("dynamodb:GetItem", Verdict::Warning, "a holder cannot be read", answer);
        let answer = self.ask(table.client.scan().table_name(&table.name).limit(1).send()).await.map(drop);
        self.permission("dynamodb:Scan", Verdict::Warning, "locks cannot be listed", answer);
        if let Ok(probe) = table.probe_condition_check() {
            let answer = self.ask(probe.send()).await.map(drop);
            let without = "`condition_check` does not work";
            self.permission("dynamodb:ConditionCheckItem", Verdict::Warning, without, answer);
        }
    }

    fn permission(&mut self, action: &str, verdict: Verdict, without: &str, answer: Result<(), Failure>) {
        match answer {
            Ok(()) => self.found(action, Verdict::Passed, "allowed"),
            Err(failure) if failure.is_denied => self.denied(action, verdict, action, without, &failure),
            Err(failure) if failure.error.is_throttled() => {
                self.found(action, Verdict::Warning, failure.to_string());
            }
            Err(failure) => self.found(action, verdict, failure.to_string()),
        }
    }

    fn denied(&mut self, subject: &str, verdict: Verdict, action: &str, without: &str, failure: &Failure) {
        let Table { name, key_prefix, .. } = &self.locks.0.table;
        let keys = if action.ends_with("Item") {
            format!(", where keys are restricted also for `{}`", protocol::probe_key(key_prefix))
        } else {
            String::new()
        };
        let message = format!("{without}: allow {action} on table `{name}`{keys} ({})", failure.cause());
        self.found(subject, verdict, message);
    }

    fn clock(&mut self) {
        let Some(Heard { sent, received, date }) = self.heard else {
            return self.found("clock", Verdict::Warning, "not compared: no answer said what time it is at DynamoDB");
        };
        // When the answer was written, DynamoDB's clock was within the second of its date, and ours between sending and
        // receiving.
        let next = date + Duration::from_secs(1);
        let (ahead, behind) = (sent.saturating_sub(next), date.saturating_sub(received));
        let least = ahead.max(behind);
        let most = received.saturating_sub(date).max(next.saturating_sub(sent));
        let skew = self.locks.0.clock_skew;
        let [at_least, at_most, allowed] = [least, most, skew].map(|time| format_duration(in_millis(time)));
        let way = if ahead.is_zero() { "behind" } else { "ahead of" };
        let way_out = "let NTP set the clock, or set a larger LocksBuilder::clock_skew (--clock-skew) on every host";
        if least > skew {
            let message = format!(
                "at least {at_least} {way} DynamoDB's, more than the clock skew of {allowed}, so that two holders can have a \
                 key at once: {way_out}"
            );
            self.found("clock", Verdict::Failed, message);
        } else if least > skew / 2 {
            let message = format!(
                "at least {at_least} {way} DynamoDB's: another host that is as wrong the other way would be further off than \
                 the clock skew of {allowed}: {way_out}"
            );
            self.found("clock", Verdict::Warning, message);
        } else {
            let message = format!(
                "between {at_least} and {at_most} from DynamoDB's, which tells whole seconds; the clock skew is {allowed}"
            );
            self.found("clock", Verdict::Passed, message);
        }
    }
}

fn in_millis(time: Duration) -> Duration {
    Duration::from_millis(millis(time))
}

impl Failure {
    fn cause(&self) -> &str {
        self.error.cause().unwrap_or_default()
    }
}

/// With the way out that the error itself has, or one for errors that mostly pass.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.error.is_access_denied() && !self.is_denied {
            return write!(f, "not accepted ({}): renew them, and set this host's clock right", self.cause());
        }
        write!(f, "{} ({})", self.error, self.cause())?;
        if self.error.is_throttled() {
            f.write_str(": check again in a minute")?;
        } else if self.error.is_unavailable() {
            f.write_str(": check the network between here and the endpoint, and that it is the right one")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::config::{BehaviorVersion, Config};

    use super::*;

    // behaviour 20
    #[test]
    fn that_panics_abort_is_a_warning_and_that_they_unwind_is_none() {
        let client = Client::from_conf(Config::builder().behavior_version(BehaviorVersion::latest()).build());
        let locks = Locks::builder(client, "locks").build().unwrap();
        let mut check = Check { locks: &locks, findings: Vec::new(), heard: None };
        check.panics(None);
        assert!(check.findings.is_empty());
        check.panics(Some("a panic ends this process"));
        assert_eq!(check.findings[0].to_string(), "warning panics: a panic ends this process");
    }
}
