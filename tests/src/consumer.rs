//! What the histories of queues and of streams share: the handler of one item, and how Lambda waits for an answer.

use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::Host;
use tokio::time::{sleep, timeout};

use crate::history::stage::millis;
use crate::idempotency_history::ledger::Execution;
use crate::idempotency_history::{Failure, Then};

/// Does the work of one item, which takes a while, and fails or panics at times. With `is_good`, only poison fails.
pub(crate) async fn work(
    execution: Execution,
    is_good: bool,
    is_poison: bool,
    random: &Mutex<Rng>,
) -> Result<u64, Failure> {
    let number = execution.number;
    let (work, fails, panics) = {
        let mut random = random.lock().unwrap();
        // Most items take a while. Some do not end in time.
        let most = if is_good || random.u8(0..8) > 0 { 500 } else { 8000 };
        let (fails, panics) = (random.u8(0..7) == 0, random.u8(0..14) == 0);
        (millis(&mut random, 0..=most), fails && !is_good, panics && !is_good)
    };
    sleep(work / 2).await;
    let count = execution.read_counter();
    sleep(work / 2).await;
    execution.write_counter(count + 1);
    if fails || is_poison {
        return Err(execution.failed(Then::GiveUp));
    }
    if panics {
        // Without the message that `panic!` prints.
        std::panic::resume_unwind(Box::new("the handler panics"));
    }
    execution.answered();
    Ok(number)
}

/// Waits for an answer as Lambda does: until the deadline, or until the host crashes. Without an answer, the host has
/// crashed.
pub(crate) async fn wait<A>(host: &Host, answer: impl Future<Output = A>, limit: Duration) -> Option<A> {
    let mut answer = Box::pin(answer);
    if let Ok(answer) = timeout(limit, &mut answer).await {
        return Some(answer);
    }
    host.crash();
    None
}
