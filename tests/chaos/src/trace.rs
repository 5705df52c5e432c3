//! What clients and the table said to each other, for a checker that is not ours.
//!
//! The proxy sees each request at the time at which it goes to the table, and each answer at the time at which it comes: also the
//! answers that it loses, and those for a process that was killed. So no answer is unknown, and the time between the two is shorter
//! than that which a client sees.

use std::sync::{Mutex, PoisonError};

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::Value;

use crate::judge::Seen;

/// Events in their order.
#[derive(Debug, Default)]
pub(crate) struct Trace(Mutex<Vec<Passed>>);

/// Read after the round, so that the round is no slower.
#[derive(Debug)]
pub(crate) enum Passed {
    Sent { operation: String, body: Bytes },
    Answered { number: usize, status: u16, body: Bytes },
}

impl Trace {
    /// Returns the number of the request.
    pub(crate) fn sent(&self, operation: &str, body: &Bytes) -> usize {
        self.add(Passed::Sent { operation: operation.to_owned(), body: body.clone() })
    }

    pub(crate) fn answered(&self, number: usize, status: StatusCode, body: &Bytes) {
        self.add(Passed::Answered { number, status: status.as_u16(), body: body.clone() });
    }

    fn add(&self, passed: Passed) -> usize {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(passed);
        all.len() - 1
    }

    pub(crate) fn take(&self) -> Vec<Passed> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The events as the judge takes them.
pub(crate) fn seen(passed: Vec<Passed>) -> Vec<Seen> {
    let json = |body: &Bytes| -> Value { serde_json::from_slice(body).unwrap_or_default() };
    let mut unanswered = vec![true; passed.len()];
    let mut seen: Vec<_> = passed
        .into_iter()
        .map(|passed| match passed {
            Passed::Sent { operation, body } => Seen::Sent { operation, request: json(&body) },
            Passed::Answered { number, status, body } => {
                unanswered[number] = status >= 500;
                Seen::Answered { number, status, body: json(&body) }
            }
        })
        .collect();
    // The connection to the table broke, or the table has failed. Whether and when it has applied the request is not known.
    for number in 0..seen.len() {
        if let Seen::Sent { request, .. } = &seen[number]
            && unanswered[number]
        {
            let request = request.clone();
            seen.push(Seen::Arrived { request, status: 0 });
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_an_answer_of_the_rows_may_be_applied_until_the_end() {
        let (trace, body) = (Trace::default(), |text: &'static str| Bytes::from_static(text.as_bytes()));
        let numbers = [r#"{"of":1}"#, r#"{"of":2}"#, r#"{"of":3}"#].map(|text| trace.sent("UpdateItem", &body(text)));
        trace.answered(numbers[1], StatusCode::OK, &body("{}"));
        trace.answered(numbers[2], StatusCode::INTERNAL_SERVER_ERROR, &body("{}"));
        let arrived = seen(trace.take()).into_iter().enumerate().filter_map(|(position, event)| match event {
            Seen::Arrived { request, .. } => Some((position, request["of"].as_u64())),
            _ => None,
        });
        assert_eq!(arrived.collect::<Vec<_>>(), [(5, Some(1)), (6, Some(3))]);
    }
}
