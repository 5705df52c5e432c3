//! The code that both functions share.

use aws_config::{BehaviorVersion, SdkConfig};
use serde_json::Value;

/// Loads the configuration of the SDK from the environment.
pub async fn config() -> SdkConfig {
    let config = aws_config::defaults(BehaviorVersion::latest());
    #[cfg(feature = "ring")]
    let config = {
        use aws_smithy_http_client::Builder;
        use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
        config.http_client(Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https())
    };
    config.load().await
}

/// Returns whether the function warms up in its init phase.
#[must_use]
pub fn warms_up() -> bool {
    std::env::args().nth(1).as_deref() == Some("warm-up")
}

/// The work. The benchmark measures the code around it.
#[must_use]
pub fn report(_: &Value, fence: u64) -> u64 {
    fence
}
