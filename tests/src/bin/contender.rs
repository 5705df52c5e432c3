//! A process that holds a lock until it is killed, for `tests/lock/processes.rs`. Its settings are in its environment, as for a
//! function.

use lambda_lock::Locks;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let lock = Locks::from_env().await.unwrap().acquire("job").await.unwrap();
    println!("holding {}", lock.fence());
    std::future::pending::<()>().await;
}
