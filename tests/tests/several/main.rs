//! Several keys, all or none.

mod acquire;
mod fences;
mod late_requests;
mod lost_answers;
mod regions;
mod release;
mod renew;
mod run;
mod turns;
mod waiting;

use std::ops::RangeInclusive;
use std::time::Duration;

use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{Backoff, Lock, Wait};
use lambda_lock_tests::invocation::{Counter, LoseAnswers};
use lambda_lock_tests::rows::text;
use lambda_lock_tests::{Row, World, assert_contains, ms};
use serde_json::{Value, json};

/// The defaults.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);

const KEYS: [&str; 2] = ["account#1", "account#2"];

/// Asks often, for up to two minutes.
fn eagerly() -> Wait {
    Wait::backoff(Backoff::new().base(ms(2)).cap(ms(200))).up_to(Duration::from_mins(2))
}

fn number(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}

/// Returns the rows of both keys.
async fn rows(world: &World) -> [Option<Row>; 2] {
    [world.row(KEYS[0]).await, world.row(KEYS[1]).await]
}

/// Asserts that the rows show this set, with its fences.
async fn assert_held_by(world: &World, set: &Lock) {
    for key in set.keys() {
        let row = world.row(key).await.unwrap();
        assert_eq!(row["owner"], text(set.owner()), "{key}");
        assert_eq!(Some(number(&row, "fence")), set.fence_of(key), "{key}");
    }
}

/// Asserts that both keys can be acquired.
async fn assert_free(world: &World) {
    world.default_locks().acquire_all(KEYS).await.expect("both keys are free").release().await.unwrap();
}

fn lose_answers(which: RangeInclusive<u32>) -> LoseAnswers {
    LoseAnswers::to("TransactWriteItems", which)
}

/// Cancels these transactions, counted from 1, because of the second key.
#[derive(Debug)]
struct Cancel {
    code: &'static str,
    which: RangeInclusive<u32>,
    sent: Counter,
    answered: Counter,
}

impl Cancel {
    fn with(code: &'static str, which: RangeInclusive<u32>) -> Self {
        Self { code, which, sent: Counter::default(), answered: Counter::default() }
    }
}

impl Intercept for Cancel {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "TransactWriteItems" && self.which.contains(&self.sent.count()) {
            // The table does not apply it.
            request["TransactItems"][0]["Update"]["TableName"] = "no-such-table".into();
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "TransactWriteItems" && self.which.contains(&self.answered.count()) {
            answer.status = 400;
            answer.body = json!({
                "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
                "Message": "Transaction cancelled, please refer cancellation reasons for specific reasons",
                "CancellationReasons": [{ "Code": "None" }, { "Code": self.code, "Message": "simulated" }],
            });
        }
    }
}
