//! What both functions have in common.

use aws_config::{BehaviorVersion, SdkConfig};
use serde_json::Value;

/// The configuration of the SDK, from the environment.
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

/// Whether the function is to warm up in its init phase.
#[must_use]
pub fn warms_up() -> bool {
    std::env::args().nth(1).as_deref() == Some("warm-up")
}

/// The work. The benchmark measures what is around it.
#[must_use]
pub fn report(_: &Value, fence: u64) -> u64 {
    fence
}
