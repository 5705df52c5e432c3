use lambda_lock::Locks;
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
use std::time::Duration;

/// How many calls the other service takes at a time, from all environments of this function.
const AT_MOST: u32 = 5;

async fn call(account: &str) -> usize {
    account.len()
}

/// Calls while fewer than `AT_MOST` others do. Waits for its turn, and fails with `LockHeld` after that.
async fn balance(locks: &Locks, account: LambdaEvent<String>, wait: Duration) -> Result<usize, lambda_lock::Error> {
    let permit = locks.semaphore("{{ project_name }}", AT_MOST).acquire();
    permit.until(account.context.deadline()).wait(wait).run(async |_| call(&account.payload).await).await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = &Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    let function = service_fn(|account| balance(locks, account, Duration::from_secs(20)));
    Runtime::new(function).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::Context;
    use std::time::SystemTime;

    use super::*;

    fn account() -> LambdaEvent<String> {
        let mut context = Context::default();
        let deadline = SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(30);
        context.deadline = deadline.as_millis().try_into().unwrap();
        LambdaEvent::new("savings".to_owned(), context)
    }

    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_call_too_many_waits_until_another_one_has_ended() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let mut others = Vec::new();
        for _ in 0..AT_MOST {
            others.push(locks.semaphore("{{ project_name }}", AT_MOST).acquire().await.unwrap());
        }
        assert!(balance(&locks, account(), Duration::ZERO).await.unwrap_err().is_held());

        let end_another = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            others.pop().unwrap().release().await.unwrap();
        };
        let (answer, ()) = tokio::join!(balance(&locks, account(), Duration::from_secs(20)), end_another);
        assert_eq!(answer.unwrap(), 7);
    }
}
