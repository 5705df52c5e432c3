//! What is counted, measured and traced, as numbers after histories that are known. All in paused time on the embedded
//! engine, and on one thread, so that each test has a recorder and a subscriber of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::pending;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::{Answer, DynamoDb, Faults, Host, HostBuilder, Intercept};
use lambda_lock::{
    Acquire, Backoff, Error, HandlerError, Idempotency, IdempotentLayer, Jitter, LockLayer, Locks, LocksBuilder,
    Message, OnError, OnMissingKey, OnTimeout, OnUnavailable, RecordFormat, SqsConsumer, StoredError, metrics as names,
};
use lambda_lock_tests::invocation::{Counter, LoseAnswers, invocation, invocation_with};
use lambda_runtime::{Diagnostic, LambdaEvent};
use metrics::{LocalRecorderGuard, Unit, set_default_local_recorder};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tracing::field::{Field, Visit};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Level, span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer as Recording, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

const TABLE: &str = "locks";

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Attempts after 100 ms, 300 ms, 700 ms, and so on.
fn without_jitter() -> Backoff {
    Backoff::default().jitter(Jitter::None)
}

// What is counted

/// Every metric, as a dashboard names it.
const PINNED: [(&str, &str, Unit); 15] = [
    (names::ACQUIRED, "lambda_lock_acquired", Unit::Count),
    (names::TAKEN_OVER, "lambda_lock_taken_over", Unit::Count),
    (names::REFUSED, "lambda_lock_refused", Unit::Count),
    (names::RELEASED, "lambda_lock_released", Unit::Count),
    (names::RELEASE_FAILED, "lambda_lock_release_failed", Unit::Count),
    (names::LOST, "lambda_lock_lost", Unit::Count),
    (names::RETRY_ATTEMPTS, "lambda_lock_retry_attempts", Unit::Count),
    (names::RETRIES_EXHAUSTED, "lambda_lock_retries_exhausted", Unit::Count),
    (names::REPLAYS, "lambda_lock_replays", Unit::Count),
    (names::IN_PROGRESS_REFUSALS, "lambda_lock_in_progress_refusals", Unit::Count),
    (names::BATCH_ITEMS, "lambda_lock_batch_items", Unit::Count),
    (names::ACQUIRE_TIME, "lambda_lock_acquire_time", Unit::Milliseconds),
    (names::WAIT_TIME, "lambda_lock_wait_time", Unit::Milliseconds),
    (names::RELEASE_TIME, "lambda_lock_release_time", Unit::Milliseconds),
    (names::HOLD_TIME, "lambda_lock_hold_time", Unit::Milliseconds),
];

/// What may be said of a metric beyond its name.
const LABELS: [(&str, &str, &[&str]); 4] = [
    (
        names::REFUSED,
        names::REASON,
        &[
            "held",
            "throttled",
            "unavailable",
            "conflict",
            "access_denied",
            "table_not_found",
            "malformed_row",
            "invalid",
            "not_sent",
            "refused",
            "cancelled",
            "unfinished",
            "mismatch",
            "key_missing",
        ],
    ),
    (names::RELEASE_FAILED, names::REASON, &["lost", "throttled", "unavailable", "access_denied", "invalid"]),
    (names::RETRIES_EXHAUSTED, names::REASON, &["held", "throttled", "unavailable", "conflict", "in_progress"]),
    (
        names::BATCH_ITEMS,
        names::OUTCOME,
        &["done", "duplicate", "in_progress", "failed", "unreadable", "not_started", "timed_out"],
    ),
];

/// Counts and measures what happens on this thread while it lives.
struct Metrics {
    snapshotter: Snapshotter,
    _guard: LocalRecorderGuard<'static>,
}

/// What was counted, and each value that was measured, by the metric's name without `lambda_lock_`.
#[derive(Debug, Default)]
struct Counted {
    counters: BTreeMap<String, u64>,
    histograms: BTreeMap<String, Vec<f64>>,
}

impl Metrics {
    fn begin() -> Self {
        // The guard borrows it; a test's process is short.
        let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
        Self { snapshotter: recorder.snapshotter(), _guard: set_default_local_recorder(recorder) }
    }

    /// What there was since the last look. Each of it is described, and no label is of anyone's own words.
    fn take(&self) -> Counted {
        let mut counted = Counted::default();
        for (key, unit, description, value) in self.snapshotter.snapshot().into_vec() {
            let (_, key) = key.into_parts();
            let (_, _, wanted) = PINNED.iter().find(|(_, name, _)| *name == key.name()).expect("a name that is pinned");
            assert_eq!(unit, Some(*wanted), "the unit of {key}");
            assert!(description.is_some_and(|description| !description.is_empty()), "{key} is not described");
            let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
            let allowed = LABELS.iter().find(|(name, ..)| *name == key.name());
            let name = key.name().strip_prefix("lambda_lock_").unwrap();
            let name = match (allowed, &labels[..]) {
                (None, []) => name.to_owned(),
                (Some((_, label, values)), [(key, value)]) if label == key && values.contains(value) => {
                    format!("{name}: {value}")
                }
                _ => panic!("{name} has the labels {labels:?}"),
            };
            match value {
                DebugValue::Counter(0) => {}
                DebugValue::Counter(count) => assert_eq!(counted.counters.insert(name, count), None),
                DebugValue::Histogram(values) if values.is_empty() => {}
                DebugValue::Histogram(values) => {
                    let values = values.into_iter().map(f64::from).collect();
                    assert_eq!(counted.histograms.insert(name, values), None);
                }
                DebugValue::Gauge(_) => panic!("{name} is a gauge"),
            }
        }
        counted
    }

    /// That this and nothing else was counted and measured since the last look: each counter with its count, each
    /// histogram with its values in milliseconds.
    #[track_caller]
    fn assert(&self, expected: &[&str]) {
        let Counted { counters, histograms } = self.take();
        let mut lines: Vec<_> = counters.iter().map(|(name, count)| format!("{name} {count}")).collect();
        lines.extend(histograms.iter().map(|(name, values)| format!("{name} {values:?}")));
        lines.sort();
        let mut expected: Vec<_> = expected.iter().map(|&line| line.to_owned()).collect();
        expected.sort();
        assert_eq!(lines, expected);
    }
}

impl Counted {
    fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Over all labels.
    fn sum(&self, name: &str) -> u64 {
        let labelled = format!("{name}: ");
        self.counters.iter().filter(|(each, _)| each.starts_with(&labelled)).map(|(_, count)| count).sum()
    }

    fn values(&self, name: &str) -> &[f64] {
        self.histograms.get(name).map_or(&[], Vec::as_slice)
    }
}

// What is traced

#[derive(Clone, Debug)]
struct Span {
    fields: BTreeMap<String, String>,
    is_closed: bool,
}

#[derive(Clone, Debug)]
struct Event {
    level: Level,
    message: String,
    fields: BTreeMap<String, String>,
    /// The innermost span `lock` that it is in, by its place among them.
    lock: Option<usize>,
}

#[derive(Debug, Default)]
struct Record {
    /// The spans `lock`, in the order in which they began.
    locks: Vec<Span>,
    events: Vec<Event>,
    /// Everything that was said in any field of any span or event.
    words: Vec<String>,
}

/// Keeps what the crate and this file trace on this thread while it lives.
struct Traces {
    record: Arc<Mutex<Record>>,
    _guard: DefaultGuard,
}

impl Traces {
    /// All levels.
    fn begin() -> Self {
        Self::filtered(Targets::new().with_target("lambda_lock", Level::TRACE).with_target("telemetry", Level::TRACE))
    }

    fn filtered(filter: Targets) -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        let subscriber = Registry::default().with(Recorder(Arc::clone(&record)).with_filter(filter));
        Self { record, _guard: set_default(subscriber) }
    }

    fn locks(&self) -> Vec<Span> {
        self.record.lock().unwrap().locks.clone()
    }

    /// Each span as one line; an owner is given as `…`, and so is a fence.
    fn lock_lines(&self) -> Vec<String> {
        let line = |span: &Span| {
            let fields = span.fields.iter().map(|(name, value)| match name.as_str() {
                "owner" | "fence" => format!("{name}=…"),
                _ => format!("{name}={value}"),
            });
            let end = if span.is_closed { "closed" } else { "open" };
            format!("{} {end}", fields.collect::<Vec<_>>().join(" "))
        };
        self.locks().iter().map(line).collect()
    }

    fn events(&self) -> Vec<Event> {
        self.record.lock().unwrap().events.clone()
    }

    /// The events that begin so.
    fn told(&self, message: &str) -> Vec<Event> {
        self.events().into_iter().filter(|event| event.message.starts_with(message)).collect()
    }

    /// The level and the beginning of every event that is for whoever looks at the log, without the details.
    fn told_to_all(&self) -> Vec<String> {
        let events = self.events().into_iter().filter(|event| event.level <= Level::INFO);
        events.map(|event| format!("{} {}", event.level, event.message.split(':').next().unwrap())).collect()
    }

    fn assert_not_said(&self, secret: &str) {
        let record = self.record.lock().unwrap();
        for words in &record.words {
            assert!(!words.contains(secret), "`{secret}` was said: {words}");
        }
    }
}

struct Recorder(Arc<Mutex<Record>>);

/// The place of a span `lock` among them.
struct Place(usize);

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name().to_owned(), format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name().to_owned(), value.to_owned()));
    }
}

impl Record {
    fn keep(&mut self, Fields(fields): Fields) -> BTreeMap<String, String> {
        self.words.extend(fields.iter().map(|(name, value)| format!("{name}={value}")));
        fields.into_iter().collect()
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Recording<S> for Recorder {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let (mut fields, mut record) = (Fields::default(), self.0.lock().unwrap());
        attributes.record(&mut fields);
        let fields = record.keep(fields);
        let metadata = attributes.metadata();
        if (metadata.target().split("::").next(), metadata.name()) == (Some("lambda_lock"), "lock") {
            context.span(id).unwrap().extensions_mut().insert(Place(record.locks.len()));
            record.locks.push(Span { fields, is_closed: false });
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let (mut fields, mut record) = (Fields::default(), self.0.lock().unwrap());
        values.record(&mut fields);
        let fields = record.keep(fields);
        if let Some(&Place(place)) = context.span(id).unwrap().extensions().get() {
            for (name, value) in fields {
                // A subscriber that writes a field down when it is recorded would have it twice.
                let before = record.locks[place].fields.insert(name, value.clone());
                assert_eq!(before, None, "recorded again, as {value}");
            }
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let (mut fields, mut record) = (Fields::default(), self.0.lock().unwrap());
        event.record(&mut fields);
        let mut fields = record.keep(fields);
        let mut spans = context.event_scope(event).into_iter().flatten();
        let lock = spans.find_map(|span| span.extensions().get().map(|&Place(place)| place));
        let message = fields.remove("message").unwrap_or_default();
        record.events.push(Event { level: *event.metadata().level(), message, fields, lock });
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        if let Some(&Place(place)) = context.span(&id).unwrap().extensions().get() {
            self.0.lock().unwrap().locks[place].is_closed = true;
        }
    }
}

// Where it happens

/// A table, and what is counted and traced.
struct Stage {
    engine: DynamoDb,
    metrics: Metrics,
    traces: Traces,
}

impl Stage {
    async fn set() -> Self {
        let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + s(1_800_000_000)).unwrap();
        Locks::builder(engine.client(), TABLE).build().unwrap().create_table().await.unwrap();
        Self { engine, metrics: Metrics::begin(), traces: Traces::begin() }
    }

    fn locks(&self) -> Locks {
        locks_on(self.engine.host()).1
    }

    fn on_network(&self, faults: Faults) -> Locks {
        locks_on(self.engine.host().faults(faults)).1
    }
}

fn locks_on(host: HostBuilder) -> (Host, Locks) {
    let host = host.build();
    let locks = locks_of(&host).build().unwrap();
    (host, locks)
}

/// Without the SDK's own retries, whose pauses are random.
fn locks_of(host: &Host) -> LocksBuilder {
    Locks::builder(without_retries(host), TABLE)
}

fn without_retries(host: &Host) -> Client {
    Client::from_conf(host.client().config().to_builder().retry_config(RetryConfig::disabled()).build())
}

/// Every request and every answer takes this long.
fn slow(each_way: Duration) -> Faults {
    Faults::seeded(1).latency(each_way..each_way)
}

/// Answers these of the requests of an operation, counted from 1, with an error, without applying them.
#[derive(Debug)]
struct Refusing {
    operation: &'static str,
    which: RangeInclusive<u32>,
    code: &'static str,
    seen: Counter,
}

impl Refusing {
    fn updates(which: RangeInclusive<u32>, code: &'static str) -> Self {
        Self { operation: "UpdateItem", which, code, seen: Counter::default() }
    }
}

impl Intercept for Refusing {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == self.operation && self.which.contains(&self.seen.count()) {
            request["TableName"] = json!("no-such-table");
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == self.operation && self.which.contains(&self.seen.get()) {
            answer.status = 400;
            answer.body = json!({ "__type": self.code });
        }
    }
}

/// Lets background tasks come to their end.
async fn settle() {
    sleep(Duration::from_mins(1)).await;
}

fn orders(locks: &Locks) -> Idempotency<String, String, String> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &String| {
        Some(order.clone()).filter(|id| id != "none")
    })
}

async fn done(orders: &Idempotency<String, String, String>, id: &str) -> Result<String, HandlerError<String>> {
    orders
        .run(&id.to_owned(), async |_| {
            sleep(ms(250)).await;
            Ok("done".to_owned())
        })
        .await
}

fn lock_error<T: Debug>(result: Result<T, HandlerError<String>>) -> Error {
    match result {
        Err(HandlerError::Lock(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Frees the key by an operator's hand.
async fn take_away(locks: &Locks, key: &str) {
    // Rows tell milliseconds, and what was acquired in this one is not freed in it.
    sleep(ms(1)).await;
    let holder = locks.get(key).await.unwrap().unwrap();
    assert!(locks.force_release(key, &holder).await.unwrap());
}

// Names

// behaviour 36
#[test]
fn the_names_the_units_and_the_labels_are_those_that_dashboards_know() {
    let metrics = Metrics::begin();
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH).unwrap();
    let _locks = Locks::builder(engine.client(), TABLE).build().unwrap();
    for (name, pinned, unit) in PINNED {
        assert_eq!(name, pinned);
        match unit {
            Unit::Count => metrics::counter!(name).increment(1),
            _ => metrics::histogram!(name).record(1.0),
        }
    }
    let described = metrics.snapshotter.snapshot().into_vec();
    assert_eq!(described.len(), PINNED.len());
    for (key, unit, description, _) in described {
        let (_, _, wanted) = PINNED.iter().find(|(name, ..)| *name == key.key().name()).unwrap();
        assert_eq!(unit, Some(*wanted), "the unit of {key:?}");
        assert!(description.is_some_and(|description| !description.is_empty()), "{key:?}");
    }
    assert_eq!((names::REASON, names::OUTCOME), ("reason", "outcome"));
    let table = include_str!("../../README.md").lines().filter_map(|line| line.strip_prefix("| `lambda_lock_"));
    let table: Vec<_> = table.map(|line| line.split_once('`').unwrap().0).collect();
    assert_eq!(table, PINNED.map(|(_, name, _)| name.strip_prefix("lambda_lock_").unwrap()));
}

// behaviour 36
#[test]
fn an_exporter_that_comes_later_can_be_told_the_units_too() {
    let metrics = Metrics::begin();
    metrics::counter!(names::LOST).increment(1);
    let units = |metrics: &Metrics| metrics.snapshotter.snapshot().into_vec().into_iter().map(|(_, unit, ..)| unit);
    assert_eq!(units(&metrics).collect::<Vec<_>>(), [None]);
    names::describe();
    assert_eq!(units(&metrics).collect::<Vec<_>>(), [Some(Unit::Count)]);
}

// Locks

// behaviours 11, 36
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_acquired_held_and_released_is_counted_and_timed_and_has_one_span() {
    let stage = Stage::set().await;
    let locks = stage.on_network(slow(ms(20)));
    let lock = locks.acquire("nightly").await.unwrap();
    stage.metrics.assert(&["acquired 1", "acquire_time [40.0]"]);
    let (owner, fence) = (lock.owner().to_owned(), lock.fence().to_string());
    sleep(ms(250)).await;
    assert_eq!(stage.traces.lock_lines(), ["attempts=1 fence=… key=nightly owner=… waited_ms=0 open"]);
    lock.release().await.unwrap();
    // From the sending of the acquire to that of the release.
    stage.metrics.assert(&["released 1", "hold_time [290.0]", "release_time [40.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let [span] = &stage.traces.locks()[..] else { panic!("one span") };
    assert_eq!((&span.fields["owner"], &span.fields["fence"]), (&owner, &fence));
    let line = "attempts=1 fence=… held_ms=290 key=nightly outcome=released owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    let [acquired] = &stage.traces.events()[..] else { panic!("one event") };
    assert_eq!((acquired.level, &*acquired.message, acquired.lock), (Level::DEBUG, "acquired", Some(0)));
    assert_eq!((&*acquired.fields["key"], &acquired.fields["fence"]), ("nightly", &fence));
}

// behaviours 1, 36
#[tokio::test(start_paused = true)]
async fn a_refusal_is_counted_by_its_reason_and_told_once() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").holder("the first").await.unwrap();
    stage.metrics.take();
    assert!(stage.locks().try_acquire("nightly").await.unwrap().is_none());
    stage.metrics.assert(&["refused: held 1"]);
    assert_eq!(stage.traces.lock_lines()[1], "attempts=1 key=nightly outcome=held waited_ms=0 closed");
    let [refusal] = &stage.traces.told("not acquired")[..] else { panic!("once") };
    assert_eq!((refusal.level, refusal.lock), (Level::INFO, Some(1)));
    assert_eq!((&*refusal.fields["key"], &*refusal.fields["reason"]), ("nightly", "held"));
    assert!(refusal.fields["error"].contains("the first"), "{refusal:?}");
    holder.release().await.unwrap();
}

// behaviours 32, 36
#[tokio::test(start_paused = true)]
async fn a_wait_that_succeeds_counts_its_attempts_but_the_first_and_what_it_waited() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    let locks = stage.locks();
    let waiter = locks.acquire("nightly").wait(without_jitter()).into_future();
    let release = async {
        sleep(ms(250)).await;
        holder.release().await.unwrap();
    };
    let (lock, ()) = tokio::join!(waiter, release);
    let released = ["released 1", "hold_time [250.0]", "release_time [0.0]"];
    let acquired = ["acquired 1", "acquire_time [300.0]", "retry_attempts 2", "wait_time [300.0]"];
    stage.metrics.assert(&[&released[..], &acquired].concat());
    sleep(ms(10)).await;
    lock.unwrap().release().await.unwrap();
    stage.metrics.assert(&["released 1", "hold_time [10.0]", "release_time [0.0]"]);
    let line = "attempts=3 fence=… held_ms=10 key=nightly outcome=released owner=… waited_ms=300 closed";
    assert_eq!(stage.traces.lock_lines()[1], line);
    // Not in order to tell everyone of each attempt.
    assert_eq!(stage.traces.told_to_all(), [""; 0]);
    let refused = stage.traces.told("refused");
    assert_eq!(refused.iter().map(|event| (event.level, event.lock)).collect::<Vec<_>>(), [(Level::DEBUG, Some(1)); 2]);
}

// behaviours 34, 36
#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_is_exhausted_for_the_reason_that_it_ended_with() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    let wait = without_jitter().up_to(ms(300));
    let error = stage.locks().acquire("nightly").wait(wait).await.unwrap_err();
    assert!(error.is_held());
    stage.metrics.assert(&["refused: held 1", "retries_exhausted: held 1", "retry_attempts 2", "wait_time [300.0]"]);
    holder.release().await.unwrap();
    stage.metrics.take();

    for (faults, reason) in [
        (Faults::seeded(1).throttle(1.0), "throttled"),
        (Faults::seeded(1).lose_requests(1.0), "unavailable"),
        // The release in the background that follows an answer that was lost is no release of a lock.
        (Faults::seeded(1).lose_answers(1.0), "unavailable"),
    ] {
        let locks = stage.on_network(faults);
        let error = locks.acquire(format!("a {reason} one")).wait(wait).await.unwrap_err();
        assert_eq!(error.attempts(), 3);
        settle().await;
        let (refused, exhausted) = (format!("refused: {reason} 1"), format!("retries_exhausted: {reason} 1"));
        stage.metrics.assert(&[&refused, &exhausted, "retry_attempts 2", "wait_time [300.0]"]);
        let line = format!("attempts=3 key=a {reason} one outcome={reason} waited_ms=300 closed");
        assert_eq!(stage.traces.lock_lines().last(), Some(&line));
    }
    let told = stage.traces.told_to_all();
    assert_eq!(told, ["INFO not acquired"; 4]);
}

// behaviours 33, 36
#[tokio::test(start_paused = true)]
async fn a_wait_that_an_error_ends_is_not_exhausted() {
    let stage = Stage::set().await;
    let wait = without_jitter().up_to(s(5));
    let (_, locks) = locks_on(stage.engine.host().intercept(Refusing::updates(1..=1, "AccessDeniedException")));
    assert!(locks.acquire("nightly").wait(wait).await.unwrap_err().is_access_denied());
    stage.metrics.assert(&["refused: access_denied 1"]);

    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    let (_, locks) = locks_on(stage.engine.host().intercept(Refusing::updates(2..=2, "AccessDeniedException")));
    assert!(locks.acquire("nightly").wait(wait).await.unwrap_err().is_access_denied());
    stage.metrics.assert(&["refused: access_denied 1", "retry_attempts 1", "wait_time [100.0]"]);
    holder.release().await.unwrap();
}

// behaviour 36
#[tokio::test(start_paused = true)]
async fn an_acquire_without_a_wait_is_never_exhausted() {
    let stage = Stage::set().await;
    let locks = stage.on_network(Faults::seeded(1).throttle(1.0));
    for wait in [Backoff::default().up_to(Duration::ZERO), Backoff::default().max_attempts(1)] {
        assert!(locks.acquire("nightly").wait(wait).await.unwrap_err().is_throttled());
    }
    stage.metrics.assert(&["refused: throttled 2"]);
}

// behaviours 35, 36
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_is_counted_as_cancelled() {
    let stage = Stage::set().await;
    let holder = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    // While it sleeps, after the attempts at 0, 100 and 300 ms.
    let locks = stage.locks();
    assert!(timeout(ms(650), locks.acquire("nightly").wait(without_jitter()).into_future()).await.is_err());
    stage.metrics.assert(&["refused: cancelled 1", "retry_attempts 2", "wait_time [650.0]"]);
    assert_eq!(stage.traces.lock_lines()[1], "attempts=3 key=nightly outcome=cancelled waited_ms=650 closed");
    holder.release().await.unwrap();
    stage.metrics.take();

    // While its request is under way, which is applied and then taken back.
    let locks = stage.on_network(slow(ms(20)));
    assert!(timeout(ms(10), locks.acquire("daily").into_future()).await.is_err());
    settle().await;
    stage.metrics.assert(&["refused: cancelled 1"]);
    assert_eq!(stage.traces.lock_lines()[2], "attempts=1 key=daily outcome=cancelled waited_ms=0 closed");
    assert_eq!(stage.traces.told_to_all(), [""; 0]);
}

// behaviours 33, 36
#[tokio::test(start_paused = true)]
async fn what_is_refused_for_another_reason_is_counted_by_it() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let elsewhere = Locks::builder(without_retries(&host), "elsewhere").build().unwrap();
    assert!(elsewhere.acquire("nightly").await.unwrap_err().is_table_not_found());
    stage.metrics.assert(&["refused: table_not_found 1"]);

    assert!(locks.acquire("").await.unwrap_err().is_invalid());
    assert!(locks.acquire("nightly").lease(Duration::ZERO).await.unwrap_err().is_invalid());
    assert!(locks.acquire("nightly").until(host.now()).await.unwrap_err().is_invalid());
    stage.metrics.assert(&["refused: invalid 3"]);
    assert_eq!(host.requests(), 1);

    let put = host.client().put_item().table_name(TABLE);
    put.item("id", AttributeValue::S("foreign".to_owned())).send().await.unwrap();
    assert!(locks.acquire("foreign").await.unwrap_err().is_malformed_row());
    stage.metrics.assert(&["refused: malformed_row 1"]);

    for (code, reason) in [("TransactionConflictException", "conflict"), ("SomethingElse", "refused")] {
        let (_, locks) = locks_on(stage.engine.host().intercept(Refusing::updates(1..=1, code)));
        locks.acquire("nightly").await.unwrap_err();
        stage.metrics.assert(&[&format!("refused: {reason} 1")]);
    }
    assert_eq!(stage.traces.told_to_all(), ["INFO not acquired"; 7]);
    // What cannot be a key has no span. Nor was any of the three sent.
    let invalid = stage.traces.locks().into_iter().filter(|span| span.fields["outcome"] == "invalid");
    assert_eq!(invalid.map(|span| span.fields["attempts"].clone()).collect::<Vec<_>>(), ["0"]);
}

// behaviours 30, 36
#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_counted_by_its_reason_and_the_one_that_succeeds_after_it_as_released() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)));
    let lock = locks.acquire("nightly").await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    assert!(lock.release().await.unwrap_err().is_unavailable());
    stage.metrics.assert(&["release_failed: unavailable 1", "hold_time [250.0]"]);
    sleep(ms(100)).await;
    lock.release().await.unwrap();
    stage.metrics.assert(&["released 1", "release_time [0.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let line = "attempts=1 fence=… held_ms=250 key=nightly outcome=released owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
}

// behaviours 36, 47
#[tokio::test(start_paused = true)]
async fn a_release_with_data_that_is_too_large_is_counted_as_failed_and_the_one_without_it_as_released() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").await.unwrap();
    stage.metrics.take();
    lock.set_data("x".repeat(400 * 1024));
    assert!(lock.release().await.unwrap_err().is_invalid());
    stage.metrics.assert(&["release_failed: invalid 1", "hold_time [0.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&["released 1", "release_time [0.0]"]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "released");
}

// behaviours 24, 36
#[tokio::test(start_paused = true)]
async fn a_lock_that_a_renewal_finds_lost_is_counted_and_told_once() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").await.unwrap();
    take_away(&stage.locks(), "nightly").await;
    let next = stage.locks().acquire("nightly").holder("the next").await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    assert!(lock.renew(s(30)).await.unwrap_err().is_lost());
    stage.metrics.assert(&["lost 1", "hold_time [251.0]"]);
    assert!(lock.renew(s(30)).await.unwrap_err().is_lost());
    assert!(lock.release().await.unwrap_err().is_lost());
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let line = "attempts=1 fence=… held_ms=251 key=nightly outcome=lost owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines()[0], line);
    let [loss] = &stage.traces.told("lost")[..] else { panic!("once") };
    assert_eq!((loss.level, loss.lock, &*loss.fields["key"]), (Level::WARN, Some(0), "nightly"));
    assert!(loss.fields["to"].contains("the next"), "{loss:?}");
    assert_eq!(stage.traces.told_to_all(), ["WARN released by force", "WARN lost"]);
    drop(next);
}

// behaviours 36, 80
#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_lease_is_counted_as_lost_once_and_as_released() {
    let stage = Stage::set().await;
    let outcome = stage.locks().acquire("nightly").lease(s(3)).run(async |_| pending::<()>().await).await;
    assert!(outcome.unwrap_err().is_lost());
    settle().await;
    let acquired = ["acquired 1", "acquire_time [0.0]", "lost 1", "hold_time [3000.0]"];
    stage.metrics.assert(&[&acquired[..], &["released 1", "release_time [0.0]"]].concat());
    let line = "attempts=1 fence=… held_ms=3000 key=nightly outcome=lost owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    assert_eq!(stage.traces.told_to_all(), ["WARN lost"]);
}

// behaviours 36, 49
#[tokio::test(start_paused = true)]
async fn a_lock_that_someone_else_took_after_its_lease_is_counted_as_lost_once_and_as_taken_over() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").lease(s(1)).holder("the first").await.unwrap();
    sleep(ms(2500)).await;
    stage.metrics.take();
    let next = stage.locks().acquire("nightly").holder("the next").await.unwrap();
    stage.metrics.assert(&["acquired 1", "taken_over 1", "acquire_time [0.0]"]);
    assert!(lock.release().await.unwrap_err().is_lost());
    stage.metrics.assert(&["lost 1", "hold_time [2500.0]", "release_failed: lost 1"]);
    assert!(lock.release().await.unwrap_err().is_lost());
    let [loss] = &stage.traces.told("lost")[..] else { panic!("once") };
    assert!(loss.fields["to"].contains("the next"), "{loss:?}");
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "lost");
    let [takeover] = &stage.traces.told("taken over")[..] else { panic!("once") };
    assert_eq!((takeover.level, takeover.lock, &*takeover.fields["key"]), (Level::WARN, Some(1), "nightly"));
    assert!(takeover.fields["from"].contains("the first"), "{takeover:?}");
    assert_eq!(stage.traces.told_to_all(), ["WARN taken over", "WARN lost"]);
    drop(next);
}

// behaviours 36, 44
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_found_lost_by_its_release_names_who_has_it() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").await.unwrap();
    take_away(&stage.locks(), "nightly").await;
    let _next = stage.locks().acquire("nightly").holder("the next").await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    assert!(lock.release().await.unwrap_err().is_lost());
    stage.metrics.assert(&["lost 1", "hold_time [251.0]", "release_failed: lost 1"]);
    let [loss] = &stage.traces.told("lost")[..] else { panic!("once") };
    assert!(loss.fields["to"].contains("the next"), "{loss:?}");
    drop(lock);
    assert!(stage.traces.locks()[0].is_closed);
}

// behaviours 36, 49
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_released_after_its_lease_is_counted_as_lost_and_as_released() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").lease(s(1)).await.unwrap();
    sleep(s(2)).await;
    stage.metrics.take();
    lock.release().await.unwrap();
    stage.metrics.assert(&["lost 1", "released 1", "hold_time [2000.0]", "release_time [0.0]"]);
    drop(lock);
    settle().await;
    stage.metrics.assert(&[]);
    let line = "attempts=1 fence=… held_ms=2000 key=nightly outcome=lost owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    assert_eq!(stage.traces.told_to_all(), ["WARN lost"]);
}

// behaviours 29, 36
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_dropped_is_counted_as_released_by_the_release_in_the_background_once() {
    let stage = Stage::set().await;
    let locks = stage.on_network(slow(ms(20)));
    let lock = locks.acquire("nightly").await.unwrap();
    sleep(ms(250)).await;
    stage.metrics.take();
    drop(lock);
    stage.metrics.assert(&["hold_time [290.0]"]);
    assert!(!stage.traces.locks()[0].is_closed);
    settle().await;
    stage.metrics.assert(&["released 1", "release_time [40.0]"]);
    let line = "attempts=1 fence=… held_ms=290 key=nightly outcome=released owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [line]);
    assert_eq!(stage.traces.told_to_all(), ["WARN a lock was dropped without being released"]);

    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)));
    drop(locks.acquire("nightly").await.unwrap());
    settle().await;
    stage.metrics.assert(&["acquired 1", "acquire_time [0.0]", "hold_time [0.0]", "release_failed: unavailable 1"]);
    assert_eq!(stage.traces.locks()[1].fields["outcome"], "release_failed");
    let [failure] = &stage.traces.told("a request in the background failed")[..] else { panic!("once") };
    assert_eq!((failure.level, failure.lock, &*failure.fields["key"]), (Level::DEBUG, Some(1), "nightly"));
}

// behaviours 5, 36
#[tokio::test(start_paused = true)]
async fn only_an_acquire_after_a_lease_that_ended_without_a_release_is_a_takeover() {
    let stage = Stage::set().await;
    let taken_over = || stage.metrics.take().count("taken_over");
    let locks = stage.locks();
    let acquire = async || locks.acquire("nightly").lease(s(1)).await.unwrap();

    let lock = acquire().await;
    assert_eq!(taken_over(), 0, "a new row");
    lock.release().await.unwrap();
    let lock = acquire().await;
    assert_eq!(taken_over(), 0, "after a release");
    drop(lock);
    settle().await;
    drop(acquire().await);
    assert_eq!(taken_over(), 0, "after a release in the background");
    settle().await;

    let (crashing, doomed) = locks_on(stage.engine.host());
    let lock = doomed.acquire("nightly").lease(s(1)).await.unwrap();
    crashing.crash();
    drop(lock);
    sleep(s(3)).await;
    let lock = acquire().await;
    assert_eq!(taken_over(), 1, "after a crash");
    lock.release().await.unwrap();
    acquire().await.release().await.unwrap();
    assert_eq!(taken_over(), 0, "after the release that followed a crash");

    let lock = acquire().await;
    sleep(s(3)).await;
    lock.release().await.unwrap();
    acquire().await.release().await.unwrap();
    assert_eq!(taken_over(), 0, "after a release that came after the lease");

    let lock = acquire().await;
    take_away(&locks, "nightly").await;
    acquire().await.release().await.unwrap();
    assert_eq!(taken_over(), 0, "after an operator had freed it");
    drop(lock);

    let orders = orders(&locks).window(s(10));
    done(&orders, "order").await.unwrap();
    sleep(s(11)).await;
    done(&orders, "order").await.unwrap();
    assert_eq!(taken_over(), 0, "after a record whose window has passed");
    assert_eq!(stage.traces.told("taken over").len(), 1);
}

// behaviour 36
#[tokio::test(start_paused = true)]
async fn a_renewed_lock_is_one_lock() {
    let stage = Stage::set().await;
    let lock = stage.locks().acquire("nightly").lease(s(1)).await.unwrap();
    stage.metrics.take();
    for _ in 0..3 {
        sleep(ms(500)).await;
        lock.renew(s(1)).await.unwrap();
    }
    stage.metrics.assert(&[]);
    lock.release().await.unwrap();
    stage.metrics.assert(&["released 1", "hold_time [1500.0]", "release_time [0.0]"]);
    assert_eq!(stage.traces.locks().len(), 1);
}

// behaviours 36, 76
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answer_was_lost_is_acquired_once_and_held_from_its_first_request() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 1..=1)));
    let lock = locks.acquire("nightly").wait(without_jitter()).await.unwrap();
    stage.metrics.assert(&["acquired 1", "retry_attempts 1", "acquire_time [100.0]", "wait_time [100.0]"]);
    lock.release().await.unwrap();
    stage.metrics.assert(&["released 1", "hold_time [100.0]", "release_time [0.0]"]);
}

// behaviours 22, 36
#[tokio::test(start_paused = true)]
async fn what_is_switched_off_counts_and_traces_nothing() {
    let stage = Stage::set().await;
    let (host, _) = locks_on(stage.engine.host());
    let locks = locks_of(&host).enabled(false).build().unwrap();
    let lock = locks.acquire("nightly").lease(s(1)).await.unwrap();
    sleep(s(2)).await;
    lock.release().await.unwrap();
    drop(locks.acquire("nightly").await.unwrap());
    locks.acquire("nightly").run(async |_| sleep(ms(5)).await).await.unwrap();
    let orders = orders(&locks);
    done(&orders, "order").await.unwrap();
    done(&orders, "none").await.unwrap();
    stage.metrics.assert(&[]);
    assert_eq!(stage.traces.lock_lines(), [""; 0]);
    assert_eq!(stage.traces.told_to_all(), ["WARN locking is switched off"]);
    assert_eq!(host.requests(), 0);
}

// behaviours 20, 36
#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_without_its_lock_is_a_refusal_and_no_lock() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host().faults(Faults::seeded(1).lose_requests(1.0)));
    let layer = LockLayer::new(locks).on_unavailable(OnUnavailable::RunUnlocked);
    let handler = layer.layer(service_fn(|_: LambdaEvent<()>| async { Ok::<_, String>(()) }));
    handler.oneshot(invocation(&host, ())).await.unwrap();
    settle().await;
    stage.metrics.assert(&["refused: unavailable 1"]);
    assert_eq!(stage.traces.lock_lines(), ["attempts=1 key=orders outcome=unavailable waited_ms=0 closed"]);
}

// Records

// behaviours 36, 60
#[tokio::test(start_paused = true)]
async fn a_first_run_is_acquired_and_released_and_a_duplicate_is_a_replay() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks());
    done(&orders, "17").await.unwrap();
    let times = ["acquire_time [0.0]", "hold_time [250.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["acquired 1", "released 1"], &times[..]].concat());
    done(&orders, "17").await.unwrap();
    stage.metrics.assert(&["replays 1"]);
    let run = "attempts=1 fence=… held_ms=250 key=17 outcome=completed owner=… waited_ms=0 closed";
    assert_eq!(stage.traces.lock_lines(), [run, "attempts=1 key=17 outcome=replayed waited_ms=0 closed"]);
    let [replay] = &stage.traces.told("replaying")[..] else { panic!("once") };
    assert_eq!((replay.level, &*replay.fields["key"]), (Level::INFO, "17"));
    assert_eq!(replay.fields["fence"], stage.traces.locks()[0].fields["fence"]);
    assert_eq!(stage.traces.told_to_all(), ["INFO replaying the first run's result"]);
}

// behaviours 36, 68
#[tokio::test(start_paused = true)]
async fn a_replay_from_the_cache_is_a_replay_without_a_span() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks).cache(10).validate(|order: &String| order.clone());
    done(&orders, "17").await.unwrap();
    stage.metrics.take();
    done(&orders, "17").await.unwrap();
    stage.metrics.assert(&["replays 1"]);
    assert_eq!((host.requests(), stage.traces.locks().len()), (2, 1));
    assert_eq!(stage.traces.told("replaying").len(), 1);
}

// behaviours 36, 66
#[tokio::test(start_paused = true)]
async fn a_duplicate_of_work_in_progress_is_a_refusal_of_its_own_kind() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let orders = orders(&locks);
    let wait = without_jitter().up_to(ms(100));
    let waiting = orders.clone().wait(wait);
    let at_once = async {
        sleep(ms(10)).await;
        done(&orders, "17").await
    };
    let in_vain = async {
        sleep(ms(20)).await;
        done(&waiting, "17").await
    };
    let (run, at_once, in_vain) = tokio::join!(done(&orders, "17"), at_once, in_vain);
    run.unwrap();
    assert!(lock_error(at_once).is_in_progress() && lock_error(in_vain).is_in_progress());
    let refused = ["in_progress_refusals 2", "retry_attempts 1", "wait_time [100.0]"];
    let first = ["acquired 1", "released 1", "acquire_time [0.0]", "hold_time [250.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["retries_exhausted: in_progress 1"], &refused[..], &first].concat());
    assert_eq!(stage.traces.locks()[1].fields["outcome"], "in_progress");
    let told = stage.traces.told("not acquired");
    assert_eq!(told.iter().map(|event| &*event.fields["reason"]).collect::<Vec<_>>(), ["in_progress"; 2]);
}

// behaviours 36, 66
#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waits_and_gets_the_result_is_a_replay() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks()).wait(without_jitter());
    let (run, duplicate) = tokio::join!(done(&orders, "17"), done(&orders, "17"));
    assert_eq!((run.unwrap(), duplicate.unwrap()), ("done".to_owned(), "done".to_owned()));
    // At 100 ms it is in progress, at 300 ms completed.
    let waited = ["replays 1", "retry_attempts 2", "wait_time [300.0]"];
    let first = ["acquired 1", "released 1", "acquire_time [0.0]", "hold_time [250.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&waited[..], &first].concat());
    assert_eq!(stage.traces.lock_lines()[1], "attempts=3 key=17 outcome=replayed waited_ms=300 closed");
    assert_eq!(stage.traces.told_to_all(), ["INFO replaying the first run's result"]);
}

// behaviours 36, 61, 63, 65
#[tokio::test(start_paused = true)]
async fn a_record_that_stands_in_the_way_is_a_refusal_by_its_reason() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let amounts: Idempotency<(u32, u32), String, String> =
        Idempotency::new(locks.clone(), OnMissingKey::Reject, |(id, _): &(u32, u32)| Some(id.to_string()));
    let amounts = amounts.validate(|(_, amount)| *amount);
    let paid = async |orders: &Idempotency<(u32, u32), String, String>, amount: u32| {
        orders.run(&(17, amount), async |_| Ok("paid".to_owned())).await
    };
    paid(&amounts, 1).await.unwrap();
    stage.metrics.take();
    assert!(lock_error(paid(&amounts, 2).await).is_mismatch());
    stage.metrics.assert(&["refused: mismatch 1"]);

    // The same from the cache, without a request and so without a span.
    let cached = amounts.cache(1);
    paid(&cached, 1).await.unwrap();
    stage.metrics.assert(&["replays 1"]);
    let (requests, spans) = (host.requests(), stage.traces.locks().len());
    assert!(lock_error(paid(&cached, 2).await).is_mismatch());
    stage.metrics.assert(&["refused: mismatch 1"]);
    assert_eq!((host.requests(), stage.traces.locks().len()), (requests, spans));

    let orders = orders(&locks).on_timeout(OnTimeout::Reject).lease(s(1));
    assert!(lock_error(done(&orders, "none").await).is_key_missing());
    stage.metrics.assert(&["refused: key_missing 1"]);

    let unfinished = orders.run(&"18".to_owned(), async |_| pending().await).await;
    assert!(lock_error(unfinished).is_lost());
    stage.metrics.assert(&["acquired 1", "acquire_time [0.0]", "lost 1", "hold_time [1000.0]"]);
    sleep(s(2)).await;
    assert!(lock_error(done(&orders, "18").await).is_unfinished());
    stage.metrics.assert(&["refused: unfinished 1"]);
    assert_eq!(stage.traces.told("not acquired").len(), 4);
}

// behaviours 36, 47
#[tokio::test(start_paused = true)]
async fn an_input_that_cannot_be_identified_is_a_refusal_without_a_span() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks());
    assert!(lock_error(done(&orders.clone().window(s(1)), "17").await).is_invalid());
    stage.metrics.assert(&["refused: invalid 1"]);
    // Too long for DynamoDB.
    assert!(lock_error(done(&orders, &"x".repeat(3000)).await).is_invalid());
    stage.metrics.assert(&["refused: invalid 1"]);
    assert_eq!(stage.traces.lock_lines(), [""; 0]);
    assert_eq!(stage.traces.told_to_all(), ["INFO not acquired"; 2]);
    stage.traces.assert_not_said(&"x".repeat(1000));
}

// behaviours 36, 64
#[tokio::test(start_paused = true)]
async fn a_record_that_the_work_releases_itself_is_counted_as_released_once_and_not_as_lost() {
    let stage = Stage::set().await;
    let orders = orders(&stage.locks());
    let run = orders
        .run(&"17".to_owned(), async |run| {
            run.lock().release().await.unwrap();
            Ok("done".to_owned())
        })
        .await;
    run.unwrap();
    settle().await;
    let times = ["acquire_time [0.0]", "hold_time [0.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["acquired 1", "released 1"], &times[..]].concat());
    assert_eq!(stage.traces.told_to_all(), ["WARN the outcome was not stored"]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "released");
}

// behaviours 36, 64
#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_record_after_an_error_is_what_is_counted() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [0.0]"];
    let released = ["released 1", "release_time [0.0]"];
    let fail = async |policy: OnError| {
        let orders = orders(&locks).lease(s(1)).on_error(move |_| policy.clone());
        orders.run(&"17".to_owned(), async |_| Err("declined".to_owned())).await.unwrap_err()
    };
    let outcome = |place: usize| stage.traces.locks()[place].fields["outcome"].clone();

    fail(OnError::Release).await;
    stage.metrics.assert(&[&acquired[..], &released].concat());
    assert_eq!(outcome(0), "released");

    // Not released, but left until its lease ends; so whoever comes next takes it over.
    fail(OnError::Keep).await;
    settle().await;
    stage.metrics.assert(&acquired);
    assert_eq!(outcome(1), "left");

    fail(OnError::Store(StoredError::new("Declined", "by the bank"))).await;
    stage.metrics.assert(&[&["taken_over 1"], &acquired[..], &released].concat());
    assert_eq!(outcome(2), "completed");
    assert!(matches!(fail(OnError::Release).await, HandlerError::Replayed(_)));
    stage.metrics.assert(&["replays 1"]);
    assert!(stage.traces.locks().iter().all(|span| span.is_closed));
}

// behaviours 36, 79
#[tokio::test(start_paused = true)]
async fn a_record_that_a_transaction_completed_is_counted_as_released_without_a_time() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks);
    let run = orders
        .run(&"17".to_owned(), async |run| {
            sleep(ms(250)).await;
            let done = "done".to_owned();
            let write = host.client().transact_write_items().transact_items(run.complete_in(&done).unwrap());
            write.send().await.unwrap();
            Ok(done)
        })
        .await;
    run.unwrap();
    stage.metrics.assert(&["acquired 1", "released 1", "acquire_time [0.0]", "hold_time [250.0]"]);
    assert_eq!(stage.traces.locks()[0].fields["outcome"], "completed");
    done(&orders, "17").await.unwrap();
    stage.metrics.assert(&["replays 1"]);

    // Committed, and its answer lost: the handler's error is replaced with what was stored. That is told as a replay, but
    // counted as the run that it is.
    let run = orders
        .run(&"18".to_owned(), async |run| {
            let done = "done".to_owned();
            let write = host.client().transact_write_items().transact_items(run.complete_in(&done).unwrap());
            write.send().await.unwrap();
            Err("no answer".to_owned())
        })
        .await;
    assert_eq!(run.unwrap(), "done");
    let times = ["acquire_time [0.0]", "hold_time [0.0]", "release_time [0.0]"];
    stage.metrics.assert(&[&["acquired 1", "released 1"], &times[..]].concat());
    assert_eq!(stage.traces.locks()[2].fields["outcome"], "completed");
}

// behaviours 36, 70
#[tokio::test(start_paused = true)]
async fn a_record_that_is_lost_is_counted_once_and_its_completion_as_failed() {
    let stage = Stage::set().await;
    let (locks, operator) = (stage.locks(), stage.locks());
    for policy in [None, Some(OnError::Release)] {
        let fails = policy.is_some();
        let run = orders(&locks)
            .run(&"17".to_owned(), async |_| {
                take_away(&operator, "17").await;
                if fails { Err("declined".to_owned()) } else { Ok("done".to_owned()) }
            })
            .await;
        assert_eq!(run.is_err(), fails);
        settle().await;
        let lost = ["lost 1", "release_failed: lost 1"];
        stage.metrics.assert(&[&["acquired 1", "acquire_time [0.0]", "hold_time [1.0]"], &lost[..]].concat());
    }
    assert_eq!(stage.traces.told_to_all(), ["WARN released by force", "WARN lost"].repeat(2));
    assert!(stage.traces.locks().iter().all(|span| span.is_closed && span.fields["outcome"] == "lost"));
}

// behaviour 36
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_not_answered_is_counted_as_failed() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host().intercept(LoseAnswers::to("UpdateItem", 2..=u32::MAX)));
    done(&orders(&locks), "17").await.unwrap();
    settle().await;
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [250.0]"];
    stage.metrics.assert(&[&["release_failed: unavailable 1"], &acquired[..]].concat());
    assert_eq!(stage.traces.told_to_all(), ["WARN the outcome was not stored"]);

    // Nor one that takes longer than there is time for an answer.
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks).until(host.now() + s(3));
    let crashing = orders
        .run(&"18".to_owned(), async |_| {
            host.crash();
            Ok("done".to_owned())
        })
        .await;
    crashing.unwrap();
    let acquired = ["acquired 1", "acquire_time [0.0]", "hold_time [0.0]"];
    stage.metrics.assert(&[&["release_failed: unavailable 1"], &acquired[..]].concat());
}

// Batches

type Consumer = SqsConsumer<Message<String>, String, (), Failure>;

/// The handler's error.
#[derive(Debug)]
struct Failure;

impl From<Failure> for Diagnostic {
    fn from(_: Failure) -> Self {
        Self { error_type: "Failure".to_owned(), error_message: "it failed".to_owned() }
    }
}

fn message(id: &str, body: &str) -> SqsMessage {
    let mut message = SqsMessage::default();
    message.message_id = Some(id.to_owned());
    message.body = Some(body.to_owned());
    message
}

/// Delivers a batch with this much time to the deadline; the bodies say what is to happen. How many go back.
async fn deliver(consumer: &Consumer, host: &Host, messages: &[(&str, &str)], left: Duration) -> usize {
    let mut batch = SqsEvent::default();
    batch.records = messages.iter().map(|(id, body)| message(id, body)).collect();
    let handler = service_fn({
        let host = host.clone();
        move |message: Message<String>| {
            let host = host.clone();
            async move {
                match message.body.as_str() {
                    "fail" => Err(Failure),
                    "panic" => panic!("in the handler"),
                    "endless" => pending().await,
                    "slow" => {
                        sleep(ms(1500)).await;
                        Ok(())
                    }
                    "crash" => {
                        sleep(ms(5)).await;
                        host.crash();
                        pending().await
                    }
                    _ => Ok(()),
                }
            }
        }
    });
    let answer = consumer.layer(handler).oneshot(invocation_with(host, batch, left)).await.unwrap();
    answer.batch_item_failures.len()
}

// behaviours 36, 71, 73
#[tokio::test(start_paused = true)]
async fn each_message_of_a_batch_is_counted_once_by_what_became_of_it() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let consumer: Consumer = SqsConsumer::by_message_id(locks.clone());
    let item = |body: &'static str| json!(body).to_string();
    let (work, fail, panic, endless) = (item("work"), item("fail"), item("panic"), item("endless"));

    assert_eq!(deliver(&consumer, &host, &[("1", &work)], s(30)).await, 0);
    let counted = stage.metrics.take();
    assert_eq!((counted.sum("batch_items"), counted.count("batch_items: done")), (1, 1));

    let elsewhere = stage.locks().acquire("orders#busy").await.unwrap();
    stage.metrics.take();
    let messages = [
        ("1", &*work),
        ("2", &work),
        ("3", &work),
        ("3", &work),
        ("3", &work),
        ("4", &fail),
        ("4", &fail),
        ("5", &panic),
        ("6", "{"),
        ("busy", &work),
        ("8", &endless),
    ];
    let failed = deliver(&consumer, &host, &messages, s(30)).await;
    let counted = stage.metrics.take();
    let items: Vec<_> = counted.counters.iter().filter(|(name, _)| name.starts_with("batch_items")).collect();
    let expected =
        [("timed_out", 1), ("done", 2), ("duplicate", 3), ("failed", 3), ("in_progress", 1), ("unreadable", 1)];
    let expected = expected.map(|(outcome, count)| (format!("batch_items: {outcome}"), count));
    assert_eq!(items, expected.iter().map(|(name, count)| (name, count)).collect::<Vec<_>>());
    assert_eq!((counted.sum("batch_items"), failed), (11, 6));
    // Of 1, 2, 3, 4, 5, busy and 8.
    assert_eq!((counted.count("acquired"), counted.count("replays")), (5, 1));
    assert_eq!(counted.count("in_progress_refusals"), 1);
    elsewhere.release().await.unwrap();
}

// behaviours 36, 74
#[tokio::test(start_paused = true)]
async fn messages_that_there_is_no_time_for_are_counted_as_not_started_or_as_timed_out() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let one_by_one: Consumer = SqsConsumer::by_message_id(locks).concurrency(1);
    let slow = json!("slow").to_string();
    // The leases end after 3 s, so that a third one has no second left.
    let messages = [("1", &*slow), ("2", &slow), ("3", &slow), ("4", &slow)];
    assert_eq!(deliver(&one_by_one, &host, &messages, s(4)).await, 2);
    let counted = stage.metrics.take();
    let items = ["done", "not_started"].map(|outcome| counted.count(&format!("batch_items: {outcome}")));
    assert_eq!((items, counted.sum("batch_items")), ([2, 2], 4));

    // The network falls silent: at the end of the leases, nothing can be given up in time to answer.
    let (host, locks) = locks_on(stage.engine.host());
    let consumer: Consumer = SqsConsumer::by_message_id(locks);
    let (work, crash) = (json!("work").to_string(), json!("crash").to_string());
    let messages = [("5", &*work), ("6", &crash), ("6", &crash), ("7", &work)];
    assert_eq!(deliver(&consumer, &host, &messages, s(4)).await, 2);
    let counted = stage.metrics.take();
    let items = ["done", "timed_out"].map(|outcome| counted.count(&format!("batch_items: {outcome}")));
    assert_eq!((items, counted.sum("batch_items")), ([2, 2], 4));
}

// behaviours 36, 72
#[tokio::test(start_paused = true)]
async fn what_a_failure_keeps_back_in_its_group_is_counted_as_not_started() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let consumer: Consumer = SqsConsumer::by_message_id(locks);
    let mut batch = SqsEvent::default();
    batch.records = ["work", "fail", "work", "work"]
        .iter()
        .zip(1..)
        .map(|(body, id)| {
            let mut message = message(&id.to_string(), &json!(body).to_string());
            message.event_source_arn = Some("arn:aws:sqs:eu-west-1:123456789012:payments.fifo".to_owned());
            message.attributes.insert("MessageGroupId".to_owned(), "group".to_owned());
            message
        })
        .collect();
    let handler =
        service_fn(
            |message: Message<String>| async move { if message.body == "fail" { Err(Failure) } else { Ok(()) } },
        );
    let answer = consumer.layer(handler).oneshot(invocation(&host, batch)).await.unwrap();
    assert_eq!(answer.batch_item_failures.len(), 3);
    let counted = stage.metrics.take();
    let items = ["done", "failed", "not_started"].map(|outcome| counted.count(&format!("batch_items: {outcome}")));
    assert_eq!((items, counted.sum("batch_items")), ([1, 1, 2], 4));
}

// Spans

fn say(what: &str) {
    tracing::info!("{what}");
}

// behaviour 11
#[tokio::test(start_paused = true)]
async fn work_runs_inside_the_span_of_its_lock() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    locks.acquire("run").run(async |_| say("in run")).await.unwrap();

    let layer = LockLayer::new(locks.clone()).key("layer");
    let handler = layer.layer(service_fn(|_: LambdaEvent<()>| async {
        sleep(ms(5)).await;
        say("in a handler");
        Ok::<_, String>(())
    }));
    handler.oneshot(invocation(&host, ())).await.unwrap();

    let idempotent = orders(&locks)
        .run(&"record".to_owned(), async |_| {
            sleep(ms(5)).await;
            say("in a run");
            Ok(String::new())
        })
        .await;
    idempotent.unwrap();

    let orders = Idempotency::new(locks.clone(), OnMissingKey::Reject, |_: &LambdaEvent<()>| Some("event"));
    let layer = IdempotentLayer::new(orders);
    let handler = layer.layer(service_fn(|_: LambdaEvent<()>| async {
        say("in an idempotent handler");
        Ok::<_, String>(())
    }));
    handler.oneshot(invocation(&host, ())).await.unwrap();

    let said = ["in run", "in a handler", "in a run", "in an idempotent handler"];
    let keys = ["run", "layer", "record", "orders#event"];
    for ((place, said), key) in said.into_iter().enumerate().zip(keys) {
        let [event] = &stage.traces.told(said)[..] else { panic!("`{said}` once") };
        assert_eq!(event.lock, Some(place), "`{said}`");
        assert_eq!(stage.traces.locks()[place].fields["key"], key);
    }
    say("after it");
    assert_eq!(stage.traces.told("after it")[0].lock, None);
    assert!(stage.traces.locks().iter().all(|span| span.is_closed));
}

// behaviours 11, 62
#[tokio::test(start_paused = true)]
async fn a_key_that_is_hashed_in_the_row_is_hashed_in_the_span_and_occurs_nowhere_in_plain() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks).format(RecordFormat::Hashed).prefix("orders");
    let id = "secret-id-of-a-person";
    done(&orders, id).await.unwrap();
    done(&orders, id).await.unwrap();
    let refused = orders
        .clone()
        .run(&format!("{id}-2"), async |_| {
            assert!(lock_error(done(&orders, &format!("{id}-2")).await).is_in_progress());
            take_away(&stage.locks(), &stage.traces.locks()[2].fields["key"]).await;
            Ok(String::new())
        })
        .await;
    refused.unwrap();
    let scanned = host.client().scan().table_name(TABLE).send().await.unwrap();
    let rows: BTreeSet<_> = scanned.items().iter().map(|row| row["id"].as_s().unwrap().clone()).collect();
    let keys: BTreeSet<_> = stage.traces.locks().into_iter().map(|span| span.fields["key"].clone()).collect();
    assert_eq!(keys, rows);
    assert_eq!(keys.len(), 2);
    assert_eq!(stage.traces.told("lost").len(), 1);
    stage.traces.assert_not_said("secret");
}

// behaviours 11, 36
#[tokio::test(start_paused = true)]
async fn nothing_of_what_users_store_or_send_is_told_and_no_label_is_a_key() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let client = host.client();

    // A lock: data, attributes, renewal, refusal, loss, takeover, drop.
    let data = || "marked data".to_owned();
    let attribute = AttributeValue::S("marked attribute".to_owned());
    let lock = locks.acquire("secret-lock").data(data()).attribute("note", attribute.clone()).await.unwrap();
    lock.set_data("marked data left");
    lock.renew(s(2)).await.unwrap();
    assert!(locks.try_acquire("secret-lock").await.unwrap().is_none());
    locks.acquire("secret-lock").attribute("note", attribute).wait(without_jitter().up_to(ms(50))).await.unwrap_err();
    sleep(s(4)).await;
    let next = locks.acquire("secret-lock").await.unwrap();
    assert!(lock.release().await.unwrap_err().is_lost());
    drop((lock, next));
    settle().await;
    locks.acquire("secret-lock").data("marked ".repeat(80_000)).await.unwrap_err();

    // Records: results, stored errors, payloads that do not match, results that cannot be stored or read.
    let results = orders(&locks).validate(|_| "marked payload");
    let run = async |result: Result<String, String>| results.run(&"secret-record".to_owned(), async |_| result).await;
    run(Err("marked error".to_owned())).await.unwrap_err();
    run(Ok("marked result".to_owned())).await.unwrap();
    run(Ok(String::new())).await.unwrap();
    let others = orders(&locks).validate(|_| "marked payload of another");
    assert!(lock_error(done(&others, "secret-record").await).is_mismatch());
    let numbers: Idempotency<String, u32, String> =
        Idempotency::new(locks.clone(), OnMissingKey::Reject, |id: &String| Some(id.clone()));
    let unreadable = numbers.run(&"secret-record".to_owned(), async |_| Ok(1)).await;
    assert!(matches!(unreadable, Err(HandlerError::Lock(error)) if error.is_unusable_result()));
    let large = orders(&locks);
    large.run(&"secret-large".to_owned(), async |_| Ok("marked ".repeat(80_000))).await.unwrap_err();
    let large = large.on_unstorable_result(lambda_lock::OnUnstorableResult::CompleteWithoutResult);
    large.run(&"secret-larger".to_owned(), async |_| Ok("marked ".repeat(80_000))).await.unwrap();
    for error in ["marked stored error".to_owned(), "marked ".repeat(80_000)] {
        let stored = StoredError::new("marked type", error);
        let storing = orders(&locks).on_error(move |_| OnError::Store(stored.clone()));
        for _ in 0..2 {
            let id = "secret-error".to_owned();
            storing.run(&id, async |_| Err("marked error".to_owned())).await.unwrap_err();
        }
        client
            .delete_item()
            .table_name(TABLE)
            .key("id", AttributeValue::S("secret-error".to_owned()))
            .send()
            .await
            .unwrap();
    }

    // A row that makes no sense.
    let put = client.put_item().table_name(TABLE).item("id", AttributeValue::S("secret-row".to_owned()));
    let put = put.item("status", AttributeValue::S("INPROGRESS".to_owned()));
    let put = put.item("in_progress_expiration", AttributeValue::N("1".to_owned()));
    put.item("data", AttributeValue::S("marked data".to_owned()))
        .item("fence", AttributeValue::S("x".to_owned()))
        .send()
        .await
        .unwrap();
    assert!(locks.acquire("secret-row").await.unwrap_err().is_malformed_row());

    // A batch.
    let consumer: Consumer = SqsConsumer::by_message_id(locks.clone());
    let (body, fail) = (json!("marked body").to_string(), json!("fail").to_string());
    let messages =
        [("secret-1", &*body), ("secret-1", &body), ("secret-2", "{\"marked\": \"marked"), ("secret-3", &fail)];
    assert_eq!(deliver(&consumer, &host, &messages, s(30)).await, 2);
    deliver(&consumer, &host, &messages, s(30)).await;
    settle().await;

    stage.traces.assert_not_said("marked");
    // That keys are told shows that what is told was looked at.
    let said = stage.traces.record.lock().unwrap().words.iter().filter(|words| words.contains("secret-")).count();
    assert!(said > 50, "{said}");
    // `take` knows every label, and none is a key.
    let counted = stage.metrics.take();
    assert!(counted.count("acquired") > 5 && counted.sum("refused") > 3, "{counted:?}");
    assert!(counted.counters.keys().all(|name| !name.contains("secret")), "{counted:?}");
}

// behaviour 11
#[tokio::test(start_paused = true)]
async fn a_loss_names_its_key_also_where_the_span_is_filtered_out() {
    let stage = Stage::set().await;
    let traces = Traces::filtered(Targets::new().with_default(Level::WARN));
    let lock = stage.locks().acquire("nightly").lease(s(1)).await.unwrap();
    sleep(s(3)).await;
    let next = stage.locks().acquire("nightly").await.unwrap();
    assert!(lock.release().await.unwrap_err().is_lost());
    assert_eq!(traces.lock_lines(), [""; 0]);
    assert_eq!(traces.told_to_all(), ["WARN taken over", "WARN lost"]);
    assert!(traces.events().iter().all(|event| event.fields["key"] == "nightly"), "{:?}", traces.events());
    next.release().await.unwrap();
}

/// Keeps the names of the spans around each new span `lock`.
#[derive(Clone, Default)]
struct Parents(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Recording<S> for Parents {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if attributes.metadata().name() == "lock" {
            let parents = context.span(id).unwrap().scope().skip(1).map(|span| span.name().to_owned());
            self.0.lock().unwrap().extend(parents);
        }
    }
}

// behaviour 11
#[tokio::test(start_paused = true)]
async fn a_lock_is_traced_within_the_callers_span() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let parents = Parents::default();
    let filter = Targets::new().with_target("lambda_lock", Level::TRACE).with_target("telemetry", Level::TRACE);
    let _guard = set_default(Registry::default().with(parents.clone().with_filter(filter)));
    let invocation = tracing::info_span!("invocation");
    let acquire = async { locks.acquire("nightly").await.unwrap().release().await.unwrap() };
    tracing::Instrument::instrument(acquire, invocation).await;
    assert_eq!(*parents.0.lock().unwrap(), ["invocation"]);
}

// Sums

/// What the tasks of a history saw for themselves.
#[derive(Debug, Default)]
struct Seen {
    acquires: u64,
    locks: u64,
    refused: BTreeMap<&'static str, u64>,
    in_progress: u64,
    completed: u64,
    /// Releases that said yes, without those in the background.
    released: u64,
}

fn reason(error: &Error) -> &'static str {
    let reasons = [
        (error.is_held(), "held"),
        (error.is_throttled(), "throttled"),
        (error.is_unavailable(), "unavailable"),
        (error.is_conflict(), "conflict"),
        (error.is_invalid(), "invalid"),
    ];
    reasons.iter().find(|(is_it, _)| *is_it).unwrap_or_else(|| panic!("{error:?}")).1
}

impl Seen {
    fn refused(&mut self, error: &Error) {
        if error.is_in_progress() {
            self.in_progress += 1;
        } else {
            *self.refused.entry(reason(error)).or_default() += 1;
        }
    }
}

async fn worker(locks: Locks, seed: u64, tally: Arc<Mutex<Seen>>) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..6 {
        let key = format!("key {}", random.u8(..2));
        let wait = Backoff::default().base(ms(20)).up_to(ms(random.u64(0..2000)));
        let lease = ms(random.u64(200..3000));
        let hold = ms(random.u64(0..4000));
        tally.lock().unwrap().acquires += 1;
        if random.u8(..3) == 0 {
            let records = orders(&locks).lease(lease).wait(wait).window(s(5)).prefix("record");
            let (ran, fails) = (Counter::default(), random.bool());
            let result = records
                .run(&key, async |_| {
                    ran.count();
                    sleep(hold).await;
                    if fails { Err("declined".to_owned()) } else { Ok("done".to_owned()) }
                })
                .await;
            let mut tally = tally.lock().unwrap();
            match result {
                _ if ran.get() == 1 => tally.locks += 1,
                Ok(_) => tally.completed += 1,
                other => tally.refused(&lock_error(other)),
            }
        } else {
            let acquire = locks.acquire(key).lease(lease).wait(wait);
            let patience = if random.u8(..4) == 0 { ms(random.u64(0..300)) } else { Duration::MAX };
            let Ok(result) = timeout(patience, Acquire::into_future(acquire)).await else {
                *tally.lock().unwrap().refused.entry("cancelled").or_default() += 1;
                continue;
            };
            let lock = match result {
                Ok(lock) => lock,
                Err(error) => {
                    tally.lock().unwrap().refused(&error);
                    continue;
                }
            };
            tally.lock().unwrap().locks += 1;
            sleep(hold).await;
            if random.bool() {
                let _answer = lock.renew(lease).await;
            }
            sleep(hold / 2).await;
            for _ in 0..random.u8(..3) {
                let before = lock.remaining();
                if lock.release().await.is_ok() {
                    tally.lock().unwrap().released += 1;
                    break;
                }
                assert!(lock.remaining() <= before);
            }
        }
        sleep(ms(random.u64(0..1000))).await;
    }
}

async fn history(seed: u64) {
    let stage = Stage::set().await;
    let tally = Arc::new(Mutex::new(Seen::default()));
    let workers = (0..4).map(|number| {
        let faults = Faults::seeded(seed * 10 + number).latency(ms(1)..ms(30)).lose_requests(0.05).lose_answers(0.08);
        let faults = faults.throttle(0.05).server_errors(0.05).late(0.05, s(2)).repeat(0.05, s(2));
        let host = stage.engine.host().faults(faults).clock_ahead(ms(100 * number));
        worker(locks_on(host).1, seed * 10 + number, Arc::clone(&tally))
    });
    join_all(workers).await;
    settle().await;
    let (counted, spans) = (stage.metrics.take(), stage.traces.locks());
    let tally = std::mem::take(&mut *tally.lock().unwrap());
    let context = format!("seed {seed}: {tally:?} {counted:?}");
    let count = |name: &str| counted.count(name);
    let measured = |name: &str| counted.values(name).len() as u64;

    // Every acquire ends once: with the lock, refused, refused as in progress, or with a result.
    let ends = count("acquired") + counted.sum("refused") + count("in_progress_refusals") + count("replays");
    assert_eq!(ends, tally.acquires, "{context}");
    assert_eq!((count("acquired"), count("replays")), (tally.locks, tally.completed), "{context}");
    assert_eq!(count("in_progress_refusals"), tally.in_progress, "{context}");
    for (reason, &refused) in &tally.refused {
        assert_eq!(count(&format!("refused: {reason}")), refused, "{context}");
    }
    // Every lock took its time to be acquired and was held for a time, and none is released twice.
    assert_eq!((measured("acquire_time"), measured("hold_time")), (tally.locks, tally.locks), "{context}");
    assert_eq!(measured("release_time"), count("released"), "{context}");
    assert!((tally.released..=tally.locks).contains(&count("released")), "{context}");
    // One span for every acquire, and how those of locks end is what was counted.
    assert_eq!(spans.len() as u64, tally.acquires, "{context}");
    assert!(spans.iter().all(|span| span.is_closed), "{context}");
    let number = |span: &Span, name: &str| span.fields[name].parse::<u64>().unwrap();
    let retries: u64 = spans.iter().map(|span| number(span, "attempts").saturating_sub(1)).sum();
    assert_eq!(count("retry_attempts"), retries, "{context}");
    let waited = spans.iter().filter(|span| number(span, "waited_ms") > 0).count() as u64;
    assert_eq!(measured("wait_time"), waited, "{context}");
    assert!(counted.sum("retries_exhausted") <= counted.sum("refused") + count("in_progress_refusals"), "{context}");
    let held: Vec<_> = spans.iter().filter(|span| span.fields.contains_key("held_ms")).collect();
    assert_eq!(held.len() as u64, tally.locks, "{context}");
    let ended = |outcomes: &[&str]| {
        held.iter().filter(|span| outcomes.contains(&span.fields["outcome"].as_str())).count() as u64
    };
    assert_eq!(ended(&["released", "completed", "release_failed", "lost"]), tally.locks, "{context}");
    assert_eq!(ended(&["lost"]), count("lost"), "{context}");
    assert_eq!(stage.traces.told("lost").len() as u64, count("lost"), "{context}");
    // What is neither lost nor failed was released; of the lost ones some were all the same.
    let released = ended(&["released", "completed"]);
    assert!((released..=released + count("lost")).contains(&count("released")), "{context}");
    assert!(ended(&["release_failed"]) <= counted.sum("release_failed"), "{context}");
    assert_eq!(stage.traces.told("taken over").len() as u64, count("taken_over"), "{context}");
    assert_eq!(
        stage.traces.told("not acquired").len() as u64,
        { counted.sum("refused") - count("refused: cancelled") + count("in_progress_refusals") },
        "{context}"
    );
}

// behaviour 36
#[test]
fn whatever_happens_the_numbers_add_up() {
    for seed in 0..60 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        fastrand::seed(seed);
        runtime.block_on(history(seed));
    }
}
