//! `HttpRun`: the run of a request, as its handler sees it.

use std::fmt;

use aws_sdk_dynamodb::types::TransactWriteItem;
use bytes::Bytes;
use http::Response;

use super::response::ResultRule;
use crate::error::Error;
use crate::idempotency::Run;
use crate::lock::Lock;

/// The [`Run`] of a request, which `HttpIdempotencyLayer` puts into the request's extensions.
///
/// ```
/// # use aws_sdk_dynamodb::{Client, types::{Put, TransactWriteItem}};
/// # use http::StatusCode;
/// # use lambda_http::{Body, Error, Request, Response};
/// # use lambda_lock::http::HttpRun;
/// async fn place(request: Request, client: Client, order: Put) -> Result<Response<Body>, Error> {
///     let run = request.extensions().get::<HttpRun>().ok_or("the layer is missing")?;
///     let response = Response::builder().status(StatusCode::CREATED).body(Body::from("placed"))?;
///     client
///         .transact_write_items()
///         .transact_items(TransactWriteItem::builder().put(order).build())
///         .transact_items(run.complete_in(&response)?)
///         .client_request_token(lambda_lock::request_token())
///         .send()
///         .await?;
///     Ok(response)
/// }
/// ```
///
/// Cheap to clone. A test of a handler sends its requests through the layer, on the engine `embedded`.
///
/// It is a type of its own, because only a response may complete it: a retry gets nothing else.
#[derive(Clone)]
pub struct HttpRun {
    pub(super) run: Run,
    pub(super) results: ResultRule,
}

impl HttpRun {
    /// Returns the lock of the run, as [`Run::lock`] does. It is [not enforced](Lock::is_enforced) for a request without a
    /// key, and with locking [disabled](crate::LocksBuilder::enabled).
    pub fn lock(&self) -> &Lock {
        self.run.lock()
    }

    /// Returns the write that completes the record with this response, for the handler's own `TransactWriteItems`. The
    /// business write and the response are then committed together or not at all.
    ///
    /// Return the same response from the handler if the transaction was committed. If it was not, return an error or
    /// another response, which is then stored if it is a [result](crate::http::HttpIdempotencyLayer::results). If the
    /// transaction was committed and the handler returns something else, for example because the answer was lost, the
    /// client gets the committed response, with `Idempotency-Replayed: true`. A layer inside of `HttpIdempotencyLayer`
    /// that adds a stored header makes it another response.
    ///
    /// [`Run::complete_in`] has the other cases, the cost, the IAM actions and the errors. Also fails with an error
    /// of kind [`Invalid`](crate::ErrorKind::Invalid) if the response is not a result. For a response that is too large to
    /// store, commit your transaction without this write and return the response: the layer then completes the record without
    /// it, in a request of its own.
    pub fn complete_in(&self, response: &Response<impl AsRef<[u8]>>) -> Result<TransactWriteItem, Error> {
        if !(self.results.is_result)(response.status(), response.headers()) {
            return Err(Error::invalid(format!(
                "a response with status {} is not a result, so it cannot complete the run: return it instead",
                response.status().as_u16()
            )));
        }
        let body = Bytes::copy_from_slice(response.body().as_ref());
        self.run.complete_in(&self.results.stored(response.status(), response.headers(), Some(body)))
    }
}

impl fmt::Debug for HttpRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRun").field("run", &self.run).finish_non_exhaustive()
    }
}
