//! `StreamConsumer`: each record of a Kinesis or DynamoDB stream runs once, and the records of a key run in order.

mod consumer;
mod dynamodb;
mod kinesis;
mod source;

pub use consumer::StreamConsumer;
pub use dynamodb::DynamoDbRecord;
pub use kinesis::KinesisRecord;
pub use source::{StreamRecord, StreamSource};
