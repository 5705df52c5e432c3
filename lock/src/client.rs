//! `client_config`: retries and timeouts of a DynamoDB client that suit a lock; and what became of a request's attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::config;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;

const MAX_ATTEMPTS: u32 = 6;
const INITIAL_BACKOFF: Duration = Duration::from_millis(25);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(1);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The connect timeout that [`aws_config`] sets unless the user does.
const SDK_CONNECT_TIMEOUT: Duration = Duration::from_millis(3100);

/// Returns the configuration of a DynamoDB client with short retries and timeouts.
///
/// The SDK's own settings suit a service that answers in seconds: the first retry waits up to 1 s, and an answer that
/// never comes is awaited for ever. DynamoDB answers in milliseconds, and a lock's requests recognise themselves when
/// they are repeated, so a repeated request is safe. [`Locks::from_env`](crate::Locks::from_env) uses this
/// configuration.
///
/// | setting | value here | default of the SDK |
/// | --- | --- | --- |
/// | attempts | 6 | 3 |
/// | wait before the first retry, at most (random from zero; doubles with each retry) | 25 ms | 1 s |
/// | longest wait before a retry | 1 s | 20 s |
/// | connect timeout (TCP and TLS) | 1 s | 3.1 s |
/// | read timeout: from the start of an attempt, with its connect, to the first byte of the answer | 1 s | none |
/// | attempt timeout: the same, with looking up the credentials and reading the answer | 5 s | none |
///
/// So a lost answer, a broken connection, a server error or a throttle costs milliseconds, and a silent connection
/// costs a second. All attempts together take at most 0.8 s of waiting.
///
/// A value that `config` sets to something other than the SDK's default is kept: `AWS_MAX_ATTEMPTS`, for example. To
/// override any other value, set it on the builder that is returned. No request.
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
#[must_use]
pub fn client_config(config: &SdkConfig) -> config::Builder {
    let retries = config.retry_config().cloned().unwrap_or_else(RetryConfig::standard);
    let timeouts = config.timeout_config().cloned().unwrap_or_else(|| TimeoutConfig::builder().build());
    config::Builder::from(config).retry_config(retry_config(retries)).timeout_config(timeout_config(timeouts))
}

/// These retries, with what is as in the SDK's default replaced.
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

/// These timeouts, with what is missing added, and what is as in the SDK's default replaced.
pub(crate) fn timeout_config(mut timeouts: TimeoutConfig) -> TimeoutConfig {
    if timeouts.connect_timeout() == Some(SDK_CONNECT_TIMEOUT) {
        timeouts = timeouts.into_builder().connect_timeout(CONNECT_TIMEOUT).build();
    }
    let ours = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT);
    // Also keeps those that are disabled.
    timeouts.take_defaults_from(&ours.build());
    timeouts
}

/// Whether all attempts of a request were answered. The SDK tries again by itself and tells of the last attempt alone; an
/// earlier one without an answer may still arrive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_under_way: AtomicBool,
    is_unanswered: AtomicBool,
}

impl Attempts {
    pub(crate) fn is_unanswered(&self) -> bool {
        self.0.is_unanswered.load(Ordering::Relaxed) || self.0.is_under_way.load(Ordering::Relaxed)
    }
}

impl Intercept for Attempts {
    fn name(&self) -> &'static str {
        "Attempts"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if self.0.is_under_way.swap(true, Ordering::Relaxed) {
            self.0.is_unanswered.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        // A refusal alone is an answer. A server error does not say whether the request was applied, and the body of a
        // success may still be lost.
        if context.response().status().is_client_error() {
            self.0.is_under_way.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
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
    async fn the_defaults_of_the_sdk_are_replaced() {
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
    fn what_the_user_sets_is_kept() {
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
    fn a_timeout_that_the_user_disables_stays_disabled() {
        let config = SdkConfig::builder().timeout_config(TimeoutConfig::disabled()).build();
        assert!(!client_config(&config).build().timeout_config().unwrap().has_timeouts());
    }
}
