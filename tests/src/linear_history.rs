//! Short histories of one key, checked by an algorithm that is not ours: stateright's linearizability tester looks for an order
//! of the requests in which a row, one request after the other, gives each answer that a client saw. A seed determines each history,
//! which runs in paused time.
//!
//! The tester knows when each request was sent and when its answer came. If the answer was lost, the request was applied until the
//! network had delivered it, and nobody knows whether the row has accepted it. The same goes for each copy of a request that
//! the network has repeated. Whether two holders were valid at once is arithmetic, and needs no tester.

mod row;
mod witness;

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use fastrand::Rng;
use futures_util::future::join_all;
use lambda_lock::embedded::Host;
use lambda_lock::{Lock, Locks, Ticket};
use serde_json::Value;
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester};
use tokio::time::{sleep, timeout};

use crate::history::Mutation;
use crate::history::stage::{self, Network, Stage, TABLE, Waiting, millis};
use crate::request::Request;
use row::{Answer, Operation, Row, Shown, State};
use witness::{Seen, Witness, is_of_the_row};

const KEY: &str = "key";
/// How late a request can arrive.
const LATEST_ARRIVAL: Duration = Duration::from_secs(5);
/// A history with more requests is left out, because the tester tries every order.
const MOST_REQUESTS: usize = 80;
/// The same for requests of which nobody knows whether the row has accepted them.
const MOST_OPEN: usize = 6;
/// The steps that the tester may try.
const STEPS: u64 = 20_000;

/// What the checker says about a history.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// There is an order of this many requests.
    Linearizable(usize),
    /// There is none.
    NotLinearizable(String),
    /// Two holders were valid at once.
    Overlap(String),
    /// Not checked, and why.
    LeftOut(&'static str),
}

/// Runs the history of a seed, with the protocol or with a mutation of it, and checks it.
#[must_use]
pub fn check(seed: u64, mutation: Option<Mutation>) -> Verdict {
    let scene = stage::play(seed, history(seed, mutation));
    if let Some(overlap) = scene.holds().overlap() {
        return Verdict::Overlap(overlap);
    }
    judge(&scene.witness.seen())
}

/// The time in which a holder relied on its lock.
#[derive(Clone, Copy, Debug)]
struct Held {
    fence: u64,
    from: SystemTime,
    until: SystemTime,
}

#[derive(Debug, Default)]
struct Holds {
    all: Vec<Held>,
    /// The fence of the holder that an operator has freed, and when. What this holder believes from then on does not count.
    freed: Option<(u64, SystemTime)>,
}

impl Holds {
    /// Two holders whose times overlap.
    fn overlap(&self) -> Option<String> {
        let mut holds = self.all.clone();
        for hold in &mut holds {
            if let Some((_, freed)) = self.freed.filter(|(fence, _)| hold.fence == *fence) {
                hold.until = hold.until.min(freed);
            }
        }
        holds.retain(|hold| hold.from < hold.until);
        let is_while = |one: &Held, other: &Held| one.from < other.until && other.from < one.until;
        let pairs =
            holds.iter().enumerate().flat_map(|(index, one)| holds[..index].iter().map(move |other| (one, other)));
        pairs.into_iter().find(|(one, other)| is_while(one, other)).map(|pair| format!("{pair:?}"))
    }
}

/// The part of a history that all its tasks share.
#[derive(Debug)]
struct Scene {
    stage: Stage,
    witness: Witness,
    holds: Mutex<Holds>,
}

async fn history(seed: u64, mutation: Option<Mutation>) -> Arc<Scene> {
    let mut random = Rng::with_seed(seed);
    let stage = Stage::set(seed, &mut random, LATEST_ARRIVAL, mutation).await;
    let scene = Arc::new(Scene { stage, witness: Witness::default(), holds: Mutex::default() });
    let operator = random.bool().then(|| tokio::spawn(operator(Arc::clone(&scene), random.fork())));
    stage::work(&mut random, |_, random| worker(Arc::clone(&scene), random)).await;
    if let Some(operator) = operator {
        operator.await.unwrap();
    }
    // The last late request has arrived.
    sleep(LATEST_ARRIVAL).await;
    scene
}

impl Scene {
    fn host(&self, random: &mut Rng) -> (Host, Locks) {
        // With more bad networks, too many answers are lost.
        let network = if random.u8(0..3) == 0 { Network::draw(random) } else { Network::Good };
        let host = self.stage.host(random, network, self.witness.clone());
        let client = Client::from_conf(host.client().config().to_builder().interceptor(self.witness.clone()).build());
        let locks = Locks::builder(client, TABLE).clock_skew(self.stage.clock_skew).holder("a host").build().unwrap();
        (host, locks)
    }

    /// The holder relies on the lock for this long, or until it is lost.
    async fn rely(&self, lock: &Lock, span: Duration) {
        let from = self.stage.engine.now();
        let _lost = timeout(span, lock.until_lost()).await;
        let held = Held { fence: lock.fence(), from, until: self.stage.engine.now() };
        self.holds().all.push(held);
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client: one host after another, with one acquire after another.
async fn worker(scene: Arc<Scene>, mut random: Rng) {
    let (mut host, mut locks) = scene.host(&mut random);
    for _ in 0..random.usize(1..=2) {
        sleep(millis(&mut random, 0..=1500)).await;
        let lease = millis(&mut random, 300..=2000);
        let acquire = locks.acquire(KEY).lease(lease);
        let acquire = match random.u8(0..3) {
            0 => acquire,
            _ => acquire.wait(Waiting::draw(&mut random).up_to(millis(&mut random, 200..=1500))),
        };
        let patience = if random.u8(0..5) == 0 { millis(&mut random, 0..=500) } else { Duration::from_mins(1) };
        let Ok(Ok(lock)) = timeout(patience, acquire.into_future()).await else { continue };
        scene.rely(&lock, millis(&mut random, 0..=600)).await;
        if random.u8(0..3) == 0 && lock.is_valid() && lock.renew(lease).await.is_ok() {
            scene.rely(&lock, millis(&mut random, 0..=600)).await;
        }
        match random.u8(0..8) {
            0 => {
                host.crash();
                (host, locks) = scene.host(&mut random);
            }
            1 => drop(lock),
            2 | 3 => {
                let Ok(ticket) = lock.into_ticket() else { continue };
                hand_over(&scene, &ticket, lease, &mut random).await;
            }
            _ => drop(lock.release().await),
        }
    }
    // Withdrawals and releases in the background.
    let _unanswered = locks.flush(Duration::from_secs(2)).await;
}

/// Other processes go on with the lock of a ticket: one renews the lease, two resume it at about the same time, and one
/// releases it.
async fn hand_over(scene: &Arc<Scene>, ticket: &Ticket, lease: Duration, random: &mut Rng) {
    if random.bool() {
        let (_host, locks) = scene.host(random);
        let _renewed = locks.renew_ticket(ticket, lease).await;
    }
    let resumptions = [random.fork(), random.fork()].map(|mut random| async move {
        let (_host, locks) = scene.host(&mut random);
        sleep(millis(&mut random, 0..=300)).await;
        let Ok(lock) = locks.resume(ticket).await else { return };
        scene.rely(&lock, millis(&mut random, 0..=300)).await;
        let _released = lock.release().await;
    });
    join_all(resumptions).await;
    if random.bool() {
        let (_host, locks) = scene.host(random);
        let _released = locks.release_ticket(ticket).await;
    }
}

/// Frees the key of whoever has it.
async fn operator(scene: Arc<Scene>, mut random: Rng) {
    let (_host, locks) = scene.host(&mut random);
    sleep(millis(&mut random, 0..=3000)).await;
    if let Ok(Some(holder)) = locks.get(KEY).await {
        // The holder does not learn of it before its next request.
        scene.holds().freed = holder.fence().map(|fence| (fence, scene.stage.engine.now()));
        let _freed = locks.force_release(KEY, &holder).await;
    }
}

/// A request with a time before and a time after which it was not applied, as positions of events.
struct Windowed {
    sent: usize,
    applied: usize,
    operation: Operation,
    answer: Answer,
}

/// Lets the tester look for an order.
fn judge(seen: &[Seen]) -> Verdict {
    let mut requests = windowed(seen);
    if requests.len() > MOST_REQUESTS {
        return Verdict::LeftOut("too long");
    }
    // The tester knows no request that is either accepted or rejected. So each choice is tried.
    let open: Vec<_> = (0..requests.len())
        .filter(|index| requests[*index].answer.is_accepted.is_none() && Row::may_reject(&requests[*index].operation))
        .collect();
    if open.len() > MOST_OPEN {
        return Verdict::LeftOut("too many lost answers");
    }
    let steps = Rc::new(Cell::new(STEPS));
    for choice in 0..1_u32 << open.len() {
        for (bit, index) in open.iter().enumerate() {
            requests[*index].answer.is_accepted = (choice >> bit & 1 == 1).then_some(false);
        }
        if is_linearizable(&requests, &steps) {
            return Verdict::Linearizable(requests.len());
        }
        if steps.get() == 0 {
            return Verdict::LeftOut("too many orders");
        }
    }
    Verdict::NotLinearizable(described(seen))
}

fn is_linearizable(requests: &[Windowed], steps: &Rc<Cell<u64>>) -> bool {
    let mut tester = LinearizabilityTester::new(Row::new(steps));
    let begins = requests.iter().enumerate().map(|(thread, request)| (request.sent, false, thread));
    let ends = requests.iter().enumerate().map(|(thread, request)| (request.applied, true, thread));
    let mut events: Vec<_> = begins.chain(ends).collect();
    events.sort_unstable();
    for (_, is_end, thread) in events {
        // Each request has a thread of its own, because a client sends several at once.
        let request = &requests[thread];
        if is_end {
            tester.on_return(thread, request.answer.clone()).unwrap();
        } else {
            tester.on_invoke(thread, request.operation.clone()).unwrap();
        }
    }
    tester.is_consistent()
}

/// The requests that may have been applied. One whose answer was lost was applied until it arrived, which only the network
/// knows. So was each copy of a request that the network has repeated.
fn windowed(seen: &[Seen]) -> Vec<Windowed> {
    let mut windowed = Vec::new();
    let mut arrivals: HashMap<String, Vec<usize>> = HashMap::new();
    for (position, event) in seen.iter().enumerate() {
        if let Seen::Arrived { request } = event {
            arrivals.entry(request.to_string()).or_default().push(position);
        }
    }
    let sent = || {
        seen.iter().enumerate().filter_map(|(sent, event)| match event {
            Seen::Sent { operation, request } => Some((sent, meant(operation, request)?, request.to_string())),
            _ => None,
        })
    };
    for (sent, operation, request) in sent() {
        let Some(answer) = answer_to(seen, sent) else { continue };
        let is_answer = |event: &Seen| matches!(event, Seen::Answered { number, .. } if *number == sent);
        let Some(applied) = seen.iter().position(is_answer) else { continue };
        // The SDK sends a request again as it was. The arrival that was answered is the first one of its window.
        let arrivals = arrivals.entry(request).or_default();
        if let Some(index) = arrivals.iter().position(|arrived| (sent..applied).contains(arrived)) {
            arrivals.remove(index);
        }
        windowed.push(Windowed { sent, applied, operation, answer });
    }
    for (sent, operation, request) in sent() {
        // Without an answer, a read and a place say nothing.
        if matches!(operation, Operation::Read | Operation::Other) {
            continue;
        }
        for applied in arrivals.remove(&request).unwrap_or_default() {
            let lost = Answer { is_accepted: None, row: Shown::Nothing };
            windowed.push(Windowed { sent, applied, operation: operation.clone(), answer: lost });
        }
    }
    windowed
}

/// A line for each event.
fn described(seen: &[Seen]) -> String {
    let mut text = String::new();
    for (number, event) in seen.iter().enumerate() {
        let _infallible = match event {
            Seen::Sent { operation, request } => writeln!(text, "{number:>3} sent: {:?}", meant(operation, request)),
            Seen::Answered { number: of, status, .. } => {
                writeln!(text, "{number:>3} answer to {of}: {status} {:?}", answer_to(seen, *of))
            }
            Seen::Arrived { request } => {
                let sent = seen[..number]
                    .iter()
                    .position(|sent| matches!(sent, Seen::Sent { request: of, .. } if of == request));
                writeln!(text, "{number:>3} arrived: {sent:?}")
            }
        };
    }
    text
}

/// What a request to the key is meant to do.
fn meant(operation: &str, request: &Value) -> Option<Operation> {
    match operation {
        "GetItem" => Some(Operation::Read),
        "UpdateItem" => Request::parse(operation, request).update().map(Operation::of),
        _ => None,
    }
}

/// The answer to the request of this number. `None` if none came, or one that says nothing about the row.
fn answer_to(seen: &[Seen], of: usize) -> Option<Answer> {
    let answered = seen.iter().find_map(|event| match event {
        Seen::Answered { number, status, body } if *number == of => Some((*status, body)),
        _ => None,
    });
    let (status, body) = answered?;
    let Seen::Sent { operation, request } = &seen[of] else { return None };
    // The embedded engine shows the key of a row that was not there.
    let shown = |item: &Value| Shown::Row(item["status"].is_object().then(|| State::of(item)));
    let row = match (operation.as_str(), status) {
        ("GetItem", _) => shown(&body["Item"]),
        (_, 200) if request["ReturnValues"] == "ALL_OLD" => shown(&body["Attributes"]),
        (_, 400) if request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD" => shown(&body["Item"]),
        _ => Shown::Nothing,
    };
    is_of_the_row(status, body).then(|| Answer { is_accepted: Some(status == 200 && operation != "GetItem"), row })
}
