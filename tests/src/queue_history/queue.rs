use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsMessage};
use fastrand::Rng;

pub(super) const STANDARD_QUEUE: &str = "arn:aws:sqs:us-east-1:123456789012:payments";
pub(super) const FIFO_QUEUE: &str = "arn:aws:sqs:us-east-1:123456789012:payments.fifo";

/// A queue as SQS keeps it, with a dead-letter queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) is_fifo: bool,
    visibility_timeout: Duration,
    most_receives: u32,
    /// A message that is reported comes back at once, not when its visibility timeout is over.
    returns_at_once: bool,
    messages: Mutex<Vec<Stored>>,
}

/// A message of the queue.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) id: String,
    /// Equal in messages with the same work.
    pub(super) job: String,
    /// The ARN.
    pub(super) queue: &'static str,
    pub(super) group: String,
    pub(super) body: String,
    pub(super) place: Place,
    receives: u32,
    hidden_until: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Queue,
    Deleted,
    DeadLetterQueue,
}

impl Stored {
    pub(super) fn new(id: String, job: String, queue: &'static str, group: String, body: String) -> Self {
        Self { id, job, queue, group, body, place: Place::Queue, receives: 0, hidden_until: None }
    }

    fn is_in_flight(&self, now: SystemTime) -> bool {
        self.place == Place::Queue && self.hidden_until.is_some_and(|until| now < until)
    }

    fn delivery(&self, is_fifo: bool) -> SqsMessage {
        let mut message = SqsMessage::default();
        message.message_id = Some(self.id.clone());
        message.receipt_handle = Some(format!("{}/{}", self.id, self.receives));
        message.body = Some(self.body.clone());
        message.event_source_arn = Some(self.queue.to_owned());
        message.attributes.insert("ApproximateReceiveCount".to_owned(), self.receives.to_string());
        if is_fifo {
            message.attributes.insert("MessageGroupId".to_owned(), self.group.clone());
            message.attributes.insert("MessageDeduplicationId".to_owned(), self.job.clone());
        }
        message
    }
}

/// The messages of one receive.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) messages: Vec<SqsMessage>,
    pub(super) redelivered: usize,
    /// The ids of the messages that were moved to the dead-letter queue instead.
    pub(super) dead: Vec<String>,
}

impl Queue {
    pub(super) fn draw(random: &mut Rng, is_fifo: bool, messages: Vec<Stored>) -> Self {
        Self {
            is_fifo,
            visibility_timeout: Duration::from_millis(random.u64(500..8000)),
            most_receives: random.u32(3..=8),
            returns_at_once: random.bool(),
            messages: Mutex::new(messages),
        }
    }

    pub(super) fn messages(&self) -> Vec<Stored> {
        self.messages.lock().unwrap().clone()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.messages().iter().all(|message| message.place != Place::Queue)
    }

    /// Receives up to `most` messages. A FIFO queue delivers a group in order, and none of a group with a message in
    /// flight. A standard queue delivers in any order, and occasionally a message in flight or a message twice.
    pub(super) fn receive(&self, now: SystemTime, most: usize, random: &mut Rng) -> Received {
        let mut stored = self.messages.lock().unwrap();
        let mut received = Received::default();
        let mut order: Vec<_> = (0..stored.len()).collect();
        if self.is_fifo {
            // Groups in any order, and the messages of a group in theirs.
            let mut rank = HashMap::new();
            for message in stored.iter() {
                rank.entry(message.group.clone()).or_insert_with(|| random.u64(..));
            }
            order.sort_by_key(|index| rank[&stored[*index].group]);
        } else {
            random.shuffle(&mut order);
        }
        let blocked: HashSet<_> =
            stored.iter().filter(|message| message.is_in_flight(now)).map(|message| message.group.clone()).collect();
        for index in order {
            let message = &mut stored[index];
            let repeats = !self.is_fifo && random.u8(0..10) == 0;
            let is_blocked = self.is_fifo && blocked.contains(&message.group);
            if message.place != Place::Queue || is_blocked || (message.is_in_flight(now) && !repeats) {
                continue;
            }
            for _ in 0..if repeats { 2 } else { 1 } {
                if received.messages.len() == most {
                    return received;
                }
                if message.receives == self.most_receives {
                    message.place = Place::DeadLetterQueue;
                    received.dead.push(message.id.clone());
                    break;
                }
                message.receives += 1;
                message.hidden_until = Some(now + self.visibility_timeout);
                received.redelivered += usize::from(message.receives > 1);
                received.messages.push(message.delivery(self.is_fifo));
            }
        }
        received
    }

    /// Applies the answer to a batch as Lambda does: deletes the messages that are not reported.
    pub(super) fn settle(&self, now: SystemTime, batch: &[SqsMessage], answer: &SqsBatchResponse) {
        let failed: HashSet<_> = answer.batch_item_failures.iter().map(|failure| &failure.item_identifier).collect();
        let mut stored = self.messages.lock().unwrap();
        let known = |id: &&&String| batch.iter().any(|message| message.message_id.as_ref() == Some(**id));
        if !failed.iter().all(|id| known(&id)) {
            // Lambda treats it as the failure of all messages.
            return;
        }
        for message in batch {
            let id = message.message_id.as_ref().unwrap();
            let place = stored.iter_mut().find(|stored| stored.id == *id && stored.place == Place::Queue);
            let Some(stored) = place else { continue };
            let is_latest = message.receipt_handle == stored.delivery(self.is_fifo).receipt_handle;
            if failed.contains(id) {
                if self.returns_at_once && is_latest {
                    stored.hidden_until = None;
                }
            } else if !self.is_fifo || (is_latest && stored.is_in_flight(now)) {
                stored.place = Place::Deleted;
            }
        }
    }
}
