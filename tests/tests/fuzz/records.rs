//! Idempotent runs on rows of any content, and what Powertools can read of what they leave.

use std::cell::Cell;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::idempotency::{RecordFormat, StoredError};
use lambda_lock::{ErrorKind, HandlerError, Locks, OnError, OnUnfinished, Run};
use lambda_lock_tests::Row;
use lambda_lock_tests::rows::{Verdict, from_json, text, verdict};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::rows::{Change, KEPT_AGES, Printed, any_age, any_change, any_lock_row, kept_rows, number_of};
use crate::search::for_all;
use crate::stage::Stage;
use crate::templates::{FORMATS, Work, work};
use crate::{KEY, assert_one_line, in_virtual_time};

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Result,
    /// In the caller's transaction.
    Transaction,
    Released,
    Kept,
    Stored,
}

const ENDS: [End; 5] = [End::Result, End::Transaction, End::Released, End::Kept, End::Stored];

/// As a float, it is the same as a number that is smaller by the 40 requests that a wait sends at most.
const LARGEST_FENCE: f64 = 9_223_372_036_854_775_808.0;

/// The settings of a run, and how it ends.
#[derive(Clone, Copy, Debug)]
struct Plan {
    format: usize,
    rejects_unfinished: bool,
    validates: bool,
    waits: bool,
    end: End,
}

fn any_plan() -> impl Strategy<Value = Plan> + Clone {
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    (0..FORMATS.len(), switches, select(&ENDS[..])).prop_map(|(format, switches, end)| {
        let (rejects_unfinished, validates, waits) = switches;
        Plan { format, rejects_unfinished, validates, waits, end }
    })
}

impl Plan {
    fn format(self) -> RecordFormat {
        FORMATS[self.format]
    }

    fn is_of_powertools(self) -> bool {
        self.format >= 2
    }

    fn work(self, locks: &Locks) -> Work {
        let mut work = work(locks, self.format());
        if self.validates {
            work = work.validate(|key: &String| key.clone());
        }
        if self.rejects_unfinished {
            work = work.on_unfinished(OnUnfinished::Reject);
        }
        if self.waits {
            work = work.wait(Duration::from_secs(5));
        }
        match self.end {
            End::Kept => work.on_error(|()| OnError::Keep),
            End::Stored => work.on_error(|()| OnError::Store(StoredError::new("Declined", "by the bank"))),
            _ => work,
        }
    }

    /// The key of the row. MD5 in the formats of Powertools, as md5sum prints it.
    fn key(self) -> &'static str {
        [
            KEY,
            "a5ffe0476728f8c127c1cc45ed0f3fb841b20ca11c5272e5fba8e71cd21ca666",
            "a7c553b43dd70475bd7508bc1e9bccba",
            "p8VTtD3XBHW9dQi8HpvMug==",
        ][self.format]
    }
}

/// What the work returns.
fn result() -> Value {
    json!({ "b": 1, "a": [1, 2.5, "é", null], "c": {} })
}

async fn ended(stage: &Stage, plan: Plan, run: &Run) -> Result<Value, ()> {
    match plan.end {
        End::Result => Ok(result()),
        End::Transaction => {
            let completion = run.complete_in(&result()).unwrap();
            let client = stage.world.client();
            // The row may be another one by now.
            let _may_be_refused = Box::pin(client.transact_write_items().transact_items(completion).send()).await;
            Ok(result())
        }
        End::Released | End::Kept | End::Stored => Err(()),
    }
}

#[test]
fn a_run_on_any_row_replays_it_refuses_it_or_takes_what_is_free() {
    let cases = (any_lock_row().prop_map(Printed), any_age(), any_plan());
    for_all("records", 150, &cases, |(Printed(row), age, plan)| try_on(row, age, plan));
}

#[test]
fn every_run_does_so_on_the_rows_of_the_corpus() {
    for row in kept_rows() {
        for age in KEPT_AGES {
            for (format, end) in (0..FORMATS.len()).flat_map(|format| ENDS.map(|end| (format, end))) {
                let plan = Plan { format, rejects_unfinished: false, validates: true, waits: false, end };
                try_on(from_json(&row), age, plan);
                try_on(from_json(&row), age, Plan { rejects_unfinished: true, validates: false, ..plan });
            }
        }
    }
}

fn try_on(mut row: Row, age: Duration, plan: Plan) {
    row.insert("id".to_owned(), text(plan.key()));
    in_virtual_time(async |world| {
        let stage = Stage::new(world, row, age).await;
        let ran = Cell::new(false);
        let work = plan.work(&stage.locks);
        let key = KEY.to_owned();
        let run = work.run(&key, async |run| {
            ran.set(true);
            let running = stage.row().await.unwrap();
            assert!(!can_be_taken(&running, stage.now()), "Powertools runs at the same time");
            ended(&stage, plan, run).await
        });
        let outcome = Box::pin(run).await;
        let sent = stage.host.requests();
        assert!(sent <= if plan.waits { 40 } else { 4 }, "{sent} requests");
        if ran.get() {
            let verdict = verdict(&stage.before, stage.now());
            assert_eq!(verdict, Verdict::Free, "the record of another run was taken");
            assert_ended(&stage, plan, outcome).await;
        } else {
            assert_not_run(&stage, plan, outcome).await;
        }
    });
}

type Outcome = Result<Value, HandlerError<()>>;

async fn assert_ended(stage: &Stage, plan: Plan, outcome: Outcome) {
    let after = stage.changed_row().await;
    let status = after["status"].as_s().unwrap().as_str();
    let is_released = after.get("released") == after.get("fence");
    let is_stored = plan.end == End::Stored && !plan.is_of_powertools();
    match (plan.end, outcome) {
        (End::Result | End::Transaction, Ok(value)) => {
            assert_eq!((value, status, is_released), (result(), "COMPLETED", true));
            assert_eq!(read_by_powertools(&after, plan), Some(result()));
        }
        (End::Released | End::Kept | End::Stored, Err(HandlerError::Handler(()))) => {
            assert_eq!(status, if is_stored { "COMPLETED" } else { "INPROGRESS" });
            assert_eq!(is_released, plan.end != End::Kept);
        }
        (_, outcome) => panic!("{outcome:?}"),
    }
    // A duplicate gets the same, at once.
    if status == "COMPLETED" {
        assert!(!can_be_taken(&after, stage.now()), "Powertools runs again");
        let duplicate = plan.work(&stage.locks).run(&KEY.to_owned(), async |_| panic!("it runs again")).await;
        match duplicate {
            Ok(value) => assert_eq!(value, result()),
            Err(HandlerError::Replayed(error)) => assert_eq!(error, StoredError::new("Declined", "by the bank")),
            Err(other) => panic!("{other:?}"),
        }
    } else if plan.end != End::Kept {
        let then = stage.now() + Duration::from_millis(1);
        assert!(can_be_taken(&after, then), "Powertools cannot retry");
    }
}

async fn assert_not_run(stage: &Stage, plan: Plan, outcome: Outcome) {
    let is_completed = stage.before.get("status") == Some(&text("COMPLETED"));
    let verdict = verdict(&stage.before, stage.now());
    stage.assert_unchanged(&[]).await;
    match outcome {
        Ok(_) => assert!(is_completed && verdict == Verdict::Held && !stage.before.contains_key("error")),
        Err(HandlerError::Replayed(error)) => {
            assert!(is_completed && verdict == Verdict::Held && stage.before.contains_key("error"));
            assert_one_line(error.error_type());
        }
        Err(HandlerError::Lock(error)) => {
            let kind = error.kind();
            stage
                .assert_refused(
                    &error,
                    &[
                        ErrorKind::InProgress,
                        ErrorKind::Unfinished,
                        ErrorKind::Mismatch,
                        ErrorKind::MalformedRow,
                        ErrorKind::WrongKind,
                        ErrorKind::UnusableResult,
                    ],
                )
                .await;
            match verdict {
                Verdict::Free if plan.rejects_unfinished => {}
                Verdict::Free => panic!("a free record was refused: {error:?}"),
                Verdict::Held if is_completed => {
                    assert!(matches!(kind, ErrorKind::Mismatch | ErrorKind::UnusableResult), "{error:?}");
                }
                // A waiter sends a larger number each time, until there is none.
                Verdict::Held if plan.waits && kind == ErrorKind::MalformedRow => {
                    let is_largest = |name| number_of(&stage.before, name) >= Some(LARGEST_FENCE);
                    assert!(is_largest("fence") || is_largest("withdrawn"), "{error:?}");
                }
                Verdict::Held => assert!(matches!(kind, ErrorKind::InProgress | ErrorKind::Mismatch), "{error:?}"),
                Verdict::Malformed if kind == ErrorKind::WrongKind => assert!(stage.is_semaphore()),
                Verdict::Malformed => assert_eq!(kind, ErrorKind::MalformedRow, "{error:?}"),
            }
        }
        Err(HandlerError::Handler(())) => panic!("the work did not run"),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_run_whose_row_was_changed_meanwhile_completes_its_own_record_or_none() {
    let changes = prop_oneof![
        4 => vec(any_change(), 0..4),
        1 => any_lock_row().prop_map(|row| vec![Change::Other(row)]),
    ];
    for_all("runs", 100, &(changes, any_plan()), |(changes, plan)| {
        in_virtual_time(async |world| {
            let host = world.host().build();
            let locks = world.locks(&host).build().unwrap();
            let during = Cell::new(None);
            let outcome = {
                let work = plan.work(&locks);
                let key = KEY.to_owned();
                let run = work.run(&key, async |run| {
                    let mut row = world.row(plan.key()).await.unwrap();
                    let fence = row["fence"].clone();
                    for change in &changes {
                        change.apply(&mut row);
                    }
                    row.insert("id".to_owned(), text(plan.key()));
                    let owner = run.lock().owner().to_owned();
                    let stage = Stage::of(world, host.clone(), locks.clone(), row).await;
                    let ended = ended(&stage, plan, run).await;
                    during.set(Some((stage, owner, fence)));
                    ended
                });
                Box::pin(run).await
            };
            let (stage, owner, fence) = during.take().unwrap();
            let is_own = stage.before.get("owner") == Some(&text(&owner))
                && stage.before.get("fence") == Some(&fence)
                && stage.before.get("status") == Some(&text("INPROGRESS"));
            if is_own {
                stage.changed_row().await;
            } else {
                stage.assert_unchanged(&[]).await;
            }
            match outcome {
                Ok(value) => assert_eq!(value, result()),
                Err(HandlerError::Handler(())) => {}
                Err(other) => panic!("{other:?}"),
            }
        });
    });
}

// Powertools, as its persistence layers for DynamoDB read an item

/// The condition under which Powertools begins a run, in the words of its `PutItem`.
fn can_be_taken(row: &Row, now: Duration) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "times are smaller")]
    let (seconds, millis) = (now.as_secs() as f64, now.as_millis() as f64);
    let is_below = |name, now| number_of(row, name).is_some_and(|end| end < now);
    is_below("expiration", seconds)
        || (row.get("status") == Some(&text("INPROGRESS")) && is_below("in_progress_expiration", millis))
}

/// What Powertools returns for a duplicate of a completed run: Python reads text, and TypeScript the value of DynamoDB.
fn read_by_powertools(row: &Row, plan: Plan) -> Option<Value> {
    // Both count with them.
    for name in ["expiration", "in_progress_expiration"] {
        assert!(row[name].as_n().unwrap().parse::<u64>().is_ok(), "{name} is no integer");
    }
    if !plan.is_of_powertools() {
        return Some(result());
    }
    assert_eq!(plan.validates, row.get("validation").is_some_and(AttributeValue::is_s));
    let data = row.get("data")?;
    Some(match plan.format() {
        RecordFormat::PowertoolsPython => serde_json::from_str(data.as_s().unwrap()).unwrap(),
        _ => plain(data),
    })
}

fn plain(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => json!(text),
        AttributeValue::N(digits) => serde_json::from_str(digits).unwrap(),
        AttributeValue::Bool(is) => json!(is),
        AttributeValue::Null(_) => Value::Null,
        AttributeValue::L(list) => list.iter().map(plain).collect(),
        AttributeValue::M(map) => map.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        other => panic!("{other:?}"),
    }
}
