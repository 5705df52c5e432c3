//! `KafkaEventResponse`: what Lambda expects of a consumer of Kafka.

use std::collections::BTreeMap;

use serde::Serialize;

/// The answer to a batch of Kafka: from where each partition is delivered again.
///
/// ```
/// let answer = lambda_lock::kafka::KafkaEventResponse::default();
/// assert_eq!(serde_json::to_string(&answer)?, r#"{"batchItemFailures":[]}"#);
/// # Ok::<_, serde_json::Error>(())
/// ```
///
/// `aws_lambda_events` 1.2 has no such type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct KafkaEventResponse {
    /// The first record of each partition that is not done. Without one, the batch is done.
    pub batch_item_failures: Vec<KafkaBatchItemFailure>,
}

/// The first record of a partition that is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct KafkaBatchItemFailure {
    /// Which record it is.
    pub item_identifier: KafkaItemIdentifier,
}

/// Which record is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KafkaItemIdentifier {
    /// The topic and the partition as the event has them, such as `payments-0`.
    pub partition: String,
    /// The offset in the partition.
    pub offset: i64,
}

impl KafkaEventResponse {
    /// Names a record that is not done, for an answer of your own.
    pub fn add_failure(&mut self, partition: impl Into<String>, offset: i64) {
        let item_identifier = KafkaItemIdentifier { partition: partition.into(), offset };
        self.batch_item_failures.push(KafkaBatchItemFailure { item_identifier });
    }

    /// Names the lowest of these offsets in each partition.
    pub(super) fn from_lowest(not_done: impl Iterator<Item = KafkaItemIdentifier>) -> Self {
        let mut lowest: BTreeMap<String, i64> = BTreeMap::new();
        for KafkaItemIdentifier { partition, offset } in not_done {
            let lowest = lowest.entry(partition).or_insert(offset);
            *lowest = offset.min(*lowest);
        }
        let mut answer = Self::default();
        for (partition, offset) in lowest {
            answer.add_failure(partition, offset);
        }
        answer
    }
}

impl KafkaItemIdentifier {
    /// Returns the record of this name, as it is written by [`name`](Self::name).
    pub(super) fn of_name(name: &str) -> Self {
        let (partition, offset) = name.rsplit_once(':').unwrap_or_default();
        Self { partition: partition.to_owned(), offset: offset.parse().unwrap_or_default() }
    }

    /// Returns the name of a record in the log.
    pub(super) fn name(partition: &str, offset: i64) -> String {
        format!("{partition}:{offset}")
    }
}
