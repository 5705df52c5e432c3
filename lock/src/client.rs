//! `client_config`: the retries and timeouts of a DynamoDB client for locks. `FirstRetry`: which retry does not wait.
//! `for_locks`: the client of the requests of locks. `SdkAttempts`: which attempts were answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::config::{IdentityCache, StalledStreamProtectionConfig};
use aws_sdk_dynamodb::error::ProvideErrorMetadata as _;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::{Client, config};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeTransmitInterceptorContextRef, FinalizerInterceptorContextRef,
};
use aws_smithy_runtime_api::client::interceptors::{Intercept, dyn_dispatch_hint};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::retries::RequestAttempts;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;

use crate::clock::{Offset, Reading, since_epoch};
use crate::connections::{Connections, has_no_answer};
use crate::error::{is_conflict, is_throttle};
use crate::limits::{CONNECT_TIMEOUT, READ_TIMEOUT};
use crate::random;
use crate::sdk::http_client;

const MAX_ATTEMPTS: u32 = 6;
const INITIAL_BACKOFF: Duration = Duration::from_millis(25);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The connect timeout that [`aws_config`] sets unless the user does.
const SDK_CONNECT_TIMEOUT: Duration = Duration::from_millis(3100);

/// Returns the configuration of a DynamoDB client with short retries and timeouts.
///
/// ```no_run
/// use std::time::Duration;
///
/// use aws_sdk_dynamodb::Client;
/// use aws_sdk_dynamodb::config::retry::RetryConfig;
/// use lambda_lock::{Locks, client_config};
///
/// # async fn example() -> Result<(), lambda_lock::Error> {
/// let config = aws_config::load_from_env().await;
/// let client = Client::from_conf(client_config(&config).build());
/// let locks = Locks::builder(client, "locks").build()?;
///
/// // With other retries:
/// let retries = RetryConfig::standard().with_initial_backoff(Duration::from_millis(100));
/// let client = Client::from_conf(client_config(&config).retry_config(retries).build());
/// # let _ = (locks, client);
/// # Ok(())
/// # }
/// ```
///
/// The SDK's defaults suit a service that answers in seconds: the first retry waits up to 1 s, and no timeout ends a read.
/// DynamoDB answers in milliseconds, and every request of a lock is safe to repeat.
/// [`Locks::from_env`](crate::Locks::from_env) uses this configuration.
///
/// | setting | value | default of the SDK |
/// | --- | --- | --- |
/// | attempts | 6 | 3 |
/// | longest wait before the first retry after a throttle (random from zero; doubles with each retry) | 25 ms | 1 s |
/// | wait before the first retry after a broken connection, a timeout or status 500 | none | as after a throttle |
/// | longest wait before any retry | 1 s | 20 s |
/// | connect timeout (TCP and TLS) | 1 s | 3.1 s |
/// | read timeout: from the start of an attempt, including its connect, to the first byte of the answer | 1 s | none |
/// | attempt timeout: the same, plus resolving the credentials and reading the answer | 5 s | none |
///
/// A lost answer, a broken connection, a server error or a throttle costs milliseconds. A silent connection costs a
/// second. The waits between all attempts of a request add up to at most 0.8 s.
///
/// After an environment was frozen, all connections in the pool may be dead. The first one that does not answer closes the
/// others that have not answered since, so a request meets one dead connection, and its next attempt opens a new one.
///
/// If `config` has no HTTP client, the builder gets one, so that all clients of this configuration share their connections.
///
/// A value in `config` that differs from the SDK's default is kept, such as one from `AWS_MAX_ATTEMPTS`. To override
/// another value, set it on the returned builder. Sends no request.
#[must_use]
pub fn client_config(config: &SdkConfig) -> config::Builder {
    let retries = config.retry_config().cloned().unwrap_or_else(RetryConfig::standard);
    let timeouts = config.timeout_config().cloned().unwrap_or_else(|| TimeoutConfig::builder().build());
    let mut client = config::Builder::from(config);
    if config.http_client().is_none() {
        client.set_http_client(http_client(None).ok());
    }
    client
        .retry_config(retry_config(retries))
        .timeout_config(timeout_config(timeouts))
        .interceptor(Connections::default())
        .interceptor(FirstRetry)
}

/// Replaces the values that are the SDK's defaults.
pub(crate) fn retry_config(retries: RetryConfig) -> RetryConfig {
    let default = RetryConfig::standard();
    let retries = match retries.max_attempts() {
        attempts if attempts == default.max_attempts() => retries.with_max_attempts(MAX_ATTEMPTS),
        _ => retries,
    };
    let retries = match retries.initial_backoff() {
        backoff if backoff == default.initial_backoff() => retries.with_initial_backoff(INITIAL_BACKOFF),
        _ => retries,
    };
    match retries.max_backoff() {
        backoff if backoff == default.max_backoff() => retries.with_max_backoff(MAX_BACKOFF),
        _ => retries,
    }
}

/// Adds the missing timeouts and replaces the SDK's default.
pub(crate) fn timeout_config(mut timeouts: TimeoutConfig) -> TimeoutConfig {
    if timeouts.connect_timeout() == Some(SDK_CONNECT_TIMEOUT) {
        timeouts = timeouts.into_builder().connect_timeout(CONNECT_TIMEOUT).build();
    }
    let ours = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT);
    // Keeps timeouts that the user disabled.
    timeouts.take_defaults_from(&ours.build());
    timeouts
}

/// Lets the first retry start at once unless DynamoDB asked to slow down: a broken connection and status 500 say nothing
/// about load. If the retry fails as well, the next ones wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstRetry;

/// The retries as configured, which the first retry does without.
#[derive(Clone, Debug)]
struct Configured(RetryConfig);

impl Storable for Configured {
    type Storer = StoreReplace<Self>;
}

#[dyn_dispatch_hint]
impl Intercept for FirstRetry {
    fn name(&self) -> &'static str {
        "FirstRetry"
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(Err(error)) = context.output_or_error() else { return Ok(()) };
        // The SDK draws the delay next, on this thread.
        random::reseed();
        match config.load::<RequestAttempts>().map(RequestAttempts::attempts) {
            Some(1) => {
                // Status 503 is a request to slow down.
                let has_failed = context.response().is_some_and(|response| response.status().as_u16() == 500);
                if (has_failed || has_no_answer(error))
                    && let Some(configured) = config.load::<RetryConfig>().cloned()
                {
                    let state = config.interceptor_state();
                    state.store_put(without_wait(configured.clone()));
                    state.store_put(Configured(configured));
                }
            }
            Some(2) => {
                if let Some(Configured(configured)) = config.load::<Configured>().cloned() {
                    config.interceptor_state().store_put(configured);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn without_wait(retries: RetryConfig) -> RetryConfig {
    let retries = retries.with_initial_backoff(Duration::ZERO);
    // With `AWS_NEW_RETRIES_2026`, this value replaces the initial backoff, except after a throttle.
    match retries.retry_spec().cloned() {
        Some(spec) => retries.with_retry_spec(spec.with_non_throttling_initial_backoff(Duration::ZERO)),
        None => retries,
    }
}

/// Records whether DynamoDB answered all attempts of a request, and its time in the last answer. The SDK retries internally and
/// only reports the last attempt, but an earlier, unanswered attempt can still arrive.
#[derive(Clone, Debug, Default)]
pub(crate) struct SdkAttempts(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The SDK does not repeat a request that is throttled or meets a write of another region.
    leaves_prevented: bool,
    is_under_way: AtomicBool,
    is_unanswered: AtomicBool,
    times: Mutex<Times>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// When the first attempt was sent, by this host's clock: its time is in all of them.
    sent: Option<Duration>,
    last: Option<Reading>,
}

impl SdkAttempts {
    /// The attempts of a caller that asks again by itself: when other requests prevent an attempt, the caller decides when to
    /// ask.
    pub(crate) fn leaving_prevented() -> Self {
        Self(Arc::new(State { leaves_prevented: true, ..State::default() }))
    }

    /// Records the attempts of this request, which a client [for locks](for_locks) sends.
    pub(crate) fn record<T>(&self, request: impl Future<Output = T>) -> impl Future<Output = T> {
        OF_REQUEST.scope(self.clone(), request)
    }

    /// The answer to the last attempt was read.
    pub(crate) fn was_answered(&self) {
        self.0.is_under_way.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_unanswered(&self) -> bool {
        self.0.is_unanswered.load(Ordering::Relaxed) || self.0.is_under_way.load(Ordering::Relaxed)
    }

    /// Returns DynamoDB's time in the last answer that had one.
    pub(crate) fn reading(&self) -> Option<Reading> {
        self.times(|times| times.last)
    }

    /// Returns how far this host's clock is off, if it is off by more than the clock skew: then no guarantee holds.
    pub(crate) fn wrong_clock(&self, skew: Duration) -> Option<Offset> {
        self.reading().map(Reading::offset).filter(|offset| offset.by > skew)
    }

    /// The times are plain values, so a panic cannot leave them half-written.
    fn times<T>(&self, of: impl FnOnce(&mut Times) -> T) -> T {
        of(&mut self.0.times.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

tokio::task_local! {
    /// The attempts of the request that is polled. An interceptor of one request would cost more than the rest of the crate.
    static OF_REQUEST: SdkAttempts;
}

/// Returns the client with an HTTP client and an identity cache in its configuration, so that clients that are made from it share
/// its connections and credentials.
pub(crate) fn shareable(client: Client) -> Client {
    let config = client.config();
    if config.http_client().is_some() && config.identity_cache().is_some() {
        return client;
    }
    let mut builder = config.to_builder();
    if config.http_client().is_none() {
        // Without an HTTP client, the SDK makes its own.
        builder.set_http_client(http_client(None).ok());
    }
    if config.identity_cache().is_none() {
        builder.set_identity_cache(IdentityCache::lazy().build());
    }
    Client::from_conf(builder.build())
}

/// Returns a client for the requests of locks, on the connections of this client. The new client tells [`SdkAttempts`] about
/// its attempts.
pub(crate) fn for_locks(client: &Client) -> Client {
    let config = client.config().to_builder().interceptor(Recorder);
    // AWS refuses a clock that is more than five minutes off, which protects the lock. The SDK would sign again with AWS's time.
    // It would also take half of the time for which Lambda freezes a request for a wrong clock, so that AWS refuses the next
    // request.
    let config = config.disable_clock_skew_correction(true);
    // All requests of locks are limited in time, and small. Watching how fast they flow would only cost CPU time.
    let config = config.stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    Client::from_conf(config.build())
}

#[derive(Clone, Copy, Debug)]
struct Recorder;

#[dyn_dispatch_hint]
impl Intercept for Recorder {
    fn name(&self) -> &'static str {
        "SdkAttempts"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let _other_requests = OF_REQUEST.try_with(|attempts| {
            let SdkAttempts(state) = attempts;
            if state.is_under_way.swap(true, Ordering::Relaxed) {
                state.is_unanswered.store(true, Ordering::Relaxed);
            }
            attempts.times(|times| times.sent = times.sent.or_else(|| Some(now(components))));
        });
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let _other_requests = OF_REQUEST.try_with(|attempts| {
            let headers = context.response().map(HttpResponse::headers);
            attempts.times(|times| {
                let reading = times.sent.zip(headers);
                let reading = reading.and_then(|(sent, headers)| Reading::new(sent, now(components), headers));
                times.last = reading.or(times.last);
            });
        });
        let Some(Err(error)) = context.output_or_error() else { return Ok(()) };
        // Only a refusal counts. After a server error the request may have been applied.
        let is_refusal = context.response().is_some_and(|response| response.status().is_client_error());
        let leaves_prevented = OF_REQUEST.try_with(|attempts| {
            if is_refusal {
                attempts.was_answered();
            }
            attempts.0.leaves_prevented
        });
        if leaves_prevented != Ok(true) {
            return Ok(());
        }
        let refusal = error.as_operation_error().and_then(|error| error.downcast_ref::<UpdateItemError>());
        if refusal.and_then(|refusal| refusal.code()).is_some_and(|code| is_throttle(code) || is_conflict(code))
            && let Some(retries) = config.load::<RetryConfig>().cloned()
        {
            config.interceptor_state().store_put(retries.with_max_attempts(1));
        }
        Ok(())
    }
}

/// Returns the time of the client's clock.
fn now(components: &RuntimeComponents) -> Duration {
    since_epoch(components.time_source().unwrap_or_default().now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_and_timeouts_are_short() {
        let config = client_config(&SdkConfig::builder().build()).build();
        let retries = config.retry_config().unwrap();
        assert_eq!((retries.max_attempts(), retries.initial_backoff()), (6, Duration::from_millis(25)));
        let timeouts = config.timeout_config().unwrap();
        assert_eq!(timeouts.connect_timeout(), Some(Duration::from_secs(1)));
        assert_eq!(timeouts.read_timeout(), Some(Duration::from_secs(1)));
        assert_eq!(timeouts.operation_attempt_timeout(), Some(Duration::from_secs(5)));
    }

    #[tokio::test]
    async fn defaults_of_the_sdk_are_replaced() {
        // As `aws_config` loads them, with its own connect timeout.
        let loaded = aws_config::defaults(aws_config::BehaviorVersion::latest())
            .region(aws_config::Region::new("us-east-1"))
            .load()
            .await;
        let config = client_config(&loaded).build();
        assert_eq!(config.timeout_config().unwrap().connect_timeout(), Some(CONNECT_TIMEOUT));
        assert_eq!(config.retry_config().unwrap().initial_backoff(), INITIAL_BACKOFF);
    }

    #[test]
    fn values_of_the_user_are_kept() {
        let second = Duration::from_secs(2);
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(second)
            .read_timeout(second)
            .operation_attempt_timeout(second)
            .operation_timeout(second)
            .build();
        let retries =
            RetryConfig::adaptive().with_max_attempts(9).with_initial_backoff(second).with_max_backoff(second);
        let config = SdkConfig::builder().timeout_config(timeouts.clone()).retry_config(retries.clone()).build();
        let config = client_config(&config).build();
        assert_eq!(config.retry_config(), Some(&retries));
        assert_eq!(config.timeout_config(), Some(&timeouts));
    }

    #[test]
    fn disabled_timeouts_stay_disabled() {
        let config = SdkConfig::builder().timeout_config(TimeoutConfig::disabled()).build();
        assert!(!client_config(&config).build().timeout_config().unwrap().has_timeouts());
    }
}
