//! The service of a consumer: it answers with the items that are not done.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use lambda_runtime::{Diagnostic, LambdaEvent};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_layer::Layer;
use tower_service::Service;

use super::super::handler_input::HandlerInput;
use super::super::layered::Layered;
use super::consumer::Consumer;
use super::outcome::all_failed;
use super::run::{CUT_OFF, Ended, failure};
use super::source::Source;
use crate::idempotency::Run;

impl<Inner, S: Source, H, T, E> Layer<Inner> for Consumer<S, H, T, E> {
    type Service = ConsumerService<Inner, S, H, T, E>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

/// The service that a [`Consumer`] makes from a handler of one item.
///
/// The handler is cloned for each item, and its error converts into [`Diagnostic`], for the log. The service answers with the
/// items that are not done. It fails only if [every item failed](Consumer::fail_if_all_failed).
pub type ConsumerService<Inner, S, H, T, E> = Layered<Inner, Consumer<S, H, T, E>>;

impl<Inner, S, H, T, E> Service<LambdaEvent<S::Event>> for ConsumerService<Inner, S, H, T, E>
where
    Inner: Service<H, Response = T, Error = E> + Clone + Send + 'static,
    Inner::Future: Send,
    S: Source + Send + Sync + 'static,
    S::Event: Send + 'static,
    S::Item: Send + 'static,
    H: HandlerInput<Run, Input = S::Item> + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Diagnostic> + Send + 'static,
{
    type Response = S::Answer;
    type Error = Diagnostic;
    type Future = Pin<Box<dyn Future<Output = Result<S::Answer, Diagnostic>> + Send>>;

    /// Always ready: the handler's readiness is checked for each item.
    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Diagnostic>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, LambdaEvent { payload, context }: LambdaEvent<S::Event>) -> Self::Future {
        let (inner, consumer) = (self.inner.clone(), self.layer.clone());
        Box::pin(async move {
            let fails = consumer.fails_if_all_failed;
            let batch = match consumer.source.batch(payload) {
                Ok(batch) => batch,
                Err(why) if fails => return Err(failure(None, why)),
                // An empty name is the failure of the whole batch, also of an empty one.
                Err(_) => return Ok(S::answer(vec![String::new()])),
            };
            let names: Vec<_> = batch.iter().map(S::name).collect();
            let Ended { outcomes, first_failure } = consumer.run(batch, &context, inner).await;
            if fails && all_failed(&outcomes, first_failure.is_some()) {
                let Diagnostic { error_type, error_message } =
                    first_failure.unwrap_or_else(|| failure(Some("TimedOut"), CUT_OFF));
                let count = outcomes.len();
                let message = format!("no item of a batch of {count} is done; the first failure: {error_message}");
                return Err(failure(Some(&error_type), message));
            }
            let not_done = names.into_iter().zip(outcomes).filter(|(_, outcome)| !outcome.is_done());
            Ok(S::answer(not_done.map(|(name, _)| name.unwrap_or_default()).collect()))
        })
    }
}
