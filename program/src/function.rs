//! `check --function`: reads the settings of a function, its event source mappings and their queues.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_lambda::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_lambda::operation::get_function_configuration::GetFunctionConfigurationOutput;
use aws_sdk_lambda::types::EventSourceMappingConfiguration as Mapping;
use aws_sdk_sqs::types::QueueAttributeName;
use aws_smithy_types::timeout::TimeoutConfig;
use lambda_lock::operate::Verdict;

use crate::arguments::TableOptions;
use crate::connect::sdk_config;
use crate::failure::{CONFIGURATION, Failure, UNAVAILABLE, cause};
use crate::mapping::{self, Finding, Queue, Source};
use crate::output::{line, printable};

/// The longest time for one request with all its retries.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The codes with which Lambda and SQS reject credentials that have expired or are wrong.
const NOT_ACCEPTED: [&str; 12] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

/// Prints a line for each finding. A finding that loses work is a failure, after all are printed.
pub(crate) async fn check(options: &TableOptions, function: &str) -> Result<(), Failure> {
    #[cfg(feature = "embedded")]
    if options.embedded.is_some() {
        let message = "--function reads the settings of a function at AWS: leave --embedded out";
        return Err(Failure::new(crate::failure::USAGE, message));
    }
    let config = sdk_config(options).await?;
    let timeouts = config.timeout_config().cloned().unwrap_or_else(|| TimeoutConfig::builder().build());
    let timeouts = timeouts.into_builder().operation_timeout(REQUEST_TIMEOUT).build();
    let mut check = Check::new(&config.into_builder().timeout_config(timeouts).build(), function);
    check.function().await?;
    let findings = check.findings;
    findings.iter().try_for_each(|finding| line(&finding.to_string()))?;
    if findings.iter().all(|finding| finding.verdict != Verdict::Failed) {
        let message = format!("function `{}` was not checked to the end: see the lines above", printable(function));
        return check.code.map_or(Ok(()), |code| Err(Failure::new(code, message)));
    }
    let message = format!(
        "function `{}` failed the check: its settings lose work, or cannot be read; see the lines above",
        printable(function)
    );
    Err(Failure::new(CONFIGURATION, message))
}

/// A check in progress.
#[derive(Debug)]
struct Check<'a> {
    lambda: aws_sdk_lambda::Client,
    sqs: aws_sdk_sqs::Client,
    /// As the user has named it.
    function: &'a str,
    findings: Vec<Finding>,
    /// The code of the first request that failed, rather than being denied.
    code: Option<u8>,
}

/// Why there is no answer.
#[derive(Debug)]
enum Refusal {
    Missing,
    Denied(String),
    Failed(Failure),
}

impl<'a> Check<'a> {
    fn new(config: &SdkConfig, function: &'a str) -> Self {
        let (lambda, sqs) = (aws_sdk_lambda::Client::new(config), aws_sdk_sqs::Client::new(config));
        Self { lambda, sqs, function, findings: Vec::new(), code: None }
    }

    async fn function(&mut self) -> Result<(), Failure> {
        let (name, qualifier) = qualified(self.function);
        let qualifier = qualifier.map(str::to_owned);
        let request = self.lambda.get_function_configuration().function_name(name).set_qualifier(qualifier.clone());
        let configuration = match answer(request.send()).await {
            Ok(configuration) => Some(configuration),
            Err(Refusal::Missing) => {
                let message = format!(
                    "there is no function `{}` in this account and region: check its name, --region and --profile",
                    printable(self.function)
                );
                return Err(Failure::new(CONFIGURATION, message));
            }
            // The other requests would fail in the same way.
            Err(Refusal::Failed(failure)) => return Err(failure),
            Err(refusal) => {
                let without = "the function's timeout and environment were not read";
                self.unread(Verdict::Warning, "lambda:GetFunctionConfiguration", without, refusal);
                None
            }
        };
        self.findings.extend(configuration.iter().flat_map(of_environment));

        let request = self.lambda.get_function_concurrency().function_name(name);
        let reserved = match answer(request.send()).await {
            Ok(output) => output.reserved_concurrent_executions,
            Err(refusal) => {
                let without = "the reserved concurrency was not read";
                self.unread(Verdict::Warning, "lambda:GetFunctionConcurrency", without, refusal);
                None
            }
        };

        let pages = self.lambda.list_event_source_mappings().function_name(self.function).into_paginator().items();
        let mappings: Vec<Mapping> = match answer(pages.send().collect()).await {
            Ok(mappings) => mappings,
            Err(refusal) => {
                let without = "no mapping was checked";
                let verdict = if matches!(refusal, Refusal::Failed(_)) { Verdict::Warning } else { Verdict::Failed };
                self.unread(verdict, "lambda:ListEventSourceMappings", without, refusal);
                return Ok(());
            }
        };
        self.findings.extend(mapping::of_concurrency(reserved, &mappings));
        if mappings.is_empty() {
            let message = "there is none of this function; if an alias or a version has them, name it: NAME:ALIAS";
            self.findings.push(Finding::new(Verdict::Passed, "mappings", message));
        }
        let timeout = configuration.as_ref().and_then(|configuration| configuration.timeout()?.try_into().ok());
        for mapping in &mappings {
            self.mapping(mapping, timeout).await;
        }
        self.events(name, qualifier, configuration.as_ref(), timeout, !mappings.is_empty()).await;
        let message = "not looked at: the role also needs the actions on its sources, destinations and table";
        self.findings.push(Finding::new(Verdict::Passed, "permissions", message));
        Ok(())
    }

    async fn mapping(&mut self, mapping: &Mapping, timeout: Option<u32>) {
        let (before, subject) = (self.findings.len(), mapping::subject(mapping));
        self.findings.extend(mapping::of_mapping(mapping, timeout));
        let arn = mapping.event_source_arn().unwrap_or_default();
        let is_queue = Source::of(mapping) == Source::Queue;
        if is_queue && let Some(queue) = self.queue(arn, &subject, None).await {
            self.findings.extend(mapping::of_queue(&queue, mapping, timeout));
            if let Some(arn) = queue.dead_letters()
                && let Some(dead_letters) = self.destination(arn, &subject, "RedrivePolicy of the queue").await
            {
                self.findings.extend(mapping::of_dead_letters(&queue, &dead_letters, mapping));
            }
        }
        if let Some(arn) = mapping::on_failure(mapping.destination_config()) {
            self.given_up(arn, &subject, "DestinationConfig.OnFailure of the mapping").await;
        }
        if self.findings[before..].iter().all(|finding| finding.verdict == Verdict::Passed) {
            let what =
                if is_queue { "the mapping and its queues have no setting" } else { "the mapping has no setting" };
            let message = format!("{what} that loses work");
            self.findings.push(Finding::new(Verdict::Passed, subject, message));
        }
    }

    /// Looks at the place that this setting names for work that is given up. It has to be there. Returns it if it is a queue.
    async fn destination(&mut self, arn: &str, subject: &str, setting: &str) -> Option<Queue> {
        if arn.split(':').nth(2) == Some("sqs") {
            return self.queue(arn, subject, Some(setting)).await;
        }
        self.findings.push(mapping::of_other_destination(arn, subject, setting));
        None
    }

    /// Reads the queue with this ARN, which this setting names unless it is the source of a mapping. Reports why it cannot be
    /// read.
    async fn queue(&mut self, arn: &str, subject: &str, setting: Option<&str>) -> Option<Queue> {
        let [.., account, name] = arn.split(':').collect::<Vec<_>>()[..] else { return None };
        let mut action = "sqs:GetQueueUrl";
        let request = self.sqs.get_queue_url().queue_name(name).queue_owner_aws_account_id(account);
        let mut answered = answer(request.send()).await.map(|output| output.queue_url.unwrap_or_default());
        let mut attributes = HashMap::new();
        if let Ok(url) = &answered {
            action = "sqs:GetQueueAttributes";
            let request = self.sqs.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All);
            match answer(request.send()).await {
                Ok(output) => attributes = output.attributes.unwrap_or_default(),
                Err(refusal) => answered = Err(refusal),
            }
        }
        match answered {
            Ok(_) => return Some(Queue::new(name, &attributes)),
            Err(Refusal::Missing) => self.findings.push(mapping::of_missing_queue(arn, subject, setting)),
            Err(refusal) => {
                let without = format!("queue `{name}` was not checked");
                self.unread(Verdict::Warning, action, &without, refusal);
            }
        }
        None
    }

    /// Looks at the events of callers that do not wait for the answer. A function with mappings may have no such callers.
    async fn events(
        &mut self,
        name: &str,
        qualifier: Option<String>,
        configuration: Option<&GetFunctionConfigurationOutput>,
        timeout: Option<u32>,
        has_mappings: bool,
    ) {
        // SAM and CloudFormation name the unpublished version where a caller need not.
        let qualifier = qualifier.unwrap_or_else(|| "$LATEST".to_owned());
        let request = self.lambda.get_function_event_invoke_config().function_name(name).qualifier(qualifier);
        let config = match answer(request.send()).await {
            Ok(config) => Some(config),
            Err(Refusal::Missing) => None,
            Err(refusal) => {
                let without = "the retries and the destination of asynchronous events were not read";
                return self.unread(Verdict::Warning, "lambda:GetFunctionEventInvokeConfig", without, refusal);
            }
        };
        let dead_letters = configuration.and_then(|configuration| configuration.dead_letter_config());
        let dead_letters = dead_letters.and_then(|config| config.target_arn()).filter(|arn| !arn.is_empty());
        let subject = "asynchronous events";
        if has_mappings && config.is_none() && dead_letters.is_none() {
            let message = "no setting is for them, so Lambda gives one up without a trace after two retries: set OnFailure in \
                           EventInvokeConfig if a schedule, S3, SNS or EventBridge invokes the function, too";
            return self.findings.push(Finding::new(Verdict::Passed, subject, message));
        }
        self.findings.extend(mapping::of_events(config.as_ref(), dead_letters.is_some(), timeout));
        let on_failure = mapping::on_failure(config.as_ref().and_then(|config| config.destination_config()));
        let settings =
            [(on_failure, "OnFailure in EventInvokeConfig"), (dead_letters, "DeadLetterConfig of the function")];
        for (arn, setting) in settings {
            if let Some(arn) = arn {
                self.given_up(arn, subject, setting).await;
            }
        }
    }

    /// Looks at the destination of work that Lambda gives up.
    async fn given_up(&mut self, arn: &str, subject: &str, setting: &str) {
        if let Some(queue) = self.destination(arn, subject, setting).await {
            self.findings.extend(mapping::of_destination(&queue, subject, setting));
        }
    }

    /// Reports that an answer is missing.
    fn unread(&mut self, verdict: Verdict, action: &str, without: &str, refusal: Refusal) {
        let why = match refusal {
            Refusal::Missing => "not found".to_owned(),
            Refusal::Denied(why) => format!("allow {action} ({why})"),
            Refusal::Failed(failure) => {
                self.code.get_or_insert(failure.code);
                failure.message
            }
        };
        self.findings.push(Finding::new(verdict, action, format!("{without}: {why}")));
    }
}

fn of_environment(configuration: &GetFunctionConfigurationOutput) -> Vec<Finding> {
    let environment = configuration.environment();
    if let Some(error) = environment.and_then(|environment| environment.error()) {
        let why = error.message().unwrap_or_default();
        let message = format!("the variables were not read, because Lambda cannot decrypt them ({why})");
        return vec![Finding::new(Verdict::Warning, "environment", message)];
    }
    mapping::of_variables(environment.and_then(|environment| environment.variables()))
}

/// Returns a function's name or ARN without its version or alias, and that.
fn qualified(function: &str) -> (&str, Option<&str>) {
    let words: Vec<_> = function.split(':').collect();
    let of_name = match words[..] {
        ["arn", ..] => 7,
        [_, "function", _, ..] => 3,
        _ => 1,
    };
    match function.match_indices(':').nth(of_name - 1) {
        Some((end, _)) => (&function[..end], Some(&function[end + 1..])),
        None => (function, None),
    }
}

async fn answer<T, E>(request: impl Future<Output = Result<T, SdkError<E>>>) -> Result<T, Refusal>
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let error = match Box::pin(request).await {
        Ok(output) => return Ok(output),
        Err(error) => error,
    };
    let why = cause(&error);
    let refused = |code, message| Err(Refusal::Failed(Failure::new(code, message)));
    let status = error.raw_response().map(|response| response.status().as_u16());
    match (error.code(), status) {
        // The codes of SQS are those of its earlier protocol.
        (Some("ResourceNotFoundException" | "AWS.SimpleQueueService.NonExistentQueue" | "QueueDoesNotExist"), _) => {
            Err(Refusal::Missing)
        }
        (Some("AccessDeniedException" | "AccessDenied"), _) => Err(Refusal::Denied(why)),
        (Some(code), _) if NOT_ACCEPTED.contains(&code) => {
            let message = format!("the credentials are not accepted ({why}): renew them, and check this host's clock");
            refused(CONFIGURATION, message)
        }
        (Some(code), Some(400 | 401 | 403 | 404)) if !code.contains("Throttl") => {
            refused(CONFIGURATION, format!("AWS rejected the request ({code}: {why}): correct what this names"))
        }
        // AWS names each of its errors.
        (None, Some(status)) if status < 500 || status == 501 => {
            let remedy = "check --endpoint-url and the proxy";
            refused(CONFIGURATION, format!("what answered is not AWS (HTTP status {status}; {why}): {remedy}"))
        }
        (_, Some(_)) => refused(UNAVAILABLE, format!("AWS gave no usable answer ({why}): check again in a minute")),
        (_, None) if is_unsent(&error) => {
            let remedy = "check the credentials, --profile and the other settings of AWS";
            refused(CONFIGURATION, format!("the request was not sent ({why}): {remedy}"))
        }
        (_, None) => {
            let remedy = "check --region, --endpoint-url and the network";
            refused(UNAVAILABLE, format!("AWS did not answer ({why}): {remedy}"))
        }
    }
}

/// Returns whether the request did not reach the network, because there are no credentials, for example.
fn is_unsent<E>(error: &SdkError<E>) -> bool {
    match error {
        SdkError::ConstructionFailure(_) => true,
        SdkError::DispatchFailure(failure) => !failure.is_io() && !failure.is_timeout() && failure.as_other().is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_an_arn_is_split_from_its_alias() {
        let arn = "arn:aws:lambda:eu-west-1:123456789012:function:orders";
        for name in ["orders", "my-function", "123456789012:function:orders", arn] {
            assert_eq!(qualified(name), (name, None));
            assert_eq!(qualified(&format!("{name}:live")), (name, Some("live")));
        }
    }
}
