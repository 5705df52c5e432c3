//! The cost of a lock, compared with the same two requests from the bare SDK.
//!
//! Prints the ratios of `lambda-lock` to the bare SDK. The two take turns in one run, so that load on the machine slows both.

use std::alloc::System;
use std::env;
use std::hint::black_box;
use std::str;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{self, Region};
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure as OnRefusal};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use lambda_lock::Locks;
use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock_tests::median;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::runtime::Builder;

const TABLE: &str = "locks";

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    // With `--test`, it only has to run.
    let pairs = if env::args().any(|argument| argument == "--test") { 2 } else { 5_000 };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!("{:<44}{:>10}{:>10}{:>8}{:>14}{:>8}", "", "ours", "bare SDK", "ratio", "allocations", "ratio");
        compare("acquire and release, embedded engine", &Sides::embedded().await, pairs).await;
        compare("acquire and release, canned answers", &Sides::canned(), pairs).await;
    });
}

/// Prints one line: medians of time, and the median of the pairs' ratios.
#[expect(clippy::cast_precision_loss, reason = "the counts are small")]
async fn compare(name: &str, sides: &Sides, pairs: usize) {
    let (ours, bare) = (async || sides.acquire_and_release().await, async || sides.bare_acquire_and_release().await);
    let (mut our_times, mut bare_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        // The side that goes first alternates too.
        let (our_time, bare_time) = if pair % 2 == 0 {
            let our_time = time(&ours).await;
            (our_time, time(&bare).await)
        } else {
            let bare_time = time(&bare).await;
            (time(&ours).await, bare_time)
        };
        our_times.push(our_time);
        bare_times.push(bare_time);
        ratios.push(our_time / bare_time);
    }
    let (our_allocations, bare_allocations) = (allocations(&ours).await as f64, allocations(&bare).await as f64);
    println!(
        "{name:<44}{:>7.1} µs{:>7.1} µs{:>8.3}{:>14}{:>8.3}",
        median(our_times) * 1e6,
        median(bare_times) * 1e6,
        median(ratios),
        format!("{our_allocations}/{bare_allocations}"),
        our_allocations / bare_allocations
    );
}

/// Returns the real time, which this benchmark measures.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn clock() -> Instant {
    Instant::now()
}

async fn time(work: &impl AsyncFn()) -> f64 {
    let start = clock();
    work().await;
    start.elapsed().as_secs_f64()
}

/// Returns the number of allocations: the median of some runs, because a map or a buffer grows occasionally.
async fn allocations(work: &impl AsyncFn()) -> usize {
    let mut counts = Vec::new();
    for _ in 0..21 {
        let measured = stats_alloc::Region::new(ALLOCATOR);
        work().await;
        let change = measured.change();
        counts.push(change.allocations + change.reallocations);
    }
    counts.sort_unstable();
    counts[counts.len() / 2]
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
        sides
    }

    /// Uses a DynamoDB with prepared answers, so that the benchmark measures the client.
    fn canned() -> Self {
        let config = config::Builder::new().region(Region::from_static("us-east-1")).allow_no_auth();
        Self::on(Host::over(config.endpoint_url("http://canned.invalid"), Canned).build())
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

    async fn bare_acquire_and_release(&self) {
        let (owner, own, acquire) = self.bare_acquire();
        // The first acquire finds no row.
        let before = acquire.send().await.unwrap().attributes.unwrap_or_default();
        black_box(before.get("fence").map(|fence| fence.as_n().unwrap().parse::<u64>().unwrap()));
        self.bare_release(owner, own).send().await.unwrap();
    }

    /// The request of `lambda-lock` to acquire.
    fn bare_acquire(&self) -> (String, u128, UpdateItemFluentBuilder) {
        let owner = format!("{:032x}", fastrand::u128(..));
        let now = self.now();
        let end = now + Duration::from_secs(31);
        let request = self
            .client
            .update_item()
            .table_name(TABLE)
            .key("id", string("bare"))
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
    fn bare_release(&self, owner: String, own: u128) -> UpdateItemFluentBuilder {
        let now = self.now();
        self.client
            .update_item()
            .table_name(TABLE)
            .key("id", string("bare"))
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

/// A DynamoDB that answers an acquire with a row, and a release with an empty body.
#[derive(Debug)]
struct Canned;

impl HttpClient for Canned {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(Self)
    }
}

impl HttpConnector for Canned {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let request = str::from_utf8(request.body().bytes().unwrap()).unwrap();
        let body = if request.contains("attribute_not_exists") { ROW } else { "{}" };
        HttpConnectorFuture::ready(Ok(HttpResponse::new(200_u16.try_into().unwrap(), SdkBody::from(body))))
    }
}
