//! The span of a lock: what runs in it, and what it does not show.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::idempotency::{OnMissingKey, RecordFormat, StoredError};
use lambda_lock::{ErrorKind, HandlerError, Idempotency, IdempotencyLayer, LockLayer, OnError, SqsConsumer};
use lambda_lock_tests::invocation::invocation;
use lambda_runtime::LambdaEvent;
use serde_json::json;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tracing::subscriber::set_default;
use tracing::{Level, span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer as Recording, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::traces::Traces;
use crate::{
    Consumer, Stage, TABLE, deliver, done, lock_error, locks_on, ms, orders, s, settle, take_away, without_jitter,
};

fn say(what: &str) {
    tracing::info!("{what}");
}

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
    let layer = IdempotencyLayer::new(orders);
    let handler = layer.layer(service_fn(|_: LambdaEvent<()>| async {
        say("in an idempotent handler");
        Ok::<_, String>(())
    }));
    handler.oneshot(invocation(&host, ())).await.unwrap();

    let said = ["in run", "in a handler", "in a run", "in an idempotent handler"];
    let keys = ["run", "layer", "record", "orders#event"];
    for ((place, said), key) in said.into_iter().enumerate().zip(keys) {
        let [event] = &stage.traces.logged(said)[..] else { panic!("`{said}` once") };
        assert_eq!(event.lock, Some(place), "`{said}`");
        assert_eq!(stage.traces.locks()[place].fields["key"], key);
    }
    say("after it");
    assert_eq!(stage.traces.logged("after it")[0].lock, None);
    assert!(stage.traces.locks().iter().all(|span| span.is_closed));
}

#[tokio::test(start_paused = true)]
async fn a_hashed_key_is_never_traced_in_plain() {
    let stage = Stage::set().await;
    let (host, locks) = locks_on(stage.engine.host());
    let orders = orders(&locks).format(RecordFormat::Hashed).prefix("orders");
    let id = "secret-id-of-a-person";
    done(&orders, id).await.unwrap();
    done(&orders, id).await.unwrap();
    let refused = orders
        .clone()
        .run(&format!("{id}-2"), async |_| {
            assert_eq!(lock_error(done(&orders, &format!("{id}-2")).await).kind(), ErrorKind::InProgress);
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
    assert_eq!(stage.traces.logged("lost").len(), 1);
    stage.traces.assert_not_logged("secret");
}

#[tokio::test(start_paused = true)]
async fn no_trace_has_a_line_break_or_a_long_value_of_others() {
    let stage = Stage::set().await;
    let (_, locks) = locks_on(stage.engine.host());
    let key = format!("job\nERROR forged\u{2028}\u{202e}{}", "k".repeat(900));
    let (name, identity) = (key.replace("job", "holder"), format!("{}\n", &key[..500]));
    let acquire = || locks.acquire(&key).holder(&name).lease(s(2)).identity(&identity);

    let lock = acquire().await.unwrap();
    locks.acquire(&key).wait(without_jitter().up_to(ms(50))).await.unwrap_err();
    let taken = acquire().wait(without_jitter().up_to(s(9))).await.unwrap();
    assert!(lock.release().await.unwrap_err().is_lost());
    sleep(s(4)).await;
    let next = locks.acquire(&key).wait(s(1)).await.unwrap();
    drop(taken);
    settle().await;
    assert!(acquire().take_over().await.unwrap_err().is_lost());
    next.release().await.unwrap();
    acquire().await.unwrap().keep();
    let lock = acquire().take_over().await.unwrap();
    take_away(&stage.locks(), &key).await;
    drop(lock);
    settle().await;
    locks.acquire_all([&*key, &*name]).await.unwrap().release().await.unwrap();

    for message in ["refused", "taken from", "taken over", "lost", "not acquired", "a lock was dropped", "kept"] {
        assert!(!stage.traces.logged(message).is_empty(), "`{message}` in {:?}", stage.traces.events());
    }
    let all = stage.traces.record.lock().unwrap().words.clone();
    for words in &all {
        assert!(!words.contains(['\n', '\u{2028}', '\u{202e}']) && words.len() < 1500, "{words:?}");
    }
    assert!(all.iter().any(|words| words.starts_with(r"key=job\nERROR forged\u{2028}\u{202e}kkk")));
}

#[tokio::test(start_paused = true)]
async fn no_trace_shows_user_data_and_no_label_is_a_key() {
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

    // Records: results, stored errors, mismatched payloads, results that cannot be stored or read.
    let results = orders(&locks).validate(|_| "marked payload");
    let run = async |result: Result<String, String>| results.run(&"secret-record".to_owned(), async |_| result).await;
    run(Err("marked error".to_owned())).await.unwrap_err();
    run(Ok("marked result".to_owned())).await.unwrap();
    run(Ok(String::new())).await.unwrap();
    let others = orders(&locks).validate(|_| "marked payload of another");
    assert_eq!(lock_error(done(&others, "secret-record").await).kind(), ErrorKind::Mismatch);
    let numbers: Idempotency<String, u32, String> =
        Idempotency::new(locks.clone(), OnMissingKey::Reject, |id: &String| Some(id.clone()));
    let unreadable = numbers.run(&"secret-record".to_owned(), async |_| Ok(1)).await;
    assert!(matches!(unreadable, Err(HandlerError::Lock(error)) if error.kind() == ErrorKind::UnusableResult));
    let large = orders(&locks);
    large.run(&"secret-large".to_owned(), async |_| Ok("marked ".repeat(80_000))).await.unwrap_err();
    let large = large.on_unstorable_result(lambda_lock::idempotency::OnUnstorableResult::CompleteWithoutResult);
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

    // A malformed row.
    let put = client.put_item().table_name(TABLE).item("id", AttributeValue::S("secret-row".to_owned()));
    let put = put.item("status", AttributeValue::S("INPROGRESS".to_owned()));
    let put = put.item("in_progress_expiration", AttributeValue::S("x".to_owned()));
    put.item("data", AttributeValue::S("marked data".to_owned())).send().await.unwrap();
    assert_eq!(locks.acquire("secret-row").await.unwrap_err().kind(), ErrorKind::MalformedRow);

    // A batch.
    let consumer: Consumer = SqsConsumer::by_message_id(locks.clone());
    let (body, fail) = (json!("marked body").to_string(), json!("fail").to_string());
    let messages =
        [("secret-1", &*body), ("secret-1", &body), ("secret-2", "{\"marked\": \"marked"), ("secret-3", &fail)];
    assert_eq!(deliver(&consumer, &host, &messages, s(30)).await, 2);
    deliver(&consumer, &host, &messages, s(30)).await;
    settle().await;

    stage.traces.assert_not_logged("marked");
    // The traces have keys, so the check above looked at something.
    let said = stage.traces.record.lock().unwrap().words.iter().filter(|words| words.contains("secret-")).count();
    assert!(said > 50, "{said}");
    // `take` panics for unknown labels. No label is a key.
    let counted = stage.metrics.take();
    assert!(counted.count("acquired") > 5 && counted.sum("refused") > 3, "{counted:?}");
    assert!(counted.counters.keys().all(|name| !name.contains("secret")), "{counted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_loss_names_its_key_when_the_span_is_filtered_out() {
    let stage = Stage::set().await;
    let traces = Traces::filtered(Targets::new().with_default(Level::WARN));
    let lock = stage.locks().acquire("nightly").lease(s(1)).await.unwrap();
    sleep(s(3)).await;
    let next = stage.locks().acquire("nightly").await.unwrap();
    assert!(lock.release().await.unwrap_err().is_lost());
    assert_eq!(traces.lock_lines(), [""; 0]);
    assert_eq!(traces.logged_at_info(), ["WARN taken over", "WARN lost"]);
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
