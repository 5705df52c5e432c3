//! `template.yaml` as a user deploys it: built and deployed by the SAM CLI, to a local AWS (`MiniStack`) that runs the
//! functions' binaries as Lambda does, behind a function URL, an HTTP API, queues, a schedule and a state machine. The time
//! is real.
//!
//! `.ci/run deployed` installs what the test needs, and runs it: `sam`, `cargo-lambda`, `ministack`, `aws` and `faketime` on the
//! `PATH`.

mod deployments;
mod local_aws;
mod observability;
mod orders;
mod payments;
mod reports;
mod runbook;
mod settings;
mod stack;
mod totals;
mod widget;

use std::collections::HashMap;
use std::env;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::deployments::{
    a_failed_deployment_frees_its_lock_and_fails_its_execution, an_execution_that_was_stopped_frees_its_lock,
    two_deployments_of_a_service_run_one_after_the_other,
};
use crate::observability::{
    alarms_and_dashboard_show_the_exported_metrics, each_alarm_and_widget_has_data,
    each_log_line_has_the_id_of_its_request_once,
};
use crate::orders::{
    a_caller_cannot_choose_how_long_an_order_takes, an_order_sent_three_times_is_placed_once,
    the_api_limits_and_logs_its_requests, the_signer_of_a_request_is_its_caller,
};
use crate::payments::{
    a_payment_in_progress_is_hidden_until_its_lease_ends, only_the_payment_that_panics_goes_back,
    payments_are_made_once_and_poison_becomes_dead_letters, payments_of_a_group_stay_in_order_after_a_failure,
};
use crate::reports::{
    a_killed_invocation_blocks_its_report_for_its_lease, a_report_that_panics_releases_its_lock_at_once,
    a_report_that_was_given_up_is_kept, one_of_five_concurrent_invocations_writes, the_schedule_writes_its_report,
};
use crate::runbook::{
    Runbook, a_dead_letter_is_found_and_paid_once, a_denied_function_is_explained, a_full_semaphore_is_found_and_freed,
    a_held_key_is_found_and_freed, a_killed_and_a_lost_run_are_in_the_log, a_rate_that_is_far_ahead_passes_again,
    a_run_that_did_not_finish_is_released_or_completed, a_throttled_table_is_explained, a_wrong_clock_is_found,
    totals_that_stand_still_raise_an_alarm, waiters_that_died_do_not_keep_a_key,
    work_that_does_not_happen_is_found_and_done,
};
use crate::settings::the_template_has_no_setting_that_loses_work;
use crate::stack::Stack;
use crate::totals::a_placed_order_is_counted_once;

const TOOLS: [&str; 5] = ["sam", "cargo-lambda", "ministack", "aws", "faketime"];
const REGION: &str = "us-east-1";
const STACK: &str = "example";
/// Those whose metrics and logs are checked. The local AWS does not run `durable-deployment`: `tests/tests/identity/` does.
const FUNCTIONS: [&str; 5] = ["nightly-report", "order-api", "payment-queue", "order-totals", "deployment"];
/// The test sends nothing to it.
const TOPIC: &str = "arn:aws:sns:us-east-1:000000000000:alarms";

/// The timeout of `nightly-report`, in seconds.
const FUNCTION_TIMEOUT: u64 = 8;
/// Less than the timeout, and longer than a few concurrent cold starts on a busy machine.
const GATHERING: Duration = Duration::from_secs(4);
/// The timeout of `payment-queue`, in seconds.
const PAYMENT_TIMEOUT: u64 = 5;
/// The time until a failed message comes back, which the template sets. It is much longer than a lease.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(6 * PAYMENT_TIMEOUT);
/// The default of `LocksBuilder::clock_skew`, in milliseconds.
const CLOCK_SKEW: u64 = 1000;

#[tokio::test]
#[ignore = "needs a local AWS: .ci/run deployed"]
async fn the_deployed_functions_do_each_job_once() {
    let missing: Vec<_> = TOOLS.into_iter().filter(|tool| !is_on_path(tool)).collect();
    assert!(missing.is_empty(), "not on the PATH: {missing:?}");
    // One stack for all checks, because a deployment takes a while. Each check has its own report, order or payments.
    let stack = Stack::deploy().await;
    the_template_has_no_setting_that_loses_work(&stack).await;
    one_of_five_concurrent_invocations_writes(&stack).await;
    an_order_sent_three_times_is_placed_once(&stack).await;
    a_placed_order_is_counted_once(&stack).await;
    a_payment_in_progress_is_hidden_until_its_lease_ends(&stack).await;
    two_deployments_of_a_service_run_one_after_the_other(&stack).await;
    a_failed_deployment_frees_its_lock_and_fails_its_execution(&stack).await;
    an_execution_that_was_stopped_frees_its_lock(&stack).await;
    alarms_and_dashboard_show_the_exported_metrics(&stack).await;
    each_log_line_has_the_id_of_its_request_once(&stack).await;
    the_api_limits_and_logs_its_requests(&stack).await;
    a_report_that_panics_releases_its_lock_at_once(&stack).await;
    let runbook = Runbook::read();
    a_held_key_is_found_and_freed(&stack, &runbook).await;
    a_run_that_did_not_finish_is_released_or_completed(&stack, &runbook).await;
    a_full_semaphore_is_found_and_freed(&stack, &runbook).await;
    a_rate_that_is_far_ahead_passes_again(&stack, &runbook).await;
    waiters_that_died_do_not_keep_a_key(&stack, &runbook).await;
    a_wrong_clock_is_found(&stack, &runbook).await;
    a_denied_function_is_explained(&stack, &runbook).await;
    a_throttled_table_is_explained(&stack, &runbook).await;
    work_that_does_not_happen_is_found_and_done(&stack, &runbook).await;
    totals_that_stand_still_raise_an_alarm(&stack).await;
    let panicking = only_the_payment_that_panics_goes_back(&stack).await;
    tokio::join!(
        a_killed_invocation_blocks_its_report_for_its_lease(&stack),
        the_schedule_writes_its_report(&stack),
        a_report_that_was_given_up_is_kept(&stack),
        payments_are_made_once_and_poison_becomes_dead_letters(&stack, panicking),
        payments_of_a_group_stay_in_order_after_a_failure(&stack),
        protected_tables_and_queues_of_payments_outlive_their_stack(&stack),
    );
    a_killed_and_a_lost_run_are_in_the_log(&stack, &runbook).await;
    a_dead_letter_is_found_and_paid_once(&stack, &runbook).await;
    runbook.assert_all_have_run();
    each_alarm_and_widget_has_data(&stack).await;
    stack.delete(STACK).await;
    assert_eq!(stack.tables_of(STACK).await, [""; 0]);
    assert_eq!(stack.queues_of(&format!("{STACK}-")).await, [""; 0]);
}

async fn protected_tables_and_queues_of_payments_outlive_their_stack(stack: &Stack) {
    let name = "protected";
    stack.local.deploy(name, &["ScheduleState=DISABLED", "OrderConcurrency=5"]).await;
    let tables = stack.tables_of(name).await;
    assert_eq!(tables.len(), 2);
    let queues = async || {
        let names = ["Payments", "PaymentDeadLetters", "OrderedPayments", "OrderedPaymentDeadLetters"];
        join_all(names.map(async |queue| stack.queues_of(&format!("{name}-{queue}-")).await)).await.concat()
    };
    let before = queues().await;
    assert_eq!(before.len(), 4);
    the_signer_of_a_request_is_its_caller(stack, name).await;
    a_caller_cannot_choose_how_long_an_order_takes(stack, name).await;
    stack.delete(name).await;
    assert_eq!(stack.tables_of(name).await, tables);
    assert_eq!(queues().await, before);
    let function = stack.lambda.get_function().function_name(format!("{name}-nightly-report")).send().await;
    assert!(function.unwrap_err().into_service_error().is_resource_not_found_exception());
}

fn is_on_path(tool: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

/// Retries until there is a value, for at most `limit`.
async fn loop_until<T>(limit: Duration, attempt: impl AsyncFn() -> Option<T>) -> T {
    let found = timeout(limit, async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            sleep(Duration::from_millis(100)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("nothing after {limit:?}"))
}

fn number(row: &HashMap<String, AttributeValue>, attribute: &str) -> u64 {
    row[attribute].as_n().unwrap().parse().unwrap()
}
