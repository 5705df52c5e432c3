use lambda_lock::Locks;
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use std::time::Duration;

/// How many calls the other service takes at a time, from all environments of this function.
const AT_MOST: u32 = 5;
/// How long an invocation waits for its turn.
const WAIT: Duration = Duration::from_secs(20);

async fn call(account: &str) -> usize {
    account.len()
}

/// Calls while fewer than `AT_MOST` others do. Waits for its turn, and fails with `LockHeld` after that.
async fn balance(locks: &Locks, account: LambdaEvent<String>, wait: Duration) -> Result<usize, lambda_lock::Error> {
    let permit = locks.semaphore("{{ project_name }}", AT_MOST).acquire();
    permit.deadline(account.context.deadline()).wait(wait).run(async |_| call(&account.payload).await).await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = &Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    let function = service_fn(|account| balance(locks, account, WAIT));
    Runtime::new(function).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::{Lock, embedded::DynamoDb};
    use lambda_runtime::Context;
    use std::time::SystemTime;
    use tokio::time::{sleep, timeout};

    use super::*;

    fn account() -> LambdaEvent<String> {
        let mut context = Context::default();
        let deadline = SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(30);
        context.deadline = deadline.as_millis().try_into().unwrap();
        LambdaEvent::new("savings".to_owned(), context)
    }

    /// The locks, and the permits of this many others that run.
    async fn locks(others: u32) -> (Locks, Vec<Lock>) {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let mut permits = Vec::new();
        for _ in 0..others {
            permits.push(locks.semaphore("{{ project_name }}", AT_MOST).acquire().await.unwrap());
        }
        (locks, permits)
    }

    /// While the first one runs, another one runs, if fewer than five run; otherwise it waits for up to 20 s, and then fails.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_up_to_20_s_while_five_run() {
        let (locks, _permits) = locks(AT_MOST - 1).await;
        assert_eq!(balance(&locks, account(), Duration::ZERO).await.unwrap(), 7);

        let _last = locks.semaphore("{{ project_name }}", AT_MOST).acquire().await.unwrap();
        let waiting = timeout(Duration::from_secs(21), balance(&locks, account(), WAIT));
        assert!(waiting.await.unwrap().unwrap_err().is_held());
    }

    /// After the first one has finished, another one runs.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_runs_when_another_one_has_ended() {
        let (locks, permits) = locks(AT_MOST).await;
        let end_another = async {
            sleep(Duration::from_secs(19)).await;
            permits[0].release().await.unwrap();
        };
        let (answer, ()) = tokio::join!(balance(&locks, account(), WAIT), end_another);
        assert_eq!(answer.unwrap(), 7);
    }
}
