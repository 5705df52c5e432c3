//! After an invocation that was skipped, a run begins. A crash of the holder, or a failure that nobody retries, is an excuse.
//! And nobody runs once more unless work was left to it.

use std::collections::{BTreeMap, HashMap};

use super::{Broken, Op, Violation};
use crate::event::What;

pub(super) fn check(ops: &[Op]) -> Vec<Violation> {
    let said = Said::by(ops);
    let mut violations = Vec::new();
    for op in ops {
        let mut has: Option<(&str, u64)> = None;
        for event in &op.events {
            let mut broke = |key: &str, text| {
                violations.push(Violation { broken: Broken::Again, key: key.to_owned(), at: event.at, text });
            };
            match &event.what {
                What::Has { keys, fences, .. } => has = keys.first().map(String::as_str).zip(fences.first().copied()),
                What::RunsAgain => {
                    if let Some((key, fence)) = has.filter(|has| !said.asked.contains_key(has)) {
                        broke(key, format!("{} runs {key} again after fence {fence}, for nobody", op.name()));
                    }
                }
                What::Left { key, fence, to }
                    if !said.has_begun_after(key, *fence) && said.is_answerable(to, *fence) =>
                {
                    let why = format!("{to} with fence {fence} had to run once more");
                    broke(key, format!("{key}: no run has begun after {} was skipped: {why}", op.name()));
                }
                _ => {}
            }
        }
    }
    violations
}

/// The operations say these, taken together.
#[derive(Debug, Default)]
struct Said<'a> {
    by_name: HashMap<String, &'a Op<'a>>,
    /// By the name of an operation: the one that its invocation goes on with.
    next: HashMap<String, &'a Op<'a>>,
    /// By key: the largest fence of a run.
    largest: HashMap<&'a str, u64>,
    /// The keys and fences under which a holder was asked to run once more, and its name.
    asked: BTreeMap<(&'a str, u64), &'a str>,
}

impl<'a> Said<'a> {
    fn by(ops: &'a [Op<'a>]) -> Self {
        let mut said = Self::default();
        for op in ops {
            said.by_name.insert(op.name(), op);
            for event in &op.events {
                match &event.what {
                    What::Has { keys, fences, .. } => {
                        for (key, fence) in keys.iter().zip(fences) {
                            let largest = said.largest.entry(key).or_default();
                            *largest = fence.max(largest).to_owned();
                        }
                    }
                    What::Leaves { key, fence, to } => drop(said.asked.insert((key, *fence), to)),
                    What::GoesOn { of } => drop(said.next.insert(format!("{}.{of}", op.process.name), op)),
                    _ => {}
                }
            }
        }
        said
    }

    /// A holder that died before it wrote down that it has the key is known by those that it refused.
    fn has_begun_after(&self, key: &str, fence: u64) -> bool {
        let mut later = self.asked.range((key, fence + 1)..=(key, u64::MAX));
        self.largest.get(key).is_some_and(|largest| *largest > fence)
            || later.any(|((_, fence), holder)| !self.is_answerable(holder, *fence))
    }

    /// Whether the invocation of this holder has succeeded although work was left to it under this fence: it has released the key,
    /// or was skipped. If it was skipped in favour of a later holder, that one has to run.
    fn is_answerable(&self, holder: &str, fence: u64) -> bool {
        let Some(mut last) = self.by_name.get(holder) else { return false };
        while let Some(op) = self.next.get(&last.name()) {
            last = op;
        }
        match last.events.last().map(|event| &event.what) {
            Some(What::Released) => true,
            Some(What::Left { fence: to, .. }) => *to <= fence,
            // It was killed, or has given up.
            _ => false,
        }
    }
}
