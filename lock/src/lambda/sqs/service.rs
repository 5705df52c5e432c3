//! The service of a consumer: its answer names the messages that return to the queue.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::{Layer, Service};

use super::super::batch::Settings;
use super::super::handler_input::HandlerInput;
use super::consumer::SqsConsumer;
use super::message::Message;
use super::queue::Queue;
use crate::idempotency::Run;

impl<S, H, B, T, E> Layer<S> for SqsConsumer<H, B, T, E> {
    type Service = SqsConsumerService<S, H, B, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        SqsConsumerService { inner, settings: self.settings.clone(), handler_input: PhantomData }
    }
}

/// The service that [`SqsConsumer`] makes from a handler of one message.
///
/// The handler is cloned for each message. The service never fails: each message has its own outcome.
pub struct SqsConsumerService<S, H, B, T, E> {
    inner: S,
    settings: Settings<Queue<B>, T, E>,
    handler_input: PhantomData<fn(H)>,
}

impl<S, H, B, T, E> Service<LambdaEvent<SqsEvent>> for SqsConsumerService<S, H, B, T, E>
where
    S: Service<H, Response = T, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    H: HandlerInput<Run, Input = Message<B>> + Send + 'static,
    B: Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    type Response = SqsBatchResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<SqsBatchResponse, Infallible>> + Send>>;

    /// Always ready: the handler's readiness is checked for each message.
    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, LambdaEvent { payload, context }: LambdaEvent<SqsEvent>) -> Self::Future {
        let (inner, settings) = (self.inner.clone(), self.settings.clone());
        Box::pin(async move {
            let message_ids: Vec<_> = payload.records.iter().map(|record| record.message_id.clone()).collect();
            let outcomes = settings.run(payload.records, &context, inner).await;
            let mut response = SqsBatchResponse::default();
            for (message_id, outcome) in message_ids.into_iter().zip(outcomes) {
                if !outcome.is_done() {
                    response.add_failure(message_id.unwrap_or_default());
                }
            }
            Ok(response)
        })
    }
}

impl<S: Clone, H, B, T, E> Clone for SqsConsumerService<S, H, B, T, E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: self.settings.clone(), handler_input: PhantomData }
    }
}

impl<S: fmt::Debug, H, B, T, E> fmt::Debug for SqsConsumerService<S, H, B, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsConsumerService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
