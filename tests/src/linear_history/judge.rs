//! Whether there is an order of the requests to some rows in which these rows, one request after the other, give each answer that a
//! client saw. Stateright's linearizability tester looks for it.
//!
//! The tester knows when each request was sent and when its answer came. If the answer was lost, the request was applied until the
//! network had delivered it, and nobody knows whether the rows have accepted it. The same goes for each copy of a request that
//! the network has repeated. The order in which the network delivered them is only the order that is tried first.
//!
//! Rows that no transaction has in common have nothing to do with each other. So they are judged apart, and each time at which no
//! request is under way divides the requests of a row.

// Programs without the histories include this file by its path.
#[path = "row.rs"]
mod row;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::rc::Rc;

use serde_json::Value;
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec as _};

use row::{Answer, Asked, Rows};

/// Of more requests at a time, none is checked, because the tester tries every order.
const MOST_REQUESTS: usize = 200;
/// The same for requests of which nobody knows whether the rows have accepted them.
const MOST_OPEN: usize = 6;
/// The steps that the tester may try.
const STEPS: u64 = 20_000;

/// Something that a client saw, or that the network did. Their order is that of their times.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A request was sent. Its number is its position.
    Sent {
        /// Such as `UpdateItem`.
        operation: String,
        /// The body.
        request: Value,
    },
    /// The answer to the request of this number arrived.
    Answered {
        /// The position of the request.
        number: usize,
        /// The HTTP status.
        status: u16,
        /// The body.
        body: Value,
    },
    /// A request reached the table, which has answered it. If one does so more often than it was sent, the network has repeated
    /// it. One that never does so was not applied.
    Arrived {
        /// The body, as it was sent.
        request: Value,
        /// The HTTP status of the answer.
        status: u16,
    },
}

/// The judge knows this of a list of events.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// How many requests have an order.
    pub requests: usize,
    /// How many were not checked, and why.
    pub left_out: BTreeMap<&'static str, usize>,
    /// Requests that have no order.
    pub violation: Option<String>,
}

/// Whether an answer is one of the rows: not that of a throttled request, or of one that meets a transaction.
#[must_use]
pub fn is_of_the_rows(status: u16, body: &Value) -> bool {
    let is = |name: &str| body["__type"].as_str().is_some_and(|of| of.ends_with(name));
    let is_for_the_rows = || {
        let codes = body["CancellationReasons"].as_array().into_iter().flatten().map(|reason| reason["Code"].as_str());
        let codes: Vec<_> = codes.flatten().collect();
        codes.contains(&"ConditionalCheckFailed")
            && codes.iter().all(|code| ["None", "ConditionalCheckFailed"].contains(code))
    };
    match status {
        200 => true,
        400 if is("ConditionalCheckFailedException") => true,
        400 if is("TransactionCanceledException") => is_for_the_rows(),
        _ => false,
    }
}

/// Judges all rows. They did not exist before the first event.
#[must_use]
pub fn judge(seen: &[Seen]) -> Judged {
    let mut judged = Judged::default();
    for group in groups(windowed(seen)) {
        Group::of(group).judge(&mut judged);
        if judged.violation.is_some() {
            break;
        }
    }
    judged
}

/// A request with a time before and a time after which it was not applied, as positions of events.
#[derive(Clone, Debug)]
struct Windowed {
    sent: usize,
    applied: usize,
    /// When the network delivered it, if it is known.
    arrived: usize,
    /// Whether the rows have accepted it, as the network saw it.
    was_accepted: bool,
    asked: Rc<Asked>,
    answer: Answer,
}

impl Windowed {
    fn is_open(&self) -> bool {
        self.answer.is_accepted.is_none() && self.asked.may_be_rejected()
    }
}

/// The requests that may have been applied. One whose answer was lost was applied until it arrived, which only the network
/// knows. So was each copy of a request that the network has repeated.
fn windowed(seen: &[Seen]) -> Vec<Windowed> {
    let (mut arrivals, mut answers) = (HashMap::<String, Vec<(usize, bool)>>::new(), HashMap::new());
    for (position, event) in seen.iter().enumerate() {
        match event {
            Seen::Arrived { request, status } => {
                arrivals.entry(request.to_string()).or_default().push((position, *status == 200));
            }
            Seen::Answered { number, status, body } => drop(answers.insert(*number, (position, *status, body))),
            Seen::Sent { .. } => {}
        }
    }
    let sent = seen.iter().enumerate().filter_map(|(sent, event)| match event {
        Seen::Sent { operation, request } => {
            Some((sent, operation, request, Rc::new(Asked::parse(operation, request)?)))
        }
        _ => None,
    });
    let sent: Vec<_> = sent.collect();
    let mut windowed = Vec::new();
    for (sent, operation, request, asked) in &sent {
        let Some((applied, status, body)) = answers.get(sent) else { continue };
        if !is_of_the_rows(*status, body) {
            continue;
        }
        let answer = asked.answer(operation, request, *status, body);
        // The SDK sends a request again as it was. The arrival that was answered is the first one of its window with this answer.
        let arrivals = arrivals.entry(request.to_string()).or_default();
        let is_within = |arrived: &usize| (*sent..*applied).contains(arrived);
        let is_answered =
            |(arrived, is_accepted): &(usize, bool)| is_within(arrived) && *is_accepted == (*status == 200);
        let arrived = arrivals.iter().position(is_answered);
        // A mutation changes the answer.
        let arrived = arrived.or_else(|| arrivals.iter().position(|(arrived, _)| is_within(arrived)));
        let arrived = arrived.map_or(*applied, |index| arrivals.remove(index).0);
        let (was_accepted, asked) = (*status == 200, Rc::clone(asked));
        windowed.push(Windowed { sent: *sent, applied: *applied, arrived, was_accepted, asked, answer });
    }
    for (sent, _, request, asked) in sent {
        // Without an answer, a read says nothing.
        if asked.changes_nothing() {
            continue;
        }
        for (arrived, was_accepted) in arrivals.remove(&request.to_string()).unwrap_or_default() {
            let (asked, answer) = (Rc::clone(&asked), Answer::lost(&asked));
            windowed.push(Windowed { sent, applied: arrived, arrived, was_accepted, asked, answer });
        }
    }
    windowed
}

/// The requests to rows that transactions have in common.
fn groups(requests: Vec<Windowed>) -> impl Iterator<Item = Vec<Windowed>> {
    // Each row names another one of its group, or itself.
    let mut others = HashMap::<String, String>::new();
    let first_of = |others: &HashMap<String, String>, row: &String| {
        let mut row = row;
        while let Some(other) = others.get(row).filter(|other| *other != row) {
            row = other;
        }
        row.clone()
    };
    for request in &requests {
        let Some(first) = request.asked.rows().next().map(|row| first_of(&others, row)) else { continue };
        for row in request.asked.rows() {
            let other = first_of(&others, row);
            others.insert(other, first.clone());
        }
    }
    let mut groups = BTreeMap::<String, Vec<Windowed>>::new();
    for request in requests {
        // A transaction of the caller's own may have no row of ours.
        let first = request.asked.rows().next().map(|row| first_of(&others, row));
        if let Some(first) = first {
            groups.entry(first).or_default().push(request);
        }
    }
    groups.into_values()
}

/// The requests to some rows.
struct Group {
    /// How many.
    rows: usize,
    /// Between two of these, no request was under way.
    sections: Vec<Vec<Windowed>>,
}

/// The tester says this.
enum Found {
    /// The rows after an order.
    Order(Rows),
    NoOrder,
    Nothing(&'static str),
}

impl Group {
    fn of(mut requests: Vec<Windowed>) -> Self {
        requests.sort_by_key(|request| request.sent);
        let keys: BTreeSet<_> = requests.iter().flat_map(|request| request.asked.rows()).collect();
        let rows = keys.len();
        let (mut sections, mut latest) = (Vec::<Vec<_>>::new(), 0);
        for request in requests {
            let sent = request.sent;
            let is_apart = sent > latest || sections.is_empty();
            latest = latest.max(request.applied);
            match sections.last_mut() {
                Some(section) if !is_apart => section.push(request),
                _ => sections.push(vec![request]),
            }
        }
        Self { rows, sections }
    }

    /// Goes on with the rows after one order of each section. If the next section has no order after that, another one may lead to
    /// one, so that the sections are tried together, from the last rows that are certain.
    fn judge(self, judged: &mut Judged) {
        let (mut rows, mut certain, mut since) = (Some(Rows::none()), Rows::none(), Vec::new());
        for section in self.sections {
            let shown = match &section[..] {
                [alone] if alone.answer.shows(self.rows) => Rows::shown(&alone.asked, &alone.answer),
                _ => None,
            };
            if let (None, Some(shown)) = (&rows, &shown) {
                (rows, certain) = (Some(shown.clone()), shown.clone());
            }
            let Some(before) = rows.take() else {
                *judged.left_out.entry("after others").or_insert(0) += section.len();
                continue;
            };
            let mut found = look(&section, &before);
            let (count, has_one_end) = (section.len(), section.len() == 1 && !section[0].is_open());
            let is_certain = shown.is_some() || (has_one_end && since.is_empty());
            since.extend(section);
            if matches!(found, Found::NoOrder) && since.len() > count {
                found = look(&since, &certain);
            }
            match found {
                Found::Order(after) => {
                    judged.requests += count;
                    if is_certain {
                        certain.clone_from(&after);
                        since.clear();
                    }
                    rows = Some(after);
                }
                Found::NoOrder => {
                    judged.violation = Some(described(&since, &certain));
                    return;
                }
                Found::Nothing(why) => {
                    *judged.left_out.entry(why).or_insert(0) += count;
                    since.clear();
                }
            }
        }
    }
}

/// Lets the tester look for an order.
fn look(requests: &[Windowed], before: &Rows) -> Found {
    if requests.len() > MOST_REQUESTS {
        return Found::Nothing("too long");
    }
    let mut requests = requests.to_vec();
    // The tester tries the first requests first.
    requests.sort_by_key(|request| request.arrived);
    // It knows no request that is either accepted or rejected. So each choice is tried, what the network saw first.
    let open: Vec<_> = (0..requests.len()).filter(|index| requests[*index].is_open()).collect();
    let choose = |requests: &mut [Windowed], is_rejected: &dyn Fn(usize, &Windowed) -> bool| {
        for (bit, index) in open.iter().enumerate() {
            let is_rejected = is_rejected(bit, &requests[*index]);
            requests[*index].answer.is_accepted = is_rejected.then_some(false);
        }
    };
    choose(&mut requests, &|_, request| !request.was_accepted);
    let steps = Rc::new(Cell::new(STEPS));
    if let Some(after) = order(&requests, before, &steps) {
        return Found::Order(after);
    }
    if open.len() > MOST_OPEN {
        return Found::Nothing("too many lost answers");
    }
    for choice in 0..1_u32 << open.len() {
        if steps.get() == 0 {
            return Found::Nothing("too many orders");
        }
        choose(&mut requests, &|bit, _| choice >> bit & 1 == 1);
        if let Some(after) = order(&requests, before, &steps) {
            return Found::Order(after);
        }
    }
    if steps.get() == 0 { Found::Nothing("too many orders") } else { Found::NoOrder }
}

/// Returns the rows after an order of these requests, if the tester finds one.
fn order(requests: &[Windowed], before: &Rows, steps: &Rc<Cell<u64>>) -> Option<Rows> {
    let mut tester = LinearizabilityTester::new(before.clone().counting(steps));
    let begins = requests.iter().enumerate().map(|(thread, request)| (request.sent, false, thread));
    let ends = requests.iter().enumerate().map(|(thread, request)| (request.applied, true, thread));
    let mut events: Vec<_> = begins.chain(ends).collect();
    events.sort_unstable();
    for (_, is_end, thread) in events {
        // Each request has a thread of its own, because a client sends several at once.
        let request = &requests[thread];
        if is_end {
            tester.on_return(thread, Rc::new(request.answer.clone())).unwrap();
        } else {
            tester.on_invoke(thread, Rc::clone(&request.asked)).unwrap();
        }
    }
    let order = tester.serialized_history()?;
    let mut after = before.clone().counting(&Rc::new(Cell::new(u64::MAX)));
    for (asked, answer) in order {
        after.is_valid_step(&asked, &answer);
    }
    Some(after)
}

/// A line for each request.
fn described(requests: &[Windowed], before: &Rows) -> String {
    let mut text = format!("no order of these requests after {before:?}:\n");
    for Windowed { sent, applied, asked, answer, .. } in requests {
        let _infallible = writeln!(text, "{sent:>4} to {applied:>4}: {asked:?}\n              {answer:?}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads of a key, all at once, which show this row.
    fn reads(seen: &mut Vec<Seen>, count: usize, row: &Value) {
        let first = seen.len();
        let request = json!({ "TableName": "locks", "Key": { "id": { "S": "key" } }, "ConsistentRead": true });
        let sent = Seen::Sent { operation: "GetItem".to_owned(), request };
        seen.extend(std::iter::repeat_n(sent, count));
        let body = json!({ "Item": row });
        seen.extend((first..first + count).map(|number| Seen::Answered { number, status: 200, body: body.clone() }));
    }

    #[test]
    fn after_requests_that_are_left_out_one_that_shows_the_row_is_believed_and_the_next_one_checked() {
        let row = |number: u64| json!({ "status": { "S": "INPROGRESS" }, "fence": { "N": number.to_string() } });
        let mut seen = Vec::new();
        reads(&mut seen, MOST_REQUESTS + 1, &row(1));
        reads(&mut seen, 2, &row(1));
        reads(&mut seen, 1, &row(1));
        reads(&mut seen, 2, &row(1));
        let judged = judge(&seen);
        assert_eq!((judged.requests, judged.violation), (3, None));
        assert_eq!(judged.left_out, [("too long", MOST_REQUESTS + 1), ("after others", 2)].into());
        // Nobody has written it.
        reads(&mut seen, 1, &row(2));
        assert!(judge(&seen).violation.is_some());
    }
}
