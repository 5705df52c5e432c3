//! Names: of an execution, and of its operations.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The longest name of an execution, and the part of it that is the digest.
const MAX_BYTES: usize = 64;
const DIGEST_BYTES: usize = 16;
/// The longest name of an operation.
const MAX_OPERATION_BYTES: usize = 256;

/// Returns the name of the execution for this key, such as an order's number or the id of a message. Start the execution with
/// it: Lambda then starts one execution for each name, and a later invocation with the same name and payload gets that one.
/// With another payload, it fails with `DurableExecutionAlreadyStartedException`. A name is that of one execution in the
/// account and the region, until the function's `RetentionPeriodInDays` after its end: begin the key with the function.
///
/// ```
/// # use lambda_lock_durable::execution_name;
/// assert_eq!(execution_name("order 7"), "order-7-0fc89f8ae19394b48debd6353bb9ad33");
/// ```
///
/// It has up to 64 letters, digits, `-` and `_`: the beginning of the key, with `-` for other characters, and 128 bits of the
/// key's SHA-256 digest. Sends no request.
///
/// # A queue that starts executions
///
/// An event source mapping whose function is durable starts an execution for each delivery, also for a repeated one. Let it
/// invoke a dispatcher, which starts an execution for each message. With `ReportBatchItemFailures`, only messages whose
/// execution did not start come again. The payload must be the same each time: the body, and not how often it was received.
///
/// ```
/// use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
/// use aws_sdk_lambda::Client;
/// use lambda_lock_durable::execution_name;
/// use lambda_runtime::{Error, LambdaEvent};
///
/// async fn start(lambda: &Client, name: String, payload: Vec<u8>) -> Result<(), aws_sdk_lambda::Error> {
///     lambda
///         .invoke()
///         .function_name("deploy:live")
///         .invocation_type("Event".into())
///         .durable_execution_name(name)
///         .payload(payload.into())
///         .send()
///         .await?;
///     Ok(())
/// }
///
/// async fn dispatch_messages(lambda: Client, event: LambdaEvent<SqsEvent>) -> Result<SqsBatchResponse, Error> {
///     let mut response = SqsBatchResponse::default();
///     for message in event.payload.records {
///         let id = message.message_id.ok_or("a message without an id")?;
///         let body = message.body.unwrap_or_default().into_bytes();
///         if let Err(error) = start(&lambda, execution_name(&format!("deploy#{id}")), body).await {
///             tracing::warn!(%error, id, "not started");
///             response.add_failure(id);
///         }
///     }
///     Ok(response)
/// }
/// ```
///
/// The id of a message is that of one send. If the sender can repeat itself, take what identifies the work, such as the
/// order's number. A message with that number and another payload then fails, and becomes a dead letter.
///
/// # A stream that starts executions
///
/// A record is identified by its stream and its event id: of Kinesis, the shard and the sequence number. The first record that
/// fails ends the batch, and comes again with those after it. Executions start in the order of the records. They are in no
/// order afterwards: the lock lets one of a key run at a time, first come, first served.
///
/// ```
/// use aws_lambda_events::kinesis::KinesisEvent;
/// use aws_lambda_events::streams::KinesisEventResponse;
/// use aws_sdk_lambda::Client;
/// use lambda_lock_durable::execution_name;
/// use lambda_runtime::{Error, LambdaEvent};
///
/// async fn dispatch_records(lambda: Client, event: LambdaEvent<KinesisEvent>) -> Result<KinesisEventResponse, Error> {
///     let mut response = KinesisEventResponse::default();
///     for record in event.payload.records {
///         let (stream, id) = (record.event_source_arn.unwrap_or_default(), record.event_id.unwrap_or_default());
///         let name = execution_name(&format!("deploy#{id} {stream}"));
///         if let Err(error) = start(&lambda, name, record.kinesis.data.0).await {
///             tracing::warn!(%error, id, "not started");
///             response.add_failure(record.kinesis.sequence_number);
///             break;
///         }
///     }
///     Ok(response)
/// }
/// # async fn start(_: &Client, _: String, _: Vec<u8>) -> Result<(), aws_sdk_lambda::Error> { Ok(()) }
/// ```
#[must_use]
pub fn execution_name(key: &str) -> String {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
    let readable = key.chars().map(|character| if is_allowed(character) { character } else { '-' });
    let mut name: String = readable.take(MAX_BYTES - 2 * DIGEST_BYTES - 1).collect();
    name.push('-');
    name.push_str(&digest(key, DIGEST_BYTES));
    name
}

/// Returns so many bytes of the text's digest, in hexadecimal.
pub(crate) fn digest(text: &str, bytes: usize) -> String {
    let mut hexadecimal = String::with_capacity(2 * bytes);
    for byte in Sha256::digest(text).iter().take(bytes) {
        let _never_fails = write!(hexadecimal, "{byte:02x}");
    }
    hexadecimal
}

/// Returns a name that Lambda accepts for an operation: up to 256 printable ASCII characters. Operations are told apart by
/// their order, so two may have one name.
pub(crate) fn operation_name(text: &str) -> String {
    let printable = text.chars().map(|character| if matches!(character, ' '..='~') { character } else { '-' });
    let name: String = printable.take(MAX_OPERATION_BYTES).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}
