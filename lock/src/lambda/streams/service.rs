//! The service of a consumer: its answer names the first record that is not done.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use lambda_runtime::{Diagnostic, LambdaEvent};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::{Layer, Service};

use super::super::batch::Settings;
use super::super::handler_input::HandlerInput;
use super::consumer::StreamConsumer;
use super::stream::{Stream, StreamRecord};
use crate::idempotency::Run;

impl<S, H, R: StreamRecord, T, E> Layer<S> for StreamConsumer<H, R, T, E> {
    type Service = StreamConsumerService<S, H, R, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        StreamConsumerService { inner, settings: self.settings.clone(), handler_input: PhantomData }
    }
}

/// The service that [`StreamConsumer`] makes from a handler of one record.
///
/// The handler is cloned for each record. The service never fails: each record has its own outcome.
pub struct StreamConsumerService<S, H, R: StreamRecord, T, E> {
    inner: S,
    settings: Settings<Stream<R>, T, E>,
    handler_input: PhantomData<fn(H)>,
}

impl<S, H, R, T, E> Service<LambdaEvent<R::Event>> for StreamConsumerService<S, H, R, T, E>
where
    S: Service<H, Response = T, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    H: HandlerInput<Run, Input = R> + Send + 'static,
    R: StreamRecord + Send + 'static,
    R::Event: Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    type Response = R::Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<R::Answer, Infallible>> + Send>>;

    /// Always ready: the handler's readiness is checked for each record.
    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, LambdaEvent { payload, context }: LambdaEvent<R::Event>) -> Self::Future {
        let (inner, settings) = (self.inner.clone(), self.settings.clone());
        Box::pin(async move {
            let has_window = R::has_window(&payload);
            let records = R::records(payload);
            if has_window {
                settings.source.log_window(records.first());
                // The failure of the whole batch, also if it is empty: the last one of a window can be.
                return Ok(R::answer(Some(String::new())));
            }
            let numbers: Vec<_> = records.iter().map(|record| R::number(record).map(str::to_owned)).collect();
            let outcomes = settings.run(records, &context, inner).await;
            // Lambda delivers a batch from one shard, in the shard's order, so the first number is the lowest. It takes an
            // empty number as the failure of the whole batch.
            let not_done = numbers.into_iter().zip(outcomes).find(|(_, outcome)| !outcome.is_done());
            Ok(R::answer(not_done.map(|(number, _)| number.unwrap_or_default())))
        })
    }
}

impl<S: Clone, H, R: StreamRecord, T, E> Clone for StreamConsumerService<S, H, R, T, E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: self.settings.clone(), handler_input: PhantomData }
    }
}

impl<S: fmt::Debug, H, R: StreamRecord, T, E> fmt::Debug for StreamConsumerService<S, H, R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamConsumerService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
