//! `template.yaml` as a user deploys it: built and deployed by the SAM CLI, to a local AWS (`MiniStack`) that runs the
//! functions' binaries as Lambda does, behind a function URL, queues and a schedule. The time is real.
//!
//! Needs `sam`, `cargo-lambda` and `ministack` on the `PATH`, as `.ci/run` puts them there. Without them the test is skipped,
//! or fails if `LOCK_TEST_DEPLOYED` is `required`.

mod local_aws;
mod observability;
mod orders;
mod payments;
mod reports;
mod stack;

use std::collections::HashMap;
use std::env;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use tokio::time::{sleep, timeout};

use crate::observability::{
    each_line_of_their_logs_has_the_id_of_its_request_once, what_they_export_is_what_the_alarms_and_the_dashboard_show,
};
use crate::orders::an_order_that_is_sent_three_times_is_placed_once;
use crate::payments::{
    a_payment_that_is_being_made_is_hidden_until_that_lease_ends, of_ten_payments_the_one_that_panics_goes_back_alone,
    payments_are_made_once_and_poison_becomes_a_dead_letter, payments_of_a_group_stay_in_order_when_one_fails,
};
use crate::reports::{
    a_killed_invocation_blocks_its_report_until_its_lease_ends, a_report_that_panics_frees_its_lock_at_once,
    of_concurrent_invocations_one_writes_and_the_next_has_a_larger_fence, the_schedule_writes_its_report,
};
use crate::stack::Stack;

const TOOLS: [&str; 3] = ["sam", "cargo-lambda", "ministack"];
const REGION: &str = "us-east-1";
const STACK: &str = "example";
const FUNCTIONS: [&str; 3] = ["nightly-report", "order-api", "payment-queue"];
/// Nothing is sent to it here.
const TOPIC: &str = "arn:aws:sns:us-east-1:000000000000:alarms";

/// The timeout of `nightly-report`, in seconds.
const FUNCTION_TIMEOUT: u64 = 8;
/// Less than the timeout, and longer than a few cold starts at once take on a busy machine.
const GATHERING: Duration = Duration::from_secs(4);
/// The timeout of `payment-queue`, in seconds.
const PAYMENT_TIMEOUT: u64 = 5;
/// Until a message that failed comes back, by the template: much longer than until the end of a lease.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(6 * PAYMENT_TIMEOUT);
/// The default of `LocksBuilder::clock_skew`, in milliseconds.
const CLOCK_SKEW: u64 = 1000;

#[tokio::test]
async fn the_deployed_functions_do_each_piece_of_work_once() {
    let missing: Vec<_> = TOOLS.into_iter().filter(|tool| !is_on_path(tool)).collect();
    if !missing.is_empty() {
        assert!(env::var_os("LOCK_TEST_DEPLOYED").is_none_or(|v| v != "required"), "not on the PATH: {missing:?}");
        eprintln!("skipped: not on the PATH: {missing:?}");
        return;
    }
    // One stack for all, because it takes a while to deploy; each has a report, an order or payments of its own.
    let stack = Stack::deploy().await;
    of_concurrent_invocations_one_writes_and_the_next_has_a_larger_fence(&stack).await;
    an_order_that_is_sent_three_times_is_placed_once(&stack).await;
    a_payment_that_is_being_made_is_hidden_until_that_lease_ends(&stack).await;
    what_they_export_is_what_the_alarms_and_the_dashboard_show(&stack).await;
    each_line_of_their_logs_has_the_id_of_its_request_once(&stack).await;
    a_report_that_panics_frees_its_lock_at_once(&stack).await;
    let panicking = of_ten_payments_the_one_that_panics_goes_back_alone(&stack).await;
    tokio::join!(
        a_killed_invocation_blocks_its_report_until_its_lease_ends(&stack),
        the_schedule_writes_its_report(&stack),
        payments_are_made_once_and_poison_becomes_a_dead_letter(&stack, panicking),
        payments_of_a_group_stay_in_order_when_one_fails(&stack),
        a_protected_table_stays_when_its_stack_is_deleted(&stack),
    );
    stack.delete(STACK).await;
    assert_eq!(stack.tables_of(STACK).await, [""; 0]);
}

async fn a_protected_table_stays_when_its_stack_is_deleted(stack: &Stack) {
    let name = "protected";
    stack.local.deploy(name, &["ScheduleState=DISABLED"]).await;
    let tables = stack.tables_of(name).await;
    assert_eq!(tables.len(), 1);
    stack.delete(name).await;
    assert_eq!(stack.tables_of(name).await, tables);
    let function = stack.lambda.get_function().function_name(format!("{name}-nightly-report")).send().await;
    assert!(function.unwrap_err().into_service_error().is_resource_not_found_exception());
}

fn is_on_path(tool: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

/// Tries until there is something, for `limit` at the most.
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
