//! An SQS in the process.

use std::future::pending;
use std::sync::{Arc, Mutex};

use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use serde_json::Value;

use crate::ms;

/// An SQS that keeps its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    does: Does,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Does {
    #[default]
    Answer,
    Refuse,
    Fail,
    FallSilent,
}

impl Queues {
    pub(crate) fn that(does: Does) -> Self {
        Self { does, ..Self::default() }
    }

    pub(crate) fn client(&self) -> aws_sdk_sqs::Client {
        let retries = RetryConfig::standard().with_initial_backoff(ms(1));
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("eu-west-1"))
            .allow_no_auth()
            .retry_config(retries)
            .http_client(self.clone());
        aws_sdk_sqs::Client::from_conf(config.build())
    }

    /// What was asked to be hidden.
    pub(crate) fn hidden(&self) -> Vec<Value> {
        self.requests("AmazonSQS.ChangeMessageVisibility")
    }

    /// For how many seconds.
    pub(crate) fn seconds(&self) -> Vec<u64> {
        self.hidden().iter().map(|request| request["VisibilityTimeout"].as_u64().unwrap()).collect()
    }

    /// What was sent.
    pub(crate) fn sent(&self) -> Vec<Value> {
        self.requests("AmazonSQS.SendMessage")
    }

    fn requests(&self, operation: &str) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|(name, _)| name == operation).map(|(_, request)| request.clone()).collect()
    }
}

impl HttpClient for Queues {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Queues {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let operation = request.headers().get("x-amz-target").unwrap().to_owned();
        let body = serde_json::from_slice(request.body().bytes().unwrap()).unwrap();
        self.requests.lock().unwrap().push((operation, body));
        let (status, body) = match self.does {
            Does::Answer => (200, "{}"),
            Does::Refuse => (403, r#"{"__type": "AccessDeniedException", "message": "no: receipt of 1"}"#),
            Does::Fail => (500, "{}"),
            Does::FallSilent => return HttpConnectorFuture::new(pending()),
        };
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status.try_into().unwrap(), SdkBody::from(body))))
    }
}
