//! At most one valid holder, or N of a semaphore, and fences in order.

use std::collections::BTreeMap;

use super::{Broken, Op, Violation, seconds};
use crate::event::What;

/// What one operation has of one key. It considers itself valid from `has` to `valid_until`.
#[derive(Debug)]
struct Hold {
    name: String,
    fence: u64,
    permits: u32,
    identity: Option<String>,
    /// The time before the request.
    asked: u64,
    /// The time after the answer.
    has: u64,
    valid_until: Option<u64>,
}

pub(super) fn check(ops: &[Op]) -> Vec<Violation> {
    let mut keys: BTreeMap<&str, Vec<Hold>> = BTreeMap::new();
    let claims: Vec<_> = ops.iter().filter_map(claim).collect();
    for op in ops {
        for (key, mut hold) in holds(op) {
            hold.end_with(claims.iter().filter(|claim| claim.key == key && claim.op != op.name()));
            keys.entry(key).or_default().push(hold);
        }
    }
    let mut violations = Vec::new();
    for (key, mut holds) in keys {
        let mut broke = |broken, at, text| violations.push(Violation { broken, key: key.to_owned(), at, text });
        holds.sort_by_key(|hold| hold.has);
        together(key, &holds, &mut broke);
        fences(key, &holds, &mut broke);
    }
    violations
}

/// A request that may end what an earlier one of its identity has.
#[derive(Debug)]
struct Claim<'a> {
    op: String,
    key: &'a str,
    identity: &'a str,
    from: u64,
    until: u64,
}

fn claim<'a>(op: &Op<'a>) -> Option<Claim<'a>> {
    let from = op.events.first()?;
    let What::Claims { key, identity } = &from.what else { return None };
    let is_answer = |what: &What| matches!(what, What::Has { .. } | What::Freed | What::Failed { .. });
    let until = op.events.iter().find(|event| is_answer(&event.what)).map_or(op.process.ended, |event| event.at);
    Some(Claim { op: op.name(), key, identity, from: from.at, until })
}

impl Hold {
    /// From the begin of a later request of its identity on, this hold disturbs nobody. One that began earlier and has no
    /// answer yet may come later.
    fn end_with<'a>(&mut self, claims: impl Iterator<Item = &'a Claim<'a>>) {
        for claim in claims.filter(|claim| Some(claim.identity) == self.identity.as_deref() && claim.until > self.asked)
        {
            self.valid_until = self.valid_until.map(|until| until.min(claim.from)).filter(|until| *until >= self.has);
        }
    }
}

fn holds<'a>(op: &Op<'a>) -> Vec<(&'a str, Hold)> {
    let (mut asked, mut permits, mut of) = (0, 1, None);
    let mut holds: Vec<(&str, Hold)> = Vec::new();
    for event in &op.events {
        match &event.what {
            What::Asks { permits: most, .. } => (asked, permits) = (event.at, *most),
            What::Claims { identity, .. } => of = Some(identity.clone()),
            What::Has { keys, fences } => {
                for (key, fence) in keys.iter().zip(fences) {
                    let (name, fence, identity) = (op.name(), *fence, of.clone());
                    let hold = Hold { name, fence, permits, identity, asked, has: event.at, valid_until: None };
                    holds.push((key, hold));
                }
            }
            What::Valid => holds.iter_mut().for_each(|(_, hold)| hold.valid_until = Some(event.at)),
            _ => {}
        }
    }
    holds
}

/// Holders by their first time. Those who are valid at the time of the next one are counted with it.
fn together(key: &str, holds: &[Hold], broke: &mut impl FnMut(Broken, u64, String)) {
    let mut valid: Vec<&Hold> = Vec::new();
    for hold in holds.iter().filter(|hold| hold.valid_until.is_some()) {
        valid.retain(|other| other.valid_until >= Some(hold.has));
        valid.push(hold);
        if valid.len() > usize::try_from(hold.permits).unwrap() {
            let spans = valid.iter().map(|hold| {
                let until = hold.valid_until.map(seconds).unwrap_or_default();
                format!("{} with fence {} from {} to {until}", hold.name, hold.fence, seconds(hold.has))
            });
            let broken = if hold.permits == 1 { Broken::Alone } else { Broken::Permits };
            broke(
                broken,
                hold.has,
                format!("{key} has {} valid holders: {}", valid.len(), spans.collect::<Vec<_>>().join("; ")),
            );
        }
    }
}

/// Who asks after another has the key gets a larger fence.
fn fences(key: &str, holds: &[Hold], broke: &mut impl FnMut(Broken, u64, String)) {
    let mut by_fence: BTreeMap<u64, &Hold> = BTreeMap::new();
    for hold in holds {
        if let Some(other) = by_fence.insert(hold.fence, hold) {
            let text = format!("{key}: {} and {} have the same fence {}", other.name, hold.name, hold.fence);
            broke(Broken::Fences, hold.has, text);
        }
    }
    let mut by_request: Vec<_> = by_fence.values().copied().collect();
    by_request.sort_by_key(|hold| hold.asked);
    let mut answered = holds.iter().peekable();
    let mut largest: Option<&Hold> = None;
    for hold in by_request {
        while let Some(before) = answered.next_if(|before| before.has < hold.asked) {
            if largest.is_none_or(|largest| before.fence > largest.fence) {
                largest = Some(before);
            }
        }
        if let Some(before) = largest.filter(|before| before.fence >= hold.fence) {
            let (later, earlier) = ((&hold.name, hold.fence), (&before.name, before.fence));
            let text = format!("{key}: {} got fence {} after {} got {}", later.0, later.1, earlier.0, earlier.1);
            broke(Broken::Fences, hold.has, text);
        }
    }
}
