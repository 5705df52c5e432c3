use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};

use crate::guarantee::ONCE;
use crate::history::Mutation;
use crate::idempotency_history::mutations::{completed_is_in_progress, in_progress_replays};
use crate::request::mistakes::{acquire_ignores_end, acquire_ignores_window};

/// Deliberate mistakes of a consumer, which the histories must catch.
pub const MUTATIONS: [Mutation; 9] = [
    Mutation {
        name: "acquire ignores the lease's end",
        breaks: "(ii)",
        request: acquire_ignores_end,
        ..Mutation::NONE
    },
    Mutation {
        name: "a message that is done is free",
        breaks: ONCE,
        is_common: true,
        request: acquire_ignores_window,
        ..Mutation::NONE
    },
    Mutation {
        name: "in progress is reported as done",
        breaks: "done but",
        is_common: true,
        answer: in_progress_replays,
        ..Mutation::NONE
    },
    Mutation {
        name: "a failed message is not reported",
        breaks: "failed but",
        batch_answer: forget_failure,
        ..Mutation::NONE
    },
    Mutation {
        name: "a message that is done is reported",
        breaks: "reported but is done",
        batch_answer: report_all,
        ..Mutation::NONE
    },
    Mutation {
        name: "a message that was done before is in progress",
        breaks: "reported but was done before",
        is_common: true,
        answer: completed_is_in_progress,
        ..Mutation::NONE
    },
    Mutation { name: "a group goes on after a failure", breaks: "out of order", batch: forget_order, ..Mutation::NONE },
    Mutation {
        name: "nothing is reported",
        breaks: "is lost",
        is_common: true,
        batch_answer: forget_failures,
        ..Mutation::NONE
    },
    Mutation {
        name: "the answer is late",
        breaks: "did not answer before its deadline",
        // The time from the end of the leases to the deadline. No message of these histories waits for another run, so the
        // consumer answers at the latest when it has cancelled its handlers.
        answer_delay: Duration::from_secs(1),
        ..Mutation::NONE
    },
];

fn forget_failure(_: &SqsEvent, answer: &mut SqsBatchResponse) {
    answer.batch_item_failures.pop();
}

fn report_all(batch: &SqsEvent, answer: &mut SqsBatchResponse) {
    if !answer.batch_item_failures.is_empty() {
        answer.batch_item_failures.clear();
        for message in &batch.records {
            answer.add_failure(message.message_id.clone().unwrap());
        }
    }
}

fn forget_order(batch: &mut SqsEvent) {
    for message in &mut batch.records {
        message.event_source_arn = message.event_source_arn.take().map(|arn| arn.replace(".fifo", ""));
    }
}

fn forget_failures(_: &SqsEvent, answer: &mut SqsBatchResponse) {
    answer.batch_item_failures.clear();
}
