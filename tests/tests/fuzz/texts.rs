//! Turns as a state machine passes them on, changed on the way.

use std::time::Duration;

use lambda_lock::{Attempt, Error, ErrorKind, Lock, Turn};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::claims::kept;
use crate::rows::{QUEUE, differences};
use crate::search::for_all;
use crate::{KEY, OTHER, SINCE_EPOCH, assert_one_line, in_virtual_time};

/// JSON of any type, near what a field can have.
pub(crate) fn any_json() -> impl Strategy<Value = Value> + Clone {
    let now = u64::try_from(SINCE_EPOCH.as_millis()).unwrap();
    let bounds =
        [0, 1, 1 << 48, (1 << 48) + 1, 253_402_300_799_999, u64::MAX - 1, u64::MAX, i64::MAX as u64, u32::MAX.into()];
    let texts = [
        "",
        "permit",
        KEY,
        "other job",
        "arn:aws:dynamodb:eu-west-1:123456789012:table/locks",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "8#workflow#",
        "\n\u{202e}🔒\0",
    ];
    let flat = prop_oneof![
        3 => select(bounds.to_vec()).prop_map(Value::from),
        2 => (now - 100_000..now + 100_000).prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        3 => select(texts.to_vec()).prop_map(Value::from),
        1 => "[0-9a-f]{32}".prop_map(Value::from),
        1 => (1..9000_usize).prop_map(|length| Value::from("é".repeat(length))),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    flat.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            vec(("[a-z]{1,4}", inner), 0..3).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// A change of one field, of an object within an array too.
#[derive(Clone, Debug)]
enum Edit {
    Set(Value),
    /// Adds to a number, and changes the end of a text.
    Near(i8),
    Remove,
}

fn any_edits() -> impl Strategy<Value = Vec<(Index, Edit)>> + Clone {
    let edit = prop_oneof![
        2 => any_json().prop_map(Edit::Set),
        4 => any::<i8>().prop_map(Edit::Near),
        1 => Just(Edit::Remove),
    ];
    vec((any::<Index>(), edit), 0..3)
}

/// Returns a value of the same type.
fn near(value: &Value, by: i8) -> Value {
    match (value.as_u64(), value) {
        (Some(number), _) => number.saturating_add_signed(by.into()).into(),
        (_, Value::String(text)) => {
            let mut text = text.clone();
            text.pop();
            (text + &by.unsigned_abs().to_string()).into()
        }
        (_, Value::Bool(is)) => (!is).into(),
        (_, other) => other.clone(),
    }
}

/// Changes fields of the object. `names` are those that it can have.
fn edit(object: &mut Value, names: &[&str], edits: &[(Index, Edit)]) {
    for (index, edit) in edits {
        let name = index.get(names);
        let inner = object["keys"].get(0).is_some_and(Value::is_object) && name.starts_with("keys.");
        let (fields, name) = match name.strip_prefix("keys.") {
            Some(name) if inner => (&mut object["keys"][0], name),
            Some(_) => continue,
            None => (&mut *object, *name),
        };
        match edit {
            Edit::Set(value) => fields[name] = value.clone(),
            Edit::Near(by) => fields[name] = near(&fields[name], *by),
            Edit::Remove => drop(fields.as_object_mut().unwrap().remove(name)),
        }
    }
}

const TURN: [&str; 17] = [
    "version",
    "table",
    "began",
    "attempts",
    "delay",
    "keys",
    "keys.key",
    "keys.place",
    "keys.joins",
    "keys.head",
    "keys.tail",
    "keys.tail_until",
    "keys.hold",
    "keys.hold_deviation",
    "keys.fence",
    "keys.seen",
    "comment",
];

async fn release(held: Vec<Lock>) {
    for lock in held {
        lock.release().await.unwrap();
    }
}

/// Acquires what nobody holds, with at most three attempts, and releases it.
async fn finish(attempt: impl AsyncFn(Option<Turn>) -> Result<Attempt, Error>, mut turn: Turn) {
    for _ in 0..3 {
        match attempt(Some(turn)).await.unwrap() {
            Attempt::Acquired(lock) => return lock.release().await.unwrap(),
            Attempt::Waiting(next) => {
                sleep(next.delay()).await;
                turn = next;
            }
        }
    }
    panic!("it was not acquired: {turn:?}");
}

#[test]
fn a_changed_turn_costs_time_and_no_guarantee() {
    let cases = (any::<bool>(), any::<bool>(), any_edits());
    for_all("turns", 200, &cases, |(is_permit, is_set, edits)| {
        in_virtual_time(async |world| {
            let locks = world.default_locks();
            let is_permit = is_permit && !is_set;
            let hold_all = async || {
                if !is_permit {
                    return vec![locks.acquire(KEY).await.unwrap()];
                }
                let pool = locks.semaphore(KEY, 2);
                vec![pool.acquire().await.unwrap(), pool.acquire().await.unwrap()]
            };
            let attempt = async |turn: Option<Turn>| match (is_set, is_permit) {
                (true, _) => locks.acquire_all([KEY, OTHER]).attempt_in_turn(turn).await,
                (false, true) => locks.semaphore(KEY, 2).acquire().attempt_in_turn(turn).await,
                (false, false) => locks.acquire(KEY).attempt_in_turn(turn).await,
            };
            // The row knows how long holds take.
            let held = hold_all().await;
            sleep(Duration::from_secs(1)).await;
            release(held).await;
            let held = hold_all().await;
            let Attempt::Waiting(real) = attempt(None).await.unwrap() else { panic!("it was free") };
            let mut json = serde_json::to_value(&real).unwrap();
            edit(&mut json, &TURN, &edits);
            let turn = match serde_json::from_value::<Turn>(json) {
                Ok(turn) => turn,
                Err(error) => return assert!(!error.to_string().is_empty()),
            };
            assert_eq!(kept(&turn), turn);
            assert_one_line(&format!("{turn:?}"));
            let before = world.row(KEY).await.unwrap();
            let answer = attempt(Some(turn.clone())).await;
            let is_invalid = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
            match answer {
                Ok(Attempt::Acquired(_)) => panic!("a turn has taken the key from its holder"),
                Ok(Attempt::Waiting(next)) => {
                    assert!((Duration::from_secs(1)..=Duration::from_mins(15)).contains(&next.delay()), "{next:?}");
                    assert_eq!(next.attempts(), turn.attempts().saturating_add(1));
                    assert_eq!(kept(&next), next);
                }
                Err(error) => {
                    assert_one_line(&format!("{error:?}"));
                    assert!(matches!(error.kind(), ErrorKind::Held | ErrorKind::Invalid), "{error:?}");
                }
            }
            let changed = differences(Some(&before), world.row(KEY).await.as_ref());
            assert!(changed.iter().all(|name| QUEUE.contains(&name.as_str())), "changed: {changed:?}");
            release(held).await;
            if !is_invalid {
                finish(&attempt, turn).await;
            }
            // Other waiters still take turns.
            let held = hold_all().await;
            let Attempt::Waiting(other) = attempt(None).await.unwrap() else { panic!("it was free") };
            release(held).await;
            finish(&attempt, other).await;
        });
    });
}

#[test]
fn any_json_is_no_turn() {
    for_all("json", 400, &any_json(), |json| {
        for wrapped in [json.clone(), json!([json]), json!({ "version": json })] {
            assert!(serde_json::from_value::<Turn>(wrapped).is_err());
        }
    });
}
