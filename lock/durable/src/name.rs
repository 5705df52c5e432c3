//! One execution for each key.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The longest name of an execution, and the part of it that is the digest.
const MAX_BYTES: usize = 64;
const DIGEST_BYTES: usize = 16;

/// Returns the name of the execution for this key, such as an order's number or the id of a message. Start the execution with
/// it: Lambda then starts one execution for each name, and a later invocation with the same name and payload gets that one.
///
/// It has up to 64 letters, digits, `-` and `_`: the beginning of the key, with `-` for other characters, and 128 bits of the
/// key's SHA-256 digest. Sends no request.
///
/// ```
/// # use aws_sdk_lambda::Client;
/// use lambda_lock_durable::execution_name;
///
/// /// Starts the execution of a message. At-least-once delivery starts it once.
/// async fn dispatch(lambda: Client, message_id: &str, body: String) -> Result<(), aws_sdk_lambda::Error> {
///     lambda
///         .invoke()
///         .function_name("durable-deployment:live")
///         .invocation_type("Event".into())
///         .durable_execution_name(execution_name(message_id))
///         .payload(body.into_bytes().into())
///         .send()
///         .await?;
///     Ok(())
/// }
/// assert_eq!(execution_name("order 7"), "order-7-0fc89f8ae19394b48debd6353bb9ad33");
/// ```
#[must_use]
pub fn execution_name(key: &str) -> String {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
    let readable = key.chars().map(|character| if is_allowed(character) { character } else { '-' });
    let mut name: String = readable.take(MAX_BYTES - 2 * DIGEST_BYTES - 1).collect();
    name.push('-');
    for byte in &Sha256::digest(key)[..DIGEST_BYTES] {
        let _never_fails = write!(name, "{byte:02x}");
    }
    name
}
