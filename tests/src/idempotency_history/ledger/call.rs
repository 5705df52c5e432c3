use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lambda_lock::{Error, ErrorKind, HandlerError, Run};

use super::{Crash, How, Ledger, Ran, State};
use crate::guarantee::REPLIES;
use crate::idempotency_history::{Answer, FALLBACK, Then};

/// One call, which reports to the ledger. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    name: String,
    pub(crate) key: String,
    ledger: Arc<Ledger>,
    began: SystemTime,
    reported: Arc<Mutex<Reported>>,
}

/// The reports of a call so far.
#[derive(Debug, Default)]
struct Reported {
    /// The number of the run of this call.
    run: Option<u64>,
    answered: bool,
    unfinished: bool,
}

impl Call {
    pub(crate) fn new(name: &str, key: String, ledger: Arc<Ledger>) -> Self {
        let began = ledger.engine.now();
        Self { name: name.to_owned(), key, ledger, began, reported: Arc::default() }
    }

    /// Begins the work. It ends when the returned value is dropped, which a cancellation does too.
    pub(crate) fn began(&self, run: &Run, lease: Duration) -> Execution {
        let (ledger, now) = (&self.ledger, self.ledger.engine.now());
        let mut state = ledger.state();
        let number = state.runs.len() as u64 + 1;
        ledger.log(&mut state, &format!("{} began run {number} of {}", self.name, self.key));
        state.counts.runs += 1;
        let before: Vec<_> = state.runs.iter().enumerate().filter(|(_, run)| run.key == self.key).collect();
        let obstacles = before.iter().filter_map(|(index, run)| {
            let what = ledger.obstacle(&state, run, now)?;
            Some(format!("{what} run {}: run {number} of {} by {}", index + 1, self.key, self.name))
        });
        let obstacles: Vec<_> = obstacles.collect();
        let last = before.last().map(|(_, run)| (run.how, state.records[&run.owner].completed));
        let (taken_over, ended) = (matches!(last, Some((How::Unfinished, None))), matches!(last, Some((_, Some(_)))));
        state.counts.taken_over += usize::from(taken_over);
        state.counts.windows_ended += usize::from(ended);
        for obstacle in obstacles {
            ledger.broke(&mut state, obstacle);
        }
        let lock = run.lock();
        if state.rows.get(&self.key).is_none_or(|owner| owner != lock.owner()) {
            ledger.broke(&mut state, format!("(ii) run {number} of {} does not own its record", self.key));
        }
        if lock.remaining() > lease {
            ledger.broke(&mut state, format!("(ii) run {number} of {} has too long a lease", self.key));
        }
        state.runs.push(Ran {
            key: self.key.clone(),
            owner: lock.owner().to_owned(),
            until: now + lock.remaining(),
            ended: None,
            how: How::Unfinished,
            outcome: None,
        });
        self.reported.lock().unwrap().run = Some(number);
        Execution { number, call: self.clone() }
    }

    /// The outcome of the call.
    pub(crate) fn answered(&self, answer: Answer, without_request: bool) {
        let ledger = &self.ledger;
        let mut state = ledger.state();
        let run = self.reported.lock().unwrap().run;
        let (result, is_error) = match answer {
            Ok(number) => (number, false),
            Err(HandlerError::Replayed(error)) => (error.message().parse().unwrap(), true),
            Err(HandlerError::Handler(failure)) => {
                ledger.log(&mut state, &format!("{}: run {} failed", self.name, failure.execution));
                state.counts.failed += 1;
                if run != Some(failure.execution) {
                    ledger.broke(&mut state, format!("{REPLIES}: {} got the failure of another run", self.name));
                }
                // A stored error is an answer.
                self.reported.lock().unwrap().answered = failure.then == Then::Store;
                return;
            }
            Err(HandlerError::Lock(error)) => return self.refused(&mut state, &error),
            Err(_) => unreachable!("there are no other errors"),
        };
        self.reported.lock().unwrap().answered = true;
        ledger.log(&mut state, &format!("{} got the result {result}", self.name));
        let (number, is_fallback) = (result % FALLBACK, result > FALLBACK);
        let index = usize::try_from(number).unwrap().wrapping_sub(1);
        let Some(ran) = state.runs.get(index).filter(|ran| ran.key == self.key) else {
            let what =
                format!("{REPLIES}: {} got the result of run {number}, which {} did not have", self.name, self.key);
            return ledger.broke(&mut state, what);
        };
        let record = &state.records[&ran.owner];
        let stored = record.completed.is_some();
        let right = match ran.how {
            How::Answered => !is_error && !is_fallback,
            How::AnsweredOtherwise if run == Some(number) => !is_error,
            How::AnsweredOtherwise => !is_error && is_fallback != record.is_committed,
            How::Failed(Then::Store) => is_error,
            // A transaction may be committed although its handler got no answer.
            How::Failed(_) | How::Unfinished => !is_error && !is_fallback && stored,
        };
        // Another result is stored after the work, and its window begins then.
        let began = if is_fallback { ran.ended } else { ran.outcome };
        let latest = began.map(|outcome| outcome + state.terms[&self.key].window + ledger.clock_skew);
        if !right {
            ledger.broke(
                &mut state,
                format!("{REPLIES}: {} got the result of run {number}, which had another one", self.name),
            );
        }
        if run == Some(number) && !is_error {
            return;
        }
        state.counts.replayed += 1;
        state.counts.replayed_errors += usize::from(is_error);
        state.counts.cached += usize::from(without_request);
        if !stored {
            let what = format!("{REPLIES}: {} got the result of run {number}, which is not stored", self.name);
            ledger.broke(&mut state, what);
        }
        // Whole seconds, rounded up.
        if latest.is_some_and(|latest| self.began > latest + Duration::from_secs(1)) {
            ledger.broke(&mut state, format!("(vii) {} got the result of run {number} after its window", self.name));
        }
    }

    fn refused(&self, state: &mut State, error: &Error) {
        let ledger = &self.ledger;
        ledger.log(state, &format!("{} refused: {error}", self.name));
        if error.is_lost() {
            state.counts.overran += 1;
        } else if matches!(error.kind(), ErrorKind::InProgress | ErrorKind::Unfinished) {
            // The run may have ended before the refusal arrived, or just now by a clock that is ahead of the caller's.
            let owner = error.holder().and_then(|holder| holder.owner()).unwrap_or_default();
            let is_true = state.records.get(owner).is_some_and(|record| {
                let over = [record.released, record.completed].into_iter().flatten().min();
                record.is_ghost || over.is_none_or(|over| over + ledger.clock_skew >= self.began)
            });
            let is_withdrawn = state.withdrawn.get(owner).is_some_and(|over| *over + ledger.clock_skew >= self.began);
            if !is_true && !is_withdrawn {
                ledger.broke(state, format!("(vi) {} was refused without a holder", self.name));
            }
            if error.kind() == ErrorKind::InProgress {
                state.counts.in_progress += 1;
            } else {
                state.counts.unfinished += 1;
                self.reported.lock().unwrap().unfinished = true;
                if !state.terms[&self.key].reject_unfinished {
                    ledger.broke(state, format!("(vi) {} was refused for no reason", self.name));
                }
            }
        } else if !matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::Conflict | ErrorKind::Invalid
        ) {
            ledger.broke(state, format!("{REPLIES}: {} got an error without a cause", self.name));
        }
    }

    pub(crate) fn gone(&self, how: &str) {
        let mut state = self.ledger.state();
        self.ledger.log(&mut state, &format!("{} {how}", self.name));
        state.counts.crashed += usize::from(self.unfinished(&state).is_some());
    }

    /// The host crashed. Returns whether this call was in progress.
    pub(crate) fn crashed(&self) -> bool {
        let mut state = self.ledger.state();
        let Some(owner) = self.unfinished(&state) else { return false };
        let record = &state.records[&owner];
        let is_current = state.rows.get(&self.key).is_some_and(|current| *current == owner);
        if !is_current || record.released.is_some() || record.completed.is_some() {
            return false;
        }
        if !state.terms[&self.key].reject_unfinished {
            state.crashes.push(Crash { key: self.key.clone(), owner, at: self.ledger.engine.now() });
        }
        true
    }

    /// The nonce of the run of this call, if it did not finish.
    fn unfinished(&self, state: &State) -> Option<String> {
        let index = usize::try_from(self.reported.lock().unwrap().run?).unwrap() - 1;
        Some(&state.runs[index]).filter(|run| run.how == How::Unfinished).map(|run| run.owner.clone())
    }

    /// Whether this call made a run that finished.
    pub(crate) fn is_answered(&self) -> bool {
        let state = self.ledger.state();
        let run = self.reported.lock().unwrap().run;
        run.is_some_and(|number| state.runs[usize::try_from(number).unwrap() - 1].how == How::Answered)
    }

    pub(crate) fn was_unfinished(&self) -> bool {
        self.reported.lock().unwrap().unfinished
    }

    pub(crate) fn must_have_answered(&self, otherwise: &str) {
        if !self.reported.lock().unwrap().answered {
            let mut state = self.ledger.state();
            self.ledger.broke(&mut state, format!("{otherwise}: {}", self.name));
        }
    }
}

/// One run of the work, while it is in progress.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) number: u64,
    call: Call,
}

impl Execution {
    fn with<T>(&self, f: impl FnOnce(&Ledger, &mut State, usize) -> T) -> T {
        let ledger = &self.call.ledger;
        f(ledger, &mut ledger.state(), usize::try_from(self.number).unwrap() - 1)
    }

    pub(crate) fn read_counter(&self) -> u64 {
        self.with(|_, state, _| state.counters.entry(self.call.key.clone()).or_default().0)
    }

    pub(crate) fn write_counter(&self, count: u64) {
        self.with(|_, state, _| {
            let (counter, expected) = state.counters.get_mut(&self.call.key).unwrap();
            *counter = count;
            *expected += 1;
        });
    }

    /// Begins the window, if the transaction is committed.
    pub(crate) fn completing(&self) {
        self.with(|ledger, state, index| state.runs[index].outcome = Some(ledger.engine.now()));
    }

    pub(crate) fn answered(self) {
        self.end(How::Answered);
    }

    pub(crate) fn answered_otherwise(self) {
        self.with(|_, state, _| state.counts.fell_back += 1);
        self.end(How::AnsweredOtherwise);
    }

    pub(crate) fn ended_with_failure(self, then: Then) {
        self.end(How::Failed(then));
    }

    fn end(&self, how: How) {
        self.with(|ledger, state, index| {
            let (run, now) = (&mut state.runs[index], ledger.engine.now());
            run.how = how;
            run.outcome.get_or_insert(now);
        });
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.with(|ledger, state, index| {
            let now = ledger.engine.now();
            let run = &mut state.runs[index];
            run.ended = Some(now);
            // A step that is due at the end of the lease may still happen.
            let overstayed = now > run.until + ledger.step + Duration::from_millis(60);
            let how = run.how;
            ledger.log(state, &format!("run {} ended: {how:?}", self.number));
            if overstayed {
                ledger.broke(state, format!("(ii) run {} outlived its lease", self.number));
            }
        });
    }
}
