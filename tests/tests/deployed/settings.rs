//! `lambda-lock check --function`: what loses messages in the settings of the deployed functions.

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

/// Returns the exit code, and what was printed.
async fn check(stack: &Stack, function: &str) -> (i32, String) {
    let mut command = stack.local.command(program().to_str().unwrap());
    let output = command.args(["check", "--function", &in_stack(function)]).output().await.unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code().unwrap(), text)
}
