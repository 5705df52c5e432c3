//! The order of a batch: which messages run one after another, and which run once for several records.

use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use aws_lambda_events::sqs::SqsMessage;

use super::consumer::Settings;
use super::message::Message;
use crate::idempotency::{Identity, Invocation};

/// Messages that run one after another: a single message, or a group of a FIFO queue.
pub(super) struct Sequence<B> {
    pub(super) entries: Vec<Entry<B>>,
    /// Whether the messages after a failed one return to the queue.
    pub(super) is_ordered: bool,
}

/// A message that runs once, and its copies in the batch.
pub(super) struct Entry<B> {
    /// The positions in the batch of the message and of its copies.
    pub(super) positions: Vec<usize>,
    /// `None` if the message cannot be read, which has been logged.
    pub(super) message: Option<(Message<B>, Option<Identity>)>,
    pub(super) copies: Vec<SqsMessage>,
}

impl<B, T, E> Settings<B, T, E> {
    /// Sorts the records of a batch into sequences.
    pub(super) fn sequences(&self, records: Vec<SqsMessage>, invocation: &Invocation) -> Vec<Sequence<B>> {
        let mut sequences: Vec<Sequence<B>> = Vec::new();
        let mut sequence_of_group: HashMap<_, usize> = HashMap::new();
        // Per group: a copy in another group is a separate message, and its outcome affects the order there.
        let mut firsts: HashMap<_, (usize, usize)> = HashMap::new();
        for (position, record) in records.into_iter().enumerate() {
            let is_ordered =
                record.event_source_arn.as_deref().is_some_and(|queue| queue.strip_suffix(".fifo").is_some());
            let group = is_ordered.then(|| {
                (record.event_source_arn.clone(), record.attributes.get("MessageGroupId").cloned().unwrap_or_default())
            });
            let message = self.read(record, invocation);
            let identity = message.as_ref().and_then(|(_, identity)| identity.clone());
            let id = identity.map(|identity| (group.clone(), identity));
            if let Some(&(sequence, entry)) = id.as_ref().and_then(|id| firsts.get(id)) {
                let first = &mut sequences[sequence].entries[entry];
                first.positions.push(position);
                first.copies.extend(message.map(|(Message { body, record }, _)| {
                    // The drop of a body may panic.
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(body)));
                    record
                }));
                continue;
            }
            let next = sequences.len();
            let sequence = group.map_or(next, |group| *sequence_of_group.entry(group).or_insert(next));
            if sequence == next {
                sequences.push(Sequence { entries: Vec::new(), is_ordered });
            }
            let entries = &mut sequences[sequence].entries;
            if let Some(id) = id {
                firsts.insert(id, (sequence, entries.len()));
            }
            entries.push(Entry { positions: vec![position], message, copies: Vec::new() });
        }
        sequences
    }

    /// Returns the message with its parsed body, and its record.
    fn read(&self, mut record: SqsMessage, invocation: &Invocation) -> Option<(Message<B>, Option<Identity>)> {
        let id = record.message_id.clone();
        let failed =
            |why: &dyn Display| tracing::error!(message_id = id, error = %why, "message returned to the queue");
        if id.is_none() {
            failed(&"it has no message id");
            return None;
        }
        let text = record.body.take().unwrap_or_default();
        let read = AssertUnwindSafe(|| {
            let body = (self.parse)(&text).map_err(|why| format!("the body cannot be parsed: {why}"))?;
            let message = Message { body, record };
            let identity = self.idempotency.identify(&message, invocation).map_err(|error| error.to_string())?;
            Ok::<_, String>((message, identity))
        });
        match catch_unwind(read) {
            Ok(Ok(message)) => Some(message),
            Ok(Err(why)) => {
                failed(&why);
                None
            }
            Err(_) => {
                failed(&"parsing the body or finding the key panicked");
                None
            }
        }
    }
}
