//! Executions of workflows, whose states lie in a folder between the processes. Some are copied, so that two processes do the
//! next step.

use std::fs;

use fastrand::Rng;
use lambda_lock::{Acquire, Lock};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::hold::millis;
use super::{EXECUTIONS, Worker, draw};
use crate::event::What;

/// What one step passes on to the next.
#[derive(Debug, Serialize, Deserialize)]
struct Execution {
    key: String,
    identity: String,
    fence: u64,
}

impl Worker {
    pub(super) async fn work_on_execution(&self, random: &mut Rng) {
        if random.u8(0..3) > 0
            && let Some(execution) = self.take_execution(random)
        {
            return self.go_on(execution, random).await;
        }
        let op = self.op();
        let (key, identity) = (format!("execution-{}", random.u64(0..EXECUTIONS)), self.holder(op));
        let acquire = self.step(op, &key, &identity, random);
        match self.answered(op, acquire.into_future().await) {
            Some(lock) => self.hold_and_keep(op, lock, identity, random).await,
            None => sleep(draw(random, 0..=40)).await,
        }
    }

    /// A step begins.
    fn step(&self, op: u64, key: &str, identity: &str, random: &mut Rng) -> Acquire {
        let lease = draw(random, 400..=1500);
        self.note(op, What::Claims { key: key.to_owned(), identity: identity.to_owned() });
        let asks = What::Asks { keys: vec![key.to_owned()], permits: 1, lease: millis(lease), waits: false };
        self.note(op, asks);
        self.locks.acquire(key).holder(self.holder(op)).identity(identity).lease(lease)
    }

    async fn go_on(&self, Execution { key, identity, fence }: Execution, random: &mut Rng) {
        let op = self.op();
        if random.u8(0..8) == 0 {
            self.note(op, What::Claims { key: key.clone(), identity: identity.clone() });
            match self.locks.release_identity(&key, &identity).await {
                Ok(_) => self.note(op, What::Freed),
                Err(error) => self.note(op, What::Failed { why: error.kind().to_string() }),
            }
            return;
        }
        let step = self.step(op, &key, &identity, random);
        let taken = if random.u8(0..4) == 0 { step.take_over().await } else { step.take_over_from(fence).await };
        if let Some(lock) = self.answered(op, taken) {
            self.hold_and_keep(op, lock, identity, random).await;
        }
    }

    async fn hold_and_keep(&self, op: u64, lock: Lock, identity: String, random: &mut Rng) {
        // The store rejects an attempt after a later one has written.
        if random.bool() {
            self.write(op, &lock).await;
        }
        self.hold(op, &lock, random).await;
        if random.u8(0..4) == 0 {
            return self.release(op, &lock).await;
        }
        let execution = Execution { key: lock.key().to_owned(), identity, fence: lock.fence() };
        lock.keep();
        self.note(op, What::Kept);
        for copy in 0..if random.u8(0..3) == 0 { 2 } else { 1 } {
            self.leave_execution(&execution, &format!("{}-{copy}", self.holder(op)));
        }
    }

    /// A file is written elsewhere first: in the folder it is whole.
    fn leave_execution(&self, execution: &Execution, name: &str) {
        let path = self.settings.folder.join(name);
        fs::write(&path, serde_json::to_vec(execution).unwrap()).unwrap();
        fs::rename(path, self.settings.folder.join("executions").join(name)).unwrap();
    }

    /// Moves one of the files away: only one process can.
    fn take_execution(&self, random: &mut Rng) -> Option<Execution> {
        let files = fs::read_dir(self.settings.folder.join("executions")).unwrap().filter_map(Result::ok);
        let files: Vec<_> = files.map(|file| file.path()).collect();
        let file = random.choice(&files)?;
        let mine = self.settings.folder.join(format!("taken by {}", self.holder(self.op())));
        fs::rename(file, &mine).ok()?;
        let execution = serde_json::from_slice(&fs::read(&mine).unwrap()).unwrap();
        fs::remove_file(mine).unwrap();
        Some(execution)
    }
}
