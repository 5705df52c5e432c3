//! Idempotency of async functions and of handlers.

mod cache;
mod complete_in;
mod completion;
mod crashes;
mod debug_output;
mod disabled;
mod duplicates;
mod errors;
mod event_id;
mod foreign_rows;
mod key;
mod late_requests;
mod layer;
mod lost_answers;
mod on_replay;
mod powertools;
mod replay;
mod results;
mod unfinished;
mod validation;
mod window;

use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use futures_util::FutureExt;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::{OnMissingKey, RecordFormat, StoredError};
use lambda_lock::{Backoff, Error, HandlerError, Idempotency, Locks, OnError, OnUnfinished, Run, Wait};
use lambda_lock_tests::invocation::{Counter, millis};
use lambda_lock_tests::rows::text;
use lambda_lock_tests::{Row, World, drop_midway, ms};
use lambda_runtime::Diagnostic;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The defaults.
const LEASE: Duration = Duration::from_secs(30);
const CLOCK_SKEW: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_hours(1);

/// When every clock shows that the lease of a crashed run has ended.
const AFTER_THE_LEASE: Duration = LEASE.saturating_add(CLOCK_SKEW).saturating_add(ms(100));
const ALMOST_THE_WINDOW: Duration = Duration::from_mins(59);
/// When every clock shows that the window of a result has ended. Windows end at whole seconds.
const AFTER_THE_WINDOW: Duration = WINDOW.saturating_add(Duration::from_secs(2));

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_secs(30);

/// The input of a run.
#[derive(Clone, Debug)]
struct Order {
    id: Option<String>,
    amount: u32,
}

fn order(id: &str) -> Order {
    Order { id: Some(id.to_owned()), amount: 5 }
}

fn order_without_id() -> Order {
    Order { id: None, amount: 5 }
}

/// The handler's error.
#[derive(Debug, PartialEq)]
struct Declined;

impl From<Declined> for Diagnostic {
    fn from(_: Declined) -> Self {
        Self { error_type: "Declined".to_owned(), error_message: "by the handler itself".to_owned() }
    }
}

type Orders<T> = Idempotency<Order, T, Declined>;

/// Without a prefix, as outside Lambda.
fn orders<T>(locks: &Locks) -> Orders<T> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |order: &Order| order.id.clone())
}

/// Runs the work, whose result is the number of runs.
async fn place(orders: &Orders<u32>, order: &Order, runs: &Counter) -> Result<u32, HandlerError<Declined>> {
    orders.run(order, async |_| Ok(runs.count())).await
}

/// Runs work that fails, and counts the run.
async fn decline(orders: &Orders<u32>, order: &Order, runs: &Counter) -> Result<u32, HandlerError<Declined>> {
    orders
        .run(order, async |_| {
            runs.count();
            Err(Declined)
        })
        .await
}

/// The error of a run that was refused. Panics for any other outcome.
fn refused<T: Debug, E: Debug>(outcome: Result<T, HandlerError<E>>) -> Error {
    match outcome {
        Err(HandlerError::Lock(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn replayed_error<T: Debug, E: Debug>(outcome: Result<T, HandlerError<E>>) -> StoredError {
    match outcome {
        Err(HandlerError::Replayed(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn is_declined<T>(outcome: &Result<T, HandlerError<Declined>>) -> bool {
    matches!(outcome, Err(HandlerError::Handler(Declined)))
}

async fn environment() -> (World, Host, Locks) {
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    (world, host, locks)
}

/// Locks of another environment, at this time from now: its clock is ahead.
fn later(world: &World, by: Duration) -> Locks {
    world.locks(&world.host().later(by).build()).holder("another environment").build().unwrap()
}

fn number(value: impl Into<i128>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

fn number_in(row: &Row, name: &str) -> u64 {
    row[name].as_n().unwrap().parse().unwrap()
}

fn string_in<'a>(row: &'a Row, name: &str) -> &'a str {
    row[name].as_s().unwrap()
}

/// A row with these attributes.
fn row<const N: usize>(attributes: [(&str, AttributeValue); N]) -> Row {
    attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn seconds(host: &Host) -> u64 {
    millis(host.now()) / 1000
}

/// Begins a run, and crashes its host.
async fn crash(host: &Host, orders: &Orders<u32>, order: &Order) {
    drop_midway(orders, order, || host.crash()).await;
}

/// The message of a panic in the work, as the caller receives it.
async fn panic_of(orders: &Orders<u32>, order: &Order) -> &'static str {
    let run = orders.run(order, async |_| {
        tokio::task::yield_now().await;
        panic!("the work's own")
    });
    let panic = AssertUnwindSafe(run).catch_unwind().await.unwrap_err();
    panic.downcast_ref::<&str>().unwrap()
}

/// The outcomes of a first run and of a duplicate. The duplicate asks on `other` at least twice while the run is in
/// progress.
async fn run_while_waited_for(
    orders: &Orders<u32>,
    outcome: Result<u32, Declined>,
    waiting: &Orders<u32>,
    other: &Host,
) -> (Result<u32, HandlerError<Declined>>, Result<u32, HandlerError<Declined>>) {
    let (order, begun, runs) = (order("a"), Notify::new(), Counter::default());
    let first = orders.run(&order, async |_| {
        begun.notify_one();
        while other.requests() < 2 {
            sleep(ms(1)).await;
        }
        outcome
    });
    let second = async {
        begun.notified().await;
        place(waiting, &order, &runs).await
    };
    timeout(TOO_LONG, Box::pin(async { tokio::join!(first, second) })).await.expect("the wait ends")
}

/// Gives the row to another run.
async fn give_to_another(world: &World, id: &str) -> Row {
    let now = seconds(&world.host().build());
    let theirs = row([
        ("id", text(id)),
        ("status", text("INPROGRESS")),
        ("owner", text("someone else")),
        ("holder", text("another environment")),
        ("fence", number(u64::MAX >> 2)),
        ("in_progress_expiration", number((now + 600) * 1000)),
        ("expiration", number(now + 86_400)),
    ]);
    world.put_row(theirs.clone()).await;
    theirs
}

fn eagerly() -> Wait {
    Wait::backoff(Backoff::new().base(ms(2)).cap(ms(50))).up_to(TOO_LONG)
}

fn validated(locks: &Locks) -> Orders<u32> {
    orders(locks).validate(|order| order.amount)
}

fn storing(locks: &Locks) -> Orders<u32> {
    orders(locks).on_error(|Declined| OnError::Store(StoredError::new("CardDeclined", "the card \"x\" was declined")))
}

fn refusing(locks: &Locks) -> Orders<u32> {
    orders(locks).on_unfinished(OnUnfinished::Reject)
}

const MOST: usize = 390 * 1024;

/// A result that takes this many bytes as JSON.
fn large(bytes: usize) -> String {
    "x".repeat(bytes - "\"\"".len())
}

/// A completed record, with these attributes instead of its own.
fn completed<const N: usize>(host: &Host, attributes: [(&str, AttributeValue); N]) -> Row {
    let mut completed = row([
        ("id", text("a")),
        ("status", text("COMPLETED")),
        ("expiration", number(seconds(host) + 600)),
        ("data", text("17")),
    ]);
    completed.extend(row(attributes));
    completed
}

fn business_row() -> Row {
    row([("id", text("the order itself")), ("amount", number(5))])
}

/// Writes the business row and completes the run, in one transaction. The business row may have a condition.
async fn commit(world: &World, host: &Host, run: &Run, result: u32, condition: Option<&str>) -> Result<u32, Declined> {
    let put = Put::builder().table_name(&world.table).set_item(Some(business_row()));
    let put = put.set_condition_expression(condition.map(str::to_owned)).build().unwrap();
    let retries = RetryConfig::standard().with_initial_backoff(ms(1));
    let client = Client::from_conf(host.client().config().to_builder().retry_config(retries).build());
    let transaction = client
        .transact_write_items()
        .transact_items(TransactWriteItem::builder().put(put).build())
        .transact_items(run.complete_in(&result).unwrap());
    let sent = Box::pin(transaction.send()).await;
    sent.map_or(Err(Declined), |_| Ok(result))
}

async fn is_committed(world: &World) -> bool {
    world.row("the order itself").await.is_some()
}

const FORMATS: [RecordFormat; 4] =
    [RecordFormat::Plain, RecordFormat::Hashed, RecordFormat::PowertoolsPython, RecordFormat::PowertoolsTypeScript];

/// Nested lists.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
struct Deep(Vec<Deep>);

impl Deep {
    fn of(levels: usize) -> Self {
        (1..levels).fold(Self(Vec::new()), |inner, _| Self(vec![inner]))
    }

    fn levels(&self) -> usize {
        1 + self.0.first().map_or(0, Self::levels)
    }
}
