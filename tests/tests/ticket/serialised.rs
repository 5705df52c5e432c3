//! The ticket as a value: its JSON and its debug output.

use lambda_lock::Ticket;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::millis;
use serde_json::{Value, json};

use crate::{LEASE, acquired, passed_on, ticket};

#[tokio::test]
async fn a_ticket_is_json_with_a_version() {
    let world = World::new().await;
    let lock = acquired(&world).await;
    let fence = lock.fence();
    let mut expected = json!({
        "version": 1,
        "table": world.table,
        "key_prefix": "",
        "key": "job",
        "enforced": true,
        "owner": lock.owner(),
        "fence": fence,
        "number": fence,
        "sequence": 0,
        "acquired_at": millis(lock.acquired_at()),
        "expires_at": millis(lock.expires_at()),
    });
    let ticket = lock.into_ticket().unwrap();
    let release = serde_json::to_value(&ticket).unwrap()["release"].as_u64().unwrap();
    assert!(release > fence);
    expected["release"] = release.into();
    assert_eq!(serde_json::to_value(&ticket).unwrap(), expected);
    assert_eq!(passed_on(&ticket), ticket);
    world.default_locks().release_ticket(&ticket).await.unwrap();
}

#[tokio::test]
async fn an_unknown_version_or_a_wrong_field_is_named() {
    let world = World::new().await;
    let ticket = ticket(&world).await;
    let json = serde_json::to_value(&ticket).unwrap();
    let read = |field: &str, value: Option<Value>| {
        let mut json = json.clone();
        match value {
            Some(value) => json[field] = value,
            None => drop(json.as_object_mut().unwrap().remove(field)),
        }
        serde_json::from_value::<Ticket>(json).map_err(|error| error.to_string())
    };
    for (field, value, parts) in [
        ("version", Some(json!(2)), ["version 2", "reads version 1"]),
        ("version", None, ["no field", "`version`"]),
        ("owner", None, ["no field", "`owner`"]),
        ("key", Some(Value::Null), ["no field", "`key`"]),
        ("fence", Some(json!("many")), ["invalid type", "many"]),
        ("number", None, ["no field", "`number`"]),
        ("release", Some(json!(u64::MAX)), ["`release`", "253402300799999000"]),
        ("sequence", Some(json!(u64::MAX)), ["`sequence`", "281474976710656"]),
        ("expires_at", Some(json!(u64::MAX)), ["`expires_at`", "253402300799999"]),
        ("acquired_at", Some(json!(-1)), ["invalid value", "-1"]),
        ("hold_until", Some(json!(253_402_300_800_000_u64)), ["`hold_until`", "253402300799999"]),
    ] {
        let error = read(field, value).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    // The version is looked at first: another version has other fields.
    assert!(serde_json::from_str::<Ticket>(r#"{"version":2}"#).unwrap_err().to_string().contains("version 2"));
    // A state machine may add fields.
    assert_eq!(read("comment", Some(json!("by the state machine"))).unwrap(), ticket);
}

#[tokio::test]
async fn the_debug_output_of_a_ticket_hides_its_owner() {
    let world = World::new().await;
    let lock = world.default_locks().acquire("job").identity("the secret").lease(LEASE).await.unwrap();
    let owner = lock.owner().to_owned();
    let ticket = lock.into_ticket().unwrap();
    let text = format!("{ticket:?}");
    assert!(!text.contains(&owner) && !text.contains("secret"), "{text}");
    assert!(text.contains("\"job\"") && text.contains(&ticket.fence().to_string()), "{text}");
    world.default_locks().resume(&ticket).await.unwrap().release().await.unwrap();
}
