//! What tasks on several threads share. A type that stops being `Sync` would break programs that do not call it differently.

use lambda_lock::embedded::{DynamoDb, Host};
use lambda_lock::http::{Caller, HttpIdempotencyLayer, HttpRun};
use lambda_lock::kafka::KafkaConsumer;
use lambda_lock::operate::{CheckReport, CreateTable, List};
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock::{
    Acquire, Attempt, Data, Error, HandlerError, Holder, Idempotency, IdempotencyLayer, Lock, LockLayer, Locks,
    LocksBuilder, Rate, Run, Semaphore, SqsConsumer, Turn, Wait, WithLock, WithRun,
};
use lambda_runtime::LambdaEvent;

type Event = LambdaEvent<String>;

/// Compiles for types that tasks may share.
const fn shared<T: Send + Sync + 'static>() {}

#[test]
fn tasks_share_what_they_lock_with() {
    shared::<(Locks, LocksBuilder, Lock, Acquire, Attempt, Turn, Wait, Rate, Semaphore)>();
    shared::<(Error, HandlerError<String>, Holder, Data)>();
    shared::<(Idempotency<String, String, String>, Run, HttpRun, Caller, HttpIdempotencyLayer)>();
    shared::<(LockLayer<Event, String>, WithLock<Event>, IdempotencyLayer<Event, String, String, String>)>();
    shared::<(SqsConsumer<String>, KafkaConsumer<String>, WithRun<Event>)>();
    shared::<StreamConsumer<KinesisRecord<String>>>();
    shared::<(CheckReport, CreateTable, List)>();
    shared::<(DynamoDb, Host)>();
}

#[test]
fn locks_are_as_large_as_a_pointer() {
    assert_eq!(size_of::<Locks>(), size_of::<usize>());
}
