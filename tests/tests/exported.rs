//! The metrics and logs that the example functions export to `CloudWatch`. A process has one exporter, so these tests run one
//! at a time and in their own process.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use futures_util::FutureExt;
use lambda_example::telemetry::{self, Collector};
use lambda_example::{Orders, Payment, Payments, Simulation, order_api, payment_queue};
use lambda_lock::embedded::Host;
use lambda_lock::http::Caller;
use lambda_lock::{Locks, metrics};
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, over_http};
use lambda_runtime::LambdaEvent;
use serde_json::{Map, Value, json};
use tokio::sync::MutexGuard;
use tokio::time::sleep;
use tower::{Service, ServiceExt, service_fn};

const FUNCTION: &str = "shop-function";
const PREFIX: &str = "shop#";

static COLLECTOR: LazyLock<&'static Collector> = LazyLock::new(|| telemetry::exporter(FUNCTION.to_owned()).unwrap());

/// Collects what the functions write instead of standard output.
#[derive(Clone, Debug, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A world for a function that exports, and its output.
struct Stage {
    world: World,
    output: Output,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    async fn new() -> Self {
        static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let alone = ALONE.lock().await;
        let world = World::new().await;
        // Discards what a failed test has left.
        COLLECTOR.flush(io::sink()).unwrap();
        Self { world, output: Output::default(), _alone: alone }
    }

    /// A host and its locks, which are built after the exporter.
    fn environment(&self) -> (Host, Locks) {
        let host = self.world.host().build();
        let locks = self.world.locks(&host).key_prefix(PREFIX).build().unwrap();
        (host, locks)
    }

    fn exporting<Event, S: Service<Event, Future: Send> + Clone + Send>(
        &self,
        function: S,
    ) -> impl Service<Event, Response = S::Response, Error = S::Error, Future: Send> + Clone + use<Event, S> {
        let output = self.output.clone();
        telemetry::flush_after(function, *COLLECTOR, move || output.clone())
    }

    /// Returns the metrics since the last call: the sums of counters, and the number of values of histograms.
    fn exported(&self) -> BTreeMap<String, u64> {
        let written = String::from_utf8(std::mem::take(&mut *self.output.0.lock().unwrap())).unwrap();
        assert!(written.is_empty() || written.ends_with('\n'), "{written}");
        for secret in ["sales", "key-1", "tea", "rent", "DE02", PREFIX, &self.world.table] {
            assert!(!written.contains(secret), "{secret} in {written}");
        }
        let mut exported = BTreeMap::new();
        for line in written.lines() {
            read(serde_json::from_str(line).unwrap(), &mut exported);
        }
        exported
    }
}

/// Reads a line as `CloudWatch` does: only the metrics that its directive names exist.
fn read(mut line: Map<String, Value>, exported: &mut BTreeMap<String, u64>) {
    let mut directive = line.remove("_aws").unwrap();
    assert!(directive["Timestamp"].is_u64());
    let [metrics] = &mut directive["CloudWatchMetrics"].as_array_mut().unwrap()[..] else { panic!("{directive}") };
    assert_eq!(metrics["Namespace"], "LambdaLock");

    let [dimensions] = &metrics["Dimensions"].as_array().unwrap()[..] else { panic!("{metrics}") };
    let mut dimensions: BTreeMap<_, _> = dimensions
        .as_array()
        .unwrap()
        .iter()
        .map(|name| (name.as_str().unwrap(), line.remove(name.as_str().unwrap()).unwrap()))
        .collect();
    assert_eq!(dimensions.remove("FunctionName").unwrap(), FUNCTION);
    let labels = dimensions
        .iter()
        .fold(String::new(), |all, (label, value)| format!("{all} {label}={}", value.as_str().unwrap()));

    for metric in metrics["Metrics"].as_array().unwrap() {
        let name = metric["Name"].as_str().unwrap();
        let (value, unit) = match line.remove(name).unwrap() {
            Value::Number(sum) => (sum.as_u64().unwrap(), "Count"),
            Value::Array(values) => {
                assert!(values.iter().all(|value| value.as_f64().is_some_and(|each| (0.0..60_000.0).contains(&each))));
                let unit = if name == metrics::WAITERS_AHEAD { "Count" } else { "Milliseconds" };
                (values.len().try_into().unwrap(), unit)
            }
            value => panic!("{name}: {value}"),
        };
        assert_eq!(metric["Unit"], unit, "{name}");
        *exported.entry(format!("{}{labels}", name.strip_prefix("lambda_lock_").unwrap_or(name))).or_default() += value;
    }
    assert_eq!(line, Map::new(), "neither a dimension nor a metric");
}

fn counts<const COUNTS: usize>(counts: [(&str, u64); COUNTS]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

/// A lock that was acquired and released.
const HELD_ONCE: [(&str, u64); 5] =
    [("acquired", 1), ("acquire_time", 1), ("released", 1), ("release_time", 1), ("hold_time", 1)];

#[tokio::test]
async fn an_order_exports_its_record_its_replays_and_its_refusals() {
    let stage = Stage::new().await;
    let (host, locks) = stage.environment();
    let orders = Orders::new(host.client(), &stage.world.table, PREFIX);
    let function = stage.exporting(order_api(locks, orders, Caller::shared(), Simulation::On));
    let send_to = async |path: &str| {
        let request = json!({
            "rawPath": path,
            "headers": { "content-type": "application/json", "idempotency-key": "key-1" },
            "requestContext": { "http": { "method": "POST" }, "timeEpoch": 0 },
            "body": json!({ "item": "tea", "quantity": 2, "checking_ms": 500 }).to_string(),
            "isBase64Encoded": false,
        });
        let response = over_http(&host, function.clone(), &request).await;
        (response["statusCode"].as_i64().unwrap(), stage.exported())
    };
    let send = async || send_to("/orders").await;
    let (placed, refused) = tokio::join!(biased; send(), send());
    let mut refusal = counts([("acquired", 1), ("acquire_time", 1), ("in_progress_refusals", 1)]);
    refusal.insert("http_problems problem=in-progress".to_owned(), 1);
    assert_eq!(refused, (409, refusal));
    assert_eq!(placed, (201, counts([("released", 1), ("hold_time", 1)])));
    assert_eq!(send().await, (201, counts([("replays", 1)])));
    assert_eq!(send_to("/elsewhere").await, (404, counts([("order_api_refused problem=404", 1)])));
}

#[tokio::test]
async fn a_batch_exports_the_outcome_of_each_message() {
    let stage = Stage::new().await;
    let (host, locks) = stage.environment();
    // No message is in progress elsewhere, so nothing is sent to SQS.
    let queues = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"));
    let queues = aws_sdk_sqs::Client::from_conf(queues.build());
    let payments = Payments::new(host.client(), &stage.world.table, PREFIX);
    let function = stage.exporting(payment_queue(locks, payments, queues, Simulation::On));
    let payment = |id: &str, failing_deliveries| {
        let account = "DE02".to_owned();
        json!(Payment { id: id.to_owned(), account, amount: 100, paying_ms: 0, failing_deliveries, panics: false })
    };
    let mut event = SqsEvent::default();
    let bodies = [payment("rent", 0), payment("rent", 0), payment("power", 1), json!("not a payment")];
    for (position, body) in bodies.iter().enumerate() {
        let mut record = SqsMessage::default();
        record.message_id = Some(position.to_string());
        record.event_source_arn = Some("arn:aws:sqs:us-east-1:123456789012:payments".to_owned());
        record.body = Some(body.to_string());
        event.records.push(record);
    }
    function.oneshot(invocation(&host, event)).await.unwrap();
    let outcomes =
        ["done", "duplicate", "failed", "unreadable"].map(|outcome| format!("batch_items outcome={outcome}"));
    let mut expected = counts([
        ("acquired", 2),
        ("acquire_time", 2),
        ("released", 1),
        ("work_failed", 1),
        ("hold_time", 2),
        ("replays", 1),
    ]);
    // The other record is completed with the payment, without a separate request.
    expected.insert("release_time".to_owned(), 1);
    expected.extend(outcomes.map(|outcome| (outcome, 1)));
    assert_eq!(stage.exported(), expected);
}

#[tokio::test]
async fn an_invocation_that_fails_or_panics_exports_its_metrics() {
    let stage = Stage::new().await;
    let (_, locks) = stage.environment();
    let function = stage.exporting(service_fn(move |event: LambdaEvent<bool>| {
        let locks = locks.clone();
        async move {
            locks.acquire("sales").await.unwrap().release().await.unwrap();
            if event.payload { panic!("it panics") } else { Err::<(), _>("it fails") }
        }
    }));
    let invoke = |panics| function.clone().oneshot(LambdaEvent::new(panics, lambda_runtime::Context::default()));
    invoke(false).await.unwrap_err();
    assert_eq!(stage.exported(), counts(HELD_ONCE));
    AssertUnwindSafe(invoke(true)).catch_unwind().await.unwrap_err();
    assert_eq!(stage.exported(), counts(HELD_ONCE));
}

#[tokio::test]
async fn a_waiter_exports_its_place() {
    let stage = Stage::new().await;
    let (_, locks) = stage.environment();
    let lock = locks.acquire("sales").await.unwrap();
    let waiting = locks.clone();
    let function = stage.exporting(service_fn(move |_: LambdaEvent<()>| {
        let acquire = waiting.acquire("sales").wait(Duration::from_secs(30));
        async { acquire.await?.release().await }
    }));
    let release = async {
        while locks.get("sales").await.unwrap().unwrap().waiters() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        lock.release().await.unwrap();
    };
    let event = LambdaEvent::new((), lambda_runtime::Context::default());
    let (waited, ()) = tokio::join!(function.oneshot(event), release);
    waited.unwrap();
    let mut exported = stage.exported();
    assert!(exported.remove("retry_attempts") > Some(0), "{exported:?}");
    let mut expected = counts(HELD_ONCE.map(|(name, count)| (name, 2 * count)));
    expected.extend(counts([("wait_time", 1), ("waiters_ahead", 1)]));
    assert_eq!(exported, expected);
}
