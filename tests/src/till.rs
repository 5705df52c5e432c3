//! A handler of payments, for the tests of consumers.

use std::future::pending;
use std::sync::{Arc, Mutex};

use lambda_lock::kafka::KafkaRecord;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::streams::KinesisRecord;
use lambda_runtime::Diagnostic;
use serde::Deserialize;
use tokio::task::yield_now;

/// The body of a message, or the data of a record.
#[derive(Clone, Debug, Deserialize)]
pub struct Payment {
    /// The key.
    pub id: String,
    /// The amount, for tests of payloads.
    #[serde(default)]
    pub amount: u32,
    /// The behaviour of the handler.
    #[serde(default)]
    pub then: Then,
}

/// What the handler of a payment does.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub enum Then {
    /// It succeeds.
    #[default]
    Done,
    /// It succeeds without an await point, as if it blocked its thread.
    Blocked,
    /// It fails.
    Declined,
    /// It panics.
    Panic,
    /// It does not end.
    Endless,
}

/// The handler's error.
#[derive(Debug)]
pub struct Declined;

impl From<Declined> for Diagnostic {
    fn from(_: Declined) -> Self {
        Self { error_type: "Declined".to_owned(), error_message: "by the bank".to_owned() }
    }
}

/// A message or a record with a payment.
pub trait Paid {
    /// The message id, the sequence number, or the offset.
    fn name(&self) -> String;
    /// The payment.
    fn payment(&self) -> &Payment;
}

impl Paid for SqsMessage<Payment> {
    fn name(&self) -> String {
        self.message_id().unwrap().to_owned()
    }

    fn payment(&self) -> &Payment {
        &self.body
    }
}

impl Paid for KafkaRecord<Payment> {
    fn name(&self) -> String {
        self.offset.to_string()
    }

    fn payment(&self) -> &Payment {
        &self.body
    }
}

impl Paid for KinesisRecord<Payment> {
    fn name(&self) -> String {
        self.sequence_number().unwrap().to_owned()
    }

    fn payment(&self) -> &Payment {
        &self.body
    }
}

/// A handler that does what the payment says, and keeps the names of its messages or records.
#[derive(Clone, Debug, Default)]
pub struct Till(Arc<Mutex<Vec<String>>>);

impl Till {
    /// The names, in the order in which the handler ran.
    #[must_use]
    pub fn ran(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// The names in sorted order, for what runs at the same time.
    #[must_use]
    pub fn ran_in_any_order(&self) -> Vec<String> {
        let mut ran = self.ran();
        ran.sort();
        ran
    }

    /// The handler.
    pub async fn pay(self, item: impl Paid) -> Result<(), Declined> {
        self.0.lock().unwrap().push(item.name());
        let then = item.payment().then;
        if then != Then::Blocked {
            yield_now().await;
        }
        match then {
            Then::Done | Then::Blocked => Ok(()),
            Then::Declined => Err(Declined),
            Then::Panic => panic!("in the handler"),
            Then::Endless => pending().await,
        }
    }
}
