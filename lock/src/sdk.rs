//! The environment: its variables, and the configuration of the AWS SDK (`load_config`). A wrong value is an error here, but
//! the SDK itself panics at some of them, and overlooks the rest.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{env, fs, iter};

use aws_config::profile::{Profile, ProfileFileCredentialsProvider, ProfileSet};
use aws_config::provider_config::ProviderConfig;
use aws_config::{ConfigLoader, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_smithy_async::rt::sleep::SharedAsyncSleep;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, Connector, ConnectorBuilder};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::connector_metadata::ConnectorMetadata;
use aws_smithy_runtime_api::client::dns::ResolveDnsError;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::{RuntimeComponents, RuntimeComponentsBuilder};
use aws_smithy_runtime_api::shared::IntoShared as _;
use aws_smithy_types::config_bag::ConfigBag;
use aws_smithy_types::retry::RetryMode;
use aws_types::os_shim_internal::{Env, Fs};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::error::Error;
use crate::limits::{CONNECT_TIMEOUT, READ_TIMEOUT};
use crate::text::printable;

/// The settings that requests have in headers: the credentials, by their variables and by their properties in a profile, and
/// others.
const IN_HEADERS: [(&str, &str); 5] = [
    ("AWS_ACCESS_KEY_ID", "aws_access_key_id"),
    ("AWS_SECRET_ACCESS_KEY", "aws_secret_access_key"),
    ("AWS_SESSION_TOKEN", "aws_session_token"),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN", ""),
    ("AWS_EXECUTION_ENV", ""),
];

/// The advice about a value that no request can contain.
const WAY_OUT: &str = "a line break, for example, or a character that is not ASCII; write it without that character";

/// The advice about an endpoint.
const URL: &str = "a URL like `http://localhost:8000`, or unset it";

/// Returns the value of an environment variable, if it is set.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Error> {
    let not_utf8 = |_| Error::invalid(format!("the environment variable {name} is not UTF-8: correct it or unset it"));
    env::var_os(name).map(OsString::into_string).transpose().map_err(not_utf8)
}

/// Returns the proxy of requests with this scheme, and the variable that names it, as the SDK's HTTP client finds them.
fn proxy_of(scheme: &str) -> Option<(String, String)> {
    let names = [scheme, "all"].map(|scheme| format!("{scheme}_proxy")).into_iter();
    let mut names = names.flat_map(|name| [name.to_uppercase(), name]);
    names.find_map(|name| Some((env::var(&name).ok().filter(|proxy| !proxy.is_empty())?, name)))
}

/// Whether the SDK's HTTP client uses the proxy. Otherwise it sends requests without one.
fn is_proxy(value: &str) -> bool {
    let (scheme, host) = value.split_once("://").unwrap_or(("http", value));
    (scheme.starts_with("http") || scheme.starts_with("socks")) && ProxyConfig::all(format!("http://{host}")).is_ok()
}

/// Loads the configuration of the AWS SDK, as [`ConfigLoader::load`] does, for clients of your own.
///
/// ```no_run
/// use aws_config::BehaviorVersion;
/// use aws_sdk_dynamodb::Client;
/// use lambda_lock::{Locks, client_config, load_config};
///
/// # async fn example() -> Result<(), lambda_lock::Error> {
/// let config = load_config(aws_config::defaults(BehaviorVersion::latest()), None).await?;
/// let locks = Locks::builder(Client::from_conf(client_config(&config).build()), "locks").build()?;
/// # let _ = locks;
/// # Ok(())
/// # }
/// ```
///
/// [`Locks::from_env`](crate::Locks::from_env) and the program `lambda-lock` use it, because the SDK alone does not say what is
/// wrong in the environment. With `AWS_ACCESS_KEY_ID` from a file with Windows line ends, for example, its first request
/// panics. This function returns an error of kind [`Invalid`](crate::ErrorKind::Invalid), which names the variable and never its
/// value, or the property of the profile in `~/.aws/config`:
///
/// | setting | error |
/// | --- | --- |
/// | credentials in variables, or in the profile and its `source_profile`s; `AWS_CONTAINER_AUTHORIZATION_TOKEN`, `AWS_EXECUTION_ENV` | a character that no header can have |
/// | `AWS_MAX_ATTEMPTS`, `max_attempts` | not a number from 1 |
/// | `AWS_RETRY_MODE`, `retry_mode` | neither `standard` nor `adaptive`: this SDK has no `legacy` |
/// | `AWS_ENDPOINT_URL_DYNAMODB`, `AWS_ENDPOINT_URL`, `endpoint_url` | not a URL; the SDK would send your requests to AWS |
/// | `AWS_CA_BUNDLE`, `ca_bundle` | a file that cannot be read, or that has no certificate |
/// | `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` | not the URL of a proxy; the SDK would connect without it |
/// | these variables, and each other that begins with `AWS_` | not UTF-8; the SDK would overlook it |
/// | the region | a character that no host's name can have |
/// | the given profile | it is in no file |
///
/// The clients trust the certificate authorities of `AWS_CA_BUNDLE` or `ca_bundle` instead of those of the system, as the AWS
/// command line interface does and the SDK alone does not. If a request finds no credentials, or credentials of another source
/// have such a character, the error of the request says so. If a request finds no connection, its error names the host and the
/// proxy.
///
/// With a `profile`, its credentials go before those in the environment, as with `aws --profile`. Without one, the SDK looks for
/// credentials as usual. The function sets the HTTP client and the credentials of the `loader`; set others on the builder that
/// [`client_config`](crate::client_config) returns. It reads files, and sends no request but what the loader sends to find the
/// region.
pub async fn load_config(loader: ConfigLoader, profile: Option<&str>) -> Result<SdkConfig, Error> {
    let environment = Environment::read(profile).await;
    environment.check()?;
    let http_client = http_client(environment.certificates()?)?;
    let mut loader = loader.http_client(http_client.clone());
    if let Some(profile) = profile {
        let provider = ProviderConfig::default().with_http_client(http_client);
        let credentials = ProfileFileCredentialsProvider::builder().configure(&provider).profile_name(profile).build();
        loader = loader.profile_name(profile).credentials_provider(credentials);
    }
    let config = loader.load().await;
    if let Some(region) = config.region().filter(|region| !is_region(region.as_ref())) {
        return Err(Error::invalid(format!(
            "the region is `{}`, which is invalid: write one like `eu-west-1` in --region, AWS_REGION or the profile",
            printable(region.as_ref())
        )));
    }
    if let Some(url) = config.endpoint_url().filter(|url| !is_url(url)) {
        return Err(Error::invalid(format!("the endpoint is `{}`, which is invalid: write {URL}", printable(url))));
    }
    let missing = environment.missing_profile();
    if let Some(missing) = missing.filter(|_| profile.is_some() || config.region().is_none()) {
        return Err(Error::invalid(missing));
    }
    let Some(provider) = config.credentials_provider() else { return Ok(config) };
    let checked = CheckedCredentials { provider, without: environment.without_credentials() };
    Ok(config.into_builder().credentials_provider(SharedCredentialsProvider::new(checked)).build())
}

/// The files of profiles, and the profile that counts.
struct Environment {
    profiles: ProfileSet,
    /// The profile, and the source of its name: an argument, a variable, or nothing if it is the default and is there.
    named: Option<(String, &'static str)>,
    /// The credentials are those of the profile that is given as an argument.
    is_given: bool,
}

impl Environment {
    async fn read(profile: Option<&str>) -> Self {
        #[expect(deprecated, reason = "the new name is in a crate that has nothing else for this one")]
        let files = aws_config::profile::profile_file::ProfileFiles::default();
        let given = profile.map(str::to_owned);
        let profiles =
            aws_config::profile::load(&Fs::real(), &Env::real(), &files, given.clone().map(Into::into)).await;
        let variable = || Some((env::var("AWS_PROFILE").ok()?, ", which AWS_PROFILE names,"));
        // A request that needs a file has the reason why it cannot be read.
        let profiles = profiles.unwrap_or_default();
        let default = || profiles.get_profile("default").map(|default| (default.name().to_owned(), ""));
        Self {
            named: given.map(|name| (name, "")).or_else(variable).or_else(default),
            is_given: profile.is_some(),
            profiles,
        }
    }

    fn check(&self) -> Result<(), Error> {
        for (name, property) in IN_HEADERS {
            let value = variable(name)?.unwrap_or_default();
            // The SDK trims a session token, and a blank access key is none.
            let is_trimmed = name == "AWS_SESSION_TOKEN" || value.trim().is_empty();
            let is_used = !self.is_given || property.is_empty();
            if is_used && !fits_a_header(if is_trimmed { value.trim() } else { &value }) {
                return Err(Error::invalid(format!(
                    "the environment variable {name} has a character that no request can contain ({WAY_OUT})"
                )));
            }
            for profile in self.sources() {
                if profile.get(property).is_some_and(|value| !fits_a_header(value)) {
                    return Err(Error::invalid(format!(
                        "`{property}` of the profile `{}` has a character that no request can contain ({WAY_OUT})",
                        printable(profile.name())
                    )));
                }
            }
        }
        self.check_setting("AWS_MAX_ATTEMPTS", "max_attempts", "a number from 1, or unset it", |value| {
            value.parse::<u32>().is_ok_and(|attempts| attempts > 0)
        })?;
        self.check_setting("AWS_RETRY_MODE", "retry_mode", "`standard` or `adaptive`, or unset it", |value| {
            RetryMode::from_str(value).is_ok()
        })?;
        // An empty endpoint is none, as for the SDK.
        let is_fine = |value: &str| value.is_empty() || is_url(value);
        self.check_setting("AWS_ENDPOINT_URL_DYNAMODB", "", URL, is_fine)?;
        self.check_setting("AWS_ENDPOINT_URL", "endpoint_url", URL, is_fine)?;
        let mut proxies = ["http", "https"].into_iter().filter_map(proxy_of);
        if let Some((_, name)) = proxies.find(|(value, _)| !is_proxy(value)) {
            // Without the value, which may have a password.
            let why = "is not the URL of a proxy: write one like `http://localhost:3128`, or unset it";
            return Err(Error::invalid(format!("the environment variable {name} {why}")));
        }
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut read = names.filter(|name| name.starts_with("AWS_") || name.to_lowercase().ends_with("_proxy"));
        read.try_for_each(|name| variable(&name).map(drop))
    }

    /// Returns the profile, and the profiles that it takes its credentials from.
    fn sources(&self) -> Vec<&Profile> {
        let mut sources: Vec<&Profile> = Vec::new();
        let mut next = self.profiles.get_profile(self.profiles.selected_profile());
        while let Some(profile) = next.filter(|next| sources.iter().all(|source| source.name() != next.name())) {
            sources.push(profile);
            next = profile.get("source_profile").and_then(|name| self.profiles.get_profile(name));
        }
        sources
    }

    /// Returns the name and the value of a setting: of the variable, or of the property in the profile.
    fn setting(&self, variable: &str, property: &str) -> Option<(String, String)> {
        if let Ok(value) = env::var(variable) {
            return Some((format!("the environment variable {variable}"), value));
        }
        let value = self.profiles.get(property)?;
        Some((
            format!("`{property}` of the profile `{}`", printable(self.profiles.selected_profile())),
            value.to_owned(),
        ))
    }

    fn check_setting(
        &self,
        variable: &str,
        property: &str,
        remedy: &str,
        is_valid: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        match self.setting(variable, property) {
            Some((place, value)) if !is_valid(&value) => {
                Err(Error::invalid(format!("{place} is `{}`, which is invalid: write {remedy}", printable(&value))))
            }
            _ => Ok(()),
        }
    }

    /// Returns the certificate authorities to trust instead of those of the system.
    fn certificates(&self) -> Result<Option<String>, Error> {
        let Some((place, file)) = self.setting("AWS_CA_BUNDLE", "ca_bundle").filter(|(_, file)| !file.is_empty())
        else {
            return Ok(None);
        };
        let shown = printable(&file);
        let remedy = "name a file of PEM certificates, or unset it to trust those of the system";
        let bundle = fs::read(&file).map_err(|error| {
            Error::invalid(format!("{place} is `{shown}`, which cannot be read ({error}): {remedy}"))
        })?;
        let usable = usable_certificates(&String::from_utf8_lossy(&bundle));
        if usable.is_empty() {
            return Err(Error::invalid(format!("{place} is `{shown}`, which has no valid certificate: {remedy}")));
        }
        Ok(Some(usable))
    }

    /// Returns the error of a profile that is named and is in no file.
    fn missing_profile(&self) -> Option<String> {
        let (name, by) = self.named.as_ref()?;
        if self.profiles.get_profile(name).is_some() {
            return None;
        }
        let [config, credentials] = files();
        Some(format!(
            "the profile `{}`{by} is in neither {config} nor {credentials}: name another one, or create it with `aws configure \
             --profile`",
            printable(name)
        ))
    }

    /// Returns the texts before and after the cause if there are no credentials.
    fn without_credentials(&self) -> Option<(String, String)> {
        let (name, by) = self.named.as_ref()?;
        let [config, _] = files();
        Some(match self.missing_profile() {
            Some(missing) => ("no credentials".to_owned(), missing),
            None => (
                format!("no credentials from the profile `{}`{by}", printable(name)).trim_end_matches(',').to_owned(),
                format!("check it in {config}, or log in again"),
            ),
        })
    }
}

/// Returns the names of the two files of profiles.
fn files() -> [String; 2] {
    let files = [("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")];
    files
        .map(|(name, default)| env::var(name).map_or_else(|_| default.to_owned(), |file| printable(&file).into_owned()))
}

/// Whether the value can be in a header of a request. The signature of a request has the access key in one.
fn fits_a_header(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}

fn is_url(value: &str) -> bool {
    let rest = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.starts_with(['/', ':', '?', '#'])) && HttpRequest::empty().set_uri(value).is_ok()
}

/// Whether the region can be a part of a host's name.
fn is_region(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns the certificates that can be trusted, in PEM. A certificate that cannot be trusted is left out, as a certificate of
/// the system is.
fn usable_certificates(bundle: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut usable = String::new();
    for text in bundle.split_inclusive(END) {
        let certificate = text.rfind(BEGIN).and_then(|start| text.get(start..)).unwrap_or_default();
        let parsed = CertificateDer::from_pem_slice(certificate.as_bytes());
        if parsed.is_ok_and(|parsed| RootCertStore::empty().add(parsed).is_ok()) {
            usable.push_str(certificate);
            usable.push('\n');
        }
    }
    usable
}

/// Returns the SDK's default client, with these certificates instead of those of the system. Its errors name the host and the
/// proxy that it cannot connect to.
pub(crate) fn http_client(certificates: Option<String>) -> Result<SharedHttpClient, Error> {
    Ok(naming_client(certificates)?.into_shared())
}

fn naming_client(certificates: Option<String>) -> Result<NamingClient, Error> {
    let trusted = match certificates {
        Some(certificates) => TrustStore::empty().with_pem_certificate(certificates),
        None => TrustStore::default(),
    };
    let tls = TlsContext::builder().with_trust_store(trusted).build();
    let tls = tls.map_err(|error| Error::invalid("the settings of TLS are invalid").with_source(error))?;
    let ready = Arc::new(Ready { tls, connector: OnceLock::new() });
    let of_client = Arc::clone(&ready);
    // As the SDK makes its own. With a resolver of another type, each program would have the HTTP client twice, 700 KB of machine
    // code.
    let client = Builder::new().build_with_connector_fn(move |settings, components| {
        let sleep = components.and_then(RuntimeComponents::sleep_impl);
        of_client.take(settings).unwrap_or_else(|| of_client.connector(settings, sleep))
    });
    Ok(NamingClient { client, ready })
}

/// The connector of the first request, which Lambda's init phase makes: a connector reads all trusted certificates.
#[derive(Debug)]
struct Ready {
    tls: TlsContext,
    connector: OnceLock<Mutex<Option<Connector>>>,
}

impl Ready {
    /// Makes the connector, once for all clients of the HTTP client. Nobody knows the timeouts of the first request yet, so they
    /// are those of [`client_config`](crate::client_config).
    fn make(&self, sleep: Option<SharedAsyncSleep>) {
        self.connector.get_or_init(|| Mutex::new(Some(self.connector(Some(&timeouts_of_locks()), sleep))));
    }

    /// Returns the connector, if it has these timeouts and is not in use.
    fn take(&self, settings: Option<&HttpConnectorSettings>) -> Option<Connector> {
        let timeouts = |settings: &HttpConnectorSettings| (settings.connect_timeout(), settings.read_timeout());
        settings.filter(|settings| timeouts(settings) == timeouts(&timeouts_of_locks()))?;
        self.connector.get()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn connector(&self, settings: Option<&HttpConnectorSettings>, sleep: Option<SharedAsyncSleep>) -> Connector {
        let mut connector = ConnectorBuilder::default()
            .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
            .tls_context(self.tls.clone())
            .proxy_config(ProxyConfig::from_env());
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(sleep);
        connector.build()
    }
}

/// The timeouts of the clients of locks.
fn timeouts_of_locks() -> HttpConnectorSettings {
    HttpConnectorSettings::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT).build()
}

/// An HTTP client whose errors name the host and the proxy that it cannot connect to.
#[derive(Clone, Debug)]
struct NamingClient {
    client: SharedHttpClient,
    ready: Arc<Ready>,
}

/// A connector of it.
#[derive(Clone, Debug)]
struct Naming(SharedHttpConnector);

impl HttpClient for NamingClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(Naming(self.client.http_connector(settings, components)))
    }

    /// A new client validates its configuration, in the init phase.
    fn validate_base_client_config(
        &self,
        components: &RuntimeComponentsBuilder,
        _: &ConfigBag,
    ) -> Result<(), BoxError> {
        self.ready.make(components.sleep_impl());
        Ok(())
    }

    fn validate_final_config(&self, components: &RuntimeComponents, config: &ConfigBag) -> Result<(), BoxError> {
        self.client.validate_final_config(components, config)
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        self.client.connector_metadata()
    }
}

impl HttpConnector for Naming {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (uri, answer) = (request.uri().to_owned(), self.0.call(request));
        HttpConnectorFuture::new(async move {
            answer.await.map_err(|error| {
                // The HTTP client says by a text only why it has no connection.
                let sources = || iter::successors(error.source(), |&error| error.source()).map(ToString::to_string);
                let has = |text| sources().any(|source| source.starts_with(text));
                if !["dns error", "tcp connect error", "tunnel error"].into_iter().any(has) {
                    return error;
                }
                let proxy = proxy_of(uri.split("://").next().unwrap_or_default());
                let proxy = proxy.map(|(proxy, name)| format!(" or its proxy `{}` ({name})", host_of(&proxy)));
                let (host, proxy, why) = (host_of(&uri), proxy.unwrap_or_default(), root_of(&error));
                let why = format!("no connection to the host `{host}`{proxy}: {why}");
                let why: BoxError = if has("dns error") { Box::new(ResolveDnsError::new(why)) } else { why.into() };
                ConnectorError::io(why).never_connected()
            })
        })
    }
}

/// Returns the host of a URL with its port, without the password of a proxy.
fn host_of(url: &str) -> String {
    let host = url.rsplit("://").next().and_then(|rest| rest.rsplit('@').next()).unwrap_or(url);
    printable(host.split('/').next().unwrap_or(host)).into_owned()
}

/// Credentials of any source, which are checked before the SDK signs a request with them.
#[derive(Debug)]
struct CheckedCredentials {
    provider: SharedCredentialsProvider,
    /// The texts before and after the cause if there are no credentials.
    without: Option<(String, String)>,
}

impl CheckedCredentials {
    async fn checked(&self) -> Result<Credentials, CredentialsError> {
        let credentials = self.provider.provide_credentials().await.map_err(|error| match &self.without {
            Some((before, after)) => {
                CredentialsError::provider_error(format!("{before} ({}): {after}", root_of(&error)))
            }
            None => error,
        })?;
        let parts =
            [("access key id", Some(credentials.access_key_id())), ("session token", credentials.session_token())];
        let wrong = parts.into_iter().find(|(_, value)| value.is_some_and(|value| !fits_a_header(value)));
        match wrong.map(|(part, _)| part) {
            Some(part) => Err(CredentialsError::invalid_configuration(format!(
                "the {part} of the credentials has a character that no request can contain ({WAY_OUT})"
            ))),
            None => Ok(credentials),
        }
    }
}

impl ProvideCredentials for CheckedCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.checked())
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.provider.fallback_on_interrupt()
    }
}

/// Returns the text of an error's root cause, and of the error that it caused: `No such file or directory` does not say which.
fn root_of(error: &(dyn StdError + 'static)) -> String {
    let (mut root, mut text) = (error, String::new());
    while let Some(source) = root.source() {
        text = format!("{root}: ");
        root = source;
    }
    printable(format!("{text}{root}").trim_end_matches('.')).into_owned()
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::config::{BehaviorVersion, Region};
    use aws_smithy_types::timeout::TimeoutConfig;

    use super::*;

    #[tokio::test]
    async fn the_first_request_takes_the_connector_that_the_new_client_has_made() {
        let http = naming_client(None).unwrap();
        let ready = Arc::clone(&http.ready);
        let is_made = || ready.connector.get().is_some_and(|connector| connector.lock().unwrap().is_some());
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http)
            .region(Region::from_static("us-east-1"))
            .credentials_provider(SharedCredentialsProvider::new(Credentials::for_tests()))
            .endpoint_url("http://127.0.0.1:1")
            .timeout_config(
                TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT).build(),
            )
            .build();
        assert!(!is_made());
        let client = Client::new(&config);
        assert!(is_made());
        client.list_tables().send().await.unwrap_err();
        assert!(!is_made());
    }
}
