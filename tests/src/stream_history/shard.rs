use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fastrand::Rng;
use lambda_lock::kafka::KafkaEvent;
use serde_json::{Map, Value, json};

pub(super) const STREAM: &str = "arn:aws:kinesis:us-east-1:123456789012:stream/payments";
const SHARD: &str = "shardId-000000000001";

pub(super) const CLUSTER: &str = "arn:aws:kafka:us-east-1:123456789012:cluster/payments/1";

/// The records of these partitions as Kafka has them.
pub(super) fn kafka_event<'a>(partitions: impl Iterator<Item = (usize, &'a KinesisEvent)>) -> KafkaEvent {
    let records = partitions.map(|(partition, batch)| {
        let records = batch.records.iter().map(|KinesisEventRecord { kinesis, .. }| {
            let offset: u64 = kinesis.sequence_number.parse().unwrap();
            let (key, value) = (STANDARD.encode(&kinesis.partition_key), STANDARD.encode(&kinesis.data.0));
            json!({ "topic": "payments", "partition": partition, "offset": offset, "key": key, "value": value })
        });
        (format!("payments-{partition}"), records.collect::<Value>())
    });
    let records: Map<_, _> = records.collect();
    serde_json::from_value(json!({ "eventSourceArn": CLUSTER, "records": records })).unwrap()
}

/// A shard, and the event source mapping that delivers its records. It has a checkpoint for each of its concurrent
/// batches: `ParallelizationFactor` of them, among which the partition keys are distributed.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) records: Vec<Stored>,
    most_in_batch: usize,
    /// `BisectBatchOnFunctionError`.
    bisects: bool,
    /// `MaximumRetryAttempts`, and one.
    most_attempts: u32,
    /// Whether the rest of a batch has all attempts again. AWS does not document it.
    progress_resets_attempts: bool,
    lines: Mutex<Vec<Line>>,
}

/// A record of the shard.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) number: String,
    /// Equal in records with the same work.
    pub(super) job: String,
    pub(super) partition_key: String,
    pub(super) data: String,
    /// The part of the shard that it is in.
    pub(super) line: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Place {
    /// Lambda will deliver it, possibly again.
    #[default]
    Ahead,
    /// The checkpoint is behind it.
    Passed,
    /// Lambda gave it up, and sent its number to the destination for failures.
    Discarded,
}

/// The records of some partition keys, which Lambda delivers one batch at a time.
#[derive(Debug, Default)]
struct Line {
    /// Indices in the shard, in order.
    records: Vec<usize>,
    places: Vec<Place>,
    deliveries: Vec<u32>,
    /// The current batch, and those behind it if it is a part of a bisected one. Last is next.
    batches: Vec<Range<usize>>,
    /// The first record that no batch has had.
    next: usize,
    /// How often the current batch failed.
    failures: u32,
}

/// A delivery of a batch.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) line: usize,
    /// Positions in the line.
    range: Range<usize>,
    /// Indices in the shard.
    pub(super) records: Vec<usize>,
    pub(super) redelivered: usize,
}

/// What a delivery had as effect on the mapping.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) bisected: bool,
    /// Indices in the shard.
    pub(super) discarded: Vec<usize>,
}

impl Shard {
    pub(super) fn draw(random: &mut Rng, mut records: Vec<Stored>) -> Self {
        let mut lines: Vec<_> = (0..random.usize(1..=3)).map(|_| Line::default()).collect();
        let count = lines.len();
        for (index, record) in records.iter_mut().enumerate() {
            let hash = record.partition_key.bytes().map(usize::from).sum::<usize>();
            record.line = hash % count;
            lines[record.line].records.push(index);
        }
        for line in &mut lines {
            line.places = vec![Place::Ahead; line.records.len()];
            line.deliveries = vec![0; line.records.len()];
        }
        Self {
            records,
            most_in_batch: random.usize(1..=10),
            bisects: random.bool(),
            most_attempts: random.u32(3..=6),
            progress_resets_attempts: random.bool(),
            lines: Mutex::new(lines),
        }
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap()
    }

    /// How many batches are under way at a time.
    pub(super) fn parallelization(&self) -> usize {
        self.lines().len()
    }

    pub(super) fn place(&self, index: usize) -> Place {
        let lines = self.lines();
        let line = lines.iter().find_map(|line| {
            let position = line.records.iter().position(|record| *record == index)?;
            Some(line.places[position])
        });
        line.unwrap()
    }

    /// Returns the current batch of a line, or `None` if the line is at its end.
    pub(super) fn deliver(&self, line: usize) -> Option<Delivery> {
        let number = line;
        let line = &mut self.lines()[number];
        if line.batches.is_empty() {
            let end = line.records.len().min(line.next + self.most_in_batch);
            if line.next == end {
                return None;
            }
            line.batches.push(line.next..end);
            line.next = end;
        }
        let range = line.batches.last().unwrap().clone();
        let redelivered = line.deliveries[range.clone()].iter().filter(|deliveries| **deliveries > 0).count();
        line.deliveries[range.clone()].iter_mut().for_each(|deliveries| *deliveries += 1);
        Some(Delivery { line: number, records: line.records[range.clone()].to_vec(), range, redelivered })
    }

    /// Applies an answer as Lambda does: the position in the batch of the first record that is not done, the length of
    /// the batch if all are done, or `None` if the batch failed as a whole.
    pub(super) fn settle(&self, delivery: &Delivery, done: Option<usize>) -> Settled {
        let mut settled = Settled::default();
        let line = &mut self.lines()[delivery.line];
        if line.batches.last() != Some(&delivery.range) {
            // Another invocation had the same batch, and its answer came first.
            return settled;
        }
        let Range { start, end } = delivery.range;
        let checkpoint = start + done.unwrap_or_default();
        line.places[start..checkpoint].fill(Place::Passed);
        line.batches.pop();
        if checkpoint == end {
            line.failures = 0;
        } else if done.is_none() && self.bisects && end - start > 1 {
            let middle = usize::midpoint(start, end);
            line.batches.extend([middle..end, start..middle]);
            settled.bisected = true;
        } else {
            let has_progress = checkpoint > start;
            line.failures = if has_progress && self.progress_resets_attempts { 0 } else { line.failures + 1 };
            if line.failures < self.most_attempts {
                // An answer splits the batch at the number that it names, whether or not the mapping bisects.
                line.batches.push(checkpoint..end);
            } else {
                line.failures = 0;
                line.places[checkpoint..end].fill(Place::Discarded);
                settled.discarded = line.records[checkpoint..end].to_vec();
            }
        }
        settled
    }
}

impl Stored {
    /// The key of its row by its event id.
    pub(super) fn event_id(&self) -> String {
        format!("{STREAM}#{SHARD}:{}", self.number)
    }

    /// The key of its row by its offset.
    pub(super) fn offset_id(&self) -> String {
        format!("{CLUSTER}#payments#{}#{}#0", self.line, self.number)
    }

    pub(super) fn delivery(&self) -> KinesisEventRecord {
        let mut record = KinesisEventRecord::default();
        record.event_id = Some(format!("{SHARD}:{}", self.number));
        record.event_source_arn = Some(STREAM.to_owned());
        record.kinesis.sequence_number.clone_from(&self.number);
        record.kinesis.partition_key.clone_from(&self.partition_key);
        record.kinesis.data.0 = self.data.clone().into_bytes();
        record
    }
}
