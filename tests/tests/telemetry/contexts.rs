//! The spans that OpenTelemetry exports, and how those of several processes are linked.

use std::collections::HashMap;
use std::convert::Infallible;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_http::{Body, Request, Response};
use lambda_lock::http::{Caller, HttpIdempotencyLayer};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Idempotency, SqsConsumer, Ticket};
use opentelemetry::Value;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, SpanId, TracerProvider as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tower::{Layer as _, ServiceExt, service_fn};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Instrument, Level, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt};
use tracing_subscriber::registry::Registry;

use crate::{Stage, TABLE, deliver, done, locks_on, ms, orders, s, settle, without_jitter};

/// Exports the spans of the crate and of these tests on this thread into memory until it is dropped.
struct Exported {
    exporter: InMemorySpanExporter,
    _provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Exported {
    fn begin() -> Self {
        Self::sampled(Sampler::AlwaysOn)
    }

    fn sampled(sampler: Sampler) -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("lambda-lock"));
        let filter = Targets::new().with_target("lambda_lock", Level::INFO).with_target("telemetry", Level::INFO);
        let guard = set_default(Registry::default().with(layer.with_filter(filter)));
        Self { exporter, _provider: provider, _guard: guard }
    }

    /// The spans of this name that have ended, in the order in which they began.
    fn named(&self, name: &str) -> Vec<SpanData> {
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.retain(|span| span.name == name);
        spans.sort_by_key(|span| span.start_time);
        spans
    }
}

fn id(span: &SpanData) -> SpanId {
    span.span_context.span_id()
}

fn key(span: &SpanData) -> &Value {
    &span.attributes.iter().find(|attribute| attribute.key.as_str() == "key").unwrap().value
}

fn is_linked(span: &SpanData, to: &SpanData) -> bool {
    let is_same = |context: &SpanContext| {
        (context.trace_id(), context.span_id()) == (to.span_context.trace_id(), to.span_context.span_id())
    };
    span.links.links.iter().any(|link| is_same(&link.span_context))
}

#[tokio::test(start_paused = true)]
async fn waiting_and_holding_are_spans() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    let held = locks.acquire("deploy").await.unwrap();
    let waiting = tokio::spawn(locks.acquire("deploy").wait(s(60)).into_future());
    sleep(ms(300)).await;
    held.release().await.unwrap();
    drop(held);
    let next = waiting.await.unwrap().unwrap();
    sleep(ms(200)).await;
    next.release().await.unwrap();
    drop(next);

    let (locks, waits) = (exported.named("lock"), exported.named("wait"));
    assert_eq!(locks.iter().map(|span| key(span).as_str()).collect::<Vec<_>>(), ["deploy", "deploy"]);
    let [wait] = &waits[..] else { panic!("{waits:?}") };
    assert_eq!(wait.parent_span_id, locks[1].span_context.span_id());
    assert_eq!(locks[1].parent_span_id, SpanId::INVALID);
    assert!(wait.start_time >= locks[1].start_time && wait.end_time <= locks[1].end_time);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_within_the_span_of_its_caller_and_the_work_within_the_lock() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    let held = locks.acquire("deploy").await.unwrap();
    let release = async {
        sleep(ms(250)).await;
        held.release().await.unwrap();
        drop(held);
    };
    let waiting = locks.acquire("deploy").wait(without_jitter()).run(async |_| {
        let _work = info_span!("work");
        exported.named("wait").len()
    });
    let (waits, ()) = tokio::join!(waiting.instrument(info_span!("caller")), release);
    assert_eq!(waits.unwrap(), 1, "the wait ends before the work");

    let [caller, work, wait] = ["caller", "work", "wait"].map(|name| exported.named(name).remove(0));
    let [first, lock] = &exported.named("lock")[..] else { panic!("two locks") };
    assert_eq!([lock, &wait, &work].map(|span| span.parent_span_id), [id(&caller), id(lock), id(lock)]);
    assert!([lock, &wait, &work].iter().all(|span| span.span_context.trace_id() == caller.span_context.trace_id()));
    assert!(is_linked(&wait, first) && lock.links.links.is_empty(), "{wait:?} {lock:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_fails_or_is_dropped_ends_its_span() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    let _held = locks.acquire("deploy").await.unwrap();
    locks.acquire("deploy").wait(without_jitter().up_to(ms(300))).await.unwrap_err();
    timeout(ms(300), locks.acquire("deploy").wait(without_jitter()).into_future()).await.unwrap_err();
    let parents: Vec<_> = exported.named("wait").iter().map(|span| span.parent_span_id).collect();
    assert_eq!(parents, exported.named("lock").iter().map(id).collect::<Vec<_>>());
    assert_eq!(parents.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_carries_the_trace_context_to_the_next_process() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    let ticket = locks.acquire("deploy").await.unwrap().into_ticket().unwrap();
    let written = serde_json::to_string(&ticket).unwrap();

    let read: Ticket = serde_json::from_str(&written).unwrap();
    locks.renew_ticket(&read, s(60)).await.unwrap();
    let resumed = locks.resume(&read).await.unwrap();
    locks.release_ticket(&resumed.into_ticket().unwrap()).await.unwrap();

    let (held, tickets) = (exported.named("lock"), exported.named("ticket"));
    let [first, resumed] = &held[..] else { panic!("{held:?}") };
    let context = &first.span_context;
    let traceparent = format!("00-{}-{}-01", context.trace_id(), context.span_id());
    assert_eq!(read.traceparent(), Some(traceparent.as_str()));
    assert!(is_linked(resumed, first), "{resumed:?}");
    let [renewal, release] = &tickets[..] else { panic!("{tickets:?}") };
    assert!(is_linked(renewal, first) && is_linked(release, resumed), "{renewal:?} {release:?}");
}

#[tokio::test(start_paused = true)]
async fn the_next_process_can_continue_the_trace_of_a_ticket() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    let ticket = locks.acquire("deploy").await.unwrap().into_ticket().unwrap();
    let headers = HashMap::from([("traceparent".to_owned(), ticket.traceparent().unwrap().to_owned())]);
    let step = info_span!("step");
    step.set_parent(TraceContextPropagator::new().extract(&headers)).unwrap();
    async { locks.resume(&ticket).await.unwrap().release().await.unwrap() }.instrument(step).await;
    let [first, resumed] = &exported.named("lock")[..] else { panic!("two locks") };
    assert_eq!(exported.named("step")[0].parent_span_id, id(first));
    assert_eq!(resumed.span_context.trace_id(), first.span_context.trace_id());
}

#[tokio::test(start_paused = true)]
async fn a_permit_has_a_context_in_its_ticket_and_none_in_the_row() {
    let stage = Stage::set().await;
    let _exported = Exported::begin();
    let locks = stage.locks();
    let ticket = locks.semaphore("bank", 2).acquire().await.unwrap().into_ticket().unwrap();
    assert!(ticket.traceparent().is_some());
    assert!(!row(&stage.engine.client(), "bank").await.contains("00-"));
    locks.release_ticket(&ticket).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_span_that_is_not_sampled_leaves_no_context() {
    let stage = Stage::set().await;
    let _exported = Exported::sampled(Sampler::AlwaysOff);
    let ticket = stage.locks().acquire("deploy").await.unwrap().into_ticket().unwrap();
    assert_eq!(ticket.traceparent(), None);
    assert!(!row(&stage.engine.client(), "deploy").await.contains("traceparent"));
    stage.locks().release_ticket(&ticket).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ticket_of_a_process_without_traces_has_no_context() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let ticket = locks.acquire("deploy").await.unwrap().into_ticket().unwrap();
    assert_eq!(ticket.traceparent(), None);
    assert_eq!(serde_json::to_value(&ticket).unwrap().get("traceparent"), None);
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_linked_to_the_run_that_made_the_result() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let orders = orders(&stage.locks());
    done(&orders, "first").await.unwrap();
    done(&orders, "second").await.unwrap();
    done(&orders, "first").await.unwrap();

    let (runs, replays) = (exported.named("lock"), exported.named("replay"));
    let [replay] = &replays[..] else { panic!("{replays:?}") };
    assert!(is_linked(replay, &runs[0]) && !is_linked(replay, &runs[1]), "{replay:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replay_from_the_cache_is_linked_to_the_run() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let orders = Idempotency::new(stage.locks(), OnMissingKey::Reject, |order: &String| Some(order.clone())).cache(10);
    done(&orders, "first").await.unwrap();
    done(&orders, "first").await.unwrap();

    let (runs, replays) = (exported.named("lock"), exported.named("replay"));
    assert_eq!(runs.len(), 1);
    assert!(is_linked(&replays[0], &runs[0]), "{replays:?}");
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_message_is_linked_to_the_run() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let (host, locks) = locks_on(stage.engine.host());
    let once = Idempotency::new(locks, OnMissingKey::Reject, |message: &SqsMessage<String>| Some(message.body.clone()));
    let consumer = SqsConsumer::new(once);
    for id in ["1", "2"] {
        assert_eq!(deliver(&consumer, &host, &[(id, "\"done\"")], s(30)).await, 0);
    }
    let (runs, replays) = (exported.named("lock"), exported.named("replay"));
    assert!(is_linked(&replays[0], &runs[0]), "{replays:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_http_request_is_linked_to_the_run() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let layer = HttpIdempotencyLayer::new(stage.locks(), Caller::shared()).prefix("api");
    let api = layer.layer(service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::from("done")))));
    for _ in 0..2 {
        let request = http::Request::builder().method("POST").uri("https://api.example/orders");
        let request = request.header("idempotency-key", "17").body(Body::from("tea")).unwrap();
        assert_eq!(api.clone().oneshot(request).await.unwrap().status(), 200);
    }
    let (runs, replays) = (exported.named("lock"), exported.named("replay"));
    assert!(is_linked(&replays[0], &runs[0]), "{replays:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_linked_to_the_holder() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    let held = locks.acquire("deploy").await.unwrap();
    assert!(locks.acquire("deploy").await.unwrap_err().is_held());
    drop(held);
    settle().await;
    let spans = exported.named("lock");
    assert!(is_linked(&spans[1], &spans[0]), "{spans:?}");
}

#[tokio::test(start_paused = true)]
async fn a_takeover_is_linked_to_the_holder_that_died() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    let _held = locks.acquire("deploy").lease(s(10)).await.unwrap().into_ticket().unwrap();
    sleep(s(12)).await;
    locks.acquire("deploy").await.unwrap().release().await.unwrap();
    let held = exported.named("lock");
    assert!(is_linked(&held[1], &held[0]), "{held:?}");
}

/// The row of an owner that has no trace shows none, even if an earlier owner had one.
#[tokio::test(start_paused = true)]
async fn the_context_of_an_earlier_owner_is_not_that_of_the_next() {
    let stage = Stage::set().await;
    let exported = Exported::begin();
    let locks = stage.locks();
    locks.acquire("deploy").await.unwrap().release().await.unwrap();
    let untraced = {
        let _none = set_default(Registry::default());
        locks.acquire("deploy").await.unwrap()
    };
    assert!(locks.acquire("deploy").await.unwrap_err().is_held());
    untraced.release().await.unwrap();
    let spans = exported.named("lock");
    assert_eq!((spans.len(), &spans[1].links.links[..]), (2, &[][..]), "{spans:?}");
}

#[tokio::test(start_paused = true)]
async fn a_forged_context_is_ignored() {
    let stage = Stage::set().await;
    let locks = stage.locks();
    let long = "a".repeat(100_000);
    let zeros = format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16));
    let valid = format!("00-{}-{}-01", "1".repeat(32), "1".repeat(16));
    let longer = format!("{valid}-00");
    let forged = ["", "-", "00", "é", "00-xyz", "+0-+0-+0-+0", &zeros, &long, &longer, &valid.replacen("00", "ff", 1)];
    for context in forged {
        let exported = Exported::begin();
        let mut ticket = serde_json::to_value(locks.acquire("ticket").await.unwrap().into_ticket().unwrap()).unwrap();
        ticket["traceparent"] = json!(context);
        let ticket: Ticket = serde_json::from_value(ticket).unwrap();
        assert_eq!(ticket.traceparent(), None);
        locks.resume(&ticket).await.unwrap().release().await.unwrap();

        let lock = locks.acquire("row").await.unwrap();
        forge(&stage.engine.client(), AttributeValue::S(format!("{} {context}", lock.owner()))).await;
        assert!(locks.acquire("row").await.unwrap_err().is_held());
        lock.release().await.unwrap();
        assert!(exported.named("lock").iter().all(|span| span.links.links.is_empty()), "{context}");
    }
    let lock = locks.acquire("row").await.unwrap();
    forge(&stage.engine.client(), AttributeValue::N("1".to_owned())).await;
    assert!(locks.acquire("row").await.unwrap_err().is_held());
    lock.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_context_of_another_type_does_not_spoil_a_ticket() {
    let stage = Stage::set().await;
    let ticket = serde_json::to_value(stage.locks().acquire("deploy").await.unwrap().into_ticket().unwrap()).unwrap();
    for context in [json!(null), json!(17), json!(true), json!(["00"]), json!({ "version": "00" })] {
        let mut ticket = ticket.clone();
        ticket["traceparent"] = context;
        let ticket: Ticket = serde_json::from_str(&ticket.to_string()).unwrap();
        assert_eq!(ticket.traceparent(), None);
        stage.locks().renew_ticket(&ticket, s(60)).await.unwrap();
    }
}

/// The attributes of a row, as one text.
async fn row(client: &Client, key: &str) -> String {
    let read = client.get_item().table_name(TABLE).key("id", AttributeValue::S(key.to_owned()));
    format!("{:?}", read.send().await.unwrap().item.unwrap())
}

async fn forge(client: &Client, context: AttributeValue) {
    let update = client.update_item().table_name(TABLE).key("id", AttributeValue::S("row".to_owned()));
    let update = update.update_expression("SET traceparent = :forged");
    update.expression_attribute_values(":forged", context).send().await.unwrap();
}
