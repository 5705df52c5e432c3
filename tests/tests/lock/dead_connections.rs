//! Connections with the SDK's own HTTP client on a real socket: idle ones that died while the environment was frozen, and one that
//! the caller's requests share.

use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::{Locks, client_config};
use lambda_lock_tests::loopback::{Fault, Loopback, TABLE};

const IDLE: usize = 10;

async fn config(server: &Loopback) -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(server.endpoint())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "tests"))
        .load()
        .await
}

/// Locks with ten idle connections, all of which have died.
async fn locks_after_a_freeze(server: &Loopback, fault: Fault) -> Locks {
    let config = config(server).await;
    let locks = Locks::builder(Client::from_conf(client_config(&config).build()), TABLE).build().unwrap();
    server.fill_pool(&locks, IDLE).await;
    assert!(server.connections() >= 10);
    server.kill_connections(fault);
    locks
}

async fn read(client: &Client) {
    client.get_item().table_name(TABLE).key("id", AttributeValue::S("job".to_owned())).send().await.unwrap();
}

#[tokio::test]
async fn the_requests_of_the_caller_use_the_connection_of_the_locks() {
    let server = Loopback::start();
    let config = config(&server).await;
    // A client without an HTTP client in its configuration, and one with it.
    for (opened, client) in [(1, Client::new(&config)), (2, Client::from_conf(client_config(&config).build()))] {
        let locks = Locks::builder(client.clone(), TABLE).build().unwrap();
        locks.acquire("job").await.unwrap().release().await.unwrap();
        read(locks.client()).await;
        assert_eq!(server.connections(), opened);
        if opened == 2 {
            read(&client).await;
            assert_eq!(server.connections(), opened);
        }
    }
}

#[tokio::test]
async fn an_acquire_meets_one_connection_that_is_reset() {
    let server = Loopback::start();
    let locks = locks_after_a_freeze(&server, Fault::Reset).await;
    let lock = locks.acquire("job").await.unwrap();
    assert_eq!(server.met(), 1);
    lock.release().await.unwrap();
    assert_eq!(server.met(), 1);
}

#[tokio::test]
async fn an_acquire_meets_one_connection_that_is_silent() {
    let server = Loopback::start();
    let locks = locks_after_a_freeze(&server, Fault::Silence).await;
    // The clock stands still except for the read timeout, so that a slow machine does not end another attempt.
    let timeouts = async {
        loop {
            server.wait_until_met().await;
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::time::resume();
        }
    };
    let lock = tokio::select! {
        lock = locks.acquire("job").into_future() => lock.unwrap(),
        () = timeouts => unreachable!(),
    };
    assert_eq!(server.met(), 1);
    lock.release().await.unwrap();
}

#[tokio::test]
async fn a_reset_does_not_close_connections_that_have_answered_since() {
    let server = Loopback::start();
    let locks = locks_after_a_freeze(&server, Fault::Reset).await;
    let lock = locks.acquire("job").await.unwrap();
    let connections = server.connections();
    server.fail("job", Fault::Reset);
    lock.renew(Duration::from_secs(30)).await.unwrap();
    lock.release().await.unwrap();
    // The reset closed its own connection only.
    assert_eq!(server.connections(), connections + 1);
}
