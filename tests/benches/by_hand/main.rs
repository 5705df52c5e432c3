//! What becomes of webhook events that are delivered twice, if a handler remembers them by hand, and with this crate.
//!
//! On the embedded engine and in virtual time: the same seed gives the same table on every machine. A number selects
//! another seed.
//!
//! Exits with 1 if this crate loses an event or does one twice against its promise, or if the guide shows another table or
//! other handlers.

// As the guide shows them, whose lines are shorter.
#[rustfmt::skip]
mod handlers;

use std::cell::Cell;
use std::env;
use std::future::pending;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use futures_util::future::{join, join_all};
use lambda_lock::embedded::{DynamoDb, Faults, Host};
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::{Idempotency, Locks, OnUnfinished};
use lambda_runtime::Error;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::sleep;

use handlers::{marked_after, marked_before, run_once};

const GUIDE: &str = include_str!("../../../lock/docs/trust/comparison.md");
const HANDLERS: &str = include_str!("handlers.rs");

/// Of each kind.
const EVENTS: usize = 50;
/// How long the work takes. Its effect is in the middle.
const WORK: Duration = Duration::from_secs(2);
/// When Lambda ends an invocation.
const TIMEOUT: Duration = Duration::from_secs(30);
/// When the sender sends an event again that was not answered with a success. The lease of a crashed invocation has ended
/// by then.
const PAUSE: Duration = Duration::from_mins(1);
/// How often it does.
const RETRIES: u32 = 3;

/// What happens to the first run of an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    None,
    CrashBeforeEffect,
    CrashAfterEffect,
    Error,
}

impl Failure {
    const ALL: [Self; 4] = [Self::None, Self::CrashBeforeEffect, Self::CrashAfterEffect, Self::Error];

    fn name(self) -> &'static str {
        match self {
            Self::None => "no failure",
            Self::CrashBeforeEffect => "crash before the effect",
            Self::CrashAfterEffect => "crash after it",
            Self::Error => "the work returns an error",
        }
    }
}

/// How a handler remembers events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    MarkedBefore,
    /// Like `MarkedBefore`, but an error of the work deletes the mark.
    UnmarkedAfterError,
    MarkedAfter,
    Default,
    Reject,
}

impl Way {
    const ALL: [Self; 5] =
        [Self::MarkedBefore, Self::UnmarkedAfterError, Self::MarkedAfter, Self::Default, Self::Reject];

    fn name(self) -> &'static str {
        match self {
            Self::MarkedBefore => "by hand, marked before the work",
            Self::UnmarkedAfterError => "the same, and an error deletes the mark",
            Self::MarkedAfter => "by hand, marked after the work",
            Self::Default => "lambda-lock, default",
            Self::Reject => "lambda-lock, `OnUnfinished::Reject`",
        }
    }

    /// Handles a delivery. Returns whether its answer is 200.
    async fn handle(self, host: &Host, id: &str, work: impl Future<Output = Result<(), Error>>) -> bool {
        let marks = host.client();
        match self {
            Self::MarkedBefore => marked_before(&marks, id, work).await.is_ok(),
            Self::UnmarkedAfterError => {
                let is_done = marked_before(&marks, id, work).await.is_ok();
                if !is_done {
                    let id = AttributeValue::S(id.to_owned());
                    marks.delete_item().table_name("marks").key("id", id).send().await.unwrap();
                }
                is_done
            }
            Self::MarkedAfter => marked_after(&marks, id, work).await.is_ok(),
            Self::Default | Self::Reject => {
                let locks = Locks::builder(marks, "marks").build().unwrap();
                let events = Idempotency::new(locks, OnMissingKey::Reject, |id: &String| Some(id.clone()));
                let events = events.deadline(host.now() + TIMEOUT);
                let unfinished = if self == Self::Reject { OnUnfinished::Reject } else { OnUnfinished::RunAgain };
                run_once(&events.on_unfinished(unfinished), id, work).await.is_ok()
            }
        }
    }
}

/// An event, and what has become of it.
struct Event {
    id: String,
    failure: Failure,
    runs: Cell<u32>,
    effects: Cell<u32>,
}

impl Event {
    /// Does the work of the event, on a host that may crash during it.
    async fn fulfill(&self, host: &Host, crashed: &Notify) -> Result<(), Error> {
        let crash = async || {
            host.crash();
            crashed.notify_one();
            pending::<()>().await;
        };
        let failure = if self.runs.replace(self.runs.get() + 1) == 0 { self.failure } else { Failure::None };
        sleep(WORK / 2).await;
        match failure {
            Failure::CrashBeforeEffect => crash().await,
            Failure::Error => return Err("the warehouse does not answer".into()),
            Failure::None | Failure::CrashAfterEffect => {}
        }
        self.effects.set(self.effects.get() + 1);
        if failure == Failure::CrashAfterEffect {
            crash().await;
        }
        sleep(WORK / 2).await;
        Ok(())
    }

    /// Delivers it to an invocation of its own, and returns whether the answer is 200.
    async fn deliver(&self, way: Way, engine: &DynamoDb, latency: u64) -> bool {
        let each_way = Duration::from_millis(1)..Duration::from_millis(8);
        let host = engine.host().faults(Faults::seeded(latency).latency(each_way)).build();
        let crashed = Notify::new();
        tokio::select! {
            is_done = way.handle(&host, &self.id, self.fulfill(&host, &crashed)) => is_done,
            () = crashed.notified() => false,
        }
    }

    /// Sends it twice, and again until an answer is 200. Returns what has become of it.
    async fn send(&self, way: Way, engine: &DynamoDb, mut random: Rng) -> Outcome {
        // Half of the duplicates come while the first delivery is handled.
        let gap = if random.bool() { WORK.mul_f64(random.f64()) } else { PAUSE };
        let duplicate = async |seed| {
            sleep(gap).await;
            self.deliver(way, engine, seed).await
        };
        let (first, second) = join(self.deliver(way, engine, random.u64(..)), duplicate(random.u64(..))).await;
        let mut is_answered = first || second;
        for _ in 0..RETRIES {
            if is_answered {
                break;
            }
            sleep(PAUSE).await;
            is_answered = self.deliver(way, engine, random.u64(..)).await;
        }
        match self.effects.get() {
            0 | 1 if !is_answered => Outcome::Waiting,
            0 => Outcome::NeverDone,
            1 => Outcome::Right,
            2 => Outcome::DoneTwice,
            more => panic!("{} was done {more} times", self.id),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Right,
    NeverDone,
    DoneTwice,
    /// No answer was 200. A person decides what follows.
    Waiting,
}

/// A cell of the table.
struct Outcomes(Vec<Outcome>);

impl Outcomes {
    fn of(way: Way, failure: Failure, seed: u64) -> Self {
        Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
            let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)).unwrap();
            Locks::builder(engine.client(), "marks").build().unwrap().create_table().await.unwrap();
            let event =
                |number| Event { id: format!("evt_{number}"), failure, runs: Cell::new(0), effects: Cell::new(0) };
            let events: Vec<_> = (0..EVENTS).map(event).collect();
            // The same gaps for each way.
            let mut random = Rng::with_seed(seed + failure as u64);
            let sends: Vec<_> = events.iter().map(|event| event.send(way, &engine, random.fork())).collect();
            Self(join_all(sends).await)
        })
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.0.iter().filter(|of| **of == outcome).count()
    }

    /// Returns whether the crate keeps what it promises.
    fn is_kept(&self, way: Way, failure: Failure) -> bool {
        let crashes = matches!(failure, Failure::CrashBeforeEffect | Failure::CrashAfterEffect);
        let may = |outcome| match (way, outcome) {
            (Way::Default, Outcome::DoneTwice) => failure == Failure::CrashAfterEffect,
            (Way::Reject, Outcome::Waiting) => crashes,
            (Way::Default | Way::Reject, _) => outcome == Outcome::Right,
            _ => true,
        };
        self.0.iter().all(|outcome| may(*outcome))
    }

    fn text(&self) -> String {
        let texts = [
            (Outcome::NeverDone, "answered 200 and never done"),
            (Outcome::DoneTwice, "done twice"),
            (Outcome::Waiting, "wait for a person"),
        ];
        let wrong =
            texts.map(|(outcome, text)| (self.count(outcome), text)).into_iter().filter(|(count, _)| *count > 0);
        let wrong: Vec<_> = wrong.map(|(count, text)| format!("{count} {text}")).collect();
        if wrong.is_empty() { "right".to_owned() } else { wrong.join(", ") }
    }
}

fn main() -> ExitCode {
    let chosen = env::args().skip(1).find_map(|argument| argument.parse().ok());
    let seed = chosen.unwrap_or(1);
    let mut is_kept = true;
    let row = |first: &str, cells: [String; 4]| format!("| {first} | {} |\n", cells.join(" | "));
    let mut table = row(&format!("of {EVENTS} events each"), Failure::ALL.map(|failure| failure.name().to_owned()));
    table += &row("---", Failure::ALL.map(|_| "---".to_owned()));
    for way in Way::ALL {
        let cell = |failure| {
            let outcomes = Outcomes::of(way, failure, seed);
            is_kept &= outcomes.is_kept(way, failure);
            outcomes.text()
        };
        table += &row(way.name(), Failure::ALL.map(cell));
    }
    println!("{table}");
    if !is_kept {
        println!("lambda-lock does not keep what it promises");
    }
    let is_shown = chosen.is_some() || (GUIDE.contains(&table) && GUIDE.contains(&HANDLERS.replace("pub(crate) ", "")));
    if !is_shown {
        println!("lock/docs/trust/comparison.md shows another table, or other handlers");
    }
    if is_kept && is_shown { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
