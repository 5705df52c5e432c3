//! The first retry: at once, unless DynamoDB asks to slow down.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, StalledStreamProtectionConfig};
use aws_smithy_async::rt::sleep::{AsyncSleep, Sleep, TokioSleep};
use lambda_lock::embedded::{Answer, DynamoDb, Intercept};
use lambda_lock::{Locks, client_config};
use lambda_lock_tests::loopback::{Fault, Loopback, TABLE};
use serde_json::{Value, json};

use crate::ms;

/// Records the waits of a client that are shorter than its timeouts.
#[derive(Clone, Debug, Default)]
struct Waits(Arc<Mutex<Vec<Duration>>>);

impl AsyncSleep for Waits {
    fn sleep(&self, duration: Duration) -> Sleep {
        if duration < Duration::from_secs(1) {
            self.0.lock().unwrap().push(duration);
        }
        TokioSleep::new().sleep(duration)
    }
}

/// Returns how long the SDK's own HTTP client waits before the retries of an acquire with this fault, on a real socket.
async fn waits_after(fault: Fault) -> Vec<Duration> {
    let (server, waits) = (Loopback::start(), Waits::default());
    let config = aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(server.endpoint())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "tests"))
        // Its timers are no waits.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .sleep_impl(waits.clone())
        .load()
        .await;
    let locks = Locks::builder(Client::from_conf(client_config(&config).build()), TABLE).build().unwrap();
    server.fail("job", fault);
    locks.acquire("job").await.unwrap().release().await.unwrap();
    waits.0.lock().unwrap().clone()
}

#[tokio::test]
async fn the_first_retry_after_a_connection_that_breaks_does_not_wait() {
    assert_eq!(waits_after(Fault::Reset).await, [Duration::ZERO]);
    assert_eq!(waits_after(Fault::AnswerLost).await, [Duration::ZERO]);
}

#[tokio::test]
async fn the_first_retry_after_a_throttle_waits() {
    let waits = waits_after(Fault::Throttle).await;
    assert!(matches!(waits[..], [wait] if wait > Duration::ZERO && wait < ms(25)), "{waits:?}");
}

/// Answers a host's first updates with an error.
#[derive(Debug)]
struct Fail {
    which: RangeInclusive<u32>,
    status: u16,
    code: &'static str,
    sent: AtomicU32,
}

impl Intercept for Fail {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if self.which.contains(&(self.sent.fetch_add(1, Ordering::Relaxed) + 1)) {
            answer.status = self.status;
            answer.body = json!({ "__type": self.code });
        }
    }
}

/// Returns how long an acquire takes whose first attempts fail.
async fn delay(failures: u32, status: u16, code: &'static str) -> Duration {
    let dynamodb = DynamoDb::new().unwrap();
    Locks::builder(dynamodb.client(), TABLE).build().unwrap().create_table().await.unwrap();
    let host = dynamodb.host().intercept(Fail { which: 1..=failures, status, code, sent: AtomicU32::new(0) }).build();
    let started = host.now();
    let _lock = Locks::builder(host.client(), TABLE).build().unwrap().acquire("job").await.unwrap();
    assert_eq!(host.requests(), u64::from(failures) + 1);
    host.now().duration_since(started).unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_the_first_retry_does_not_wait() {
    assert_eq!(delay(1, 500, "InternalServerError").await, Duration::ZERO);
    // Random from zero up to 50, 100, 200 and 400 ms.
    let waits = delay(5, 500, "InternalServerError").await;
    assert!(waits > ms(5) && waits < ms(760), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_asks_to_slow_down_is_not_asked_at_once() {
    assert!(delay(1, 400, "ProvisionedThroughputExceededException").await > Duration::ZERO);
    assert!(delay(1, 503, "ServiceUnavailable").await > Duration::ZERO);
}
