//! What the ledgers of all kinds of histories have.

use std::fmt::{self, Debug};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{Answer, DynamoDb, Intercept};
use lambda_lock::{Error, Holder};
use serde_json::Value;
use tokio::time::sleep;

use super::Outcome;
use super::stage::{Journal, Stage};

/// The ledger of a history: its journal, what it counts and keeps beside it, the DynamoDB whose clock counts, and how far the
/// clocks of hosts are from it.
pub(crate) struct Book<K: Observe> {
    pub(crate) engine: DynamoDb,
    pub(crate) clock_skew: Duration,
    /// That of the deployment with the longest one.
    pub(crate) longest_skew: Duration,
    /// How much later something can happen because of the twists of the history.
    pub(crate) slack: Duration,
    /// By how much a clock can step.
    pub(crate) step: Duration,
    page: Mutex<Page<K>>,
}

/// How a ledger knows whether a holder considers itself valid: it asks what is held, or the holder has said until when.
pub(crate) enum Valid<L> {
    Ask(Weak<L>),
    Until(SystemTime),
}

impl<L> Valid<L> {
    pub(crate) fn is_valid(&self, now: SystemTime, ask: impl Fn(&L) -> bool) -> bool {
        match self {
            Self::Ask(held) => held.upgrade().is_some_and(|held| ask(&held)),
            Self::Until(until) => now < *until,
        }
    }
}

/// The journal, and what a ledger counts and keeps.
pub(crate) struct Page<K: Observe> {
    pub(crate) journal: Journal,
    pub(crate) counts: K::Counts,
    pub(crate) kept: K,
}

impl<K: Observe> Deref for Page<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.kept
    }
}

impl<K: Observe> DerefMut for Page<K> {
    fn deref_mut(&mut self) -> &mut K {
        &mut self.kept
    }
}

impl<K: Observe> Book<K> {
    pub(crate) fn new(stage: &Stage, kept: K) -> Self {
        Self {
            engine: stage.engine.clone(),
            clock_skew: stage.clock_skew,
            longest_skew: stage.longest_skew(),
            slack: stage.slack(),
            step: stage.largest_step(),
            page: Mutex::new(Page { journal: Journal::default(), counts: K::Counts::default(), kept }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Page<K>> {
        self.page.lock().unwrap()
    }

    pub(crate) fn log(&self, page: &mut Page<K>, what: &str) {
        page.journal.log(self.engine.now(), what);
    }

    pub(crate) fn note(&self, what: &str) {
        self.log(&mut self.state(), what);
    }

    pub(crate) fn broke(&self, page: &mut Page<K>, what: String) {
        page.journal.broke(self.engine.now(), what);
    }

    pub(crate) fn violated(&self, what: String) {
        self.broke(&mut self.state(), what);
    }

    /// Deletes expired rows as DynamoDB does, at this interval, and counts them.
    pub(crate) async fn sweep(&self, every: Duration, count: impl Fn(&mut K::Counts) -> &mut usize) {
        loop {
            sleep(every).await;
            self.swept(self.engine.sweep_expired().unwrap(), &count);
        }
    }

    /// Records rows that TTL has deleted.
    pub(crate) fn swept(&self, rows: usize, count: impl FnOnce(&mut K::Counts) -> &mut usize) {
        let mut page = self.state();
        *count(&mut page.counts) += rows;
        if rows > 0 {
            self.log(&mut page, &format!("{rows} rows deleted by TTL"));
        }
    }

    /// Closes the book.
    pub(crate) fn outcome(&self) -> Outcome<K::Counts> {
        let mut page = self.state();
        let counts = mem::take(&mut page.counts);
        mem::take(&mut page.journal).outcome(counts)
    }
}

impl<K: Observe> Debug for Book<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Book")
    }
}

/// What a ledger keeps, and what it does with the requests that hosts send.
pub(crate) trait Observe: Send + Sized + 'static {
    type Counts: Default + Send;

    fn request(_ledger: &Book<Self>, _request: &mut Value) {}

    fn answer(_ledger: &Book<Self>, _operation: &str, _request: &Value, _answer: &mut Answer) {}
}

/// Shows the requests of a host to a ledger.
#[derive(Debug)]
pub(crate) struct Observer<L>(pub(crate) Arc<L>);

impl<K: Observe> Intercept for Observer<Book<K>> {
    fn request(&self, _: &str, request: &mut Value) {
        K::request(&self.0, request);
    }

    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        K::answer(&self.0, operation, request, answer);
    }
}

/// Returns `true` if the lease of this holder may have ended by a clock that is wrong by half the skew. A grant that is answered
/// later is useless to its caller. If its withdrawal is lost, too, the row refuses that caller until its end, which includes
/// the skew.
pub(crate) fn may_have_ended(holder: &Holder, now: SystemTime, longest_skew: Duration) -> bool {
    now + longest_skew + longest_skew / 2 >= holder.until()
}

/// Without the nonces, which differ in every run.
pub(crate) fn described(answer: &Result<(), Error>) -> String {
    answer.as_ref().map_or_else(ToString::to_string, |()| "done".to_owned())
}
