//! The DynamoDB of a run: at an address, or in an AWS account.

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{self, Credentials, ProvideCredentials, Region};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderName};

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) endpoint: String,
    account: Option<SdkConfig>,
    /// With what the processes sign. Others on this machine do not know it.
    pub(crate) access_key: String,
}

fn access_key() -> String {
    format!("{:016X}", fastrand::u64(..))
}

impl Place {
    pub(crate) fn at(endpoint: &str) -> Self {
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), account: None, access_key: access_key() }
    }

    /// The account and the region of the environment.
    pub(crate) async fn in_aws() -> Self {
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        let region = config.region().expect("the environment has a region");
        let endpoint = config.endpoint_url().map_or_else(
            || format!("https://dynamodb.{region}.amazonaws.com"),
            |endpoint| endpoint.trim_end_matches('/').to_owned(),
        );
        Self { endpoint, account: Some(config), access_key: access_key() }
    }

    /// Returns a client of the tables, past the proxy.
    pub(crate) fn client(&self) -> Client {
        if let Some(account) = &self.account {
            return Client::new(account);
        }
        let config = config::Builder::new()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(&self.endpoint)
            .region(Region::from_static("us-east-1"))
            .credentials_provider(Credentials::new("local", "local", None, None, "chaos"));
        Client::from_conf(config.build())
    }

    /// Signs a request of a process for AWS. Processes have no credentials of the account, wrong clocks, and sign for the proxy.
    pub(crate) async fn sign(&self, request: &mut Request<Full<Bytes>>, body: &[u8]) {
        let Some(account) = &self.account else { return };
        let authorization = request.headers().get(AUTHORIZATION).and_then(|header| header.to_str().ok());
        if authorization.is_none_or(|header| !header.contains(&format!("Credential={}/", self.access_key))) {
            return;
        }
        for name in
            [AUTHORIZATION, HeaderName::from_static("x-amz-date"), HeaderName::from_static("x-amz-security-token")]
        {
            request.headers_mut().remove(name);
        }
        let provider = account.credentials_provider().expect("there is a provider of credentials");
        let identity = provider.provide_credentials().await.expect("the environment has credentials").into();
        let parameters = SigningParams::builder()
            .identity(&identity)
            .region(account.region().expect("the environment has a region").as_ref())
            .name("dynamodb")
            // The true time: only the processes have others.
            .time(SystemTimeSource::new().now())
            .settings(SigningSettings::default());
        let parameters = parameters.build().unwrap().into();
        let uri = request.uri().to_string();
        let headers = request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        let signable = SignableRequest::new("POST", uri, headers, SignableBody::Bytes(body)).unwrap();
        let (instructions, _signature) = sign(signable, &parameters).unwrap().into_parts();
        instructions.apply_to_request_http1x(request);
    }
}
