//! Random numbers from the operating system. Processes that are restored from one snapshot share the state of every
//! generator inside of them, such as that of `fastrand`: their delays would be the same.

#[cfg(feature = "embedded")]
use std::cell::Cell;

#[cfg(feature = "embedded")]
std::thread_local! {
    static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
}

/// Lets the delays of this thread follow `fastrand::seed` from now on, so that a simulation can be repeated.
#[cfg(feature = "embedded")]
pub(crate) fn simulate() {
    IS_SIMULATED.set(true);
}

/// Returns a random number between 0 and 1, for a delay.
pub(crate) fn unit() -> f64 {
    #[cfg(feature = "embedded")]
    if IS_SIMULATED.get() {
        return fastrand::f64();
    }
    getrandom::u32().map_or_else(|_| fastrand::f64(), |number| f64::from(number) / f64::from(u32::MAX))
}

/// Lets `fastrand`, which the SDK draws its delays from, begin anew on this thread: a snapshot has its state.
pub(crate) fn reseed() {
    #[cfg(feature = "embedded")]
    if IS_SIMULATED.get() {
        return;
    }
    if let Ok(seed) = getrandom::u64() {
        fastrand::seed(seed);
    }
}

/// The length of a nonce.
pub(crate) const NONCE_DIGITS: usize = 32;

/// Draws a nonce: 128 bits in hexadecimal.
pub(crate) fn nonce() -> Result<String, getrandom::Error> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce)?;
    Ok(format!("{:0NONCE_DIGITS$x}", u128::from_be_bytes(nonce)))
}

/// Draws a `ClientRequestToken` for your own `TransactWriteItems`: 128 bits from the operating system's generator, in
/// hexadecimal. Sends no request.
///
/// ```
/// # use aws_sdk_dynamodb::{Client, types::TransactWriteItem};
/// # async fn example(client: Client, write: TransactWriteItem) -> Result<(), Box<dyn std::error::Error>> {
/// client
///     .transact_write_items()
///     .transact_items(write)
///     .client_request_token(lambda_lock::request_token())
///     .send()
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// The SDK draws its tokens from a generator inside the process. Environments that Lambda restores from one snapshot
/// (`SnapStart`) share its state, so they send the same tokens, and DynamoDB rejects the transaction of the second one, or
/// takes it for a repetition and does not apply it.
///
/// # Panics
///
/// If the operating system has no random numbers, which on Lambda does not happen. The crate's own requests fail with an
/// error of kind [`Unavailable`](crate::ErrorKind::Unavailable) then.
#[must_use]
pub fn request_token() -> String {
    nonce().expect("the operating system has random numbers")
}
