//! The example functions `order-api`, `payment-queue` and `order-totals`, the templates, and what the README and the guides
//! show. The tests of `LockLayer` have `nightly-report`, and those of identities have `deployment` and `durable-deployment`.

mod orders;
mod payments;
mod policy;
mod templates;
mod totals;

use std::io::{self, Write};
use std::sync::Mutex;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_example::telemetry;
use lambda_lock_tests::{Row, World};
use lambda_runtime::Diagnostic;
use tower::{ServiceExt, service_fn};

// The templates of `cargo lambda new`, with their tests. A placeholder is valid in a string. `.ci/run templates` renders them.
#[allow(clippy::disallowed_methods, reason = "a function of a user has no clock of its own")]
#[allow(dead_code, reason = "the runtime calls `main`")]
#[path = "../../../templates/holders/template/src/main.rs"]
mod holders;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/http/template/src/main.rs"]
mod http;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/idempotent/template/src/main.rs"]
mod idempotent;
#[allow(clippy::unnecessary_wraps, reason = "a parser returns a result")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/kafka/template/src/main.rs"]
mod kafka;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/limit/template/src/main.rs"]
mod limit;
#[allow(clippy::disallowed_methods, reason = "a function of a user has no clock of its own")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/objects/template/src/main.rs"]
mod objects;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/queue/template/src/main.rs"]
mod queue;
#[allow(clippy::unnecessary_wraps, reason = "a parser returns a result")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/queue-fifo/template/src/main.rs"]
mod queue_fifo;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/rebuild/template/src/main.rs"]
mod rebuild;
#[allow(dead_code, reason = "the runtime calls `main`")]
#[path = "../../../templates/singleton/template/src/main.rs"]
mod singleton;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/stream/template/src/main.rs"]
mod stream;
#[allow(clippy::disallowed_methods, reason = "a function of a user has no clock of its own")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/webhook/template/src/main.rs"]
mod webhook;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../../templates/workflow/template/src/main.rs"]
mod workflow;

const PREFIX: &str = "shop#";

/// The rows whose keys begin so.
async fn rows(world: &World, start: &str) -> Vec<Row> {
    let scan = world.client().scan().table_name(&world.table).consistent_read(true);
    let scan = scan.filter_expression("begins_with(id, :start)");
    let start = AttributeValue::S(format!("{PREFIX}{start}"));
    scan.expression_attribute_values(":start", start).send().await.unwrap().items.unwrap()
}

#[tokio::test]
async fn only_what_is_not_routine_is_logged_as_an_error() {
    static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    struct Log;
    impl Write for Log {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            LOG.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let function = service_fn(async |event: &str| match event {
        "panic" => panic!("out of paper"),
        "ok" => Ok(()),
        other => Err(Diagnostic { error_type: other.to_owned(), error_message: "why".to_owned() }),
    });
    let function = telemetry::log_failures(function, |failure: &Diagnostic| failure.error_type == "LockHeld");
    let mut outcomes = Vec::new();
    for event in ["ok", "LockHeld", "NotDeployed", "panic"] {
        let failure = function.clone().oneshot(event).await.err();
        let lines = String::from_utf8(std::mem::take(&mut *LOG.lock().unwrap())).unwrap();
        let levels: Vec<_> = lines.split_whitespace().filter(|word| ["INFO", "ERROR"].contains(word)).collect();
        outcomes.push((failure.map(|failure| (failure.error_type, failure.error_message)), levels.join(" ")));
    }
    let failure = |name: &str, message: &str| Some((name.to_owned(), message.to_owned()));
    let expected = [
        (None, ""),
        (failure("LockHeld", "why"), "INFO"),
        (failure("NotDeployed", "why"), "ERROR"),
        // The hook has logged it.
        (failure("Panic", "panicked: out of paper"), ""),
    ];
    assert_eq!(outcomes, expected.map(|(failure, levels)| (failure, levels.to_owned())));
}
