//! Errors as Lambda reports them: with a stable `errorType`, and with the message of DynamoDB or of the network.

use lambda_runtime::Diagnostic;

use crate::error::Error;
use crate::idempotency::HandlerError;

impl<E: Into<Diagnostic>> From<HandlerError<E>> for Diagnostic {
    fn from(error: HandlerError<E>) -> Self {
        match error {
            HandlerError::Lock(error) => error.into(),
            HandlerError::Handler(error) => error.into(),
            HandlerError::Replayed(error) => {
                Self { error_type: error.error_type().to_owned(), error_message: error.message().to_owned() }
            }
        }
    }
}

impl From<Error> for Diagnostic {
    fn from(error: Error) -> Self {
        Self { error_type: error.error_type().to_owned(), error_message: format!("{error:?}") }
    }
}
