//! A process that contends for a lock in `tests/lock/processes.rs`. Its settings are in its environment, as for a
//! function.

use std::env;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{self, BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::{Backoff, Locks, Wait};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let locks = Locks::from_env().await.unwrap();
    let patience = Wait::backoff(Backoff::new().base(Duration::from_millis(5)).cap(Duration::from_millis(100)));
    let patience = patience.up_to(Duration::from_mins(1));
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", rounds] => {
            for _ in 0..rounds.parse().unwrap() {
                let lock = locks.acquire("job").wait(patience).await.unwrap();
                count_up(&client(), &env::var("LOCK_TABLE_NAME").unwrap()).await;
                lock.release().await.unwrap();
            }
        }
        ["hold"] => {
            let lock = locks.acquire("job").wait(patience).await.unwrap();
            println!("holding {}", lock.fence());
            std::future::pending::<()>().await;
        }
        _ => panic!("usage: contender count ROUNDS | contender hold"),
    }
}

/// Reads the counter, then writes it plus one. That is right only if no other process writes in between.
async fn count_up(client: &Client, table: &str) {
    let id = ("id", AttributeValue::S("counter".to_owned()));
    let read = client.get_item().table_name(table).consistent_read(true).key(id.0, id.1.clone()).send().await.unwrap();
    let seen: u64 = read.item.map_or(0, |item| item["value"].as_n().unwrap().parse().unwrap());
    let next = AttributeValue::N((seen + 1).to_string());
    client.put_item().table_name(table).item(id.0, id.1).item("value", next).send().await.unwrap();
}

fn client() -> Client {
    let config = config::Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(env::var("AWS_ENDPOINT_URL").unwrap())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "tests"))
        .http_client(aws_smithy_http_client::Builder::new().build_http());
    Client::from_conf(config.build())
}
