//! Histories of a queue: several pollers deliver batches to the consumer, on hosts with wrong clocks and bad networks
//! that crash and overrun. Messages come back, arrive twice, fail, and end in the dead-letter queue. A seed determines
//! each history, which runs in paused time. The ledger of idempotent work checks every run. This module checks the
//! answers to Lambda, and the fate of each message.

mod mutations;
mod queue;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage as SqsRecord};
use fastrand::Rng;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::{Idempotency, OnUnfinished, SqsConsumer, WithRun};
use serde_json::Value;
use tokio::time::sleep;
use tower::{Layer, Service, service_fn};

use crate::consumer::{self, WithWork, body_of};
use crate::history::frame::{History, Set};
use crate::history::stage::{Network, Stage, millis};
use crate::history::{Mutation, Outcome, counts};
use crate::idempotency_history::ledger::Kept;
use crate::idempotency_history::{self, Failure, Terms};
use crate::invocation::{FUNCTION, invocation_with};
pub use mutations::MUTATIONS;
use queue::{FIFO_QUEUE, Place, Queue, Received, STANDARD_QUEUE, Stored};

counts! {
    /// Batches that were answered.
    batches,
    /// Invocations that crashed.
    invocations_crashed,
    /// Deliveries of a message beyond the first.
    redelivered,
    /// Messages that were done and deleted.
    done,
    /// Deliveries that were answered as done without a run.
    done_before,
    /// Reports of failed messages.
    reported,
    /// Messages that ended in the dead-letter queue.
    dead,
}

/// Runs the history of a seed, with the protocol or with a mutation of it.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>) -> Outcome<WithWork<Counts>> {
    consumer::run(seed, mutation, |scene: &Scene| *scene.counts.lock().unwrap())
}

type Scene = Set<Kept, Own>;

struct Own {
    queue: Queue,
    terms: Terms,
    key: KeyIs,
    counts: Mutex<Counts>,
}

/// The key of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KeyIs {
    MessageId,
    DeduplicationId,
    InBody,
}

type Handled = WithRun<SqsMessage<Value>>;
type Consumer = SqsConsumer<Value, Failure, u64, Handled>;

impl History for Scene {
    const LATEST_ARRIVAL: Duration = idempotency_history::LATEST_ARRIVAL;

    fn set(_: u64, stage: Stage, random: &mut Rng) -> Self {
        let stage = stage.with_write_units(|_| 1);
        let is_fifo = random.bool();
        let key = match random.u8(0..3) {
            0 => KeyIs::MessageId,
            1 if is_fifo => KeyIs::DeduplicationId,
            _ => KeyIs::InBody,
        };
        let reject_unfinished = key == KeyIs::InBody && random.u8(0..3) == 0;
        let terms = Terms { window: Duration::from_hours(24), reject_unfinished, transactional: false };
        let messages = messages(random, key, if is_fifo { FIFO_QUEUE } else { STANDARD_QUEUE });
        // Also with a mutation that hides from the consumer that the queue is FIFO.
        let keys = messages.iter().flat_map(|message| {
            let key = key.of(message);
            [(key.replace(".fifo", ""), terms), (key, terms)]
        });
        let kept = Kept::of(keys.collect());
        let queue = Queue::draw(random, is_fifo, messages);
        let scene = Self::new(stage, kept, Own { queue, terms, key, counts: Mutex::default() });
        scene.ledger.note(&format!("{:?} {key:?} {terms:?}", scene.queue));
        scene
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        poller(scene, number, random)
    }

    /// Good hosts work until the queue is empty. Every message is then done and deleted, or dead.
    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        let mut function = scene.function(random, Network::Good);
        for round in 0..200 {
            if scene.queue.is_drained() {
                break;
            }
            let messages = scene.receive(10, random);
            if messages.is_empty() {
                sleep(Duration::from_secs(1)).await;
            } else {
                let name = format!("last poller, round {round}");
                let invocation = Invocation::new(scene, name, Duration::from_secs(10), true, random.fork());
                if !function.invoke(&invocation, messages, None).await {
                    function = scene.function(random, Network::Good);
                }
            }
        }
        for message in scene.queue.messages() {
            let (id, is_done) = (&message.id, scene.ledger.is_done(&scene.key.of(&message)));
            match message.place {
                Place::Queue => scene.ledger.violated(format!("{id} came to no end")),
                Place::Deleted if !is_done => scene.ledger.violated(format!("{id} is lost")),
                Place::Deleted => scene.count(|counts| counts.done += 1),
                Place::DeadLetterQueue => {}
            }
        }
        scene.ledger.check_ends();
    }
}

/// The messages of the senders, with occasional duplicates in the same group.
fn messages(random: &mut Rng, key: KeyIs, queue: &'static str) -> Vec<Stored> {
    let mut messages: Vec<Stored> = Vec::new();
    for number in 0..random.usize(3..=14) {
        let earlier = (key != KeyIs::MessageId && number > 0 && random.u8(0..5) == 0).then(|| random.choice(&messages));
        let (job, group, body) = if let Some(earlier) = earlier.flatten() {
            (earlier.job.clone(), earlier.group.clone(), earlier.body.clone())
        } else {
            let job = format!("job {number}");
            let body = body_of(&job, 16, random);
            (job, format!("group {}", random.u8(0..3)), body)
        };
        messages.push(Stored::new(format!("message {number}"), job, queue, group, body));
    }
    messages
}

impl KeyIs {
    /// The key of a message's record.
    fn of(self, message: &Stored) -> String {
        let Stored { queue, id, group, job, .. } = message;
        match self {
            Self::MessageId => format!("{FUNCTION}#{queue}#{id}"),
            Self::DeduplicationId => format!("{FUNCTION}#{queue}#{group}#{job}"),
            Self::InBody => format!("{FUNCTION}#{queue}#{job}"),
        }
    }
}

/// A host with the consumer that its invocations share.
struct Function {
    host: Host,
    consumer: Consumer,
}

type Invocation = consumer::Invocation<Scene>;

impl Scene {
    fn function(&self, random: &mut Rng, network: Network) -> Function {
        let host = self.host(random, network);
        let locks = self.stage.locks(&host);
        let consumer = match self.key {
            KeyIs::MessageId => Consumer::by_message_id(locks),
            KeyIs::DeduplicationId => Consumer::by_deduplication_id(locks),
            KeyIs::InBody => {
                let job = |message: &SqsMessage<Value>| message.body["job"].as_str().map(str::to_owned);
                let policy = if self.terms.reject_unfinished { OnUnfinished::Reject } else { OnUnfinished::RunAgain };
                let once = Idempotency::new(locks, OnMissingKey::Reject, job).window(self.terms.window);
                Consumer::new(once.on_unfinished(policy).cache(random.usize(0..5)))
            }
        };
        let min_remaining_time = Duration::from_millis(random.u64(100..1000));
        Function { host, consumer: consumer.concurrency(random.usize(1..=10)).min_remaining_time(min_remaining_time) }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().unwrap());
    }

    fn receive(&self, most: usize, random: &mut Rng) -> Vec<SqsRecord> {
        let Received { messages, redelivered, dead } = self.queue.receive(self.stage.engine.now(), most, random);
        self.count(|counts| {
            counts.redelivered += redelivered;
            counts.dead += dead.len();
        });
        for id in dead {
            self.ledger.note(&format!("{id} is dead"));
        }
        messages
    }

    fn stored(&self, id: &str) -> Stored {
        self.queue.messages().into_iter().find(|message| message.id == id).unwrap()
    }
}

impl consumer::Scene for Scene {
    /// All messages before a message in its group have ended.
    fn check_order(&self, id: &str) {
        if !self.queue.is_fifo {
            return;
        }
        let message = self.stored(id);
        for earlier in self.queue.messages().iter().take_while(|earlier| earlier.id != id) {
            let is_over = earlier.place == Place::DeadLetterQueue || self.ledger.is_done(&self.key.of(earlier));
            if earlier.group == message.group && !is_over {
                self.ledger.violated(format!("{id} was begun out of order: before {}", earlier.id));
            }
        }
    }

    fn count_crash(&self) {
        self.count(|counts| counts.invocations_crashed += 1);
    }
}

/// A poller: one host after another, with one batch after another.
async fn poller(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let network = Network::draw(&mut random);
    let mut function = scene.function(&mut random, network);
    for step in 0..random.usize(4..=10) {
        sleep(millis(&mut random, 0..=1500)).await;
        let messages = scene.receive(random.usize(1..=10), &mut random);
        if messages.is_empty() {
            continue;
        }
        let time_left = millis(&mut random, 1500..=6000);
        let name = format!("poller {number} step {step}");
        let invocation = Invocation::new(&scene, name, time_left, false, random.fork());
        let crash = (random.u8(0..4) == 0).then(|| millis(&mut random, 0..=1000));
        if !function.invoke(&invocation, messages, crash).await {
            function = scene.function(&mut random, network);
        }
    }
}

impl Function {
    /// Waits for the answer as Lambda does: until the deadline, or until the host crashes. Returns whether the host
    /// continues.
    async fn invoke(&self, invocation: &Arc<Invocation>, messages: Vec<SqsRecord>, crash: Option<Duration>) -> bool {
        let answer = self.answer(invocation, messages.clone());
        let answer = invocation.wait(&self.host, answer, crash).await;
        if let Some(answer) = &answer {
            invocation.answered(&messages, answer);
        }
        answer.is_some()
    }

    async fn answer(&self, invocation: &Arc<Invocation>, messages: Vec<SqsRecord>) -> SqsBatchResponse {
        let ids: Vec<_> = messages.iter().map(|message| message.message_id.as_deref().unwrap()).collect();
        invocation.scene.ledger.note(&format!("{} receives {}", invocation.name, ids.join(", ")));
        let mut batch = SqsEvent::default();
        batch.records = messages;
        let mutation = invocation.scene.stage.mutation.unwrap_or(Mutation::NONE);
        (mutation.batch)(&mut batch);
        let event = invocation_with(&self.host, batch.clone(), invocation.time_left);
        let handler = service_fn({
            let invocation = Arc::clone(invocation);
            move |WithRun { input, run, .. }: Handled| {
                let id = input.message_id().unwrap().to_owned();
                Arc::clone(&invocation).handle(id, input.body, run)
            }
        });
        let mut answer = self.consumer.layer(handler).call(event).await.unwrap_or_else(|_| {
            // Lambda takes a failed invocation as the failure of each message.
            let mut all = SqsBatchResponse::default();
            batch.records.iter().filter_map(|message| message.message_id.clone()).for_each(|id| all.add_failure(id));
            all
        });
        (mutation.batch_answer)(&batch, &mut answer);
        sleep(mutation.answer_delay).await;
        answer
    }
}

impl Invocation {
    /// Lambda received the answer, and applies it to the messages.
    fn answered(&self, messages: &[SqsRecord], answer: &SqsBatchResponse) {
        let Scene { stage, ledger, own: Own { queue, key, .. } } = &*self.scene;
        let (is_in_time, had_time) = (self.is_in_time(), self.had_time());
        let reported: Vec<_> = answer.batch_item_failures.iter().map(|failure| &failure.item_identifier).collect();
        ledger.note(&format!("{} reports {reported:?}", self.name));
        let calls = self.calls.lock().unwrap();
        for message in messages {
            let id = message.message_id.as_ref().unwrap();
            let record = key.of(&self.scene.stored(id));
            // Each twin has its own outcome.
            let own = calls.iter().find(|(called, _)| called == id).map(|(_, call)| call.is_answered());
            let (is_reported, was_run) = (reported.contains(&id), own);
            let none_ran = !calls.iter().any(|(_, call)| call.key == record);
            let what = match (is_reported, was_run) {
                (false, Some(false)) => "failed but was not reported",
                (false, None) if !ledger.is_done(&record) => "was reported as done but was not",
                (true, Some(true)) if is_in_time => "was reported but is done",
                (true, None)
                    if self.is_good
                        && had_time
                        && none_ran
                        && self.was_done_before(messages, &reported, id, &record) =>
                {
                    "was reported but was done before"
                }
                _ => "",
            };
            if !what.is_empty() {
                ledger.violated(format!("{id} {what}: {}", self.name));
            }
            self.scene.count(|counts| {
                counts.reported += usize::from(is_reported);
                counts.done_before += usize::from(!is_reported && was_run.is_none());
            });
        }
        self.scene.count(|counts| counts.batches += 1);
        queue.settle(stage.engine.now(), messages, answer);
    }

    /// Whether a message of this record needs no run: its result was stored before the invocation began, and it did not
    /// go back because of the order of its group.
    fn was_done_before(&self, messages: &[SqsRecord], reported: &[&String], id: &str, record: &str) -> bool {
        let Scene { ledger, own: Own { queue, .. }, .. } = &*self.scene;
        let stored: Vec<_> =
            messages.iter().map(|message| self.scene.stored(message.message_id.as_ref().unwrap())).collect();
        // Copies take the place of the first of them.
        let first = stored.iter().position(|message| message.id == id).unwrap();
        let goes_back = |earlier: &Stored| earlier.group == stored[first].group && reported.contains(&&earlier.id);
        let is_held_back = queue.is_fifo && stored[..first].iter().any(goes_back);
        !is_held_back && ledger.was_completed(record, self.began)
    }
}
