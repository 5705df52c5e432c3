//! Several processes on one DynamoDB. They show what threads cannot: a death without a destructor.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Backoff, Wait};
use lambda_lock_tests::World;

/// Long enough for the update of the counter on a machine that runs all other tests at the same time.
const LEASE: Duration = Duration::from_secs(3);
const CLOCK_SKEW: Duration = Duration::from_millis(200);

/// A process, killed when it goes out of scope.
struct Contender(Child);

impl Contender {
    fn start(world: &World, endpoint: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_contender"));
        command.args(arguments).env_clear().stdout(Stdio::piped()).envs([
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

    /// Sends SIGKILL: no destructor runs, and no release is sent.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    async fn finish(&mut self) {
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return assert!(status.success(), "a process failed: {status}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _it_may_have_ended = self.0.wait();
    }
}

/// The DynamoDB of all processes. The embedded engine lives in this process alone, so the test needs an endpoint.
fn endpoint() -> String {
    env::var("LOCK_TEST_ENDPOINT").expect("LOCK_TEST_ENDPOINT is set")
}

/// Fails a test that hangs.
async fn bounded(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_mins(2), test).await.expect("done within two minutes");
}

#[tokio::test]
#[ignore = "needs a DynamoDB outside this process: .ci/run dynamodb_local"]
async fn processes_under_one_lock_lose_no_count_when_holders_are_killed() {
    let endpoint = endpoint();
    let world = World::new().await;
    let (counters, rounds, killed) = (8, 25, 3);
    Box::pin(bounded(async {
        let mut counting: Vec<_> =
            (0..counters).map(|_| Contender::start(&world, &endpoint, &["count", &rounds.to_string()])).collect();
        let mut fences = Vec::new();
        for _ in 0..killed {
            let mut doomed = Contender::start(&world, &endpoint, &["hold"]);
            fences.push(doomed.holding().await);
            doomed.kill();
        }
        for process in &mut counting {
            process.finish().await;
        }
        let counter = world.row("counter").await.unwrap();
        assert_eq!(counter["value"].as_n().unwrap(), &(counters * rounds).to_string());
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    }))
    .await;
}

#[tokio::test]
#[ignore = "needs a DynamoDB outside this process: .ci/run dynamodb_local"]
async fn the_key_of_a_killed_process_is_free_when_its_lease_has_ended() {
    let endpoint = endpoint();
    let world = World::new().await;
    let host = world.host().build();
    let locks = world.locks(&host).build().unwrap();
    Box::pin(bounded(async {
        let mut doomed = Contender::start(&world, &endpoint, &["hold"]);
        let fence = doomed.holding().await;
        let name = format!("process {}", doomed.0.id());
        doomed.kill();
        let refused = locks.acquire("job").await.unwrap_err();
        let holder = refused.holder().unwrap();
        assert_eq!((holder.name(), holder.fence()), (Some(name.as_str()), Some(fence)));
        assert_eq!(holder.until(), holder.since().unwrap() + LEASE + CLOCK_SKEW);
        let patience = Wait::backoff(Backoff::new().base(Duration::from_millis(5)).cap(Duration::from_millis(50)));
        let lock = locks.acquire("job").wait(patience).await.unwrap();
        assert!(lock.acquired_at() >= holder.until());
        assert!(lock.fence() > fence);
        lock.release().await.unwrap();
    }))
    .await;
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
