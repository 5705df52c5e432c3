//! `KafkaConsumer`: each record of a topic runs once, and those of a key run in order.

mod answer;
mod consumer;
mod event;
mod record;
mod source;

pub use answer::{KafkaBatchItemFailure, KafkaEventResponse, KafkaItemIdentifier};
pub use consumer::KafkaConsumer;
pub use event::KafkaEvent;
pub use record::KafkaRecord;
pub use source::KafkaSource;
