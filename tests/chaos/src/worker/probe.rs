//! After all others have ended, and their leases: everything must be free, at the first attempt.

use std::fs;

use fastrand::Rng;
use futures_util::{StreamExt as _, stream};

use super::hold::Target;
use super::{EXECUTIONS, LOCKS, LONGEST_LEASE, PERMITS, SETS, Worker};
use crate::event::What;

/// How many runs are in progress at a time.
const AT_A_TIME: usize = 16;

impl Worker {
    pub(super) async fn probe(&self) {
        let named = |name: &'static str, count| (0..count).map(move |number| (format!("{name}-{number}"), 1));
        let permits = PERMITS.into_iter().map(|(key, permits)| (key.to_owned(), permits));
        for (key, permits) in
            named("lock", LOCKS).chain(named("set", SETS)).chain(named("execution", EXECUTIONS)).chain(permits)
        {
            self.take_all(key, permits).await;
        }
        for (key, rate) in &self.rates {
            let op = self.op();
            self.note(op, What::Calls { key: (*key).to_owned(), interval: 0, tolerance: 0 });
            if let Err(error) = rate.pass().await {
                self.failed(op, &error);
            }
        }
        // The controller wrote which runs had not finished.
        let unfinished = fs::read(self.settings.folder.join("unfinished.json")).unwrap();
        let unfinished: Vec<String> = serde_json::from_slice(&unfinished).unwrap();
        let records = self.records();
        let runs = unfinished.iter().map(|key| self.run_record(&records, key, false, Rng::with_seed(1)));
        stream::iter(runs).buffer_unordered(AT_A_TIME).collect::<Vec<()>>().await;
    }

    /// Takes all permits of a key before it releases them.
    async fn take_all(&self, key: String, permits: u32) {
        let mut taken = Vec::new();
        for _ in 0..permits {
            let op = self.op();
            let lease = u64::try_from(LONGEST_LEASE.as_millis()).unwrap();
            let Target { keys, permits } = Target { keys: vec![key.clone()], permits };
            self.note(op, What::Asks { keys, permits, lease, waits: false });
            let acquire =
                if permits == 1 { self.locks.acquire(&key) } else { self.locks.semaphore(&key, permits).acquire() };
            match acquire.lease(LONGEST_LEASE * 4).holder(self.holder(op)).await {
                Ok(lock) => {
                    self.note(op, What::Has { keys: vec![key.clone()], fences: vec![lock.fence()] });
                    taken.push(lock);
                }
                Err(error) => self.failed(op, &error),
            }
        }
        for lock in taken {
            lock.release().await.unwrap();
        }
    }
}
