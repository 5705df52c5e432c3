//! Locks: acquiring, waiting, renewing, releasing and reading them.

mod acquire;
mod attempts;
mod bounds;
mod clocks;
mod coalesce;
mod data;
mod dead_connections;
mod delays;
mod fences;
mod first_retry;
mod hot_keys;
mod hot_waiters;
mod keys;
mod late_requests;
mod lease;
mod prevented;
mod processes;
mod recipes;
mod release;
mod renew;
mod rows;
mod run;
mod settings;
mod shutdown;
mod texts;
mod threads;
mod turns;
mod waiting;

use std::ops::RangeInclusive;
use std::time::Duration;

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{ConditionCheck, Put, TransactWriteItem};
use lambda_lock::{Backoff, Wait};
use lambda_lock_tests::invocation::LoseAnswers;
use lambda_lock_tests::rows::text;
use lambda_lock_tests::{Row, World, assert_contains, ms};

/// The defaults.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_hours(24);

/// Asks often, for up to two minutes.
fn eagerly() -> Wait {
    Wait::backoff(Backoff::new().base(ms(2)).cap(ms(200))).up_to(Duration::from_mins(2))
}

fn number(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}

fn lose_answers(which: RangeInclusive<u32>) -> LoseAnswers {
    LoseAnswers::to("UpdateItem", which)
}

/// Writes `row` in a transaction with `check`. The error is the code of the failed check.
async fn transact(world: &World, check: ConditionCheck, row: Row) -> Result<(), Option<String>> {
    let put = Put::builder().table_name(&world.table).set_item(Some(row)).build().unwrap();
    let transaction = world.client().transact_write_items();
    let sent = transaction
        .transact_items(TransactWriteItem::builder().condition_check(check).build())
        .transact_items(TransactWriteItem::builder().put(put).build())
        .send();
    sent.await.map(drop).map_err(|error| match error.into_service_error() {
        TransactWriteItemsError::TransactionCanceledException(why) => why.cancellation_reasons()[0].code.clone(),
        other => panic!("{other:?}"),
    })
}
