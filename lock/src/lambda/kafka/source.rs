//! `KafkaSource`: how a batch of a topic's records is read and answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::super::batch::{Label, NotDone, Source, json_error, log_not_done};
use super::answer::{KafkaEventResponse, KafkaItemIdentifier};
use super::event::{Encoded, KafkaEvent};
use super::record::KafkaRecord;

/// The topics that a [`KafkaConsumer`](crate::kafka::KafkaConsumer) gets records from.
pub struct KafkaSource<B> {
    parse: Parse<B>,
}

type Parse<B> = Arc<dyn Fn(Option<Vec<u8>>) -> Result<B, String> + Send + Sync>;

impl<B> KafkaSource<B> {
    pub(super) fn new(parse: impl Fn(Option<Vec<u8>>) -> Result<B, String> + Send + Sync + 'static) -> Self {
        Self { parse: Arc::new(parse) }
    }
}

/// Values are JSON. A tombstone is `null`.
impl<B: DeserializeOwned> Default for KafkaSource<B> {
    fn default() -> Self {
        Self::new(|value| {
            let json = value.as_deref().unwrap_or(b"null");
            serde_json::from_slice(json).map_err(|error| json_error(&error))
        })
    }
}

/// A record, with what the event says about its batch.
pub struct Delivered {
    cluster: Arc<str>,
    /// The topic and the partition, as the answer has them.
    partition: Arc<str>,
    record: Encoded,
}

impl fmt::Debug for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Delivered").field(&KafkaItemIdentifier::name(&self.partition, self.record.offset)).finish()
    }
}

impl<B> Source for KafkaSource<B> {
    type Event = KafkaEvent;
    type Answer = KafkaEventResponse;
    type Item = KafkaRecord<B>;
    type Raw = Delivered;
    /// The partition, and the key.
    type Lane = (Arc<str>, Option<String>);

    /// The default retention of a topic, a week, and a day.
    const WINDOW: Duration = Duration::from_hours(8 * 24);
    /// A crash has probably left such a record, and its lane waits for it anyway.
    const WAIT: Duration = Duration::MAX;
    const NAME: &'static str = "offset";
    const UNFINISHED: &'static str = "unfinished records are not done";

    log_not_done!(offset, cluster, "record not done");

    fn batch(&self, event: KafkaEvent) -> Result<Vec<Delivered>, &'static str> {
        let arn = event.event_source_arn.filter(|arn| !arn.is_empty());
        let cluster: Arc<str> = arn.unwrap_or_else(|| sorted(event.bootstrap_servers.as_deref())).into();
        let records = event.records.into_iter().flat_map(|(partition, records)| {
            let (cluster, partition) = (Arc::clone(&cluster), Arc::<str>::from(partition));
            let delivered = move |record| Delivered { cluster: cluster.clone(), partition: partition.clone(), record };
            records.into_iter().map(delivered)
        });
        Ok(records.collect())
    }

    fn name(Delivered { partition, record, .. }: &Delivered) -> Option<String> {
        Some(KafkaItemIdentifier::name(partition, record.offset))
    }

    fn source(Delivered { cluster, record, .. }: &Delivered) -> Option<String> {
        Some(format!("{cluster}#{}", record.topic.as_deref()?))
    }

    fn origin(raw: &Delivered) -> Option<String> {
        Some(raw.cluster.to_string())
    }

    fn lane(Delivered { partition, record, .. }: &Delivered) -> Option<Self::Lane> {
        Some((Arc::clone(partition), record.key.clone()))
    }

    fn read(&self, Delivered { cluster, record, .. }: Delivered) -> Result<KafkaRecord<B>, String> {
        KafkaRecord::parse(&cluster, record, |value| (self.parse)(value))
    }

    fn answer(not_done: Vec<String>) -> KafkaEventResponse {
        KafkaEventResponse::from_lowest(not_done.iter().map(|name| KafkaItemIdentifier::of_name(name)))
    }
}

/// Returns bootstrap servers in alphabetical order, because their order has no meaning.
fn sorted(servers: Option<&str>) -> String {
    let mut servers: Vec<_> = servers.unwrap_or_default().split(',').map(str::trim).collect();
    servers.sort_unstable();
    servers.join(",")
}

// By hand, because a derive would require the type of values to be `Clone` and `Debug`.
impl<B> Clone for KafkaSource<B> {
    fn clone(&self) -> Self {
        Self { parse: Arc::clone(&self.parse) }
    }
}

impl<B> fmt::Debug for KafkaSource<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource").finish_non_exhaustive()
    }
}
