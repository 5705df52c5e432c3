//! `Locks::create_table`: keys, billing, tags and TTL.

use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::{BillingMode, TableStatus, TimeToLiveStatus};
use lambda_lock::embedded::Intercept;
use lambda_lock_tests::World;
use serde_json::{Value, json};

#[tokio::test]
async fn a_table_is_created_on_demand_with_ttl_and_can_be_created_again() {
    let world = World::without_table();
    let locks = world.default_locks();
    locks.create_table().await.unwrap();
    let lock = locks.acquire("job").await.unwrap();
    locks.create_table().await.unwrap();
    assert!(locks.try_acquire("job").await.unwrap().is_none(), "the rows are still there");
    lock.release().await.unwrap();

    let client = world.client();
    let table = client.describe_table().table_name(&world.table).send().await.unwrap().table.unwrap();
    assert_eq!(table.table_status, Some(TableStatus::Active));
    assert_eq!(table.billing_mode_summary.unwrap().billing_mode, Some(BillingMode::PayPerRequest));
    let ttl = client.describe_time_to_live().table_name(&world.table).send().await.unwrap();
    let ttl = ttl.time_to_live_description.unwrap();
    assert_eq!(ttl.time_to_live_status, Some(TimeToLiveStatus::Enabled));
    assert_eq!(ttl.attribute_name.as_deref(), Some("expiration"));
}

#[tokio::test]
async fn two_concurrent_creations_both_succeed() {
    let world = World::without_table();
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    let (ours, theirs) = tokio::join!(ours.create_table().into_future(), theirs.create_table().into_future());
    ours.unwrap();
    theirs.unwrap();
}

/// Keeps the request that creates a table.
#[derive(Clone, Debug, Default)]
struct CreateRequest(Arc<Mutex<Value>>);

impl Intercept for CreateRequest {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "CreateTable" {
            self.0.lock().unwrap().clone_from(request);
        }
    }
}

#[tokio::test]
async fn a_table_is_created_with_the_requested_billing_mode_keys_and_tags() {
    let world = World::without_table();
    let sent = CreateRequest::default();
    let host = world.host().intercept(sent.clone()).build();
    let locks = world.locks(&host).partition_key("PK").sort_key("SK", "LOCK").build().unwrap();
    locks.create_table().provisioned(3, 4).tag("team", "billing").tag("stage", "test").await.unwrap();
    // Some emulators do not keep tags: the test reads the request.
    let tags = sent.0.lock().unwrap()["Tags"].clone();
    assert_eq!(tags, json!([{ "Key": "team", "Value": "billing" }, { "Key": "stage", "Value": "test" }]));
    let table = world.client().describe_table().table_name(&world.table).send().await.unwrap().table.unwrap();
    let throughput = table.provisioned_throughput.unwrap();
    assert_eq!((throughput.read_capacity_units, throughput.write_capacity_units), (Some(3), Some(4)));
    let keys: Vec<_> = table.key_schema.unwrap().into_iter().map(|key| key.attribute_name).collect();
    assert_eq!(keys, ["PK", "SK"]);
}

#[tokio::test]
async fn ttl_stays_off_for_multi_region_strong_consistency() {
    // A table that is to become one, and one that is one.
    for (world, is_set) in [(World::without_table(), true), (World::across_regions().await, false)] {
        let locks = world.locks(&world.host().build()).multi_region_strong_consistency(is_set).build().unwrap();
        locks.create_table().await.unwrap();
        let ttl = world.client().describe_time_to_live().table_name(&world.table).send().await.unwrap();
        assert_eq!(ttl.time_to_live_description.unwrap().time_to_live_status, Some(TimeToLiveStatus::Disabled));
    }
}
