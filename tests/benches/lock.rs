//! The cost of a lock, compared with the same two requests from the bare SDK.
//!
//! A table follows criterion's figures, with the ratios of `lambda-lock` to the bare SDK. The two take turns in one run, so
//! that load on the machine slows both.
//!
//! `LOCK_PROFILE=ours` and `LOCK_PROFILE=bare` repeat the client's part alone, for a profiler:
//!
//! ```sh
//! LOCK_PROFILE=ours valgrind --tool=callgrind target/release/deps/lock-… # the file that `--no-run` names
//! ```

mod measure;

use std::env;
use std::hint::black_box;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure as OnRefusal};
use criterion::Criterion;
use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Host};
use tokio::runtime::{Builder, Runtime};

use measure::canned::canned;
use measure::{compare, print_header};

const TABLE: &str = "locks";

fn main() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(side) = env::var_os("LOCK_PROFILE") {
        return runtime.block_on(repeat(side == "bare"));
    }
    let mut criterion = Criterion::default().configure_from_args();
    let embedded = runtime.block_on(Sides::embedded());
    let mut group = criterion.benchmark_group("acquire and release");
    group.bench_function("lambda-lock", |bench| bench.to_async(&runtime).iter(|| embedded.acquire_and_release()));
    group.bench_function("bare SDK", |bench| bench.to_async(&runtime).iter(|| embedded.bare_acquire_and_release()));
    group.finish();
    let mut group = criterion.benchmark_group("refusal");
    group.bench_function("lambda-lock", |bench| bench.to_async(&runtime).iter(|| embedded.refusal()));
    group.bench_function("bare SDK", |bench| bench.to_async(&runtime).iter(|| embedded.bare_refusal()));
    group.finish();
    criterion.final_summary();
    // With `--test`, criterion runs each benchmark once. The table is then short too.
    let trial = env::args().any(|argument| argument == "--test");
    print_costs(&runtime, &embedded, if trial { 2 } else { 5_000 });
}

/// Acquires and releases with prepared answers, again and again.
async fn repeat(is_bare: bool) {
    let canned = Sides::canned();
    for _ in 0..3000 {
        if is_bare {
            canned.bare_acquire_and_release().await;
        } else {
            canned.acquire_and_release().await;
        }
    }
}

/// The lock and the bare SDK, on the same client.
struct Sides {
    host: Host,
    client: Client,
    locks: Locks,
}

impl Sides {
    async fn embedded() -> Self {
        let sides = Self::on(DynamoDb::new().unwrap().host().build());
        sides.locks.create_table().await.unwrap();
        let held = sides.locks.acquire("held").lease(Duration::from_hours(24)).await.unwrap();
        // Leaked, so that it is not released.
        Box::leak(Box::new(held));
        sides
    }

    /// Uses a DynamoDB with prepared answers, so that the benchmark measures the client.
    fn canned() -> Self {
        // Answers an acquire with a row, and a release with an empty body.
        Self::on(canned(|request| (200, if request.contains("attribute_not_exists") { ROW } else { "{}" })))
    }

    fn on(host: Host) -> Self {
        let locks = Locks::builder(host.client(), TABLE).holder("the benchmark").build().unwrap();
        Self { client: host.client(), host, locks }
    }

    async fn acquire_and_release(&self) {
        let lock = self.locks.acquire("ours").await.unwrap();
        black_box(lock.fence());
        lock.release().await.unwrap();
    }

    async fn refusal(&self) {
        let error = self.locks.acquire("held").await.unwrap_err();
        assert!(black_box(error).is_held());
    }

    async fn bare_acquire_and_release(&self) {
        let (owner, own, acquire) = self.bare_acquire("bare");
        // The first acquire finds no row.
        let before = acquire.send().await.unwrap().attributes.unwrap_or_default();
        black_box(before.get("fence").map(|fence| fence.as_n().unwrap().parse::<u64>().unwrap()));
        self.bare_release("bare", owner, own).send().await.unwrap();
    }

    async fn bare_refusal(&self) {
        let refused = self.bare_acquire("held").2.send().await.unwrap_err();
        assert!(black_box(refused.into_service_error()).is_conditional_check_failed_exception());
    }

    /// The request of `lambda-lock` to acquire.
    fn bare_acquire(&self, key: &str) -> (String, u128, UpdateItemFluentBuilder) {
        let owner = format!("{:032x}", fastrand::u128(..));
        let now = self.now();
        let end = now + Duration::from_secs(31);
        let request = self
            .client
            .update_item()
            .table_name(TABLE)
            .key("id", string(key))
            .condition_expression(
                "attribute_not_exists(#id) OR (NOT fence >= :fence AND NOT withdrawn >= :fence \
                 AND ((#status = :completed AND expiration <= :now_seconds) \
                   OR (#status = :in_progress AND in_progress_expiration <= :now) \
                   OR (#status = :in_progress AND attribute_not_exists(in_progress_expiration) \
                     AND expiration <= :now_seconds)))",
            )
            .update_expression(
                "SET #status = :in_progress, #owner = :owner, holder = :holder, acquired_at = :now, \
                 in_progress_expiration = :lease_end, expiration = :expiration, #sequence = :zero, \
                 fence = :fence REMOVE held_since",
            )
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
            .expression_attribute_names("#id", "id")
            .expression_attribute_names("#status", "status")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_names("#sequence", "sequence")
            .expression_attribute_values(":in_progress", string("INPROGRESS"))
            .expression_attribute_values(":completed", string("COMPLETED"))
            .expression_attribute_values(":owner", string(&owner))
            .expression_attribute_values(":holder", string("the benchmark"))
            .expression_attribute_values(":now", number(now.as_millis()))
            .expression_attribute_values(":now_seconds", number(now.as_secs().into()))
            .expression_attribute_values(":fence", number(now.as_micros()))
            .expression_attribute_values(":lease_end", number(end.as_millis()))
            .expression_attribute_values(":expiration", number(u128::from(end.as_secs()) + 86_400))
            .expression_attribute_values(":zero", number(0));
        (owner, now.as_micros(), request)
    }

    /// The request of `lambda-lock` to release.
    fn bare_release(&self, key: &str, owner: String, own: u128) -> UpdateItemFluentBuilder {
        let now = self.now();
        self.client
            .update_item()
            .table_name(TABLE)
            .key("id", string(key))
            .condition_expression(
                "fence = :own AND #owner = :owner AND #status = :in_progress AND NOT #sequence >= :sequence",
            )
            .update_expression(
                "SET fence = :fence, released = :fence, freed_at = :now, in_progress_expiration = :lease_end, \
                 expiration = :expiration, #sequence = :sequence, #hold = :hold, hold_deviation = :hold_deviation",
            )
            .return_values_on_condition_check_failure(OnRefusal::AllOld)
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_names("#status", "status")
            .expression_attribute_names("#sequence", "sequence")
            .expression_attribute_names("#hold", "hold")
            .expression_attribute_values(":hold", AttributeValue::N("5.250".to_owned()))
            .expression_attribute_values(":hold_deviation", AttributeValue::N("1.050".to_owned()))
            .expression_attribute_values(":owner", AttributeValue::S(owner))
            .expression_attribute_values(":sequence", number(1))
            .expression_attribute_values(":in_progress", string("INPROGRESS"))
            .expression_attribute_values(":own", number(own))
            .expression_attribute_values(":fence", number(now.as_micros()))
            .expression_attribute_values(":now", number(now.as_millis()))
            .expression_attribute_values(":lease_end", number(1))
            .expression_attribute_values(":expiration", number(u128::from(now.as_secs()) + 86_400))
    }

    fn now(&self) -> Duration {
        self.host.now().duration_since(std::time::UNIX_EPOCH).unwrap()
    }
}

fn string(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(value: u128) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

const ROW: &str = r#"{"Attributes":{"id":{"S":"ours"},"status":{"S":"INPROGRESS"},"holder":{"S":"the benchmark"},
    "owner":{"S":"0123456789abcdef0123456789abcdef"},"released":{"N":"1790000000000000"},
    "fence":{"N":"1790000000000000"},"acquired_at":{"N":"1790000000000"},"expiration":{"N":"1790086431"},
    "in_progress_expiration":{"N":"1790000031000"},"hold":{"N":"5.250"},"hold_deviation":{"N":"1.050"}}}"#;

fn print_costs(runtime: &Runtime, embedded: &Sides, pairs: usize) {
    let canned = Sides::canned();
    print_header();
    runtime.block_on(async {
        let ours = async || embedded.acquire_and_release().await;
        let bare = async || embedded.bare_acquire_and_release().await;
        compare("acquire and release, embedded engine", ours, bare, pairs).await;
        let ours = async || canned.acquire_and_release().await;
        let bare = async || canned.bare_acquire_and_release().await;
        compare("acquire and release, canned answers", ours, bare, pairs).await;
        compare(
            "refusal, embedded engine",
            async || embedded.refusal().await,
            async || embedded.bare_refusal().await,
            pairs,
        )
        .await;
    });
}
