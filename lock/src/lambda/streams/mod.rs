//! The consumer of Kinesis and DynamoDB streams: each record runs once, and the records of a key run in order.

mod consumer;
mod record;
mod service;
mod stream;

pub use consumer::StreamConsumer;
pub use record::{DynamoDbRecord, KinesisRecord};
pub use service::StreamConsumerService;
pub use stream::StreamRecord;
