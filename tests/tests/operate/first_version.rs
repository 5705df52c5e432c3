//! The rows and the turns of the first version, as text. A later version reads and writes each of them, and keeps the attributes
//! that it does not know. This version does not write a row of a later version that it cannot read.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Acquire, Attempt, Error, ErrorKind, Holder, Idempotency, Locks, Turn};
use lambda_lock_tests::Row;
use lambda_lock_tests::rows::from_json;

use crate::{ms, number, s, text};

/// When the rows were written: at 1,800,000,000 s, with leases of 300 s and a clock skew of 1 s.
const WRITTEN: Duration = s(1_800_000_000);
const LEASE: Duration = s(301);

const HELD: &str = r#"{
    "id": {"S": "job"}, "status": {"S": "INPROGRESS"}, "owner": {"S": "5#run 7#0123456789abcdef0123456789abcdef"},
    "fence": {"N": "1800000000000000"}, "holder": {"S": "h"}, "acquired_at": {"N": "1800000000000"},
    "in_progress_expiration": {"N": "1800000301000"}, "expiration": {"N": "1800086701"}, "sequence": {"N": "0"},
    "data": {"S": "page 7"}, "later:mark": {"S": "kept"}
}"#;

const RELEASED: &str = r#"{
    "id": {"S": "job"}, "status": {"S": "INPROGRESS"}, "owner": {"S": "0123456789abcdef0123456789abcdef"},
    "fence": {"N": "1800000000000001"}, "released": {"N": "1800000000000001"}, "withdrawn": {"N": "1799999999000000"},
    "holder": {"S": "h"}, "acquired_at": {"N": "1800000000000"}, "freed_at": {"N": "1800000000000"},
    "in_progress_expiration": {"N": "1"}, "expiration": {"N": "1800086400"}, "sequence": {"N": "2"}, "hold": {"N": "12.500"},
    "hold_deviation": {"N": "0.250"}, "tail": {"N": "3"}, "head": {"N": "3"}, "tail_until": {"N": "1799999990000"},
    "later:mark": {"S": "kept"}
}"#;

const COMPLETED: &str = r#"{
    "id": {"S": "job"}, "status": {"S": "COMPLETED"}, "owner": {"S": "0123456789abcdef0123456789abcdef"},
    "fence": {"N": "1800000000000001"}, "released": {"N": "1800000000000001"}, "holder": {"S": "h"},
    "acquired_at": {"N": "1800000000000"}, "in_progress_expiration": {"N": "1800000301000"}, "expiration": {"N": "1800086400"},
    "sequence": {"N": "0"}, "data": {"S": "42"}, "later:mark": {"S": "kept"}
}"#;

const PERMITS: &str = r#"{
    "id": {"S": "job"}, "status": {"S": "SEMAPHORE"}, "fence": {"N": "1800000000000002"}, "permits": {"N": "2"},
    "permit:0123456789abcdef0123456789abcdef": {"M": {"no": {"N": "1800000000000000"}, "by": {"S": "h"},
        "since": {"N": "1800000000000"}, "end": {"N": "1800000301000"}, "later": {"S": "unread"}}},
    "fence:0123456789abcdef0123456789abcdef": {"N": "1800000000000001"},
    "permit:5#run 7#": {"M": {"no": {"N": "1800000000000000"}, "by": {"S": "i"}, "since": {"N": "1800000000000"},
        "end": {"N": "1800000301000"}, "nonce": {"S": "fedcba9876543210fedcba9876543210"}, "sequence": {"N": "1"}}},
    "fence:5#run 7#": {"N": "1800000000000002"}, "expiration": {"N": "1800172801"}, "later:mark": {"S": "kept"}
}"#;

const CALLED: &str = r#"{
    "id": {"S": "job"}, "status": {"S": "RATE"}, "due": {"N": "1800000060000000"}, "expiration": {"N": "1800086461"},
    "later:mark": {"S": "kept"}
}"#;

/// The place of a waiter for the held key, in the state of a workflow. It has fields of a later version, too.
const WAITING: &str = r#"{
    "version": 1, "table": "locks", "began": 1800000000000, "attempts": 4, "delay": 20000, "later": "ignored", "keys": [{
        "key": "job", "place": 3, "joins": 1, "head": 1, "tail": 3, "tail_until": 1800000600000, "hold": 20000,
        "hold_deviation": 1000, "fence": 1800000000000000, "seen": 1800000000100, "later": "ignored"
    }]
}"#;

/// A row of a kind that a later version adds.
const LATER: &str = r#"{
    "id": {"S": "job"}, "status": {"S": "LATER"}, "fence": {"N": "1800000000000000"}, "expiration": {"N": "1800000000"},
    "in_progress_expiration": {"N": "1"}, "later:mark": {"S": "kept"}
}"#;

/// A table with one row of the first version.
struct Stage {
    engine: DynamoDb,
    host: Host,
    locks: Locks,
}

impl Stage {
    async fn with(row: &str) -> Self {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + WRITTEN).unwrap();
        let host = engine.host().build();
        let locks = Locks::builder(host.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let row = from_json(&serde_json::from_str(row).unwrap());
        engine.client().put_item().table_name("locks").set_item(Some(row)).send().await.unwrap();
        Self { engine, host, locks }
    }

    async fn seen(&self) -> Holder {
        self.locks.get("job").await.unwrap().unwrap()
    }

    /// Returns the row, which still has the attribute that this version does not know.
    async fn kept_row(&self) -> Row {
        let read = self.engine.client().get_item().table_name("locks").key("id", text("job")).send().await.unwrap();
        let row = read.item.unwrap();
        assert_eq!(row.get("later:mark"), Some(&text("kept")));
        row
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_key_is_refused_and_taken_over_and_taken_after_its_lease() {
    let stage = Stage::with(HELD).await;
    let seen = stage.seen().await;
    assert_eq!((seen.name(), seen.identity(), seen.fence()), (Some("h"), Some("run 7"), Some(1_800_000_000_000_000)));
    assert!(seen.is_current() && !seen.has_released());
    assert!(stage.locks.try_acquire("job").await.unwrap().is_none());
    let own = stage.locks.acquire("job").lease(s(300)).identity("run 7").take_over_from(1_800_000_000_000_000).await;
    let own = own.unwrap();
    assert_eq!(own.data().unwrap().as_str(), Some("page 7"));
    own.renew(s(300)).await.unwrap();
    own.keep();
    assert!(stage.locks.coalesce("job", &stage.seen().await).await.unwrap());
    stage.host.advance_clock(LEASE);
    let next = stage.locks.acquire("job").await.unwrap();
    assert!(next.fence() > 1_800_000_000_000_000);
    assert!(stage.locks.force_release("job", &stage.seen().await).await.unwrap());
    assert!(next.release().await.unwrap_err().is_lost());
    stage.kept_row().await;
}

#[tokio::test(start_paused = true)]
async fn a_stored_turn_keeps_its_place_after_a_deployment() {
    let queue = r#""tail": {"N": "3"}, "head": {"N": "1"}, "tail_until": {"N": "1800000600000"}, "later:mark""#;
    let stage = Stage::with(&HELD.replace(r#""later:mark""#, queue)).await;
    let turn: Turn = serde_json::from_str(WAITING).unwrap();
    assert_eq!((turn.delay_in_seconds(), turn.keys().collect::<Vec<_>>()), (20, vec!["job"]));
    let Attempt::Waiting(next) = waiter(&stage).attempt_in_turn(Some(turn)).await.unwrap() else { panic!("acquired") };
    let next_turn = serde_json::to_value(&next).unwrap();
    assert_eq!(
        (&next_turn["version"], &next_turn["attempts"], &next_turn["keys"][0]["place"]),
        (&1.into(), &5.into(), &3.into())
    );
    let Attempt::Waiting(_) = waiter(&stage).attempt_in_turn(None).await.unwrap() else { panic!("acquired") };
    assert_eq!(stage.kept_row().await["tail"], number(4));
}

fn waiter(stage: &Stage) -> Acquire {
    stage.locks.acquire("job").wait(s(600))
}

#[tokio::test(start_paused = true)]
async fn a_row_of_a_later_kind_is_an_error_and_stays() {
    let stage = Stage::with(LATER).await;
    let row = stage.kept_row().await;
    let locks = &stage.locks;
    let errors: [Option<Error>; 5] = [
        locks.acquire("job").await.err(),
        locks.semaphore("job", 1).acquire().await.err(),
        locks.acquire_all(["job", "another"]).await.err(),
        locks.rate("job", 1, s(1)).pass().await.err(),
        locks.get("job").await.err(),
    ];
    for error in errors {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error}");
        assert!(error.to_string().contains("`LATER`"), "{error}");
    }
    assert!(locks.list().next_page().await.unwrap().is_none_or(|page| page.is_empty()));
    assert_eq!(locks.delete_expired().await.unwrap(), 0);
    assert_eq!(stage.kept_row().await, row);
}

#[tokio::test(start_paused = true)]
async fn a_released_key_is_free_and_its_queue_is_empty() {
    let stage = Stage::with(RELEASED).await;
    let seen = stage.seen().await;
    assert_eq!((seen.hold_time(), seen.waiters()), (Some(Duration::from_micros(12_500)), 0));
    assert!(seen.has_released() && !seen.is_current());
    let next = stage.locks.acquire("job").await.unwrap();
    assert!(next.fence() > 1_800_000_000_000_001);
    stage.kept_row().await;
}

#[tokio::test(start_paused = true)]
async fn a_completed_record_is_replayed_until_its_window_ends() {
    let stage = Stage::with(COMPLETED).await;
    let key = |key: &String| Some(key.clone());
    let sums = Idempotency::<String, u32, Infallible>::new(stage.locks.clone(), OnMissingKey::Reject, key);
    let run = async |result| sums.run(&"job".to_owned(), async |_| Ok(result)).await.unwrap();
    assert_eq!(run(1).await, 42);
    stage.host.advance_clock(s(86_400));
    assert_eq!(run(1).await, 1);
    stage.kept_row().await;
}

#[tokio::test(start_paused = true)]
async fn permits_count_and_are_taken_over_and_replaced_after_their_leases() {
    let stage = Stage::with(PERMITS).await;
    let names: Vec<_> = stage.seen().await.permits().iter().map(|permit| permit.name().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let (two, three) = (stage.locks.semaphore("job", 2), stage.locks.semaphore("job", 3));
    assert!(two.try_acquire().await.unwrap().is_none());
    let third = three.acquire().await.unwrap();
    assert_eq!(third.fence(), 1_800_000_000_000_003);
    third.release().await.unwrap();
    two.acquire().lease(s(300)).identity("run 7").take_over().await.unwrap().keep();
    stage.host.advance_clock(LEASE);
    let (one, other) = (two.acquire().await.unwrap(), two.acquire().await.unwrap());
    one.release().await.unwrap();
    other.release().await.unwrap();
    assert!(!stage.kept_row().await.keys().any(|name| name.starts_with("permit:")));
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_rate_follows_the_one_before() {
    let stage = Stage::with(CALLED).await;
    let rate = stage.locks.rate("job", 1, s(60));
    assert!(rate.pass().await.unwrap_err().is_held());
    let wait = rate.reserve(s(100)).await.unwrap();
    assert!((s(60)..=s(60) + ms(1)).contains(&wait), "{wait:?}");
    stage.kept_row().await;
}
