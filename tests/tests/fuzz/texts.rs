//! Tickets and turns as a state machine passes them on, changed on the way.

use std::time::Duration;

use lambda_lock::{Attempt, ErrorKind, Locks, Ticket, Turn};
use lambda_lock_tests::World;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::claims::kept;
use crate::rows::{QUEUE, differences, number_of};
use crate::search::for_all;
use crate::{KEY, LEASE, OTHER, SINCE_EPOCH, assert_one_line, in_virtual_time};

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

/// The fields that say which acquisition it is come more often.
const TICKET: [&str; 19] = [
    "owner",
    "number",
    "sequence",
    "version",
    "table",
    "key_prefix",
    "key",
    "sort_key",
    "enforced",
    "owner",
    "fence",
    "number",
    "release",
    "sequence",
    "acquired_at",
    "expires_at",
    "hold_until",
    "kind",
    "comment",
];

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

#[derive(Clone, Copy, Debug)]
enum Use {
    Resume,
    Renew,
    Release,
    ReleaseIfHeld,
}

/// A lock in the first row of a new table.
async fn lock(world: &World, is_permit: bool) -> lambda_lock::Lock {
    let locks = world.default_locks();
    let acquire = if is_permit { locks.semaphore(KEY, 2).acquire() } else { locks.acquire(KEY) };
    acquire.min_hold(LEASE / 3).await.unwrap()
}

async fn keys(locks: &Locks) -> Vec<String> {
    locks.list().next_page().await.unwrap().unwrap().into_iter().map(|row| row.key).collect()
}

#[test]
fn a_changed_ticket_is_refused_or_is_of_the_same_acquisition() {
    let uses = select(vec![Use::Resume, Use::Renew, Use::Release, Use::ReleaseIfHeld]);
    let ages = select(vec![Duration::ZERO, LEASE / 2, LEASE * 2]);
    let cases = (any::<bool>(), any_edits(), ages, uses);
    for_all("tickets", 200, &cases, |(is_permit, edits, age, how)| {
        in_virtual_time(async |world| {
            let real = lock(&world, is_permit).await.into_ticket().unwrap();
            let mut json = serde_json::to_value(&real).unwrap();
            assert_eq!(serde_json::from_value::<Ticket>(json.clone()).unwrap(), real);
            edit(&mut json, &TICKET, &edits);
            let ticket = match serde_json::from_value::<Ticket>(json.clone()) {
                Ok(ticket) => ticket,
                Err(error) => return assert!(!error.to_string().is_empty()),
            };
            assert_one_line(&format!("{ticket:?}"));
            assert_eq!(serde_json::from_value::<Ticket>(serde_json::to_value(&ticket).unwrap()).unwrap(), ticket);
            let before = world.row(KEY).await.unwrap();
            let locks = world.locks(&world.host().later(age).build()).build().unwrap();
            let done = match how {
                Use::Resume => locks.resume(&ticket).await.map(|lock| {
                    // It is held on.
                    let again = lock.into_ticket().unwrap();
                    assert_eq!((again.key(), again.is_enforced()), (ticket.key(), ticket.is_enforced()));
                    true
                }),
                Use::Renew => locks.renew_ticket(&ticket, LEASE).await.map(|_| true),
                Use::Release => locks.release_ticket(&ticket).await.map(|()| true),
                Use::ReleaseIfHeld => locks.release_ticket_if_held(&ticket).await,
            };
            let after = world.row(KEY).await.unwrap();
            let changed = differences(Some(&before), Some(&after));
            assert!(number_of(&after, "fence") >= number_of(&before, "fence"), "the fence goes back");
            assert_eq!(keys(&locks).await, [KEY], "a ticket makes no row");
            let original = serde_json::to_value(&real).unwrap();
            let releases = matches!(how, Use::Release | Use::ReleaseIfHeld);
            match done {
                // Nothing of a permit that was released stays in the row, so that an unknown permit counts as released.
                Ok(true) if releases && is_permit && json["owner"] != original["owner"] => {
                    assert!(changed.is_empty(), "changed: {changed:?}");
                }
                Ok(true) if ticket.is_enforced() => {
                    for name in ["owner", "number", "key", "key_prefix"] {
                        assert_eq!(json[name], original[name], "it was accepted");
                    }
                }
                Ok(_) => assert!(changed.is_empty(), "changed: {changed:?}"),
                Err(error) => {
                    assert_one_line(&format!("{error:?}"));
                    assert!(changed.is_empty(), "changed: {changed:?}");
                    let kinds = [
                        ErrorKind::TicketForeign,
                        ErrorKind::TicketEnded,
                        ErrorKind::TicketReleased,
                        ErrorKind::TicketUsed,
                        ErrorKind::TicketUnknown,
                        ErrorKind::Lost,
                        ErrorKind::Invalid,
                    ];
                    assert!(kinds.contains(&error.kind()), "{error:?}");
                }
            }
        });
    });
}

#[test]
fn a_changed_turn_costs_time_and_no_guarantee() {
    let cases = (any::<bool>(), any::<bool>(), any_edits());
    for_all("turns", 200, &cases, |(is_permit, is_set, edits)| {
        in_virtual_time(async |world| {
            let locks = world.default_locks();
            let is_permit = is_permit && !is_set;
            // The tickets are dropped, and the locks are held on.
            lock(&world, is_permit).await.keep();
            if is_permit {
                lock(&world, is_permit).await.keep();
            }
            let attempt = async |turn: Option<Turn>| match (is_set, is_permit) {
                (true, _) => locks.acquire_all([KEY, OTHER]).attempt_in_turn(turn).await.map(turn_of),
                (false, true) => locks.semaphore(KEY, 2).acquire().attempt_in_turn(turn).await.map(turn_of),
                (false, false) => locks.acquire(KEY).attempt_in_turn(turn).await.map(turn_of),
            };
            let real = attempt(None).await.unwrap().expect("it is held");
            let mut json = serde_json::to_value(&real).unwrap();
            edit(&mut json, &TURN, &edits);
            let turn = match serde_json::from_value::<Turn>(json) {
                Ok(turn) => turn,
                Err(error) => return assert!(!error.to_string().is_empty()),
            };
            assert_eq!(kept(&turn), turn);
            assert_one_line(&format!("{turn:?}"));
            let before = world.row(KEY).await.unwrap();
            match attempt(Some(turn.clone())).await {
                Ok(None) => panic!("a turn has taken the key from its holder"),
                Ok(Some(next)) => {
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
        });
    });
}

fn turn_of(attempt: Attempt) -> Option<Turn> {
    match attempt {
        Attempt::Acquired(_) => None,
        Attempt::Waiting(turn) => Some(turn),
    }
}

#[test]
fn any_json_is_read_as_a_ticket_or_a_turn_or_refused() {
    for_all("json", 400, &any_json(), |json| {
        for wrapped in [json.clone(), json!([json]), json!({ "version": json })] {
            assert!(serde_json::from_value::<Ticket>(wrapped.clone()).is_err());
            assert!(serde_json::from_value::<Turn>(wrapped).is_err());
        }
    });
}
