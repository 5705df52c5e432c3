//! Histories of a stream, or of a Kafka topic: a mapping delivers the batches of a shard, or of several partitions at once,
//! to the consumer, on hosts with wrong clocks and bad networks that crash and overrun. Lambda delivers again from the number
//! that an answer names, bisects batches, gives batches up, loses answers, and delivers a batch twice at once. A seed
//! determines each history, which runs in paused time. The ledger of idempotent work checks every run. This module checks the
//! order, the answers to Lambda, and the fate of each record.

mod mutations;
mod shard;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lambda_events::kinesis::KinesisEvent;
use aws_lambda_events::streams::KinesisEventResponse;
use fastrand::Rng;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::kafka::{KafkaConsumer, KafkaRecord};
use lambda_lock::lambda::Source;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock::{Idempotency, Locks, OnUnfinished, WithRun};
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
use shard::{CLUSTER, Delivery, Place, STREAM, Shard, Stored, kafka_event};

counts! {
    /// Batches that were answered.
    batches,
    /// Invocations that crashed.
    invocations_crashed,
    /// Deliveries of a record beyond the first.
    redelivered,
    /// Batches that were split in two.
    bisected,
    /// Records that were done and passed by the checkpoint.
    done,
    /// Deliveries that were answered as done without a run.
    done_before,
    /// Answers that named a record.
    reported,
    /// Records that Lambda gave up.
    discarded,
}

/// Runs the history of a seed, with the protocol or with a mutation of it.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>) -> Outcome<WithWork<Counts>> {
    consumer::run(seed, mutation, |scene: &Scene| *scene.counts.lock().unwrap())
}

type Scene = Set<Kept, Own>;

struct Own {
    shard: Shard,
    terms: Terms,
    of: Of,
    key: KeyIs,
    concurrency: usize,
    stops_at_first_failure: bool,
    counts: Mutex<Counts>,
}

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KeyIs {
    EventId,
    InBody,
}

/// What the records are of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Kinesis,
    /// A part of the shard is a partition of the topic.
    Kafka,
}

#[derive(Clone)]
enum Consumer {
    Kinesis(StreamConsumer<KinesisRecord<Value>, Failure, u64, WithRun<KinesisRecord<Value>>>),
    Kafka(KafkaConsumer<Value, Failure, u64, WithRun<KafkaRecord<Value>>>),
}

impl History for Scene {
    const LATEST_ARRIVAL: Duration = idempotency_history::LATEST_ARRIVAL;

    fn set(seed: u64, stage: Stage, random: &mut Rng) -> Self {
        let stage = stage.with_write_units(|_| 1);
        let key = if random.bool() { KeyIs::EventId } else { KeyIs::InBody };
        let reject_unfinished = key == KeyIs::InBody && random.u8(0..3) == 0;
        let terms = Terms { window: Duration::from_hours(24), reject_unfinished, transactional: false };
        let records = records(random, key);
        let of = if seed % 3 == 2 { Of::Kafka } else { Of::Kinesis };
        let shard = Shard::draw(random, records);
        let keys = shard.records.iter().map(|record| (key.of(of, record), terms));
        let kept = Kept::of(keys.collect());
        let concurrency = if random.u8(0..3) == 0 { 1 } else { random.usize(2..=10) };
        let stops_at_first_failure = random.u8(0..3) == 0;
        let counts = Mutex::default();
        let own = Own { shard, terms, of, key, concurrency, stops_at_first_failure, counts };
        let scene = Self::new(stage, kept, own);
        scene.ledger.note(&format!("{of:?} {:?} {key:?} {terms:?}", scene.shard));
        scene
    }

    fn worker(scene: Arc<Self>, number: usize, random: Rng) -> impl Future<Output = ()> + Send {
        poller(scene, number, random)
    }

    /// Good hosts work until the end of the shard. Every record is then done and passed, or given up.
    async fn inspect(scene: &Arc<Self>, random: &mut Rng) {
        let mut function = scene.function(random, Network::Good);
        for line in 0..scene.shard.parallelization() {
            for round in 0..200 {
                let Some(delivery) = scene.deliver(line) else { break };
                let deliveries = [delivery];
                let name = format!("last poller of {line}, round {round}");
                let invocation = Invocation::new(scene, name, Duration::from_secs(10), true, random.fork());
                let done = function.invoke(&invocation, &deliveries, None).await;
                if done.is_none() {
                    function = scene.function(random, Network::Good);
                }
                scene.settle(&deliveries, done);
                sleep(Duration::from_millis(500)).await;
            }
        }
        for (index, record) in scene.shard.records.iter().enumerate() {
            match scene.shard.place(index) {
                Place::Ahead => scene.ledger.violated(format!("{} came to no end", record.number)),
                Place::Passed if !scene.is_done(record) => scene.ledger.violated(format!("{} is lost", record.number)),
                Place::Passed => scene.count(|counts| counts.done += 1),
                Place::Discarded => {}
            }
        }
        scene.ledger.check_ends();
    }
}

/// The records of the producers, with occasional duplicates, some of them under another partition key.
fn records(random: &mut Rng, key: KeyIs) -> Vec<Stored> {
    let mut records: Vec<Stored> = Vec::new();
    for number in 0..random.usize(3..=16) {
        let earlier = (key == KeyIs::InBody && number > 0 && random.u8(0..5) == 0).then(|| random.choice(&records));
        let partition_key = format!("key {}", random.u8(0..4));
        let (job, partition_key, data) = if let Some(earlier) = earlier.flatten() {
            let partition_key = if random.bool() { earlier.partition_key.clone() } else { partition_key };
            (earlier.job.clone(), partition_key, earlier.data.clone())
        } else {
            let job = format!("job {number}");
            let data = body_of(&job, 20, random);
            (job, partition_key, data)
        };
        records.push(Stored { number: (1000 + number).to_string(), job, partition_key, data, line: 0 });
    }
    records
}

impl KeyIs {
    /// The key of a record's row.
    fn of(self, of: Of, record: &Stored) -> String {
        match self {
            Self::EventId if of == Of::Kafka => format!("{FUNCTION}#{}", record.offset_id()),
            Self::EventId => format!("{FUNCTION}#{}", record.event_id()),
            Self::InBody if of == Of::Kafka => format!("{FUNCTION}#{CLUSTER}#payments#{}", record.job),
            Self::InBody => format!("{FUNCTION}#{STREAM}#{}", record.job),
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
        let job = |body: &Value| body["job"].as_str().map(str::to_owned);
        let consumer = match (self.of, self.key) {
            (Of::Kinesis, KeyIs::EventId) => {
                Consumer::Kinesis(self.set(StreamConsumer::by_event_id(locks).window(self.terms.window), random))
            }
            (Of::Kinesis, KeyIs::InBody) => {
                let once = self.once(locks, move |record: &KinesisRecord<Value>| job(&record.body), random);
                Consumer::Kinesis(self.set(StreamConsumer::new(once), random))
            }
            (Of::Kafka, KeyIs::EventId) => {
                Consumer::Kafka(self.set(KafkaConsumer::by_offset(locks).window(self.terms.window), random))
            }
            (Of::Kafka, KeyIs::InBody) => {
                let once = self.once(locks, move |record: &KafkaRecord<Value>| job(&record.body), random);
                Consumer::Kafka(self.set(KafkaConsumer::new(once), random))
            }
        };
        Function { host, consumer }
    }

    fn once<I>(
        &self,
        locks: Locks,
        job: impl Fn(&I) -> Option<String> + Send + Sync + 'static,
        random: &mut Rng,
    ) -> Idempotency<I, u64, Failure> {
        let policy = if self.terms.reject_unfinished { OnUnfinished::Reject } else { OnUnfinished::RunAgain };
        let once = Idempotency::new(locks, OnMissingKey::Reject, job).window(self.terms.window);
        let once = once.on_unfinished(policy).cache(random.usize(0..5));
        if random.bool() { once } else { once.wait(Duration::ZERO) }
    }

    fn set<S: Source, H>(
        &self,
        consumer: lambda_lock::lambda::Consumer<S, H, u64, Failure>,
        random: &mut Rng,
    ) -> lambda_lock::lambda::Consumer<S, H, u64, Failure> {
        let min_remaining_time = Duration::from_millis(random.u64(100..1000));
        let consumer = consumer.concurrency(self.concurrency).min_remaining_time(min_remaining_time);
        let ignores_stop = self.stage.mutation.is_some_and(|mutation| mutation.ignores_stop);
        let stops = self.stops_at_first_failure && !ignores_stop;
        if stops { consumer.stop_at_first_failure() } else { consumer }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().unwrap());
    }

    fn deliver(&self, line: usize) -> Option<Delivery> {
        let delivery = self.shard.deliver(line)?;
        self.count(|counts| counts.redelivered += delivery.redelivered);
        Some(delivery)
    }

    /// Applies the answer to a batch. A host that has crashed has not answered.
    fn settle(&self, deliveries: &[Delivery], done: Option<Vec<Option<usize>>>) {
        let done = done.unwrap_or_else(|| vec![None; deliveries.len()]);
        for (delivery, done) in deliveries.iter().zip(done) {
            self.settle_one(delivery, done);
        }
    }

    fn settle_one(&self, delivery: &Delivery, done: Option<usize>) {
        let settled = self.shard.settle(delivery, done);
        self.count(|counts| {
            counts.bisected += usize::from(settled.bisected);
            counts.discarded += settled.discarded.len();
        });
        for index in settled.discarded {
            self.ledger.note(&format!("{} is discarded", self.shard.records[index].number));
        }
    }

    fn is_done(&self, record: &Stored) -> bool {
        self.ledger.is_done(&self.key.of(self.of, record))
    }

    fn stored(&self, number: &str) -> &Stored {
        self.shard.records.iter().find(|record| record.number == number).unwrap()
    }
}

impl consumer::Scene for Scene {
    /// All records before a record with its partition key are done or given up.
    fn check_order(&self, number: &str) {
        let (records, record) = (&self.shard.records, self.stored(number));
        for (index, earlier) in records.iter().enumerate().take_while(|(_, earlier)| earlier.number != number) {
            let is_over = self.is_done(earlier) || self.shard.place(index) == Place::Discarded;
            if earlier.partition_key == record.partition_key && !is_over {
                self.ledger.violated(format!("{number} was begun out of order: before {}", earlier.number));
            }
        }
    }

    fn count_crash(&self) {
        self.count(|counts| counts.invocations_crashed += 1);
    }
}

/// A poller: one host after another, with one batch after another of its part of the shard. The pollers beyond the
/// mapping's concurrent batches take a batch that another poller has, and lose the answer.
async fn poller(scene: Arc<Scene>, number: usize, mut random: Rng) {
    let network = Network::draw(&mut random);
    let mut function = scene.function(&mut random, network);
    let lines = scene.shard.parallelization();
    for step in 0..random.usize(4..=10) {
        sleep(millis(&mut random, 0..=1500)).await;
        let mut deliveries: Vec<_> = scene.deliver(number % lines).into_iter().collect();
        // A batch of Kafka has several partitions.
        if scene.of == Of::Kafka && random.bool() {
            deliveries.extend((0..lines).filter(|line| *line != number % lines).filter_map(|line| scene.deliver(line)));
        }
        if deliveries.is_empty() {
            continue;
        }
        let time_left = millis(&mut random, 1500..=6000);
        let name = format!("poller {number} step {step}");
        let invocation = Invocation::new(&scene, name, time_left, false, random.fork());
        let crash = (random.u8(0..4) == 0).then(|| millis(&mut random, 0..=1000));
        let done = function.invoke(&invocation, &deliveries, crash).await;
        if done.is_none() {
            function = scene.function(&mut random, network);
        }
        let is_lost = number >= lines || random.u8(0..8) == 0;
        if !is_lost {
            scene.settle(&deliveries, done);
        }
    }
}

impl Function {
    /// Waits for the answer as Lambda does. Returns `None` if the host crashed. Otherwise it returns for each delivery how
    /// many records at its start are done, or `None` if it failed as a whole.
    async fn invoke(
        &self,
        invocation: &Arc<Invocation>,
        deliveries: &[Delivery],
        crash: Option<Duration>,
    ) -> Option<Vec<Option<usize>>> {
        let answers = invocation.wait(&self.host, self.answers(invocation, deliveries), crash).await?;
        let answered = deliveries.iter().zip(&answers);
        Some(answered.map(|(delivery, answer)| invocation.answered(delivery, answer)).collect())
    }

    /// Returns the answer to each delivery.
    async fn answers(&self, invocation: &Arc<Invocation>, deliveries: &[Delivery]) -> Vec<KinesisEventResponse> {
        let scene = &invocation.scene;
        let mutation = scene.stage.mutation.unwrap_or(Mutation::NONE);
        let mut batches = Vec::new();
        for delivery in deliveries {
            let records: Vec<_> = delivery.records.iter().map(|index| &scene.shard.records[*index]).collect();
            let numbers: Vec<_> = records.iter().map(|record| record.number.as_str()).collect();
            scene.ledger.note(&format!("{} receives {}", invocation.name, numbers.join(", ")));
            let mut batch = KinesisEvent::default();
            batch.records = records.into_iter().map(Stored::delivery).collect();
            (mutation.records)(&mut batch);
            batches.push(batch);
        }
        let invoked = Arc::clone(invocation);
        let mut answers = match &self.consumer {
            Consumer::Kinesis(consumer) => {
                let event = invocation_with(&self.host, batches[0].clone(), invocation.time_left);
                let handler = service_fn(move |WithRun { input, run, .. }: WithRun<KinesisRecord<Value>>| {
                    let number = input.sequence_number().unwrap().to_owned();
                    invoked.check_stop(&number);
                    Arc::clone(&invoked).handle(number, input.body, run)
                });
                // Lambda delivers the whole batch of a failed invocation again.
                let all =
                    || again(batches[0].records.iter().take(1).map(|record| record.kinesis.sequence_number.clone()));
                vec![consumer.layer(handler).call(event).await.unwrap_or_else(|_| all())]
            }
            Consumer::Kafka(consumer) => {
                let partitions = deliveries.iter().map(|delivery| delivery.line).zip(&batches);
                let event = invocation_with(&self.host, kafka_event(partitions), invocation.time_left);
                let handler = service_fn(move |WithRun { input, run, .. }: WithRun<KafkaRecord<Value>>| {
                    let number = input.offset.to_string();
                    invoked.check_stop(&number);
                    Arc::clone(&invoked).handle(number, input.body, run)
                });
                let Ok(answer) = consumer.layer(handler).call(event).await else {
                    let first = |batch: &KinesisEvent| {
                        batch.records.first().map(|record| record.kinesis.sequence_number.clone())
                    };
                    return batches.iter().map(|batch| again(first(batch).into_iter())).collect();
                };
                let named: Vec<_> = answer.batch_item_failures.iter().map(|failure| &failure.item_identifier).collect();
                let of = |delivery: &Delivery| {
                    let partition = format!("payments-{}", delivery.line);
                    let named = named.iter().filter(|named| named.partition == partition);
                    again(named.map(|named| named.offset.to_string()))
                };
                let answers: Vec<_> = deliveries.iter().map(of).collect();
                if answers.iter().map(|answer| answer.batch_item_failures.len()).sum::<usize>() != named.len() {
                    scene.ledger.violated(format!("{} names a partition that is not of its batch", invocation.name));
                }
                answers
            }
        };
        for (batch, answer) in batches.iter().zip(&mut answers) {
            (mutation.records_answer)(batch, answer);
        }
        sleep(mutation.answer_delay).await;
        answers
    }
}

/// The answer with the numbers of records that are not done.
fn again(numbers: impl Iterator<Item = String>) -> KinesisEventResponse {
    let mut answer = KinesisEventResponse::default();
    answer.set_failures(numbers);
    answer
}

impl Invocation {
    /// Checks that no call of this invocation has failed, if the consumer stops at its first failure. With one lane at
    /// a time, all earlier calls have ended.
    fn check_stop(&self, number: &str) {
        let Scene { ledger, own: Own { concurrency, stops_at_first_failure, .. }, .. } = &*self.scene;
        let has_failed = self.calls.lock().unwrap().iter().any(|(_, call)| !call.is_answered());
        if *stops_at_first_failure && *concurrency == 1 && has_failed {
            ledger.violated(format!("{number} was begun after a failure: {}", self.name));
        }
    }

    /// Lambda received the answer. Returns how many records at the start of the batch are done, or `None` if the batch
    /// failed as a whole.
    fn answered(&self, delivery: &Delivery, answer: &KinesisEventResponse) -> Option<usize> {
        let Scene { ledger, own: Own { key, of, shard, .. }, .. } = &*self.scene;
        let named: Vec<_> =
            answer.batch_item_failures.iter().map(|failure| failure.item_identifier.as_deref().unwrap()).collect();
        ledger.note(&format!("{} names {named:?}", self.name));
        if named.len() > 1 {
            ledger.violated(format!("{} names several records", self.name));
        }
        let records: Vec<_> = delivery.records.iter().map(|index| &shard.records[*index]).collect();
        let settled = match named.first() {
            None => Some(records.len()),
            // Lambda takes a number that is not of the batch as the failure of all records.
            Some(named) => records.iter().position(|record| record.number == *named),
        };
        let done = settled.unwrap_or_default();
        let calls = self.calls.lock().unwrap();
        let is_in_time = self.is_in_time();
        let all_start = self.had_time() && !self.scene.stops_at_first_failure;
        for (position, record) in records.iter().enumerate().take(done + 1) {
            let row = key.of(*of, record);
            // Each twin has its own outcome.
            let own = calls.iter().find(|(number, _)| *number == record.number);
            let was_run = own.map(|(_, call)| call.is_answered());
            let what = match (position < done, was_run) {
                (true, Some(false)) => "passed but failed",
                (true, None) if !ledger.is_done(&row) => "passed but was not done",
                (false, Some(true)) if is_in_time => "reported but is done",
                (false, None) if self.is_good && all_start && ledger.was_completed(&row, self.began) => {
                    "reported but was done before"
                }
                _ => "",
            };
            if !what.is_empty() {
                ledger.violated(format!("{} was {what}: {}", record.number, self.name));
            }
            self.scene.count(|counts| {
                counts.reported += usize::from(position == done);
                counts.done_before += usize::from(position < done && was_run.is_none());
            });
        }
        self.scene.count(|counts| counts.batches += 1);
        settled
    }
}
