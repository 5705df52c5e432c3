//! `Locks` in environments that Lambda restores from one snapshot (`SnapStart`).

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use lambda_lock::{Locks, client_config};
use lambda_lock_tests::loopback::{Fault, Loopback, TABLE};
use lambda_runtime::SnapStartResource;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

async fn config_of(server: &Loopback) -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(server.endpoint())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "tests"))
        .load()
        .await
}

async fn locks_at(server: &Loopback) -> Locks {
    let client = Client::from_conf(client_config(&config_of(server).await).build());
    Locks::builder(client, TABLE).build().unwrap()
}

#[tokio::test]
async fn a_restored_environment_uses_no_connection_of_the_snapshot() {
    let server = Loopback::start();
    let locks = locks_at(&server).await;
    server.fill_pool(&locks, 10).await;
    locks.before_snapshot().await.unwrap();
    let of_the_snapshot = server.connections();
    // A request on one of them would wait for the read timeout.
    server.kill_connections(Fault::Silence);
    locks.after_restore().await.unwrap();
    assert_eq!(server.connections(), of_the_snapshot + 1, "the warm-up opens one");
    locks.acquire("job").await.unwrap().release().await.unwrap();
    assert_eq!((server.met(), server.connections()), (0, of_the_snapshot + 1));
}

#[tokio::test]
async fn a_lock_that_is_held_ends_before_the_snapshot() {
    let server = Loopback::start();
    let locks = locks_at(&server).await;
    let lock = locks.acquire("job").await.unwrap();
    locks.before_snapshot().await.unwrap();
    assert!(!lock.is_valid());
    locks.acquire("job").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_release_of_a_dropped_lock_is_answered_before_the_snapshot() {
    let server = Loopback::start();
    let locks = locks_at(&server).await;
    drop(locks.acquire("job").await.unwrap());
    assert!(locks.flush(Duration::ZERO).await.is_err());
    locks.before_snapshot().await.unwrap();
    locks.flush(Duration::ZERO).await.unwrap();
}

/// Copies a process after its init phase, in which its connections die. Returns what the copies print.
async fn copies_of(server: &Loopback) -> Vec<Value> {
    let mut process = Command::new(env!("CARGO_BIN_EXE_snapshot"))
        .env("AWS_ENDPOINT_URL", server.endpoint())
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("LOCK_TABLE_NAME", TABLE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
    server.kill_connections(Fault::Silence);
    process.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let mut copies = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        copies.push(serde_json::from_str(&line).unwrap());
    }
    assert!(process.wait().await.unwrap().success());
    copies
}

#[tokio::test]
async fn copies_of_a_process_draw_nothing_alike_and_do_not_wait_for_its_connections() {
    let server = Loopback::start();
    let copies = copies_of(&server).await;
    assert_eq!(copies.len(), 5);
    let first = &copies[0];
    assert!(copies.iter().all(|copy| copy["copied"] == first["copied"]), "the generators in the process are equal");
    let kinds = first["drawn"].as_object().unwrap();
    assert_eq!(kinds.len(), 5);
    for what in kinds.keys() {
        let drawn: BTreeSet<_> = copies.iter().map(|copy| copy["drawn"][what].to_string()).collect();
        assert_eq!(drawn.len(), copies.len(), "{what}: {drawn:?}");
    }
    // Nothing drives a connection of the snapshot in a copy: a warm-up on one waits for its limit, which is 3 s.
    let restores: Vec<_> = copies.iter().map(|copy| copy["restore"].as_u64().unwrap()).collect();
    println!("warm-up and first acquire: {restores:?} ms");
    assert!(restores.iter().all(|&millis| millis < 3000), "{restores:?}");
}

#[tokio::test]
async fn the_delays_of_any_client_differ_after_a_restore() {
    let server = Loopback::start();
    let locks = Locks::builder(Client::new(&config_of(&server).await), TABLE).build().unwrap();
    // A client draws more before its first request than later.
    locks.warm_up().await;
    let mut drawn = BTreeSet::new();
    for _ in 0..2 {
        // The state of the snapshot.
        fastrand::seed(7);
        locks.after_restore().await.unwrap();
        drawn.insert(fastrand::u64(..));
    }
    assert_eq!(drawn.len(), 2);
}
