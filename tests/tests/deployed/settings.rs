//! `lambda-lock check --function`: what loses messages in the settings of the deployed functions.

use aws_sdk_lambda::types::FunctionResponseType;

use crate::runbook::program;
use crate::stack::{Stack, in_stack};

/// Right after the deployment: later, Lambda's last delivery may have had a problem.
pub(crate) async fn the_template_has_no_setting_that_loses_work(stack: &Stack) {
    for (function, passed) in [
        ("payment-queue", "passed  queue `example-Payments-"),
        ("order-totals", "passed  stream of table `example-DataTable-"),
        ("nightly-report", "passed  mappings: "),
        ("order-api", "passed  mappings: "),
        ("deployment", "passed  mappings: "),
    ] {
        let (code, report) = check(stack, function).await;
        assert_eq!(code, 0, "{report}");
        assert!(report.lines().any(|line| line.starts_with(passed)), "{report}");
    }
    let (_, report) = check(stack, "nightly-report").await;
    assert!(!report.contains("warning"), "{report}");
}

pub(crate) async fn a_mapping_that_loses_failed_payments_is_found(stack: &Stack) {
    let mappings =
        stack.lambda.list_event_source_mappings().function_name(in_stack("payment-queue")).send().await.unwrap();
    let uuid = mappings.event_source_mappings()[0].uuid().unwrap();
    let respond = async |types: Vec<FunctionResponseType>| {
        let update = stack.lambda.update_event_source_mapping().uuid(uuid).set_function_response_types(Some(types));
        update.send().await.unwrap();
    };
    respond(Vec::new()).await;
    let (code, report) = check(stack, "payment-queue").await;
    respond(vec![FunctionResponseType::ReportBatchItemFailures]).await;
    assert_eq!(code, 78, "{report}");
    let finds = |line: &str| line.starts_with("failed  queue `") && line.contains("[ReportBatchItemFailures]");
    assert!(report.lines().any(finds), "{report}");
    assert_eq!(check(stack, "payment-queue").await.0, 0);
}

/// Returns the exit code, and what was printed.
async fn check(stack: &Stack, function: &str) -> (i32, String) {
    let mut command = stack.local.command(program().to_str().unwrap());
    let output = command.args(["check", "--function", &in_stack(function)]).output().await.unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code().unwrap(), text)
}
