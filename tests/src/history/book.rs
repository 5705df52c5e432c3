//! What the ledgers of all kinds of histories have.

use std::fmt::{self, Debug};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use lambda_lock::embedded::{Answer, DynamoDb, Intercept};
use lambda_lock::{Error, Holder};
use serde_json::Value;

use super::identities::Identities;
use super::stage::Journal;

/// The journal of a history, what its ledger keeps beside it, and the DynamoDB whose clock counts.
pub(crate) struct Book<K> {
    pub(crate) engine: DynamoDb,
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

/// The journal, and what a ledger keeps.
#[derive(Default)]
pub(crate) struct Page<K> {
    pub(crate) journal: Journal,
    pub(crate) kept: K,
}

impl<K> Deref for Page<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.kept
    }
}

impl<K> DerefMut for Page<K> {
    fn deref_mut(&mut self) -> &mut K {
        &mut self.kept
    }
}

impl<K: Default> Book<K> {
    pub(crate) fn new(engine: DynamoDb) -> Self {
        Self { engine, page: Mutex::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Page<K>> {
        self.page.lock().unwrap()
    }

    pub(crate) fn take(&self) -> Page<K> {
        mem::take(&mut *self.state())
    }

    pub(crate) fn log(&self, page: &mut Page<K>, what: &str) {
        page.journal.log(self.engine.now(), what);
    }

    pub(crate) fn broke(&self, page: &mut Page<K>, what: String) {
        page.journal.broke(self.engine.now(), what);
    }

    /// Records rows that TTL has deleted.
    pub(crate) fn swept(&self, rows: usize, count: impl FnOnce(&mut K) -> &mut usize) {
        let mut page = self.state();
        *count(&mut page) += rows;
        if rows > 0 {
            self.log(&mut page, &format!("{rows} rows deleted by TTL"));
        }
    }
}

impl<K> Debug for Book<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Book")
    }
}

/// What a ledger keeps if identities take over what they have, and operators free it.
pub(crate) trait Judged: Default {
    fn identities(&mut self) -> &mut Identities;
}

impl<K: Judged> Book<K> {
    /// Takes note of an acquisition that an operator has seen and may free.
    pub(crate) fn sees(&self, place: &str, seen: &Holder) {
        self.state().identities().sees(place, seen);
    }

    /// Judges the answer to a release by force of this acquisition, which has this place in the row.
    pub(crate) fn forced(&self, key: &str, place: &str, seen: &Holder, answer: &Result<bool, Error>) {
        let mut page = self.state();
        self.log(&mut page, &format!("an operator freed {key} by force: {answer:?}"));
        if let Some(what) = page.identities().forced(place, seen, answer) {
            self.broke(&mut page, what);
        }
    }
}

/// A ledger that sees the requests of a host.
pub(crate) trait Observe: Debug + Send + Sync {
    fn request(&self, _: &mut Value) {}

    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer);
}

/// Shows the requests of a host to a ledger.
#[derive(Debug)]
pub(crate) struct Observer<L>(pub(crate) Arc<L>);

impl<L: Observe> Intercept for Observer<L> {
    fn request(&self, _: &str, request: &mut Value) {
        self.0.request(request);
    }

    fn answer(&self, operation: &str, request: &Value, answer: &mut Answer) {
        self.0.answer(operation, request, answer);
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
