//! `Connections`: the pooled connections of a client, which are closed together when one is found dead.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "lambda")]
use aws_sdk_dynamodb::Client;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::connection::{CaptureSmithyConnection, ConnectionMetadata};
#[cfg(feature = "lambda")]
use aws_smithy_runtime_api::client::interceptors::context::BeforeSerializationInterceptorContextRef;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeTransmitInterceptorContextRef, FinalizerInterceptorContextRef,
};
use aws_smithy_runtime_api::client::interceptors::{Intercept, dyn_dispatch_hint};
use aws_smithy_runtime_api::client::orchestrator::OrchestratorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};

/// The most connections that are known, more than the invocations of an environment need. The connections that answered least
/// recently are forgotten first. A forgotten connection stays in the pool when the other connections are closed.
const MAX_CONNECTIONS: usize = 4096;

/// The connections that answered requests. After an environment was frozen, all of them may be dead, and the SDK's
/// retries would try one after the other. So a connection that does not answer takes the connections along that have not
/// answered since its attempt was sent: the next attempt opens a new one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of attempts that were sent.
    attempts: AtomicU64,
    /// By the addresses of both ends.
    answered: Mutex<HashMap<Ends, Answered>>,
}

#[derive(Debug)]
struct Answered {
    connection: ConnectionMetadata,
    /// The number of attempts when the connection answered last.
    attempts: u64,
}

type Ends = (SocketAddr, Option<SocketAddr>);

/// The name of the interceptor.
const NAME: &str = "lambda_lock::Connections";

/// The number of an attempt.
#[derive(Clone, Copy, Debug)]
struct Attempt(u64);

impl Storable for Attempt {
    type Storer = StoreReplace<Self>;
}

impl Connections {
    fn answered(&self, connection: ConnectionMetadata) {
        let Some(local) = connection.local_addr() else { return };
        let ends = (local, connection.remote_addr());
        let attempts = self.0.attempts.load(Ordering::Relaxed);
        let mut answered = self.0.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() == MAX_CONNECTIONS
            && !answered.contains_key(&ends)
            && let Some(oldest) = answered.iter().min_by_key(|(_, other)| other.attempts).map(|(ends, _)| *ends)
        {
            answered.remove(&oldest);
        }
        answered.insert(ends, Answered { connection, attempts });
    }

    /// Closes the connections that have not answered since this attempt was sent.
    fn unanswered(&self, Attempt(attempt): Attempt) {
        let mut answered = self.0.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.retain(|_, Answered { connection, attempts }| {
            let is_alive = *attempts >= attempt;
            if !is_alive {
                connection.poison();
            }
            is_alive
        });
    }
}

#[cfg(feature = "lambda")]
tokio::task_local! {
    static CLOSES: ();
}

/// Lets a request close all idle connections of its client, instead of being sent. A client that does not know its connections
/// sends nothing either.
#[cfg(feature = "lambda")]
pub(crate) async fn close<T>(client: &Client, request: impl Future<Output = T>) {
    if client.config().interceptors().any(|interceptor| interceptor.name() == NAME) {
        CLOSES.scope((), request).await;
    }
}

/// Whether an attempt got no answer that could be read.
pub(crate) fn has_no_answer<E>(error: &OrchestratorError<E>) -> bool {
    error.is_connector_error() || error.is_timeout_error() || error.is_response_error()
}

#[dyn_dispatch_hint]
impl Intercept for Connections {
    fn name(&self) -> &'static str {
        NAME
    }

    #[cfg(feature = "lambda")]
    fn read_before_serialization(
        &self,
        _: &BeforeSerializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if CLOSES.try_with(|()| ()).is_err() {
            return Ok(());
        }
        // No connection has answered since an attempt that is still to come.
        self.unanswered(Attempt(u64::MAX));
        Err("a request to close connections is not sent".into())
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let attempt = self.0.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        config.interceptor_state().store_put(Attempt(attempt));
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let (Some(attempt), Some(outcome)) = (config.load::<Attempt>(), context.output_or_error()) else {
            return Ok(());
        };
        match outcome {
            Err(error) if has_no_answer(error) => self.unanswered(*attempt),
            // An error of DynamoDB is an answer.
            Ok(_) | Err(_) => {
                if let Some(connection) =
                    config.load::<CaptureSmithyConnection>().and_then(CaptureSmithyConnection::get)
                {
                    self.answered(connection);
                }
            }
        }
        Ok(())
    }
}
