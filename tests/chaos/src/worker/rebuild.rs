//! Coalescing: an invocation that finds its key held leaves its work to the holder, which runs once more. An invocation that
//! fails is retried, as Lambda does.

use fastrand::Rng;
use lambda_lock::{Error, Holder, Lock};
use tokio::time::sleep;

use super::hold::{has, millis};
use super::{Worker, draw};
use crate::clocks;
use crate::event::What;

/// How long a key is new, in nanoseconds. Nobody comes later whose run could make up for one that is missing.
const PERIOD: u64 = 250_000_000;
/// How often an invocation acquires its key, at most.
const TRIES: usize = 16;

/// An invocation does this after one of its operations.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    /// It has succeeded.
    End,
    /// It acquires the key again, because work was left to it, or because the holder has gone.
    Again,
    /// It has failed, and is retried.
    Retry,
}

impl Worker {
    pub(super) async fn rebuild(&self, random: &mut Rng) {
        let key = format!("rebuild-{}-{}", clocks::now() / PERIOD, random.u8(0..2));
        let mut names: Vec<String> = Vec::new();
        let mut before = None;
        for _ in 0..TRIES {
            let op = self.op();
            if let Some(of) = before.replace(op) {
                self.note(op, What::GoesOn { of });
            }
            names.push(self.holder(op));
            match self.rebuild_once(op, &key, &names, random).await {
                Next::End => break,
                Next::Again => sleep(draw(random, 0..=5)).await,
                Next::Retry => sleep(draw(random, 50..=400)).await,
            }
        }
        sleep(draw(random, 0..=40)).await;
    }

    /// Acquires the key and runs, or leaves the work to the holder. `names` are those of the invocation, which cannot leave
    /// anything to itself.
    async fn rebuild_once(&self, op: u64, key: &str, names: &[String], random: &mut Rng) -> Next {
        let lease = draw(random, 300..=900);
        let asks = What::Asks { keys: vec![key.to_owned()], permits: 1, lease: millis(lease), waits: false };
        self.note(op, asks);
        let error = match self.locks.acquire(key).lease(lease).holder(self.holder(op)).await {
            Ok(lock) => {
                self.note(op, has(&lock));
                self.hold(op, &lock, random).await;
                return self.release_coalescing(op, &lock, random).await;
            }
            Err(error) => error,
        };
        self.failed(op, &error);
        let is_own = |holder: &Holder| names.iter().any(|own| holder.name() == Some(own));
        match error.holder() {
            Some(holder) if error.is_held() && !is_own(holder) => {
                // It may have released the key by then.
                sleep(draw(random, 0..=20)).await;
                self.leave(op, key, holder).await
            }
            _ => Next::Retry,
        }
    }

    async fn release_coalescing(&self, op: u64, lock: &Lock, random: &mut Rng) -> Next {
        for _ in 0..3 {
            self.note(op, What::Releases);
            match lock.release_coalescing().await {
                Ok(is_asked) => {
                    self.note(op, What::Released);
                    if is_asked {
                        self.note(op, What::RunsAgain);
                        return Next::Again;
                    }
                    return Next::End;
                }
                Err(error) => {
                    self.failed_with(op, &error);
                    if error.is_lost() {
                        return Next::Again;
                    }
                }
            }
            sleep(draw(random, 0..=20)).await;
        }
        Next::Retry
    }

    async fn leave(&self, op: u64, key: &str, holder: &Holder) -> Next {
        let (key, fence, to) = (key.to_owned(), holder.fence().unwrap(), holder.name().unwrap().to_owned());
        self.note(op, What::Leaves { key: key.clone(), fence, to: to.clone() });
        match self.locks.coalesce(&key, holder).await {
            Ok(true) => {
                self.note(op, What::Left { key, fence, to });
                Next::End
            }
            Ok(false) => Next::Again,
            Err(error) => {
                self.failed_with(op, &error);
                Next::Retry
            }
        }
    }

    /// Without who has the key meanwhile.
    fn failed_with(&self, op: u64, error: &Error) {
        self.note(op, What::Failed { why: error.kind().to_string() });
    }
}
