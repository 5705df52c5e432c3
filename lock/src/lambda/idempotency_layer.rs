//! The middleware for idempotent handlers: a duplicate event gets the first run's result.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use lambda_runtime::LambdaEvent;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_layer::Layer;
use tower_service::Service;

use super::handler_input::HandlerInput;
use super::invocation::{check_not_durable, invocation_of};
use super::layered::Layered;
use crate::idempotency::{HandlerError, Idempotency, NextStep, Run};
use crate::lock::record_refusal;
use crate::panics;

/// A tower layer that makes a handler idempotent: a duplicate event gets the first run's result. A
/// [`LockLayer`](crate::LockLayer) goes [outside of this layer](crate::docs::learn::which#a-lock-and-idempotency-together):
/// otherwise the answer of its `on_held` is stored as the event's result, and nobody does the event's work for the window.
///
/// ```no_run
/// use lambda_lock::idempotency::OnMissingKey;
/// use lambda_lock::{Idempotency, IdempotencyLayer, Locks};
/// use lambda_runtime::{Error, LambdaEvent, Runtime};
/// use serde_json::Value;
/// use tower::{Layer, service_fn};
///
/// async fn order(event: LambdaEvent<Value>) -> Result<String, Error> {
///     Ok(format!("order {}", event.payload["id"]))
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     let orders = Idempotency::new(Locks::from_env().await?, OnMissingKey::Reject, |event: &LambdaEvent<Value>| {
///         event.payload["id"].as_str().map(str::to_owned)
///     });
///     Runtime::new(IdempotencyLayer::new(orders).layer(service_fn(order))).run().await
/// }
/// ```
///
/// Put it around the handler, inside the runtime: `Runtime::new(layer.layer(service_fn(handler)))`, for `run` and
/// `run_concurrent` alike. The handler keeps its signature. A handler that takes a [`WithRun`](crate::WithRun) around the
/// `LambdaEvent` gets the run as well, for the fence or to complete in its own transaction.
///
/// [`Idempotency`] defines what a duplicate is and what happens to it. The record's lease ends at the invocation's
/// deadline. An invocation that runs the handler costs two requests. One that does not costs one request, or none with a
/// cache. IAM action `dynamodb:UpdateItem`.
///
/// For events of SNS, `EventBridge` and S3, [`event_id`](crate::lambda::event_id) is the key.
///
/// A handler that borrows a client of `main` does not compile under this layer: [clone the
/// client](crate::LockLayer#a-handler-that-uses-a-client).
///
/// Put a timeout inside of this layer. One outside drops the handler, and the record stays in progress until it is released
/// in the background, which Lambda may freeze, or until its lease ends.
///
/// Without the [release profile](crate::LockLayer#the-release-profile), a panic ends the process, and the record stays in
/// progress until its lease ends: by default for the rest of the function's timeout.
///
/// Under Lambda's tenant isolation, each tenant has its own records, unless you set
/// [`across_tenants`](Idempotency::across_tenants).
///
/// For an event that does not fit the handler's payload type, see
/// [what `lambda_runtime` logs](crate::LockLayer#what-lambda_runtime-logs).
///
/// # Durable functions
///
/// Do not put the layer around the entry of a durable function. Each suspension ends an invocation with an answer such as
/// `PENDING`. The layer would store it and replay it to the next invocation, and the execution would hang for the window.
/// Call [`Idempotency::run`] in a step instead. If the payload is a `serde_json::Value`, the layer sees the ARN and the token
/// of a durable execution, and the invocation fails with `LockInvalid`.
///
/// # Results and errors
///
/// A result is any value that the handler returns as `Ok`. It is replayed for the [window](Idempotency::window), even if it
/// is an HTTP response whose `statusCode` is 500. Return `Err` for failures that a retry may resolve. If the client needs
/// an HTTP response for such a failure, put the layer around an inner service that returns `Err`, and map its errors to
/// responses in an outer service, which is not replayed:
///
/// ```
/// # use lambda_lock::{ErrorKind, HandlerError, Idempotency, IdempotencyLayer};
/// # use lambda_runtime::{Error, LambdaEvent};
/// # use serde_json::{Value, json};
/// # use tower::{Layer, Service, ServiceExt, service_fn};
/// # async fn place(event: LambdaEvent<Value>) -> Result<Value, Error> { Ok(event.payload) }
/// # fn example(orders: Idempotency<LambdaEvent<Value>, Value, Error>) -> impl Service<LambdaEvent<Value>> {
/// let once = IdempotencyLayer::new(orders).layer(service_fn(place));
/// service_fn(move |event| {
///     let once = once.clone();
///     async move {
///         Ok::<_, Error>(match once.oneshot(event).await {
///             Ok(order) => json!({ "statusCode": 201, "body": order.to_string() }),
///             Err(HandlerError::Lock(error)) if error.kind() == ErrorKind::InProgress => json!({ "statusCode": 409 }),
///             Err(_) => json!({ "statusCode": 500 }),
///         })
///     }
/// })
/// # }
/// ```
pub struct IdempotencyLayer<H, P, T, E> {
    idempotency: Idempotency<LambdaEvent<P>, T, E>,
    handler_input: PhantomData<fn(H)>,
}

impl<H, P, T, E> IdempotencyLayer<H, P, T, E> {
    /// Creates a layer with these settings.
    #[must_use]
    pub fn new(idempotency: Idempotency<LambdaEvent<P>, T, E>) -> Self {
        panics::warn_if_they_abort();
        Self { idempotency, handler_input: PhantomData }
    }
}

impl<S, H, P, T, E> Layer<S> for IdempotencyLayer<H, P, T, E> {
    type Service = IdempotencyService<S, H, P, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

/// The service that [`IdempotencyLayer`] makes from a handler.
///
/// The handler is cloned for each event, because the record is acquired after the handler is ready and before it is
/// called. A function or closure in `service_fn` is `Clone` if its captures are.
pub type IdempotencyService<S, H, P, T, E> = Layered<S, IdempotencyLayer<H, P, T, E>>;

impl<S, H, P, T, E> Service<LambdaEvent<P>> for IdempotencyService<S, H, P, T, E>
where
    S: Service<H, Response = T, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    H: HandlerInput<Run, Input = LambdaEvent<P>> + Send + 'static,
    P: Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Send + 'static,
{
    type Response = T;
    type Error = HandlerError<E>;
    type Future = Pin<Box<dyn Future<Output = Result<T, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(HandlerError::Handler)
    }

    fn call(&mut self, event: LambdaEvent<P>) -> Self::Future {
        // The instance that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let idempotency = self.layer.idempotency.clone();
        Box::pin(async move {
            check_not_durable(&event.payload, idempotency.locks())
                .inspect_err(record_refusal)
                .map_err(HandlerError::Lock)?;
            let invocation = invocation_of(&event.context, idempotency.locks());
            let identity = idempotency.identify(&event, None, &invocation).map_err(HandlerError::Lock)?;
            match idempotency.begin(identity, &invocation).await? {
                NextStep::Replay { key, record } => idempotency.replay(&record, &key),
                NextStep::Run(run) => idempotency.execute(&run, async { inner.call(H::with(event, &run)).await }).await,
            }
        })
    }
}

// By hand, because a derive would require the types of events, responses and errors to be `Clone` and `Debug`.
impl<H, P, T, E> Clone for IdempotencyLayer<H, P, T, E> {
    fn clone(&self) -> Self {
        Self { idempotency: self.idempotency.clone(), handler_input: PhantomData }
    }
}

impl<H, P, T, E> fmt::Debug for IdempotencyLayer<H, P, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("idempotency", &self.idempotency).finish_non_exhaustive()
    }
}
