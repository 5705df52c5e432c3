//! A DynamoDB with prepared answers, so that a benchmark measures the client.

use std::str;

use aws_sdk_dynamodb::config::{self, Region};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use lambda_lock::embedded::Host;

/// The status and the body of the answer to a request.
type Answer = fn(&str) -> (u16, &'static str);

/// Returns a host whose requests are answered at once.
pub(crate) fn canned(answer: Answer) -> Host {
    let config = config::Builder::new().region(Region::from_static("us-east-1")).allow_no_auth();
    Host::over(config.endpoint_url("http://canned.invalid"), Canned(answer)).build()
}

#[derive(Clone, Debug)]
struct Canned(Answer);

impl HttpClient for Canned {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Canned {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (status, body) = (self.0)(str::from_utf8(request.body().bytes().unwrap()).unwrap());
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status.try_into().unwrap(), SdkBody::from(body))))
    }
}
