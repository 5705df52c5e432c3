use std::time::Duration;

use aws_lambda_events::kinesis::KinesisEvent;
use aws_lambda_events::streams::KinesisEventResponse;

use crate::guarantee::ONCE;
use crate::history::Mutation;
use crate::idempotency_history::mutations::{completed_is_in_progress, in_progress_replays};
use crate::request::mistakes::{acquire_ignores_end, acquire_ignores_window};

/// Deliberate mistakes of a consumer of streams, which the histories must catch.
pub const MUTATIONS: [Mutation; 12] = [
    Mutation {
        name: "acquire ignores the lease's end",
        breaks: "(ii)",
        request: acquire_ignores_end,
        ..Mutation::NONE
    },
    Mutation {
        name: "a record that is done is free",
        breaks: ONCE,
        is_common: true,
        request: acquire_ignores_window,
        ..Mutation::NONE
    },
    Mutation {
        name: "in progress counts as done",
        breaks: "passed but was not done",
        answer: in_progress_replays,
        ..Mutation::NONE
    },
    Mutation {
        name: "a record that was done before is in progress",
        breaks: "reported but was done before",
        answer: completed_is_in_progress,
        ..Mutation::NONE
    },
    Mutation {
        name: "lanes are ignored",
        breaks: "out of order",
        is_common: true,
        records: ignore_lanes,
        ..Mutation::NONE
    },
    Mutation {
        name: "a lane goes on after a failure",
        breaks: "out of order",
        records: forget_failures_of_first_half,
        ..Mutation::NONE
    },
    Mutation {
        name: "the answer names the highest number",
        breaks: "passed but failed",
        is_common: true,
        records_answer: name_last,
        ..Mutation::NONE
    },
    Mutation {
        name: "the answer names the record behind the failed one",
        breaks: "passed but",
        records_answer: name_next,
        ..Mutation::NONE
    },
    Mutation {
        name: "the answer names the first record of the batch",
        breaks: "reported but is done",
        records_answer: name_first,
        ..Mutation::NONE
    },
    Mutation {
        name: "the batch goes on after its first failure",
        breaks: "begun after a failure",
        first_seed: 43,
        ignores_stop: true,
        ..Mutation::NONE
    },
    Mutation {
        name: "nothing is named",
        breaks: "is lost",
        is_common: true,
        records_answer: name_nothing,
        ..Mutation::NONE
    },
    Mutation {
        name: "the answer is late",
        breaks: "did not answer before its deadline",
        first_seed: 1151,
        // One and a half times the reserve of the consumer: only an answer at the last moment is too late.
        answer_delay: Duration::from_millis(150),
        ..Mutation::NONE
    },
];

/// Each record is in its own lane.
fn ignore_lanes(batch: &mut KinesisEvent) {
    for record in &mut batch.records {
        record.kinesis.partition_key.clone_from(&record.kinesis.sequence_number);
    }
}

/// The second half of each batch does not know of failures in the first.
fn forget_failures_of_first_half(batch: &mut KinesisEvent) {
    let half = batch.records.len() / 2;
    for record in &mut batch.records[half..] {
        record.kinesis.partition_key.push_str(", second half");
    }
}

/// Replaces the number that the answer names by another one of the batch, by its position.
fn rename(batch: &KinesisEvent, answer: &mut KinesisEventResponse, rename: impl Fn(usize) -> usize) {
    let named = answer.batch_item_failures.first().and_then(|failure| failure.item_identifier.clone());
    let number = |record: &aws_lambda_events::kinesis::KinesisEventRecord| record.kinesis.sequence_number.clone();
    if let Some(position) = batch.records.iter().position(|record| Some(number(record)) == named) {
        answer.set_failures(batch.records.get(rename(position)).map(number));
    }
}

fn name_last(batch: &KinesisEvent, answer: &mut KinesisEventResponse) {
    rename(batch, answer, |_| batch.records.len() - 1);
}

fn name_next(batch: &KinesisEvent, answer: &mut KinesisEventResponse) {
    rename(batch, answer, |position| position + 1);
}

fn name_first(batch: &KinesisEvent, answer: &mut KinesisEventResponse) {
    rename(batch, answer, |_| 0);
}

fn name_nothing(_: &KinesisEvent, answer: &mut KinesisEventResponse) {
    answer.batch_item_failures.clear();
}
