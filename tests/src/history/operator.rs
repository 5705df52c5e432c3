//! An operator who frees by force what somebody has. Time passes between its look and its request, and it may repeat the
//! request with what it saw before: whoever has acquired the key meanwhile keeps it.

use fastrand::Rng;
use lambda_lock::{Error, Holder};
use tokio::time::sleep;

use super::book::Book;
use super::frame::History;
use super::stage::{Network, millis};

/// Mixed into the seed of a history, so that all other draws of the history stay the same.
const OWN_SEED: u64 = 0x6f70_6572_6174;
/// One history in so many has an operator.
const EVERY: u64 = 2;

/// A ledger that judges what an operator does.
pub(crate) trait Judge {
    /// Takes note of an acquisition that an operator has seen and may free. `key` is the key of its row.
    fn sees(&self, key: &str, seen: &Holder);

    /// Judges the answer to a release by force of this acquisition.
    fn forced(&self, key: &str, seen: &Holder, answer: &Result<bool, Error>);
}

/// Frees some of these keys by force, if the history of this seed has an operator.
pub(crate) async fn operate<H: History>(seed: u64, scene: &H, keys: Vec<String>)
where
    Book<H::Kept>: Judge,
{
    if !seed.is_multiple_of(EVERY) {
        return;
    }
    let mut random = Rng::with_seed(seed ^ OWN_SEED);
    for _ in 0..random.usize(3..=8) {
        sleep(millis(&mut random, 0..=1500)).await;
        let (host, ledger) = (scene.host(&mut random, Network::Bad), scene.ledger());
        let (locks, key) = (scene.stage().locks(&host), &keys[random.usize(0..keys.len())]);
        // The operator looks again if the read fails.
        let Ok(Some(row)) = locks.get(key).await else { continue };
        let target = match row.permits() {
            [] => row,
            // One of the permits, or all.
            permits if random.bool() => permits[random.usize(0..permits.len())].clone(),
            _ => row,
        };
        if target.is_completed() || !target.is_current() && target.has_released() {
            continue;
        }
        for each in acquisitions(&target) {
            ledger.sees(key, each);
        }
        // Some operators have released what they saw before, and do it once more.
        for _ in 0..random.usize(1..=2) {
            let pause = if random.bool() { 0..=50 } else { 0..=3000 };
            sleep(millis(&mut random, pause)).await;
            let answer = locks.force_release(key, &target).await;
            for each in acquisitions(&target) {
                ledger.forced(key, each, &answer);
            }
        }
    }
}

/// The holder of a key or of a permit, or each permit of a semaphore.
fn acquisitions(seen: &Holder) -> &[Holder] {
    if seen.is_semaphore() { seen.permits() } else { std::slice::from_ref(seen) }
}
