//! One path: the model and the real clients take the same steps, and are compared after each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use lambda_lock::{Error, ErrorKind, HandlerError};
use lambda_lock_model::walk::{Operation, Row, Situation, Standing, Step, Value, WALKERS};
use lambda_lock_model::{Fate, Subject};

use crate::client::{Outcome, RealClient};
use crate::gate::{Response, Sent, Waiting};
use crate::lab::Lab;
use crate::rows::{InWords, PERMIT, Scale};

/// Why a real client cannot take a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// A withdrawal stops waiting after a second, or after 10 s in the background. A process that stands still meanwhile
    /// sends it again when it goes on, which the model does not have.
    WithdrawalOverATick,
    /// Between two attempts of an acquire, there is a millisecond at least. In the model, an attempt can follow in the tick in
    /// which a slow one has failed.
    AskedAgainAtOnce,
    /// After the limit of an attempt, no further request of it follows: the SDK does not send again, and the crate does not
    /// adapt the attempt to the row.
    SentAfterTheLimit,
    /// A waiter in turn whose row is gone asks at once. In the model, it asks in a later tick.
    AskedAtOnce,
}

/// What a client does at the moment.
#[derive(Clone, Copy)]
struct Current {
    operation: Operation,
    /// The tick in which it began.
    begun: u8,
    /// The tick in which its last request was sent or answered.
    last: u8,
}

pub(crate) struct Path<'a> {
    lab: &'a mut Lab,
    subject: Subject,
    keys: Vec<String>,
    scale: Scale,
    clients: Vec<RealClient>,
    operations: [Option<Current>; WALKERS],
    situation: Situation,
    late: Option<Sent>,
    /// Whether the last refusal of each client has the result of a record.
    has_result: [bool; WALKERS],
    rows: Vec<Option<InWords>>,
    /// The fences of the permits, by client.
    permit_fences: BTreeMap<usize, String>,
    /// Whether a request has arrived since the rows were read.
    has_arrived: bool,
    log: String,
}

impl<'a> Path<'a> {
    pub(crate) fn begin(lab: &'a mut Lab, subject: Subject, situation: Situation) -> Self {
        let rows = vec![None; situation.rows().len()];
        let keys: Vec<_> = rows.iter().map(|_| lab.key()).collect();
        let client = |id| {
            let (locks, gate) = lab.station(id, situation.ahead(id));
            gate.switch(false);
            // The last client of several keys takes only the last key.
            let from = if id + 1 == WALKERS { keys.len() - 1 } else { 0 };
            RealClient::new(subject, situation.permits(), lab.tick, keys[from..].to_vec(), (locks, gate))
        };
        let clients = (0..WALKERS).map(client).collect();
        let Lab { tick, kept_longer, .. } = *lab;
        let scale = Scale { tick, start: lab.now(), kept_longer, owners: BTreeMap::new() };
        let ahead: Vec<_> = (0..WALKERS).map(|id| situation.ahead(id)).collect();
        let log = format!("{subject:?}: the clocks are ahead by {ahead:?} ticks, permits: {}\n", situation.permits());
        let operations = [None; WALKERS];
        Self {
            lab,
            subject,
            keys,
            scale,
            clients,
            operations,
            situation,
            late: None,
            has_result: [false; WALKERS],
            rows,
            permit_fences: BTreeMap::new(),
            has_arrived: false,
            log,
        }
    }

    fn takes_turns(&self) -> bool {
        self.subject == Subject::SemaphoreInTurn
    }

    pub(crate) fn steps(&self) -> Vec<Step> {
        self.situation.steps()
    }

    /// Returns why a real client cannot take this step, if it cannot.
    pub(crate) fn obstacle(&self, step: &Step) -> Option<Reason> {
        match *step {
            Step::Tick => {
                let withdraws = |id| self.situation.standing(id) == Standing::Withdrawing;
                let is_withdrawing = (0..WALKERS).any(|id| withdraws(id) && self.situation.is_waiting(id));
                is_withdrawing.then_some(Reason::WithdrawalOverATick)
            }
            Step::Begin { client, operation: operation @ (Operation::Ask | Operation::Join), fate, .. } => {
                let goes_on = self.takes_turns() || self.situation.standing(client) != FREE;
                let is_now = self.operations[client].is_some_and(|current| current.last == self.situation.time());
                if goes_on && is_now {
                    return Some(Reason::AskedAgainAtOnce);
                }
                let is_sent = self.clients[client].gate.waiting() > 0;
                if is_sent && operation == Operation::Ask {
                    return Some(Reason::AskedAtOnce);
                }
                (is_sent && is_sent_again(fate)).then_some(Reason::SentAfterTheLimit)
            }
            Step::Deliver { client, fate } => {
                let Current { operation, begun, last } = self.operations[client]?;
                let (time, limit) = (self.situation.time(), limit_of(operation));
                let is_over = last < time && self.lab.tick * u32::from(time - begun) >= limit;
                (is_over && self.sends_again(client, fate, step)).then_some(Reason::SentAfterTheLimit)
            }
            _ => None,
        }
    }

    /// Whether another request of the same attempt follows a request with this fate.
    fn sends_again(&self, client: usize, fate: Fate, step: &Step) -> bool {
        if is_sent_again(fate) {
            return true;
        }
        let after = self.situation.after(step);
        after.is_waiting(client) && matches!(after.standing(client), Standing::Asking { .. })
    }

    /// Takes a step, and compares. A difference is an error that has the whole path.
    pub(crate) async fn take(&mut self, step: &Step) -> Result<(), String> {
        let after = self.situation.after(step);
        let compared = match self.perform(step, &after).await {
            Ok(()) => self.compare(step, &after).await,
            Err(difference) => Err(difference),
        };
        let standings: Vec<_> = (0..WALKERS).map(|id| after.standing(id)).collect();
        let model = in_words(&after);
        let _never_fails = write!(
            self.log,
            "{}: {step:?}\n    model:  {model:?}\n    engine: {:?}\n    {standings:?}\n",
            self.situation.time(),
            self.rows
        );
        self.situation = after;
        compared.map_err(|difference| format!("{}difference: {difference}", self.log))
    }

    async fn perform(&mut self, step: &Step, after: &Situation) -> Result<(), String> {
        match *step {
            Step::Tick => {
                tokio::time::advance(self.lab.tick).await;
                // Too late to arrive.
                if !after.steps().contains(&Step::ArriveLate) {
                    self.late = None;
                }
            }
            Step::Begin { client, operation, fate, .. } => {
                self.operations[client] = Some(Current { operation, begun: after.time(), last: after.time() });
                let is_refused = after.standing(client) == FREE && !after.is_waiting(client);
                if operation == Operation::Ask && self.situation.standing(client) == FREE && !self.takes_turns() {
                    self.clients[client].forget();
                }
                let is_once = is_refused && fate == Fate::Prompt && !self.takes_turns();
                self.clients[client].begin(operation, is_once);
                if operation == Operation::Abandon {
                    self.clients[client].go_on(false).await;
                } else {
                    let waiting = self.sent(client, "the request").await?;
                    self.decide(client, waiting, fate, after).await?;
                }
            }
            Step::Deliver { client, fate } => {
                let waiting = self.sent(client, "the request").await?;
                if let Some(current) = &mut self.operations[client] {
                    current.last = after.time();
                }
                self.decide(client, waiting, fate, after).await?;
            }
            Step::ArriveLate => {
                let late = self.late.take().ok_or("no request is late")?;
                let _nobody_waits = self.arrive(&late).await;
            }
            Step::Delete(row) => {
                self.lab.delete(&self.keys[row]).await;
                self.has_arrived = true;
            }
        }
        Ok(())
    }

    /// Lets a client go on until it sends.
    async fn sent(&mut self, client: usize, what: &str) -> Result<Waiting, String> {
        self.clients[client].go_on(true).await;
        let waiting = self.clients[client].gate.take().ok_or_else(|| format!("client {client} did not send {what}"))?;
        if self.asks(client) {
            let body = waiting.sent.body();
            let update = body.pointer("/TransactItems/0/Update").unwrap_or(&body);
            let text = |pointer| update.pointer(pointer).and_then(|value| value.as_str());
            let of_permit = || text("/ExpressionAttributeNames/#permit")?.strip_prefix(PERMIT);
            if let Some(owner) = text("/ExpressionAttributeValues/:owner/S").or_else(of_permit) {
                self.scale.owners.insert(owner.to_owned(), client);
            }
        }
        Ok(waiting)
    }

    async fn arrive(&mut self, sent: &Sent) -> Response {
        self.has_arrived = true;
        sent.arrive().await
    }

    /// Lets a request have its fate, and the client go on.
    async fn decide(&mut self, client: usize, waiting: Waiting, fate: Fate, after: &Situation) -> Result<(), String> {
        match fate {
            Fate::Slow => {
                self.clients[client].gate.put_back(waiting);
                return Ok(());
            }
            Fate::Prompt => {
                let answer = self.arrive(&waiting.sent).await;
                waiting.answer(answer);
            }
            Fate::Twice => {
                self.late = Some(waiting.resend());
                let again = self.sent(client, "the request again").await?;
                let answer = self.arrive(&again.sent).await;
                again.answer(answer);
            }
            Fate::Lost => drop(waiting.fail()),
            Fate::Late => self.late = Some(waiting.fail()),
            Fate::AnswerLost => drop(self.arrive(&waiting.fail()).await),
            Fate::AnswerLostAndResent => drop(self.arrive(&waiting.resend()).await),
        }
        if self.asks(client) {
            self.has_result[client] = after.rows()[0].as_ref().is_some_and(is_completed);
        }
        let stands_still = matches!(fate, Fate::Prompt | Fate::Twice)
            && matches!(after.standing(client), Standing::Asking { is_doubtful: true, .. })
            && self.is_refused_for_good(client, after);
        let real = &mut self.clients[client];
        real.is_frozen = stands_still;
        if after.standing(client) == Standing::Unknown {
            real.gate.switch(true);
        }
        real.go_on(after.is_waiting(client)).await;
        Ok(())
    }

    async fn compare(&mut self, step: &Step, after: &Situation) -> Result<(), String> {
        if std::mem::take(&mut self.has_arrived) {
            for (key, row) in self.keys.iter().zip(&mut self.rows) {
                let read = self.lab.row(key).await;
                *row = read.as_ref().map(|row| self.scale.of_engine(row));
                self.permit_fences = read.map(|row| self.scale.permit_fences(&row)).unwrap_or_default();
            }
        }
        let expected = in_words(after);
        if self.rows != expected {
            return Err(format!("the rows are {:?}, not {expected:?}", self.rows));
        }
        for client in 0..WALKERS {
            self.compare_client(client, after).map_err(|difference| format!("client {client} {difference}"))?;
        }
        if let Step::Begin { client, fate, .. } | Step::Deliver { client, fate } = *step
            && !after.is_waiting(client)
            && let Some(Current { operation, .. }) = self.operations[client]
        {
            let outcome = self.clients[client].outcome.take();
            let is_answered = matches!(fate, Fate::Prompt | Fate::Twice);
            let has = format!("client {client} has {outcome:?} after {operation:?}");
            let is_expected = self.is_expected(client, operation, is_answered, outcome, after);
            return if is_expected { Ok(()) } else { Err(has) };
        }
        Ok(())
    }

    fn compare_client(&self, client: usize, after: &Situation) -> Result<(), String> {
        let (real, standing) = (&self.clients[client], after.standing(client));
        let (waiting, expected) = (real.gate.waiting(), usize::from(after.is_waiting(client)));
        // A waiter in turn may have sent a request for a place, which goes on when the path says so.
        let joins = self.takes_turns() && expected == 0 && matches!(standing, Standing::Asking { .. });
        if waiting != expected && !(joins && waiting == 1) {
            return Err(format!("has {waiting} requests under way, not {expected}"));
        }
        let Some(held) = &real.held else {
            let needs_lock = matches!(standing, Standing::Held { .. } | Standing::Releasing | Standing::Completing);
            return if needs_lock { Err("does not hold the key".into()) } else { Ok(()) };
        };
        match standing {
            Standing::Held { deadline } => {
                let clock = after.time() + after.ahead(client);
                let ends = held.expires_at();
                let expected =
                    std::time::SystemTime::UNIX_EPOCH + self.scale.start + self.scale.tick * u32::from(deadline);
                if ends != expected {
                    return Err(format!("holds until {ends:?}, not {expected:?}"));
                }
                if held.is_valid() != (deadline > clock) {
                    return Err(format!("considers itself valid: {}", held.is_valid()));
                }
                let had_it = matches!(self.situation.standing(client), Standing::Held { .. });
                for (key, row) in self.keys.iter().zip(&self.rows).filter(|_| !had_it) {
                    let fence = held.fence(key).map(|fence| self.scale.fence(fence));
                    let of_permit = self.permit_fences.get(&client);
                    let in_row = of_permit.or_else(|| row.as_ref().and_then(|row| row.get("fence")));
                    if fence.is_some() && in_row != fence.as_ref() {
                        return Err(format!("has the fence {fence:?}, and the row {in_row:?}"));
                    }
                }
            }
            Standing::Asking { .. } => return Err("holds the key".into()),
            Standing::Released | Standing::Lost if held.is_valid() => return Err("considers itself valid".into()),
            _ => {}
        }
        Ok(())
    }

    /// Whether this is what the operation ends with in the model.
    fn is_expected(
        &self,
        client: usize,
        operation: Operation,
        is_answered: bool,
        outcome: Option<Outcome>,
        after: &Situation,
    ) -> bool {
        let standing = after.standing(client);
        let is_record = is_record(self.subject);
        let is_frozen = self.clients[client].is_frozen;
        let is_final = self.is_refused_for_good(client, after);
        match (operation, standing) {
            // It was cut off.
            (operation, Standing::Unknown) if operation != Operation::Abandon => true,
            (Operation::Ask, Standing::Held { .. }) if is_record => outcome.is_none(),
            (Operation::Ask, Standing::Held { .. }) => matches!(outcome, Some(Outcome::Acquired(Ok(())))),
            // A record that has the result, or for which the run is rejected.
            (Operation::Ask, Standing::Asking { is_over: true, .. })
                if is_record && is_answered && is_final && !is_frozen =>
            {
                is_refusal(outcome.as_ref(), self.has_result[client])
            }
            (Operation::Ask, Standing::Asking { is_over: false, is_doubtful: false, .. }) => match outcome {
                Some(Outcome::Acquired(Err(error))) => error.kind() == ErrorKind::Held && self.names_holder(&error),
                Some(Outcome::Run(Err(HandlerError::Lock(error)))) => {
                    error.kind() == ErrorKind::InProgress && self.names_holder(&error)
                }
                // It waits.
                outcome => outcome.is_none(),
            },
            // The process that stood still has read the refusal.
            (Operation::StopAsking, _) if outcome.is_some() => is_refusal(outcome.as_ref(), self.has_result[client]),
            (Operation::Ask | Operation::StopAsking | Operation::Join, _) => outcome.is_none(),
            (Operation::Renew(_), standing) => match outcome {
                Some(Outcome::Done(Ok(()))) => is_answered && standing != Standing::Lost,
                Some(Outcome::Done(Err(error))) if is_answered => error.is_lost() && standing == Standing::Lost,
                Some(Outcome::Done(Err(error))) => error.kind() == ErrorKind::Unavailable,
                _ => false,
            },
            (Operation::Release, standing) => match outcome {
                Some(Outcome::Done(result)) => is_release(&result, standing),
                Some(Outcome::Run(_)) => self.is_known(client, standing),
                _ => false,
            },
            (Operation::Complete, _) | (Operation::Transact, Standing::Released) => is_run_that_returned(outcome),
            (Operation::Transact, _) => matches!(outcome, Some(Outcome::Transacted(false))),
            (Operation::Abandon, _) => matches!(outcome, Some(Outcome::Run(Err(_)))),
        }
    }

    fn asks(&self, client: usize) -> bool {
        self.operations[client].is_some_and(|current| current.operation == Operation::Ask)
    }

    /// Whether the record refuses the attempt of this client for good: it has the outcome, or an unfinished run.
    fn is_refused_for_good(&self, client: usize, after: &Situation) -> bool {
        let Some(Current { begun, .. }) = self.operations[client].filter(|_| is_record(self.subject)) else {
            return false;
        };
        let clock = begun + after.ahead(client);
        let is_over = |row: &Row| matches!(row.get("in_progress_expiration"), Some(Value::Tick(end)) if *end <= clock);
        after.rows()[0].as_ref().is_some_and(|row| is_completed(row) || is_over(row))
    }

    /// Whether the error names the owner in the row, or the owners of all permits in it.
    fn names_holder(&self, error: &Error) -> bool {
        let Some(holder) = error.holder() else { return false };
        if holder.is_semaphore() {
            let named = holder.permits().iter().filter_map(|permit| self.scale.owners.get(permit.owner()?));
            return named.copied().collect::<BTreeSet<_>>() == self.permit_fences.keys().copied().collect();
        }
        let named = holder.owner().and_then(|owner| self.scale.owners.get(owner));
        let named = named.map(|client| format!("client {client}"));
        named.is_some() && self.rows.iter().flatten().any(|row| row.get("owner") == named.as_ref())
    }

    /// Whether the lock of a run knows how its release ended. A lock that knows sends no request.
    fn is_known(&self, client: usize, standing: Standing) -> bool {
        if !matches!(standing, Standing::Released | Standing::Lost) {
            return true;
        }
        let Some(held) = self.clients[client].held.clone() else { return false };
        let again = futures_util::FutureExt::now_or_never(held.release());
        again.is_some_and(|result| is_release(&result, standing))
    }

    /// Ends the path, and returns its log.
    pub(crate) async fn end(self) -> String {
        let Self { clients, log, .. } = self;
        for client in &clients {
            client.gate.switch(true);
        }
        drop(clients);
        // Requests of dropped locks come to the closed gates, and end with their time limits.
        for _ in 0..2 {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            tokio::time::advance(2 * REQUEST_TIMEOUT).await;
        }
        log
    }
}

/// How long a request may take, with the SDK's retries.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for a place in the queue.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A client that has asked for nothing yet, or was refused.
const FREE: Standing = Standing::Asking { attempts: 0, is_doubtful: false, is_over: false };

fn limit_of(operation: Operation) -> Duration {
    if operation == Operation::Join { JOIN_TIMEOUT } else { REQUEST_TIMEOUT }
}

fn is_sent_again(fate: Fate) -> bool {
    matches!(fate, Fate::AnswerLostAndResent | Fate::Twice)
}

fn is_record(subject: Subject) -> bool {
    matches!(subject, Subject::Record | Subject::RejectingRecord)
}

fn in_words(situation: &Situation) -> Vec<Option<InWords>> {
    situation.rows().iter().map(|row| row.as_ref().map(Scale::of_model)).collect()
}

fn is_completed(row: &Row) -> bool {
    row.get("status") == Some(&Value::Text("COMPLETED"))
}

/// Whether a run was refused for good, by the result or by an unfinished run.
fn is_refusal(outcome: Option<&Outcome>, has_result: bool) -> bool {
    match outcome {
        Some(Outcome::Run(Ok(_))) => has_result,
        Some(Outcome::Run(Err(HandlerError::Lock(error)))) => !has_result && error.kind() == ErrorKind::Unfinished,
        _ => false,
    }
}

/// Whether a run returned the handler's result, or an error because its lease ended first.
fn is_run_that_returned(outcome: Option<Outcome>) -> bool {
    match outcome {
        Some(Outcome::Run(Ok(_))) => true,
        Some(Outcome::Run(Err(HandlerError::Lock(error)))) => error.is_lost(),
        _ => false,
    }
}

fn is_release(result: &Result<(), Error>, standing: Standing) -> bool {
    match (result, standing) {
        (Ok(()), Standing::Released) => true,
        (Err(error), Standing::Lost) => error.is_lost(),
        (Err(error), Standing::Releasing) => error.kind() == ErrorKind::Unavailable,
        _ => false,
    }
}
