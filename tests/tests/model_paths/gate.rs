//! The network of one client, in which the path decides what happens to each request.

use std::fmt;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::interceptors::context::InterceptorContext;
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::retries::classifiers::{ClassifyRetry, RetryAction};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use serde_json::Value;
use tokio::sync::oneshot;

pub(crate) type Response = Result<HttpResponse, ConnectorError>;

/// Holds each request until the path says what happens to it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    is_off: bool,
}

/// A request, as it is on the wire. It arrives as often as the path says, whoever waits for it.
pub(crate) struct Sent {
    request: HttpRequest,
    wire: SharedHttpConnector,
}

/// A request whose sender waits for the answer.
pub(crate) struct Waiting {
    pub(crate) sent: Sent,
    answer: oneshot::Sender<Response>,
}

impl Gate {
    /// Returns the configuration of the client whose requests come here, and go on over its own network.
    pub(crate) fn before(&self, client: &Client) -> Builder {
        let wire = client.config().http_client().expect("the host has a network");
        client
            .config()
            .to_builder()
            .http_client(Network { gate: self.clone(), wire })
            .retry_classifier(NotAfterTimeouts)
    }

    /// Returns how many requests wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().unwrap().waiting.len()
    }

    /// Takes the request that waits here.
    pub(crate) fn take(&self) -> Option<Waiting> {
        self.0.lock().unwrap().waiting.pop()
    }

    /// Lets a request wait on.
    pub(crate) fn put_back(&self, waiting: Waiting) {
        self.0.lock().unwrap().waiting.push(waiting);
    }

    /// Cuts the client off, or connects it again. A client that is cut off gets no answers.
    pub(crate) fn switch(&self, is_off: bool) {
        let mut state = self.0.lock().unwrap();
        state.is_off = is_off;
        state.waiting.clear();
    }
}

impl Sent {
    /// Lets the request arrive, and returns the answer.
    pub(crate) async fn arrive(&self) -> Response {
        self.wire.call(self.copy()).await
    }

    pub(crate) fn body(&self) -> Value {
        serde_json::from_slice(self.request.body().bytes().expect("the body is in memory")).expect("the body is JSON")
    }

    /// The body is in memory, so a copy succeeds.
    fn copy(&self) -> HttpRequest {
        self.request.try_clone().expect("the body is in memory")
    }

    /// Leaves out the token by which DynamoDB recognises a repeated transaction.
    fn without_token(mut self) -> Self {
        let mut body = self.body();
        if body.as_object_mut().and_then(|body| body.remove("ClientRequestToken")).is_some() {
            let body = body.to_string();
            self.request.headers_mut().insert("content-length", body.len().to_string());
            *self.request.body_mut() = SdkBody::from(body);
        }
        self
    }
}

impl Waiting {
    pub(crate) fn answer(self, answer: Response) {
        // Nobody reads the answer to a client that was cut off.
        let _ = self.answer.send(answer);
    }

    /// The sender learns that there is no answer, and does not send again.
    pub(crate) fn fail(self) -> Sent {
        let _ = self.answer.send(Err(ConnectorError::timeout("there was no answer".into())));
        self.sent
    }

    /// The sender learns that there is no answer, and sends again.
    pub(crate) fn resend(self) -> Sent {
        let _ = self.answer.send(Err(ConnectorError::io("the connection was reset".into())));
        self.sent
    }
}

/// The path decides whether the SDK sends again: after a reset connection, but not after a timeout.
#[derive(Debug)]
struct NotAfterTimeouts;

impl ClassifyRetry for NotAfterTimeouts {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let error = context.output_or_error().and_then(|answer| answer.err()?.as_connector_error());
        match error {
            Some(error) if error.is_timeout() => RetryAction::RetryForbidden,
            _ => RetryAction::NoActionIndicated,
        }
    }

    fn name(&self) -> &'static str {
        "not after timeouts"
    }
}

#[derive(Debug)]
struct Network {
    gate: Gate,
    wire: SharedHttpClient,
}

impl HttpClient for Network {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        let wire = self.wire.http_connector(settings, components);
        SharedHttpConnector::new(Connection { gate: self.gate.clone(), wire })
    }
}

#[derive(Debug)]
struct Connection {
    gate: Gate,
    wire: SharedHttpConnector,
}

impl HttpConnector for Connection {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (answer, answered) = oneshot::channel();
        let sent = Sent { request, wire: self.wire.clone() }.without_token();
        let mut state = self.gate.0.lock().unwrap();
        if !state.is_off {
            state.waiting.push(Waiting { sent, answer });
        }
        HttpConnectorFuture::new(async {
            match answered.await {
                Ok(answer) => answer,
                Err(_) => std::future::pending().await,
            }
        })
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}
