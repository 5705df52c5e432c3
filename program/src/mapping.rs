//! What loses messages in the settings of a function, its event source mappings and their queues: findings, without a
//! request.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use aws_sdk_lambda::operation::get_function_event_invoke_config::GetFunctionEventInvokeConfigOutput;
use aws_sdk_lambda::types::{
    DestinationConfig, EventSourceMappingConfiguration as Mapping, FunctionResponseType, ScalingConfig,
};
use aws_sdk_sqs::types::QueueAttributeName;
use humantime::format_duration;
use lambda_lock::operate::Verdict;
use serde_json::Value;

use crate::output::printable;
use crate::{arguments, connect};

/// Fewer deliveries give work up that could succeed: throttled invocations, crashes, and copies in progress elsewhere count.
const LEAST_DELIVERIES: u32 = 5;
/// What AWS recommends, so that Lambda can repeat a throttled invocation before its messages come back.
const TIMEOUTS_OF_VISIBILITY: u32 = 6;
/// How long Lambda waits before it repeats an asynchronous event for the first and the second time, together, in seconds.
const WAITS_OF_EVENTS: u32 = 60 + 120;
/// In the age of a record, a run counts at least as so many seconds: a record also waits, for example for a throttled table.
const LEAST_RUN: u32 = 60;
/// How long a queue keeps messages by default, in seconds: four days.
const RETENTION: u32 = 345_600;
/// The least `MaximumConcurrency` that Lambda accepts.
const LEAST_CONCURRENCY: i32 = 2;

/// One line of the report, with the remedy for a problem.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    subject: String,
    message: String,
}

impl Finding {
    pub(crate) fn new(verdict: Verdict, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { verdict, subject: subject.into(), message: message.into() }
    }
}

/// As the findings of the table are printed.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7} {}: {}", self.verdict.to_string(), self.subject, self.message)
    }
}

/// What an event source mapping reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Queue,
    Stream,
    Kafka,
    Other,
}

impl Source {
    pub(crate) fn of(mapping: &Mapping) -> Self {
        match mapping.event_source_arn().and_then(|arn| arn.split(':').nth(2)) {
            Some("sqs") => Self::Queue,
            Some("kinesis" | "dynamodb") => Self::Stream,
            Some("kafka") => Self::Kafka,
            None if mapping.self_managed_event_source().is_some() => Self::Kafka,
            _ => Self::Other,
        }
    }
}

/// Returns the mapping's source as findings name it.
pub(crate) fn subject(mapping: &Mapping) -> String {
    let arn = mapping.event_source_arn().unwrap_or("a source without an ARN");
    // `table/orders/stream/2026-…`, `stream/orders`, or the name of a queue.
    let resource = arn.splitn(6, ':').last().unwrap_or_default();
    let name = resource.split('/').nth(1).unwrap_or(resource);
    match Source::of(mapping) {
        Source::Queue => format!("queue `{resource}`"),
        Source::Stream if resource.starts_with("table/") => format!("stream of table `{name}`"),
        Source::Stream => format!("stream `{name}`"),
        Source::Kafka => format!("topic `{}`", mapping.topics().join(", ")),
        Source::Other => arn.to_owned(),
    }
}

/// The attributes of a queue that matter here.
#[derive(Debug)]
pub(crate) struct Queue {
    name: String,
    /// In seconds.
    visibility: u32,
    /// In seconds.
    delay: u32,
    /// In seconds.
    retention: u32,
    redrive: Option<Redrive>,
}

#[derive(Debug)]
struct Redrive {
    dead_letters: String,
    max_receives: u32,
}

impl Queue {
    /// Reads the attributes of the queue with this name.
    pub(crate) fn new(name: &str, attributes: &HashMap<QueueAttributeName, String>) -> Self {
        let number =
            |name, default| attributes.get(&name).and_then(|number: &String| number.parse().ok()).unwrap_or(default);
        let policy = attributes.get(&QueueAttributeName::RedrivePolicy);
        let policy: Option<Value> = policy.and_then(|policy| serde_json::from_str(policy).ok());
        let redrive = policy.and_then(|policy| {
            // The console writes the number as text.
            let max_receives = match &policy["maxReceiveCount"] {
                Value::String(text) => text.parse().ok(),
                number => number.as_u64().and_then(|number| number.try_into().ok()),
            };
            let dead_letters = policy["deadLetterTargetArn"].as_str()?.to_owned();
            Some(Redrive { dead_letters, max_receives: max_receives? })
        });
        Self {
            name: name.to_owned(),
            // The defaults of SQS.
            visibility: number(QueueAttributeName::VisibilityTimeout, 30),
            delay: number(QueueAttributeName::DelaySeconds, 0),
            retention: number(QueueAttributeName::MessageRetentionPeriod, RETENTION),
            redrive,
        }
    }

    /// Returns the ARN of the dead-letter queue.
    pub(crate) fn dead_letters(&self) -> Option<&str> {
        self.redrive.as_ref().map(|redrive| redrive.dead_letters.as_str())
    }

    /// Only the name of a FIFO queue ends like this.
    fn is_fifo(&self) -> bool {
        is_fifo(&self.name)
    }
}

fn is_fifo(name: &str) -> bool {
    name.to_lowercase().ends_with(".fifo")
}

/// The findings about one subject.
struct Findings {
    subject: String,
    found: Vec<Finding>,
}

impl Findings {
    fn about(subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), found: Vec::new() }
    }

    fn failed(&mut self, message: impl Into<String>) {
        self.found.push(Finding::new(Verdict::Failed, &self.subject, message));
    }

    fn warning(&mut self, message: impl Into<String>) {
        self.found.push(Finding::new(Verdict::Warning, &self.subject, message));
    }
}

/// Returns what is wrong with the settings of a mapping. `timeout` is that of the function, in seconds, if it is known.
pub(crate) fn of_mapping(mapping: &Mapping, timeout: Option<u32>) -> Vec<Finding> {
    let mut findings = Findings::about(subject(mapping));
    state(mapping, &mut findings);
    match Source::of(mapping) {
        Source::Queue => messages(mapping, &mut findings),
        Source::Stream | Source::Kafka => records(mapping, timeout, &mut findings),
        Source::Other => findings.warning("not checked, because lambda-lock has no consumer for it"),
    }
    findings.found
}

fn state(mapping: &Mapping, findings: &mut Findings) {
    if let Some(state @ ("Disabled" | "Disabling" | "Deleting")) = mapping.state() {
        let reason = mapping.state_transition_reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
        findings.failed(format!(
            "the mapping is {}{reason}, so nothing is delivered, and what waits is deleted when its retention ends: turn it on \
             with `aws lambda update-event-source-mapping --enabled --uuid {}`",
            state.to_lowercase(),
            mapping.uuid().unwrap_or_default()
        ));
    }
    if let Some(result) = mapping.last_processing_result()
        && result.starts_with("PROBLEM")
    {
        findings.warning(format!("Lambda's last delivery had a problem ({result}): correct what it names"));
    }
}

fn messages(mapping: &Mapping, findings: &mut Findings) {
    if !has_partial_responses(mapping) {
        findings.failed(
            "FunctionResponseTypes of the mapping is empty, so Lambda does not read which messages failed, and deletes them \
             together with the others of their batch: set FunctionResponseTypes to [ReportBatchItemFailures]",
        );
    }
    let size = mapping.batch_size().unwrap_or(10);
    if mapping.event_source_arn().is_some_and(is_fifo) && size > 1 {
        findings.warning(format!(
            "BatchSize of the mapping is {size} in a FIFO queue: the messages of a group behind one that fails are received \
             and returned with it, so if it always fails, they become dead letters without having run: set BatchSize to 1"
        ));
    }
}

fn records(mapping: &Mapping, timeout: Option<u32>, findings: &mut Findings) {
    let is_kafka = Source::of(mapping) == Source::Kafka;
    if !has_partial_responses(mapping) {
        findings.failed(
            "FunctionResponseTypes of the mapping is empty, so Lambda does not read which records failed, and never delivers \
             them again: set FunctionResponseTypes to [ReportBatchItemFailures]",
        );
    }
    let is_provisioned = mapping.provisioned_poller_config().is_some();
    if is_kafka && !is_provisioned {
        findings.failed(
            "the mapping has no ProvisionedPollerConfig, and without it Lambda takes no partial responses from a Kafka \
             function: it takes each batch as done, and never delivers the records that failed again: set \
             ProvisionedPollerConfig to { MinimumPollers: 1 }, or let the function fail the invocation",
        );
    }
    let size = mapping.batch_size().unwrap_or(100);
    if mapping.bisect_batch_on_function_error() != Some(true) && size > 1 && (is_provisioned || !is_kafka) {
        findings.warning(format!(
            "BisectBatchOnFunctionError of the mapping is off, so one record that crashes the function or lets it time out \
             takes its whole batch of up to {size} records with it: set BisectBatchOnFunctionError to true"
        ));
    }
    gives_up(mapping, is_kafka, timeout, findings);
    if let Some(seconds @ 1..) = mapping.tumbling_window_in_seconds() {
        findings.failed(format!(
            "TumblingWindowInSeconds of the mapping is {seconds}, and the consumer does not support windows: it answers each \
             batch as failed: set TumblingWindowInSeconds to 0"
        ));
    }
}

/// When Lambda gives a batch up, and who hears of it.
fn gives_up(mapping: &Mapping, is_kafka: bool, timeout: Option<u32>, findings: &mut Findings) {
    let limit = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    let (retries, age) = (limit(mapping.maximum_retry_attempts()), limit(mapping.maximum_record_age_in_seconds()));
    let is_reported = on_failure(mapping.destination_config()).is_some();
    let limits: Vec<_> = [("MaximumRetryAttempts", retries), ("MaximumRecordAgeInSeconds", age)]
        .iter()
        .filter_map(|(name, limit)| Some(format!("{name} {}", (*limit)?)))
        .collect();
    if !limits.is_empty() && !is_reported {
        findings.failed(format!(
            "the mapping has {} but no DestinationConfig.OnFailure, so Lambda gives a batch up without a trace: set OnFailure to \
             a queue, a topic or a bucket",
            limits.join(" and ")
        ));
    }
    // For Kafka, a destination alone limits the retries.
    if limits.is_empty() && !(is_reported && is_kafka) {
        let (part, metric) = if is_kafka { ("partition", "OffsetLag") } else { ("shard", "IteratorAge") };
        findings.warning(format!(
            "MaximumRetryAttempts and MaximumRecordAgeInSeconds of the mapping are -1, so a record that always fails blocks its \
             {part} until the record expires, and the records behind it wait or expire with it: set MaximumRetryAttempts and \
             DestinationConfig.OnFailure, or set an alarm on the metric {metric}"
        ));
    }
    if let Some(retries) = retries
        && retries + 1 < LEAST_DELIVERIES
    {
        findings.warning(format!(
            "MaximumRetryAttempts of the mapping is {retries}: crashes, a throttled table and records in progress elsewhere use \
             retries up, so Lambda gives records up that could succeed: set MaximumRetryAttempts to {} or more",
            LEAST_DELIVERIES - 1
        ));
    }
    let least = LEAST_DELIVERIES.saturating_mul(timeout.unwrap_or_default().max(LEAST_RUN));
    if let Some(age) = age.filter(|age| *age < least) {
        findings.warning(format!(
            "MaximumRecordAgeInSeconds of the mapping is {age}, too short for {LEAST_DELIVERIES} runs: Lambda gives records up that \
             wait behind others or for a throttled table, also without having run: set MaximumRecordAgeInSeconds to {least} or more"
        ));
    }
}

fn has_partial_responses(mapping: &Mapping) -> bool {
    mapping.function_response_types().contains(&FunctionResponseType::ReportBatchItemFailures)
}

/// Returns the ARN of the destination of what is given up.
pub(crate) fn on_failure(config: Option<&DestinationConfig>) -> Option<&str> {
    let destination = config.and_then(DestinationConfig::on_failure).and_then(|on_failure| on_failure.destination());
    destination.filter(|arn| !arn.is_empty())
}

/// Returns what is wrong with the settings of a mapping's queue. `timeout` is that of the function, in seconds, if it is
/// known.
pub(crate) fn of_queue(queue: &Queue, mapping: &Mapping, timeout: Option<u32>) -> Vec<Finding> {
    let mut findings = Findings::about(subject(mapping));
    if let Some(timeout) = timeout {
        let window = mapping.maximum_batching_window_in_seconds().and_then(|seconds| seconds.try_into().ok());
        visibility(queue.visibility, timeout, window.unwrap_or(0), &mut findings);
    }
    match &queue.redrive {
        None => {
            let group = if queue.is_fifo() { ", while its group waits" } else { "" };
            findings.failed(format!(
                "the queue has no RedrivePolicy, so a message that always fails comes back until its retention of {} ends{group}, \
                 and is then deleted without a trace: set RedrivePolicy to a dead-letter queue, with a maxReceiveCount of \
                 {LEAST_DELIVERIES}",
                time(queue.retention)
            ));
        }
        Some(Redrive { max_receives, .. }) if *max_receives < LEAST_DELIVERIES => findings.warning(format!(
            "maxReceiveCount of the queue is {max_receives}: throttled invocations, crashes and a copy in progress elsewhere \
             count as receives, so messages become dead letters that could succeed: set maxReceiveCount in RedrivePolicy to \
             {LEAST_DELIVERIES} or more"
        )),
        Some(_) => {}
    }
    if let Some(Redrive { max_receives, .. }) = queue.redrive
        && let receives = queue.visibility.saturating_mul(max_receives).saturating_add(queue.delay)
        && queue.retention <= receives
    {
        findings.failed(format!(
            "MessageRetentionPeriod of the queue is {}, and {max_receives} receives with a VisibilityTimeout of {} take {}: SQS \
             deletes a message that always fails before it becomes a dead letter: set MessageRetentionPeriod to more",
            time(queue.retention),
            time(queue.visibility),
            time(receives)
        ));
    }
    findings.found
}

fn visibility(visibility: u32, timeout: u32, window: u32, findings: &mut Findings) {
    let wanted = timeout.saturating_mul(TIMEOUTS_OF_VISIBILITY).saturating_add(window);
    let (plus, and) = if window == 0 {
        (String::new(), "")
    } else {
        (format!(" and its batch for the batching window of {}", time(window)), " plus the batching window")
    };
    let has = format!("VisibilityTimeout of the queue is {}", time(visibility));
    let remedy = format!(
        "set VisibilityTimeout to {wanted} seconds, {TIMEOUTS_OF_VISIBILITY} times the function's timeout{and}"
    );
    if visibility < timeout.saturating_add(window) {
        findings.failed(format!(
            "{has}, but the function can work for {}{plus}: a message then comes back while it is at work, and each time \
             counts, so it becomes a dead letter although it does not fail: {remedy}",
            time(timeout)
        ));
    } else if visibility < wanted {
        findings.warning(format!(
            "{has}, less than {TIMEOUTS_OF_VISIBILITY} times the function's timeout of {}{and}: when Lambda throttles the \
             function, messages come back before Lambda has invoked it, and each time counts towards maxReceiveCount: {remedy}",
            time(timeout)
        ));
    }
}

/// Returns what is wrong between the queue of a mapping and its dead-letter queue.
pub(crate) fn of_dead_letters(queue: &Queue, dead_letters: &Queue, mapping: &Mapping) -> Vec<Finding> {
    let mut findings = Findings::about(subject(mapping));
    // In a FIFO queue, the retention of a dead letter begins anew.
    if !queue.is_fifo() && dead_letters.retention <= queue.retention {
        findings.warning(format!(
            "MessageRetentionPeriod of the dead-letter queue `{}` is {}, not longer than that of the queue, {}. It counts from \
             the first send, so a message that fails after a long wait is deleted before anyone has seen it: set \
             MessageRetentionPeriod of the dead-letter queue to 1209600 (14days), and that of the queue to less",
            dead_letters.name,
            time(dead_letters.retention),
            time(queue.retention)
        ));
    }
    findings.found
}

/// Returns the finding for a queue that is not there: the source of a mapping, or the destination that this setting names for
/// work that is given up.
pub(crate) fn of_missing_queue(arn: &str, subject: &str, setting: Option<&str>) -> Finding {
    let mut words = arn.split(':').skip(3);
    let (region, account) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let place = format!("in region {region} of account {account}, or you may not see it");
    let message = match setting {
        None => format!("there is no such queue {place}, so nothing is delivered: create it, or delete the mapping"),
        Some(setting) => {
            let name = arn.rsplit(':').next().unwrap_or_default();
            format!(
                "there is no queue `{name}` {place}, so work that is given up has nowhere to go: create it, or name another one in \
                 {setting}"
            )
        }
    };
    Finding::new(Verdict::Failed, subject, message)
}

/// Returns what is wrong with the queue that this setting names for work that is given up. Its retention begins anew.
pub(crate) fn of_destination(queue: &Queue, subject: &str, setting: &str) -> Option<Finding> {
    (queue.retention < RETENTION).then(|| {
        let message = format!(
            "{setting} is the queue `{}`, whose MessageRetentionPeriod is {}, so work that is given up is deleted before somebody \
             has seen it: set MessageRetentionPeriod to 1209600 (14days)",
            queue.name,
            time(queue.retention)
        );
        Finding::new(Verdict::Warning, subject, message)
    })
}

/// Returns the finding for a destination that is no queue.
pub(crate) fn of_other_destination(arn: &str, subject: &str, setting: &str) -> Finding {
    let message = format!("{setting} names {arn}, which was not looked at: only queues are");
    Finding::new(Verdict::Passed, subject, message)
}

/// Returns what is wrong with the reserved concurrency of a function that has these mappings.
pub(crate) fn of_concurrency(reserved: Option<i32>, mappings: &[Mapping]) -> Option<Finding> {
    let reserved = reserved?;
    let subject = "concurrency";
    if reserved == 0 {
        let message = "ReservedConcurrentExecutions of the function is 0, so Lambda throttles every invocation, and messages \
                       become dead letters without having run: set it to more, or remove it";
        return Some(Finding::new(Verdict::Failed, subject, message));
    }
    // Provisioned pollers have a limit of their own.
    let polled =
        |mapping: &&Mapping| Source::of(mapping) == Source::Queue && mapping.provisioned_poller_config().is_none();
    let queues: Vec<_> = mappings.iter().filter(polled).collect();
    let limits: Option<Vec<_>> =
        queues.iter().map(|mapping| mapping.scaling_config().and_then(ScalingConfig::maximum_concurrency)).collect();
    let most = limits.map(|limits| limits.into_iter().map(i64::from).sum::<i64>());
    if queues.is_empty() || most.is_some_and(|most| most <= i64::from(reserved)) {
        return None;
    }
    let has = match most {
        Some(most) => format!("the mappings of its queues have a ScalingConfig.MaximumConcurrency of {most} together"),
        None => "not every mapping of its queues has a ScalingConfig.MaximumConcurrency".to_owned(),
    };
    let least = LEAST_CONCURRENCY.saturating_mul(i32::try_from(queues.len()).unwrap_or(i32::MAX));
    let remedy = if least > reserved {
        format!("reserve {least} or more, and set MaximumConcurrency, which is at least {LEAST_CONCURRENCY}")
    } else {
        format!("set MaximumConcurrency so that the sum is at most {reserved}")
    };
    let message = format!(
        "ReservedConcurrentExecutions of the function is {reserved}, and {has}: Lambda receives more messages than it may \
         deliver, and each throttled delivery counts as a receive, so messages become dead letters without having run: {remedy}"
    );
    Some(Finding::new(Verdict::Warning, subject, message))
}

/// Reads the value of a variable. The error says what is wrong with it.
type Parse = fn(&str) -> Result<(), String>;

/// Returns what is wrong with the variables that `Locks::from_env` reads in a function.
pub(crate) fn of_variables(variables: Option<&HashMap<String, String>>) -> Vec<Finding> {
    const TABLE: &str = "LOCK_TABLE_NAME";
    let mut findings = Findings::about("environment");
    let get = |name| variables.and_then(|variables| variables.get(name)).map(String::as_str);
    if get(TABLE).is_none_or(str::is_empty) {
        let is = if get(TABLE).is_some() { "empty" } else { "not set" };
        findings.warning(format!(
            "{TABLE} is {is}, so Locks::from_env fails: set it in Environment of the function, unless its code names the table"
        ));
    }
    let checks: [(&str, Parse); 4] = [
        ("LOCK_LEASE", |text| arguments::lease(text).map(drop)),
        ("LOCK_CLOCK_SKEW", |text| arguments::clock_skew(text).map(drop)),
        ("LOCK_ENABLED", |text| connect::flag(text).map(drop)),
        ("LOCK_MULTI_REGION_STRONG_CONSISTENCY", |text| connect::flag(text).map(drop)),
    ];
    for (name, check) in checks {
        if let Some(value) = get(name)
            && let Err(why) = check(value)
        {
            let value = printable(value);
            findings
                .failed(format!("{name} is `{value}` ({why}), so Locks::from_env fails, and nothing runs: correct it"));
        }
    }
    if get("LOCK_ENABLED").is_some_and(|text| connect::flag(text) == Ok(false)) {
        findings.warning("LOCK_ENABLED is false, so the function works without locks and records: remove it");
    }
    findings.found
}

/// Returns what loses events that come without a mapping: from a schedule, S3, SNS or `EventBridge`. `timeout` is that of the
/// function, in seconds, if it is known.
pub(crate) fn of_events(
    config: Option<&GetFunctionEventInvokeConfigOutput>,
    has_dead_letter_queue: bool,
    timeout: Option<u32>,
) -> Vec<Finding> {
    let mut findings = Findings::about("asynchronous events");
    let age = config.and_then(GetFunctionEventInvokeConfigOutput::maximum_event_age_in_seconds);
    let least = timeout.unwrap_or_default().saturating_mul(2).saturating_add(WAITS_OF_EVENTS);
    if let Some(age) = age.and_then(|age| u32::try_from(age).ok()).filter(|age| *age < least) {
        findings.warning(format!(
            "MaximumEventAgeInSeconds is {age}, and Lambda waits one minute before it repeats an event and two before the next \
             time, so it gives events up before their second retry: set MaximumEventAgeInSeconds in EventInvokeConfig to {least} or more"
        ));
    }
    if config.and_then(GetFunctionEventInvokeConfigOutput::maximum_retry_attempts) == Some(0) {
        findings.warning(
            "MaximumRetryAttempts is 0, so Lambda gives an event of a schedule, S3, SNS or EventBridge up after one failed run: \
             set MaximumRetryAttempts in EventInvokeConfig to 2",
        );
    }
    let destination = config.and_then(GetFunctionEventInvokeConfigOutput::destination_config);
    if on_failure(destination).is_none() && !has_dead_letter_queue {
        findings.warning(
            "there is no DestinationConfig.OnFailure, so Lambda gives an event of a schedule, S3, SNS or EventBridge up without a \
             trace if each of its runs fails: set OnFailure in EventInvokeConfig to a queue, unless all callers wait for their \
             answer",
        );
    }
    findings.found
}

fn time(seconds: u32) -> impl fmt::Display {
    format_duration(Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use aws_sdk_lambda::types::{OnFailure, ProvisionedPollerConfig, ScalingConfig, SelfManagedEventSource};

    use super::*;

    const DAY: u32 = 24 * 60 * 60;
    const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:payments";
    const DEAD_LETTERS: &str = "arn:aws:sqs:eu-west-1:123456789012:dead";
    const KINESIS: &str = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders";
    const DYNAMODB: &str = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-01-01T00:00:00.000";
    const KAFKA: &str = "arn:aws:kafka:eu-west-1:123456789012:cluster/shop/0-1";

    /// A mapping without a fault.
    fn mapping(arn: &str) -> Mapping {
        let mapping = Mapping::builder().uuid("an-id").state("Enabled").last_processing_result("OK");
        let mapping = mapping.function_response_types(FunctionResponseType::ReportBatchItemFailures);
        mapping.event_source_arn(arn).batch_size(1).build()
    }

    fn destination() -> DestinationConfig {
        let on_failure = OnFailure::builder().destination(DEAD_LETTERS).build();
        DestinationConfig::builder().on_failure(on_failure).build()
    }

    fn stream(arn: &str) -> Mapping {
        let mut mapping = mapping(arn);
        mapping.bisect_batch_on_function_error = Some(true);
        (mapping.maximum_retry_attempts, mapping.maximum_record_age_in_seconds) = (Some(10), Some(-1));
        mapping.tumbling_window_in_seconds = Some(0);
        mapping.destination_config = Some(destination());
        mapping
    }

    fn topic() -> Mapping {
        let mut mapping = stream(KAFKA);
        mapping.topics = Some(vec!["payments".to_owned()]);
        mapping.provisioned_poller_config = Some(ProvisionedPollerConfig::builder().minimum_pollers(1).build());
        mapping
    }

    fn with_concurrency(most: i32) -> Mapping {
        let mut mapping = mapping(QUEUE);
        mapping.scaling_config = Some(ScalingConfig::builder().maximum_concurrency(most).build());
        mapping
    }

    fn queue(name: &str, visibility: u32, retention: u32, redrive: Option<&str>) -> Queue {
        let attributes = [
            (QueueAttributeName::VisibilityTimeout, Some(visibility.to_string())),
            (QueueAttributeName::MessageRetentionPeriod, Some(retention.to_string())),
            (QueueAttributeName::RedrivePolicy, redrive.map(redrive_policy)),
        ];
        Queue::new(name, &attributes.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }

    fn redrive_policy(count: &str) -> String {
        format!(r#"{{"deadLetterTargetArn":"{DEAD_LETTERS}","maxReceiveCount":{count}}}"#)
    }

    /// Asserts that there is one finding, with this verdict and these parts.
    #[track_caller]
    fn expect(found: impl IntoIterator<Item = Finding>, verdict: Verdict, parts: &[&str]) {
        let found: Vec<_> = found.into_iter().collect();
        let [finding] = &found[..] else { panic!("not one finding: {found:#?}") };
        assert_eq!(finding.verdict, verdict, "{finding}");
        let text = finding.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text}");
    }

    #[track_caller]
    fn expect_none(found: impl IntoIterator<Item = Finding>) {
        let found: Vec<_> = found.into_iter().collect();
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn settings_without_a_fault_have_no_finding() {
        for mapping in [mapping(QUEUE), stream(KINESIS), stream(DYNAMODB), topic()] {
            expect_none(of_mapping(&mapping, Some(30)));
        }
        let queue = queue("payments", 180, 7 * DAY, Some("5"));
        expect_none(of_queue(&queue, &mapping(QUEUE), Some(30)));
        expect_none(of_dead_letters(&queue, &self::queue("dead", 30, 14 * DAY, None), &mapping(QUEUE)));
    }

    #[test]
    fn without_partial_responses_failed_messages_and_records_are_lost() {
        for (mut mapping, source, what) in [
            (mapping(QUEUE), "failed  queue `payments`: ", "deletes them"),
            (stream(KINESIS), "failed  stream `orders`: ", "never delivers them again"),
            (stream(DYNAMODB), "failed  stream of table `orders`: ", "never delivers them again"),
            (topic(), "failed  topic `payments`: ", "never delivers them again"),
        ] {
            mapping.function_response_types = None;
            let parts = [source, what, "set FunctionResponseTypes to [ReportBatchItemFailures]"];
            expect(of_mapping(&mapping, Some(30)), Verdict::Failed, &parts);
        }
    }

    #[test]
    fn a_mapping_that_is_off_delivers_nothing() {
        let mut mapping = mapping(QUEUE);
        mapping.state = Some("Disabled".to_owned());
        mapping.state_transition_reason = Some("USER_INITIATED".to_owned());
        expect(
            of_mapping(&mapping, Some(30)),
            Verdict::Failed,
            &["disabled (USER_INITIATED)", "--enabled --uuid an-id"],
        );
        mapping.state = Some("Enabling".to_owned());
        expect_none(of_mapping(&mapping, Some(30)));
    }

    #[test]
    fn the_problem_of_the_last_delivery_is_named() {
        let mut mapping = stream(KINESIS);
        mapping.last_processing_result = Some("PROBLEM: Function call failed".to_owned());
        expect(of_mapping(&mapping, Some(30)), Verdict::Warning, &["(PROBLEM: Function call failed)"]);
    }

    #[test]
    fn a_batch_of_a_fifo_queue_makes_unrun_dead_letters() {
        let mut mapping = mapping(&format!("{QUEUE}.fifo"));
        expect_none(of_mapping(&mapping, Some(30)));
        mapping.batch_size = Some(10);
        let parts = ["BatchSize of the mapping is 10", "without having run", "set BatchSize to 1"];
        expect(of_mapping(&mapping, Some(30)), Verdict::Warning, &parts);
    }

    #[test]
    fn a_visibility_timeout_below_the_longest_run_fails() {
        let mut mapping = mapping(QUEUE);
        let of = |mapping: &Mapping, visibility| {
            of_queue(&queue("payments", visibility, 7 * DAY, Some("5")), mapping, Some(30))
        };
        let parts =
            ["VisibilityTimeout of the queue is 29s", "can work for 30s:", "set VisibilityTimeout to 180 seconds"];
        expect(of(&mapping, 29), Verdict::Failed, &parts);
        expect(
            of(&mapping, 30),
            Verdict::Warning,
            &["is 30s, less than 6 times", "set VisibilityTimeout to 180 seconds"],
        );
        mapping.maximum_batching_window_in_seconds = Some(20);
        expect(of(&mapping, 49), Verdict::Failed, &["batching window of 20s", "set VisibilityTimeout to 200 seconds"]);
        expect(of(&mapping, 199), Verdict::Warning, &["3m 19s", "plus the batching window"]);
        expect_none(of(&mapping, 200));
    }

    #[test]
    fn an_unknown_timeout_leaves_the_other_findings() {
        let queue = queue("payments", 1, 7 * DAY, Some("4"));
        expect(of_queue(&queue, &mapping(QUEUE), None), Verdict::Warning, &["maxReceiveCount"]);
    }

    #[test]
    fn without_a_dead_letter_queue_messages_vanish() {
        let parts = ["no RedrivePolicy", "retention of 4days ends, and is then deleted", "maxReceiveCount of 5"];
        expect(of_queue(&queue("a", 180, 4 * DAY, None), &mapping(QUEUE), Some(30)), Verdict::Failed, &parts);
        let of_fifo = of_queue(&queue("a.fifo", 180, 4 * DAY, None), &mapping(QUEUE), Some(30));
        expect(of_fifo, Verdict::Failed, &["while its group waits"]);
    }

    #[test]
    fn too_few_receives_make_dead_letters_that_could_succeed() {
        for count in ["4", "\"4\""] {
            let queue = queue("payments", 180, DAY, Some(count));
            expect(
                of_queue(&queue, &mapping(QUEUE), Some(30)),
                Verdict::Warning,
                &["maxReceiveCount of the queue is 4"],
            );
        }
    }

    #[test]
    fn dead_letters_outlive_the_messages_of_a_standard_queue() {
        let of = |name: &str| {
            let (queue, dead_letters) = (queue(name, 30, 4 * DAY, Some("5")), queue("dead", 30, 4 * DAY, None));
            of_dead_letters(&queue, &dead_letters, &mapping(QUEUE))
        };
        expect(of("payments"), Verdict::Warning, &["`dead` is 4days, not longer than that of the queue, 4days"]);
        expect_none(of("payments.fifo"));
    }

    #[test]
    fn a_missing_queue_is_named_with_its_place() {
        let parts = ["queue `payments`: there is no such queue in region eu-west-1 of account 123456789012"];
        let subject = subject(&mapping(QUEUE));
        expect([of_missing_queue(QUEUE, &subject, None)], Verdict::Failed, &parts);
        let parts = ["no queue `dead` in region eu-west-1", "name another one in RedrivePolicy"];
        expect([of_missing_queue(DEAD_LETTERS, &subject, Some("RedrivePolicy"))], Verdict::Failed, &parts);
    }

    #[test]
    fn a_batch_that_is_not_bisected_is_taken_along() {
        for mut mapping in [stream(DYNAMODB), topic()] {
            mapping.bisect_batch_on_function_error = Some(false);
            expect_none(of_mapping(&mapping, Some(30)));
            mapping.batch_size = Some(2);
            expect(of_mapping(&mapping, Some(30)), Verdict::Warning, &["set BisectBatchOnFunctionError to true"]);
        }
    }

    #[test]
    fn a_batch_that_is_given_up_without_destination_is_lost() {
        for mut mapping in [stream(KINESIS), topic()] {
            mapping.destination_config = None;
            expect(
                of_mapping(&mapping, Some(30)),
                Verdict::Failed,
                &["has MaximumRetryAttempts 10 but no", "set OnFailure"],
            );
        }
    }

    #[test]
    fn a_record_without_limits_blocks_its_shard() {
        let mut mapping = stream(KINESIS);
        mapping.maximum_retry_attempts = Some(-1);
        expect(of_mapping(&mapping, Some(30)), Verdict::Warning, &["blocks its shard", "IteratorAge"]);
        mapping.destination_config = None;
        expect(of_mapping(&mapping, Some(30)), Verdict::Warning, &["DestinationConfig.OnFailure"]);
        let mut topic = topic();
        topic.maximum_retry_attempts = None;
        expect_none(of_mapping(&topic, Some(30)));
        topic.destination_config = None;
        expect(of_mapping(&topic, Some(30)), Verdict::Warning, &["blocks its partition", "OffsetLag"]);
    }

    #[test]
    fn too_few_retries_give_up_records_that_could_succeed() {
        let mut mapping = stream(KINESIS);
        mapping.maximum_retry_attempts = Some(3);
        expect(of_mapping(&mapping, Some(30)), Verdict::Warning, &["is 3", "set MaximumRetryAttempts to 4 or more"]);
    }

    #[test]
    fn an_age_below_some_runs_gives_up_records_that_could_succeed() {
        let mut mapping = stream(KINESIS);
        mapping.maximum_record_age_in_seconds = Some(299);
        expect(
            of_mapping(&mapping, Some(30)),
            Verdict::Warning,
            &["is 299", "MaximumRecordAgeInSeconds to 300 or more"],
        );
        expect(of_mapping(&mapping, Some(900)), Verdict::Warning, &["to 4500 or more"]);
        mapping.maximum_record_age_in_seconds = Some(300);
        expect_none(of_mapping(&mapping, None));
    }

    #[test]
    fn a_message_deleted_before_its_last_receive_is_no_dead_letter() {
        let of = |retention| of_queue(&queue("payments", 180, retention, Some("5")), &mapping(QUEUE), Some(30));
        let parts = ["MessageRetentionPeriod of the queue is 15m", "VisibilityTimeout of 3m take 15m"];
        expect(of(900), Verdict::Failed, &parts);
        let of_destination = |retention| of_destination(&queue("lost", 30, retention, None), "events", "OnFailure");
        expect(of_destination(60), Verdict::Warning, &["OnFailure is the queue `lost`", "is 1m", "to 1209600"]);
        expect_none(of_destination(4 * DAY));
        expect_none(of(901));
    }

    #[test]
    fn absurd_numbers_are_reported() {
        let queue = queue("payments", u32::MAX, u32::MAX, Some("4294967295"));
        expect(
            of_queue(&queue, &mapping(QUEUE), Some(u32::MAX)),
            Verdict::Failed,
            &["before it becomes a dead letter"],
        );
    }

    #[test]
    fn a_tumbling_window_fails() {
        let mut mapping = stream(KINESIS);
        mapping.tumbling_window_in_seconds = Some(60);
        expect(of_mapping(&mapping, Some(30)), Verdict::Failed, &["TumblingWindowInSeconds of the mapping is 60"]);
    }

    #[test]
    fn kafka_without_provisioned_mode_loses_failed_records() {
        let mut own_cluster = topic();
        own_cluster.event_source_arn = None;
        own_cluster.self_managed_event_source = Some(SelfManagedEventSource::builder().build());
        expect_none(of_mapping(&own_cluster, Some(30)));
        for mut mapping in [topic(), own_cluster] {
            mapping.provisioned_poller_config = None;
            expect(
                of_mapping(&mapping, Some(30)),
                Verdict::Failed,
                &["ProvisionedPollerConfig to { MinimumPollers: 1 }"],
            );
        }
    }

    #[test]
    fn a_source_without_consumer_is_not_checked() {
        let arn = "arn:aws:mq:eu-west-1:123456789012:broker:b:b-1";
        expect(of_mapping(&mapping(arn), Some(30)), Verdict::Warning, &["warning arn:aws:mq:", "not checked"]);
    }

    #[test]
    fn a_queue_with_more_concurrency_than_reserved_is_throttled() {
        let of = |reserved, mappings: &[Mapping]| of_concurrency(reserved, mappings);
        expect_none(of(None, &[mapping(QUEUE)]));
        expect_none(of(Some(5), &[stream(KINESIS)]));
        expect_none(of(Some(5), &[with_concurrency(2), with_concurrency(3)]));
        let without =
            ["is 5, and not every mapping", "without having run: set MaximumConcurrency so that the sum is at most 5"];
        expect(of(Some(5), &[with_concurrency(2), mapping(QUEUE)]), Verdict::Warning, &without);
        expect(of(Some(5), &[with_concurrency(6)]), Verdict::Warning, &["MaximumConcurrency of 6 together"]);
        expect(of(Some(1), &[mapping(QUEUE)]), Verdict::Warning, &["reserve 2 or more"]);
        let mut provisioned = mapping(QUEUE);
        provisioned.provisioned_poller_config = Some(ProvisionedPollerConfig::builder().build());
        expect_none(of(Some(5), &[provisioned]));
    }

    #[test]
    fn a_reserved_concurrency_of_zero_runs_nothing() {
        expect(of_concurrency(Some(0), &[]), Verdict::Failed, &["throttles every invocation"]);
    }

    #[test]
    fn an_environment_without_the_table_gets_a_hint() {
        let of = |name: &str| of_variables(Some(&HashMap::from([(name.to_owned(), "locks".to_owned())])));
        expect_none(of("LOCK_TABLE_NAME"));
        expect(of("TABLE"), Verdict::Warning, &["LOCK_TABLE_NAME is not set"]);
        expect(of_variables(None), Verdict::Warning, &["LOCK_TABLE_NAME is not set"]);
        let with = |name: &str, value: &str| {
            let variables = [("LOCK_TABLE_NAME", "locks"), (name, value)];
            of_variables(Some(&variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()))
        };
        expect(with("LOCK_TABLE_NAME", ""), Verdict::Warning, &["LOCK_TABLE_NAME is empty"]);
        expect(with("LOCK_ENABLED", "false"), Verdict::Warning, &["works without locks"]);
        for (name, value) in [("LOCK_LEASE", "30"), ("LOCK_CLOCK_SKEW", "1h"), ("LOCK_ENABLED", "no")] {
            expect(with(name, value), Verdict::Failed, &[name, value, "nothing runs"]);
        }
        expect_none(with("LOCK_LEASE", "1m"));
    }

    #[test]
    fn asynchronous_events_need_retries_and_a_destination() {
        let config = GetFunctionEventInvokeConfigOutput::builder().destination_config(destination());
        let short = config.clone().maximum_event_age_in_seconds(239).build();
        expect(
            of_events(Some(&short), false, Some(30)),
            Verdict::Warning,
            &["is 239", "second retry", "to 240 or more"],
        );
        expect_none(of_events(Some(&config.clone().build()), false, Some(30)));
        let once = config.maximum_retry_attempts(0).build();
        expect(of_events(Some(&once), false, Some(30)), Verdict::Warning, &["gives an event of a schedule", "to 2"]);
        let nowhere = DestinationConfig::builder().on_failure(OnFailure::builder().destination("").build()).build();
        let nowhere = GetFunctionEventInvokeConfigOutput::builder().destination_config(nowhere).build();
        for config in [None, Some(&nowhere)] {
            expect(of_events(config, false, Some(30)), Verdict::Warning, &["there is no DestinationConfig.OnFailure"]);
        }
        expect_none(of_events(None, true, Some(30)));
    }
}
