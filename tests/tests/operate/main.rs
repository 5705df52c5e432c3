//! Operating locks: creating and checking a table, listing its rows, releasing by force, warming up, and the embedded
//! engine in a file.

mod check;
mod create_table;
mod delete_expired;
mod engine_in_a_file;
mod first_version;
mod force_release;
mod list;
mod remedies;
mod runbook;
mod warm_up;

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use lambda_lock::embedded::{Host, HostBuilder};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Error, Holder, Idempotency, Locks};
use lambda_lock_tests::rows::text;
use lambda_lock_tests::{Row, World, ms};
use tokio::time::sleep;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// A world whose table has these keys with their types, and no TTL.
async fn world_with_keys(keys: &[(&str, ScalarAttributeType)]) -> World {
    let world = World::without_table();
    let mut create = world.client().create_table().table_name(&world.table).billing_mode(BillingMode::PayPerRequest);
    for ((name, kind), role) in keys.iter().zip([KeyType::Hash, KeyType::Range]) {
        let element = KeySchemaElement::builder().attribute_name(*name).key_type(role).build().unwrap();
        let definition = AttributeDefinition::builder().attribute_name(*name).attribute_type(kind.clone());
        create = create.key_schema(element).attribute_definitions(definition.build().unwrap());
    }
    create.send().await.unwrap();
    world
}

async fn world_without_ttl() -> World {
    world_with_keys(&[("id", ScalarAttributeType::S)]).await
}

fn locks_on(world: &World, host: HostBuilder) -> (Host, Locks) {
    let host = host.build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    (host, locks)
}

/// All rows of a list, by their keys.
async fn listed(locks: &Locks) -> BTreeMap<String, Result<Holder, Error>> {
    let (mut list, mut listed) = (locks.list(), BTreeMap::new());
    while let Some(page) = list.next_page().await.unwrap() {
        for row in page {
            assert!(listed.insert(row.key, row.holder).is_none(), "listed twice");
        }
    }
    assert!(list.next_page().await.unwrap().is_none(), "after its end");
    listed
}

fn completed(locks: &Locks) -> Idempotency<String, String, String> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |id: &String| Some(id.clone()))
}

/// A row of another library, in progress until this time.
fn in_progress(id: &str, end: u64) -> Row {
    Row::from([
        ("id".to_owned(), text(id)),
        ("status".to_owned(), text("INPROGRESS")),
        ("in_progress_expiration".to_owned(), number(end)),
    ])
}

/// Reads the holder a millisecond later, because rows have times in milliseconds.
async fn seen(locks: &Locks, key: &str) -> Holder {
    sleep(ms(1)).await;
    locks.get(key).await.unwrap().unwrap()
}
