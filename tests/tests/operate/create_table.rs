//! `Locks::create_table`: keys, billing, tags and TTL.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::{
    AttributeValue, BillingMode, ScalarAttributeType, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};
use lambda_lock::embedded::{Answer, Intercept};
use lambda_lock::{ErrorKind, Locks};
use lambda_lock_tests::{Row, World, engine_with_latency};
use serde_json::{Value, json};

use crate::{completed, in_progress, locks_on, number, world_with_keys, world_without_ttl};

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
    assert_eq!(ttl(&world).await, (Some(TimeToLiveStatus::Enabled), Some("expiration".to_owned())));
}

#[tokio::test]
async fn two_concurrent_creations_both_succeed() {
    let world = World::without_table();
    let (ours, theirs) = (world.default_locks(), world.default_locks());
    let (ours, theirs) = tokio::join!(ours.create_table().into_future(), theirs.create_table().into_future());
    ours.unwrap();
    theirs.unwrap();
}

/// The status of TTL, and its attribute.
async fn ttl(world: &World) -> (Option<TimeToLiveStatus>, Option<String>) {
    let ttl = world.client().describe_time_to_live().table_name(&world.table).send().await.unwrap();
    let ttl = ttl.time_to_live_description.unwrap();
    (ttl.time_to_live_status, ttl.attribute_name)
}

/// Creates the table again, and returns the error. TTL is off before and after.
async fn refused(world: &World, locks: &Locks) -> String {
    let error = locks.create_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(ttl(world).await.0, Some(TimeToLiveStatus::Disabled));
    error.to_string()
}

#[tokio::test]
async fn a_table_with_other_keys_is_refused_and_gets_no_ttl() {
    let world = world_with_keys(&[("pk", ScalarAttributeType::S)]).await;
    for is_strong in [false, true] {
        let host = world.host().build();
        let locks = world.locks(&host).multi_region_strong_consistency(is_strong).build().unwrap();
        let text = refused(&world, &locks).await;
        for part in ["has partition key `pk` (S)", "expect partition key `id` (S)", &world.table] {
            assert!(text.contains(part), "`{part}` is not in {text}");
        }
    }
}

#[tokio::test]
async fn a_table_with_rows_of_another_program_gets_no_ttl() {
    let text = |value: &str| AttributeValue::S(value.to_owned());
    let rows = [
        Row::from([("expiration".to_owned(), number(1))]),
        // It may get one later.
        Row::from([("total".to_owned(), number(1))]),
        Row::from([("status".to_owned(), text("COMPLETED")), ("owner".to_owned(), text("alice"))]),
        Row::from([("status".to_owned(), text("COMPLETED")), ("expiration".to_owned(), number(1))]),
    ];
    for mut row in rows {
        let world = world_without_ttl().await;
        world.default_locks().acquire("job").await.unwrap().release().await.unwrap();
        row.insert("id".to_owned(), text("order-7"));
        world.put_row(row.clone()).await;
        let text = refused(&world, &world.default_locks()).await;
        for part in [&*world.table, "`order-7`", "`expiration`", "another table", "aws dynamodb update-time-to-live"] {
            assert!(text.contains(part), "`{part}` is not in {text}");
        }
        assert_eq!(world.row("order-7").await, Some(row));
    }
}

#[tokio::test]
async fn a_table_that_has_only_rows_of_locks_gets_ttl() {
    let world = world_without_ttl().await;
    let (host, locks) = locks_on(&world, world.host());
    locks.acquire("held").await.unwrap().keep();
    locks.semaphore("permits", 2).acquire().await.unwrap().release().await.unwrap();
    completed(&locks).run(&"record".to_owned(), async |_| Ok("done".to_owned())).await.unwrap();
    let of_others = world.locks(&host).key_prefix("other#").build().unwrap();
    of_others.acquire("job").await.unwrap().release().await.unwrap();
    world.put_row(in_progress("powertools", 1)).await;
    locks.create_table().await.unwrap();
    assert_eq!(ttl(&world).await, (Some(TimeToLiveStatus::Enabled), Some("expiration".to_owned())));
}

#[tokio::test]
async fn ttl_on_another_attribute_is_refused_and_stays() {
    let world = world_without_ttl().await;
    let other = TimeToLiveSpecification::builder().attribute_name("ttl").enabled(true).build().unwrap();
    let update = world.client().update_time_to_live().table_name(&world.table).time_to_live_specification(other);
    update.send().await.unwrap();
    let error = world.default_locks().create_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for part in [&*world.table, "`ttl`", "`expiration`", "another table"] {
        assert!(error.to_string().contains(part), "`{part}` is not in {error}");
    }
    assert_eq!(ttl(&world).await, (Some(TimeToLiveStatus::Enabled), Some("ttl".to_owned())));
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
        assert_eq!(ttl(&world).await.0, Some(TimeToLiveStatus::Disabled));
    }
}

/// An emulator without TTL.
#[derive(Debug)]
struct WithoutTtl;

impl Intercept for WithoutTtl {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "UpdateTimeToLive" {
            answer.status = 400;
            answer.body = json!({ "__type": "com.amazonaws.dynamodb.v20120810#UnknownOperationException" });
        }
    }
}

/// Shows a new table as one that is still being created, to so many requests.
#[derive(Debug)]
struct Creating(Arc<AtomicU32>);

impl Intercept for Creating {
    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "DescribeTable" && self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            answer.body["Table"]["TableStatus"] = json!("CREATING");
        }
    }
}

/// The waits are the SDK's, of 20 s and more, so they are in virtual time, for which DynamoDB Local has no answers.
#[tokio::test(start_paused = true)]
async fn a_creation_ends_when_the_table_is_active() {
    let left = Arc::new(AtomicU32::new(2));
    let (_engine, host) = engine_with_latency(Some(Creating(Arc::clone(&left))));
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    assert_eq!(left.load(Relaxed), 0, "it asked until the table was active");
    let ttl = host.client().describe_time_to_live().table_name("locks").send().await.unwrap();
    assert_eq!(ttl.time_to_live_description.unwrap().time_to_live_status, Some(TimeToLiveStatus::Enabled));
}

#[tokio::test]
async fn an_endpoint_without_ttl_is_named_as_such() {
    let world = World::without_table();
    let locks = world.locks(&world.host().intercept(WithoutTtl).build()).build().unwrap();
    let error = locks.create_table().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("is there, but this endpoint has no TTL"), "{error}");
    locks.acquire("job").await.unwrap().release().await.unwrap();
}
