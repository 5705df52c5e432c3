use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fastrand::Rng;
use lambda_lock::embedded::Answer;
use lambda_lock::{Error, ErrorKind, Lock};
use serde_json::{Value, json};

use super::Counts;
use crate::guarantee::{ALL_OR_NONE, REPEATED, SERVED};
use crate::history::actor::Sent;
use crate::history::book::{Book, Observe, Page};
use crate::history::holders::Holders;
use crate::history::identities::short;
use crate::history::liveness::refused_while_free;
use crate::history::operation::{self, Common, Judged, common};
use crate::history::rows::Rows;
use crate::history::stage::Waiting;
use crate::history::twist::REPEATED_FOR;
use crate::request::{LEASE_END, Purpose, Request, Write};

/// Records everything, and reports violations of the guarantees.
pub(super) type Ledger = Book<Kept>;

type State = Page<Kept>;

pub(crate) struct Kept {
    /// In this history, DynamoDB recognises transactions by their tokens.
    has_tokens: bool,
    /// The chance that a request conflicts with a transaction, or that a transaction is throttled.
    conflicts: f64,
    random: Rng,
    rows: Rows,
    /// The keys of each operation that is under way.
    pub(super) wanted: HashMap<String, Vec<String>>,
    holders: Holders,
    /// The tokens of applied transactions.
    tokens: HashSet<String>,
}

impl Kept {
    pub(super) fn draw(mut random: Rng) -> Self {
        Self {
            has_tokens: random.bool(),
            conflicts: [0.0, 0.1][random.usize(0..2)],
            random,
            rows: Rows::default(),
            wanted: HashMap::new(),
            holders: Holders::default(),
            tokens: HashSet::new(),
        }
    }
}

impl Ledger {
    /// One update was applied, alone or as a part of a transaction.
    fn applied(&self, state: &mut State, update: &Write, answer: &Answer) {
        let Write { purpose, key, owner, .. } = update.clone();
        let short = short(&owner);
        let end = update.number(LEASE_END);
        self.log(state, &format!("  {purpose:?} of {key} by {short} applied: ends {end:?}"));
        self.judge(state, &key, update, update.sent(), update.attempt());
        let Kept { rows, holders, .. } = &mut state.kept;
        for what in rows.applied(holders, update, &answer.body) {
            self.broke(state, what);
        }
        match purpose {
            Purpose::Join => state.counts.joined += 1,
            Purpose::Reserve => state.counts.reserved += 1,
            Purpose::Withdraw => state.counts.withdrawn += 1,
            Purpose::Acquire | Purpose::Renew | Purpose::Release | Purpose::Free | Purpose::Look => {}
            _ => unreachable!("nothing completes several locks"),
        }
    }

    /// A free key refuses nobody for long.
    fn refused(&self, state: &mut State, request: &Request, answer: &Answer) {
        for (number, write) in request.writes.iter().enumerate() {
            let row = if request.is_transaction {
                &answer.body["CancellationReasons"][number]["Item"]
            } else {
                &answer.body["Item"]
            };
            let why = (write.purpose == Purpose::Acquire).then(|| refused_while_free(write, row)).flatten();
            if let Some(why) = why {
                self.broke(state, format!("{SERVED}: {} was refused: {why}", write.key));
            }
        }
    }

    /// All keys or none: a transaction that takes keys takes all keys of its operation.
    fn all_or_none(&self, state: &mut State, request: &Request) {
        let taken: Vec<_> = request.writes.iter().filter(|write| write.purpose == Purpose::Acquire).collect();
        let Some(holder) = taken.first().and_then(|first| first.text("holder")) else { return };
        let mut keys: Vec<_> = taken.iter().map(|write| write.key.clone()).collect();
        keys.sort_unstable();
        if state.wanted.get(holder).is_some_and(|wanted| *wanted != keys) {
            self.broke(state, format!("{ALL_OR_NONE}: {holder} took {keys:?} only"));
        }
    }
}

/// The table of a request that conflicts with a transaction: it is not applied.
const CONFLICT: &str = "conflict";

impl Observe for Kept {
    type Counts = Counts;

    fn request(ledger: &Ledger, request: &mut Value) {
        let mut state = ledger.state();
        if !state.has_tokens {
            request.as_object_mut().unwrap().remove("ClientRequestToken");
        }
        if state.random.f64() < state.conflicts {
            match request.pointer_mut("/TransactItems/0/Update") {
                Some(update) => update["TableName"] = CONFLICT.into(),
                None => request["TableName"] = CONFLICT.into(),
            }
        }
    }

    fn answer(ledger: &Ledger, operation: &str, request: &Value, answer: &mut Answer) {
        let mut state = ledger.state();
        state.counts.requests += 1;
        let token = request["ClientRequestToken"].as_str();
        let request = Request::parse(operation, request);
        if request.writes.iter().any(|write| write.table() == CONFLICT) {
            state.counts.conflicts += 1;
            answer.status = 400;
            let reason = if state.random.bool() { "TransactionConflict" } else { "ThrottlingError" };
            let code = |number| if number == 0 { reason } else { "None" };
            let reasons: Vec<_> = (0..request.writes.len()).map(|number| json!({ "Code": code(number) })).collect();
            let exception =
                if request.is_transaction { "TransactionCanceledException" } else { "TransactionConflictException" };
            answer.body = json!({
                "__type": format!("com.amazonaws.dynamodb.v20120810#{exception}"),
                "Message": "simulated",
                "CancellationReasons": reasons,
            });
        }
        if answer.status != 200 {
            let purposes: Vec<_> = request.writes.iter().map(|write| write.purpose).collect();
            ledger.log(&mut state, &format!("  {purposes:?} refused"));
            return ledger.refused(&mut state, &request, answer);
        }
        if let Some(token) = token
            && !state.tokens.insert(token.to_owned())
        {
            state.counts.recognised += 1;
            return ledger.log(&mut state, "  a repetition was recognised");
        }
        for update in &request.writes {
            ledger.applied(&mut state, update, answer);
        }
        ledger.all_or_none(&mut state, &request);
    }
}

pub(super) type Operation = operation::Operation<Kept>;

impl Judged for Kept {
    fn holders(&mut self) -> &mut Holders {
        &mut self.holders
    }

    fn common(counts: &mut Counts) -> Common<'_> {
        common!(counts)
    }

    fn acquired(_: &Operation, state: &mut State, held: &Lock, _: Duration) -> u64 {
        match held.keys() {
            [_] => state.counts.locks += 1,
            _ => state.counts.sets += 1,
        }
        held.fence()
    }

    fn held(operation: &Operation, state: &mut State, error: &Error) {
        let holders: Vec<_> = error.holders().filter(|(_, holder)| holder.fence().is_some()).collect();
        state.counts.held += usize::from(!holders.is_empty());
        state.counts.held_in_part += usize::from(holders.len() > 1);
        for (key, holder) in holders {
            if !operation.keys.iter().any(|own| own == key) {
                operation.ledger.broke(state, format!("{} was refused by {key}", operation.name));
            }
            operation.check_refusal(state, key, holder);
        }
    }

    fn was_released(operation: &Operation, state: &State, owner: &str) -> bool {
        operation.keys.iter().all(|key| state.rows.was_released(key, owner))
    }

    /// A request of a holder is repeated while other requests prevent it, so that only a lost answer makes it fail, or a
    /// partition and other transactions that prevent it for as long.
    fn failed(operation: &Operation, state: &mut State, owner: &str, sent: Sent, error: &Error) {
        if error.is_lost() {
            state.counts.superseded += usize::from(operation.is_superseded(&state.holders, owner));
            return;
        }
        let is_prevented = matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Conflict);
        let was_repeated = is_prevented && sent.at + REPEATED_FOR <= operation.ledger.engine.now();
        if error.kind() != ErrorKind::Unavailable && !was_repeated {
            let what = format!("{REPEATED}: {} gave up {:?}: {error}", operation.name, operation.keys);
            operation.ledger.broke(state, what);
        }
    }

    fn left(operation: &Operation, state: &mut State, _: Waiting) -> bool {
        let has = |key: &String| state.rows.owner_of(&state.holders, key, &operation.name).is_some();
        operation.keys.iter().all(has)
    }
}
