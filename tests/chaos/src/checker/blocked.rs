//! Nobody is blocked past lease and skew: a refusal names a holder whose lease can still be there. And what else an error
//! may not say.

use std::collections::HashMap;

use super::{Broken, Op, Violation, seconds};
use crate::event::What;

/// The kinds of errors that no fault of these rounds explains.
const UNEXPLAINED: [&str; 11] = [
    "access_denied",
    "invalid",
    "key_missing",
    "malformed_row",
    "mismatch",
    "not_sent",
    "rejected",
    "table_not_found",
    "unfinished",
    "unusable_result",
    "wrong_kind",
];

/// What is known about the leases of a holder, which the row names by its fence or by its name.
#[derive(Clone, Copy, Debug, Default)]
struct Leases {
    /// The true time at which the last of them has ended for the holder, at the latest.
    end: u64,
    /// Whether a release is confirmed, and when the last one was answered. A release that comes after the lease moves the
    /// end in the row to its own time.
    is_released: bool,
    releasing: u64,
}

impl Leases {
    fn add(&mut self, other: Self) {
        self.end = self.end.max(other.end);
        self.is_released |= other.is_released;
        self.releasing = self.releasing.max(other.releasing);
    }
}

pub(super) fn check(ops: &[Op], clock_skew: u64) -> Vec<Violation> {
    let mut by_name: HashMap<String, Leases> = HashMap::new();
    let mut by_fence: HashMap<(&str, u64), Leases> = HashMap::new();
    for op in ops {
        let (leases, fences) = leases(op);
        by_name.entry(op.name()).or_default().add(leases);
        for fence in fences {
            by_fence.entry(fence).or_default().add(leases);
        }
    }
    let mut violations = Vec::new();
    for op in ops {
        let mut broke =
            |broken, key: &str, at, text| violations.push(Violation { broken, key: key.to_owned(), at, text });
        // With a wait, the request that was refused is not known.
        let mut asked = None;
        // A grant whose answer comes after its lease is given up. If that request is lost, too, the row has the key until
        // the lease ends for others.
        let mut leased_until = u64::MAX;
        for event in &op.events {
            match &event.what {
                What::Asks { waits, lease, .. } => {
                    asked = Some(event.at).filter(|_| !waits);
                    leased_until = event.at + lease * 1_000_000;
                }
                What::Refused { key, by, fence } => {
                    let text =
                        |why: String| format!("{} was refused {key} by {by:?} with fence {fence:?}{why}", op.name());
                    let by_fence = fence.and_then(|fence| by_fence.get(&(key.as_str(), fence)).copied());
                    if by.as_ref() == Some(&op.name()) && (event.at < leased_until || by_fence.is_some()) {
                        broke(Broken::Itself, key, event.at, text(String::new()));
                    }
                    // A fence that nobody had is that of an acquire without an answer, or of one that arrived again
                    // after the release: a permit that was released leaves nothing in the row. The lease ends as it
                    // would have without.
                    let by_name = || Some(Leases { is_released: false, ..*by_name.get(by.as_ref()?)? });
                    let known = by_fence.or_else(by_name);
                    let Some(asked) = asked else { continue };
                    if op.is_probe() {
                        broke(Broken::Blocked, key, event.at, text(" after everybody had left".to_owned()));
                    } else if let Some(Leases { end, is_released, releasing }) = known {
                        // The holder's clock is ahead by up to the skew. A lease in the row has the skew added, a release
                        // has not.
                        let lease = if is_released { 0 } else { end + 2 * clock_skew };
                        let free = lease.max(releasing + clock_skew);
                        if asked > free {
                            broke(
                                Broken::Blocked,
                                key,
                                event.at,
                                text(format!(", which was over at {}", seconds(free))),
                            );
                        }
                    }
                }
                What::Failed { why } if op.is_probe() && why != "declined" => {
                    let key = op.keys().concat();
                    broke(
                        Broken::Blocked,
                        &key,
                        event.at,
                        format!("{} failed after everybody had left: {why}", op.name()),
                    );
                }
                What::Failed { why } if UNEXPLAINED.contains(&why.as_str()) => {
                    broke(Broken::Errors, &op.keys().concat(), event.at, format!("{} got the error {why}", op.name()));
                }
                _ => {}
            }
        }
    }
    violations
}

fn leases<'a>(op: &Op<'a>) -> (Leases, Vec<(&'a str, u64)>) {
    let (mut leases, mut fences) = (Leases::default(), Vec::new());
    for (index, event) in op.events.iter().enumerate() {
        match &event.what {
            // Any attempt until the answer can have set the lease.
            What::Asks { lease, .. } | What::Renews { lease } => {
                leases.end = leases.end.max(op.next(index) + lease * 1_000_000);
            }
            What::Has { keys, fences: has } => {
                fences.extend(keys.iter().map(String::as_str).zip(has.iter().copied()));
            }
            What::Releases => leases.releasing = leases.releasing.max(op.next(index)),
            What::Released => leases.is_released = true,
            _ => {}
        }
    }
    (leases, fences)
}
