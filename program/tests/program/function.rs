//! `check --function`, at a server in the place of Lambda and SQS.

use crate::server::recording_server;
use crate::{Outcome, PROGRAM, Place, Process, bare, credentials};

const FUNCTION: (u16, &str) = (200, r#"{"Timeout":30,"Environment":{"Variables":{"LOCK_TABLE_NAME":"locks"}}}"#);
const NO_LIMIT: (u16, &str) = (200, "{}");
const URL: (u16, &str) = (200, r#"{"QueueUrl":"https://sqs.us-east-1.amazonaws.com/123456789012/payments"}"#);
const QUEUE: (u16, &str) = (
    200,
    r#"{"Attributes":{"VisibilityTimeout":"180","MessageRetentionPeriod":"604800","RedrivePolicy":"{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:123456789012:dead\",\"maxReceiveCount\":5}"}}"#,
);
const NO_QUEUE: (u16, &str) =
    (400, r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"The specified queue does not exist."}"#);
const DEAD_LETTERS: (u16, &str) = (200, r#"{"Attributes":{"MessageRetentionPeriod":"1209600"}}"#);
const DENIED: (u16, &str) = (403, r#"{"__type":"AccessDeniedException","Message":"User x is not authorized"}"#);
const MISSING: (u16, &str) =
    (404, r#"{"__type":"ResourceNotFoundException","Message":"The resource does not exist."}"#);

/// Two mappings, of a queue and of a table's stream, on one page.
const MAPPINGS: (u16, &str) = (
    200,
    r#"{"EventSourceMappings":[
        {"UUID":"a","State":"Enabled","BatchSize":10,"FunctionResponseTypes":["ReportBatchItemFailures"],
         "EventSourceArn":"arn:aws:sqs:us-east-1:123456789012:payments"},
        {"UUID":"b","State":"Enabled","BatchSize":100,"FunctionResponseTypes":["ReportBatchItemFailures"],
         "EventSourceArn":"arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/2026-01-01T00:00:00.000",
         "BisectBatchOnFunctionError":true,"MaximumRetryAttempts":10,"MaximumRecordAgeInSeconds":-1,
         "DestinationConfig":{"OnFailure":{"Destination":"arn:aws:sqs:us-east-1:123456789012:given-up"}}}]}"#,
);

/// Checks the function `payments` at a server that gives these answers in turn. Returns the outcome, and the first line of each
/// request, or the operation of SQS.
fn check(answers: &'static [(u16, &'static str)]) -> (Outcome, Vec<String>) {
    let (endpoint, requests) = recording_server(answers);
    let mut command = bare(PROGRAM);
    command.args(["check", "--function", "payments:live", "--endpoint-url", &endpoint]).envs(credentials());
    let outcome = Process::start(command).outcome();
    let requests = requests.try_iter().map(|request| {
        let operation = request.lines().find_map(|line| line.strip_prefix("x-amz-target: AmazonSQS."));
        operation.or(request.split(" HTTP/").next()).unwrap().to_owned()
    });
    (outcome, requests.collect())
}

#[test]
fn a_function_without_a_fault_passes() {
    let (outcome, requests) =
        check(&[FUNCTION, NO_LIMIT, MAPPINGS, URL, QUEUE, URL, DEAD_LETTERS, URL, DEAD_LETTERS, MISSING]);
    outcome.expect_code(0).expect_stdout(
        "passed  queue `payments`: the mapping and its queues have no setting that loses work\n\
         passed  stream of table `orders`: the mapping has no setting that loses work\n\
         passed  asynchronous events: no setting is for them, so Lambda gives one up without a trace after two retries: set \
         OnFailure in EventInvokeConfig if a schedule, S3, SNS or EventBridge invokes the function, too\n\
         passed  permissions: not looked at: the role also needs the actions on its sources, destinations and table\n",
    );
    assert_eq!(
        requests,
        [
            "GET /2015-03-31/functions/payments/configuration?Qualifier=live",
            "GET /2019-09-30/functions/payments/concurrency",
            "GET /2015-03-31/event-source-mappings?FunctionName=payments%3Alive",
            "GetQueueUrl",
            "GetQueueAttributes",
            "GetQueueUrl",
            "GetQueueAttributes",
            "GetQueueUrl",
            "GetQueueAttributes",
            "GET /2019-09-25/functions/payments/event-invoke-config?Qualifier=live",
        ]
    );
}

#[test]
fn a_destination_that_is_missing_fails_wherever_it_is_named() {
    const EVENTS: (u16, &str) = (
        200,
        r#"{"MaximumRetryAttempts":2,"DestinationConfig":{"OnFailure":{"Destination":"arn:aws:sqs:us-east-1:123456789012:lost"}}}"#,
    );
    let (outcome, _) = check(&[FUNCTION, NO_LIMIT, MAPPINGS, URL, QUEUE, NO_QUEUE, NO_QUEUE, EVENTS, NO_QUEUE]);
    let outcome = outcome.expect_code(78);
    for (line, name, setting) in [
        ("failed  queue `payments`: ", "`dead`", "in RedrivePolicy of the queue"),
        ("failed  stream of table `orders`: ", "`given-up`", "in DestinationConfig.OnFailure of the mapping"),
        ("failed  asynchronous events: ", "`lost`", "in OnFailure in EventInvokeConfig"),
    ] {
        let is_it = |found: &&str| found.starts_with(line) && found.contains(name) && found.ends_with(setting);
        assert!(outcome.stdout.lines().any(|found| is_it(&found)), "{name}: {outcome:?}");
    }
}

#[test]
fn a_check_that_gets_no_answer_midway_says_so() {
    const BUSY: (u16, &str) = (503, "");
    const FILE_SERVER: (u16, &str) = (404, "<html></html>");
    let (outcome, _) = check(&[FUNCTION, NO_LIMIT, MAPPINGS, BUSY, BUSY, BUSY, URL, DEAD_LETTERS, MISSING]);
    outcome.expect_code(69).expect_sentence(&["was not checked to the end"]);
    let (outcome, _) = check(&[FILE_SERVER]);
    outcome.expect_code(78).expect_sentence(&["is not AWS (HTTP status 404", "check --endpoint-url"]);
}

#[test]
fn a_setting_that_loses_work_fails_after_all_findings() {
    const WITHOUT: (u16, &str) = (
        200,
        r#"{"EventSourceMappings":[
            {"State":"Enabled","BatchSize":10,"EventSourceArn":"arn:aws:sqs:us-east-1:123456789012:payments"}]}"#,
    );
    const SHORT: (u16, &str) = (200, r#"{"Attributes":{"VisibilityTimeout":"20","MessageRetentionPeriod":"345600"}}"#);
    let (outcome, _) = check(&[FUNCTION, NO_LIMIT, WITHOUT, URL, SHORT, MISSING]);
    let outcome = outcome.expect_code(78).expect_sentence(&["function `payments:live` failed the check"]);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    let [responses, visibility, redrive, _events, _permissions] = lines[..] else { panic!("{lines:#?}") };
    assert!(responses.starts_with("failed  queue `payments`: FunctionResponseTypes"), "{responses}");
    assert!(visibility.starts_with("failed  queue `payments`: VisibilityTimeout of the queue is 20s"), "{visibility}");
    assert!(redrive.starts_with("failed  queue `payments`: the queue has no RedrivePolicy"), "{redrive}");
}

#[test]
fn a_denied_read_is_named_and_hides_nothing_else() {
    let (outcome, _) = check(&[DENIED, DENIED, MAPPINGS, URL, DENIED, URL, DEAD_LETTERS, DENIED]);
    outcome.expect_code(0).expect_stdout(
        "warning lambda:GetFunctionConfiguration: the function's timeout and environment were not read: allow \
         lambda:GetFunctionConfiguration (User x is not authorized)\n\
         warning lambda:GetFunctionConcurrency: the reserved concurrency was not read: allow \
         lambda:GetFunctionConcurrency (User x is not authorized)\n\
         warning sqs:GetQueueAttributes: queue `payments` was not checked: allow sqs:GetQueueAttributes (User x is not \
         authorized)\n\
         passed  stream of table `orders`: the mapping has no setting that loses work\n\
         warning lambda:GetFunctionEventInvokeConfig: the retries and the destination of asynchronous events were not read: \
         allow lambda:GetFunctionEventInvokeConfig (User x is not authorized)\n\
         passed  permissions: not looked at: the role also needs the actions on its sources, destinations and table\n",
    );
    let (outcome, _) = check(&[FUNCTION, NO_LIMIT, DENIED]);
    let outcome = outcome.expect_code(78);
    assert!(
        outcome.stdout.starts_with("failed  lambda:ListEventSourceMappings: no mapping was checked"),
        "{outcome:?}"
    );
}

#[test]
fn a_function_without_mapping_gets_its_events_checked() {
    const NONE: (u16, &str) = (200, r#"{"EventSourceMappings":[]}"#);
    let (outcome, _) = check(&[FUNCTION, NO_LIMIT, NONE, MISSING]);
    let outcome = outcome.expect_code(0);
    assert!(outcome.stdout.starts_with("passed  mappings: there is none of this function"), "{outcome:?}");
    assert!(outcome.stdout.contains("warning asynchronous events: there is no DestinationConfig.OnFailure"));
}

#[test]
fn a_first_request_without_result_ends_the_check() {
    let (outcome, _) = check(&[MISSING]);
    outcome
        .expect_code(78)
        .expect_stdout("")
        .expect_sentence(&["no function `payments:live` in this account and region"]);
    let (outcome, _) = check(&[(403, r#"{"__type":"ExpiredTokenException","Message":"The token has expired"}"#)]);
    outcome.expect_code(78).expect_sentence(&["not accepted (The token has expired): renew them"]);
    let mut command = bare(PROGRAM);
    command.args(["check", "--function", "payments", "--endpoint-url", "http://127.0.0.1:1"]).envs(credentials());
    Process::start(command).outcome().expect_code(69).expect_sentence(&["AWS did not answer"]);
    let mut command = bare(PROGRAM);
    command.args(["check", "--function", "payments", "--region", "us-east-1"]);
    Process::start(command).outcome().expect_code(78).expect_sentence(&["was not sent", "check the credentials"]);
}

#[test]
fn a_file_has_no_function() {
    let place = Place::new();
    if place.endpoint.is_none() {
        place.run(["check", "--function", "payments"]).expect_code(2).expect_sentence(&["leave --embedded out"]);
    }
}
