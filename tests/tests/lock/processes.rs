//! Several processes on one DynamoDB. They show what threads cannot: a death without a destructor.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Backoff, Wait};
use lambda_lock_tests::World;
use tokio::time::timeout;

/// Long enough for a refusal on a machine that runs all other tests at the same time.
const LEASE: Duration = Duration::from_secs(3);
const CLOCK_SKEW: Duration = Duration::from_millis(200);

/// A process, killed when it goes out of scope: no destructor runs, and no release is sent.
struct Contender(Child);

impl Contender {
    /// Starts a process on the DynamoDB at this endpoint. The embedded engine lives in the process of the test alone.
    fn start(world: &World, endpoint: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_contender"));
        command.env_clear().stdout(Stdio::piped()).envs([
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "local"),
            ("AWS_SECRET_ACCESS_KEY", "local"),
            ("LOCK_TABLE_NAME", &world.table),
            ("LOCK_LEASE", &format!("{}ms", LEASE.as_millis())),
            ("LOCK_CLOCK_SKEW", &format!("{}ms", CLOCK_SKEW.as_millis())),
        ]);
        Self(command.spawn().unwrap())
    }

    /// Waits until the process holds the lock, and returns the fence.
    async fn holding(&mut self) -> u64 {
        let stdout = self.0.stdout.take().unwrap();
        let line = tokio::task::spawn_blocking(|| BufReader::new(stdout).lines().next()).await.unwrap();
        line.unwrap().unwrap().strip_prefix("holding ").unwrap().parse().unwrap()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _it_may_have_ended = self.0.wait();
    }
}

#[tokio::test]
#[ignore = "needs a DynamoDB outside this process: .ci/run dynamodb_local"]
async fn the_key_of_a_killed_process_is_free_when_its_lease_has_ended() {
    let endpoint = env::var("LOCK_TEST_ENDPOINT").expect("LOCK_TEST_ENDPOINT is set");
    let world = World::new().await;
    let locks = world.default_locks();
    let mut doomed = Contender::start(&world, &endpoint);
    let fence = timeout(Duration::from_mins(1), doomed.holding()).await.unwrap();
    let name = format!("process {}", doomed.0.id());
    drop(doomed);
    let refused = locks.acquire("job").await.unwrap_err();
    let holder = refused.holder().unwrap();
    assert_eq!((holder.name(), holder.fence()), (Some(name.as_str()), Some(fence)));
    assert_eq!(holder.until(), holder.since().unwrap() + LEASE + CLOCK_SKEW);
    let patience = Wait::backoff(Backoff::new().base(Duration::from_millis(5)).cap(Duration::from_millis(50)));
    let lock = locks.acquire("job").wait(patience.up_to(Duration::from_mins(1))).await.unwrap();
    assert!(lock.acquired_at() >= holder.until());
    assert!(lock.fence() > fence);
    lock.release().await.unwrap();
}

/// Each of them opens a database that another is creating, using or closing.
#[test]
fn many_open_one_file_at_the_same_time() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.sqlite");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..5).for_each(|_| drop(DynamoDb::open(&file).unwrap())));
            }
        });
    }
}
