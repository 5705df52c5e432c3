//! What rows are, one request after the other, in the words of the protocol and without its expressions. A request says here what
//! it is meant to do; whether its condition says so, too, is what the checker finds out.

#[path = "row/key.rs"]
mod key;
#[path = "row/place.rs"]
mod place;
#[path = "row/rate.rs"]
mod rate;
#[path = "row/semaphore.rs"]
mod semaphore;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;
use stateright::semantics::SequentialSpec;

use crate::request::expression::{Comparison, Condition};
use crate::request::{Purpose, Request, Write};
use key::Key;
use rate::Rate;
use semaphore::Semaphore;

/// A row that is there.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    kind: Kind,
    /// The time, in seconds, after which DynamoDB deletes it. For a completed record, it is the end of its window.
    expiration: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Key(Key),
    Semaphore(Semaphore),
    Rate(Rate),
}

impl Row {
    /// The row that an answer shows. The embedded engine shows the key of a row that was not there.
    fn of(item: &Value) -> Option<Self> {
        let kind = match item["status"]["S"].as_str()? {
            "SEMAPHORE" => Kind::Semaphore(Semaphore::of(item)),
            "RATE" => Kind::Rate(Rate::of(item)),
            _ => Kind::Key(Key::of(item)),
        };
        Some(Self { kind, expiration: number_in(item, "expiration") })
    }
}

/// A request wants this of one row.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// It shows the row.
    Read,
    /// It leaves all of the row that is specified as it is: a place in the queue, a reservation, the caller's own write.
    Other {
        may_be_rejected: bool,
    },
    Change {
        change: Change,
        expiration: Option<u64>,
    },
}

/// A row does this with a part.
#[derive(Debug)]
enum Effect {
    /// It must reject it.
    Rejected,
    Unchanged,
    Changed(Row),
}

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Key(key::Change),
    Semaphore(semaphore::Change),
    Rate(rate::Call),
}

impl Part {
    fn of(write: &Write) -> Self {
        let change = match write.purpose {
            Purpose::Look => return Self::Read,
            Purpose::Join | Purpose::Reserve => return Self::Other { may_be_rejected: true },
            Purpose::Own => return Self::Other { may_be_rejected: write.condition != Condition::True },
            Purpose::Call => Change::Rate(rate::Call::of(write)),
            _ if semaphore::is_meant(write) => Change::Semaphore(semaphore::Change::of(write)),
            _ => Change::Key(key::Change::of(write)),
        };
        Self::Change { change, expiration: write.number("expiration") }
    }

    /// A row does this with it.
    fn effect(&self, row: Option<&Row>) -> Effect {
        match self {
            Self::Read => Effect::Rejected,
            Self::Other { .. } => Effect::Unchanged,
            Self::Change { change, expiration } => {
                Self::changed(change, *expiration, row).map_or(Effect::Rejected, Effect::Changed)
            }
        }
    }

    /// The row after this change if it accepts it. `None` if it must reject it.
    fn changed(change: &Change, expiration: Option<u64>, row: Option<&Row>) -> Option<Row> {
        let stays_until = row.map_or(0, |row| row.expiration);
        let kind = match (change, row.map(|row| &row.kind)) {
            (Change::Key(change), None) => Kind::Key(change.accepted(None, stays_until)?),
            (Change::Key(change), Some(Kind::Key(key))) => Kind::Key(change.accepted(Some(key), stays_until)?),
            (Change::Semaphore(change), None) => Kind::Semaphore(change.accepted(None)?),
            (Change::Semaphore(change), Some(Kind::Semaphore(row))) => Kind::Semaphore(change.accepted(Some(row))?),
            (Change::Rate(call), None) => Kind::Rate(call.accepted(None)?),
            (Change::Rate(call), Some(Kind::Rate(rate))) => Kind::Rate(call.accepted(Some(rate))?),
            // A row of another kind.
            _ => return None,
        };
        Some(Row { kind, expiration: expiration.unwrap_or(stays_until) })
    }

    /// A row may reject it although it could accept it.
    fn may_be_rejected(&self) -> bool {
        match self {
            Self::Read => true,
            Self::Other { may_be_rejected } => *may_be_rejected,
            Self::Change { change: Change::Key(change), .. } => change.may_be_rejected(),
            Self::Change { change: Change::Semaphore(change), .. } => change.may_be_rejected(),
            Self::Change { change: Change::Rate(_), .. } => false,
        }
    }
}

/// A request, with what it wants of each row. All rows accept it, or none changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    /// By row. What is the caller's own has no name.
    parts: Vec<(String, Part)>,
    /// A repetition of a transaction has the same.
    token: Option<String>,
}

impl Asked {
    /// Returns `None` if it says nothing about a row.
    pub(super) fn parse(operation: &str, request: &Value) -> Option<Self> {
        let row = |request: &Value| format!("{} {}", request["TableName"].as_str().unwrap_or_default(), request["Key"]);
        let parts = match operation {
            "GetItem" if request["ConsistentRead"] == true => vec![(row(request), Part::Read)],
            "UpdateItem" => {
                let parsed = Request::parse(operation, request);
                let write = parsed.writes.first().filter(|write| write.purpose != Purpose::Own)?;
                vec![(row(request), Part::of(write))]
            }
            "TransactWriteItems" => {
                let parsed = Request::parse(operation, request);
                let items = request["TransactItems"].as_array()?.iter().zip(&parsed.writes);
                let part = |(item, write): (&Value, &Write)| match item.get("Update") {
                    Some(update) if write.purpose != Purpose::Own => (row(update), Part::of(write)),
                    Some(_) => (String::new(), Part::of(write)),
                    // A check of the caller's own, or another write.
                    None => (String::new(), Part::Other { may_be_rejected: true }),
                };
                items.map(part).collect()
            }
            _ => return None,
        };
        Some(Self { parts, token: request["ClientRequestToken"].as_str().map(str::to_owned) })
    }

    /// The rows that this is about.
    pub(super) fn rows(&self) -> impl Iterator<Item = &String> {
        self.parts.iter().map(|(row, _)| row).filter(|row| !row.is_empty())
    }

    pub(super) fn changes_nothing(&self) -> bool {
        !self.parts.iter().any(|(_, part)| matches!(part, Part::Change { .. }))
    }

    pub(super) fn may_be_rejected(&self) -> bool {
        self.parts.iter().any(|(_, part)| part.may_be_rejected())
    }

    /// An answer of the rows says this.
    pub(super) fn answer(&self, operation: &str, request: &Value, status: u16, body: &Value) -> Answer {
        let is_accepted = Some(status == 200 && operation != "GetItem");
        let before = |item: &Value| Shown::Before(Row::of(item));
        if operation == "TransactWriteItems" {
            let reasons = body["CancellationReasons"].as_array();
            let reason = |index: usize| reasons.and_then(|reasons| reasons.get(index)).unwrap_or(&Value::Null);
            let shown = |index: usize| match &reason(index)["Item"] {
                item if item["status"].is_object() => before(item),
                _ => Shown::Nothing,
            };
            let is_willing = |index: usize| reason(index)["Code"] != "ConditionalCheckFailed";
            let all = 0..self.parts.len();
            let (willing, shown) = (all.clone().map(is_willing).collect(), all.map(shown).collect());
            return Answer { is_accepted, willing, shown };
        }
        let shown = match (operation, status, request["ReturnValues"].as_str()) {
            ("GetItem", ..) => before(&body["Item"]),
            (_, 200, Some("ALL_OLD")) => before(&body["Attributes"]),
            (_, 200, Some("ALL_NEW" | "UPDATED_NEW")) => Shown::After(Row::of(&body["Attributes"])),
            (_, 400, _) if request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD" => before(&body["Item"]),
            _ => Shown::Nothing,
        };
        Answer { is_accepted, willing: vec![status == 200 && operation != "GetItem"], shown: vec![shown] }
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// `None` if the answer was lost.
    pub(super) is_accepted: Option<bool>,
    /// Whether each row would have accepted its part. Empty if the answer was lost.
    willing: Vec<bool>,
    shown: Vec<Shown>,
}

impl Answer {
    /// Whether it shows this many rows.
    pub(super) fn shows(&self, rows: usize) -> bool {
        self.shown.len() == rows && !self.shown.contains(&Shown::Nothing)
    }

    pub(super) fn lost(asked: &Asked) -> Self {
        Self { is_accepted: None, willing: Vec::new(), shown: vec![Shown::Nothing; asked.parts.len()] }
    }
}

/// An answer shows this of a row: the row before or after the request, or that there was none.
#[derive(Clone, Debug, PartialEq)]
enum Shown {
    Nothing,
    Before(Option<Row>),
    After(Option<Row>),
}

/// Some rows, and how many steps the checker may still try.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    there: BTreeMap<String, Row>,
    /// The transactions that were applied. DynamoDB recognises their repetitions.
    tokens: BTreeSet<String>,
    steps: Rc<Cell<u64>>,
}

impl Rows {
    /// Keys that nobody has had.
    pub(super) fn none() -> Self {
        Self { there: BTreeMap::new(), tokens: BTreeSet::new(), steps: Rc::default() }
    }

    /// The rows before this, if its answer shows them.
    pub(super) fn shown(asked: &Asked, answer: &Answer) -> Option<Self> {
        let mut rows = Self::none();
        for ((key, _), shown) in asked.parts.iter().zip(&answer.shown) {
            let Shown::Before(row) = shown else { return None };
            rows.there.extend(row.clone().map(|row| (key.clone(), row)));
        }
        Some(rows)
    }

    pub(super) fn counting(self, steps: &Rc<Cell<u64>>) -> Self {
        Self { steps: Rc::clone(steps), ..self }
    }

    /// The rows do this with each part of the request.
    fn effects(&self, asked: &Asked) -> Vec<Effect> {
        asked.parts.iter().map(|(key, part)| part.effect(self.there.get(key))).collect()
    }

    fn apply(&mut self, asked: &Asked, effects: Vec<Effect>) {
        for ((key, _), effect) in asked.parts.iter().zip(effects) {
            if let Effect::Changed(row) = effect {
                self.there.insert(key.clone(), row);
            }
        }
        self.tokens.extend(asked.token.clone());
    }
}

impl SequentialSpec for Rows {
    type Op = Rc<Asked>;
    type Ret = Rc<Answer>;

    fn invoke(&mut self, asked: &Rc<Asked>) -> Rc<Answer> {
        let shown = asked.parts.iter().map(|(key, _)| Shown::Before(self.there.get(key).cloned())).collect();
        let effects = self.effects(asked);
        let willing: Vec<_> = effects.iter().map(|effect| !matches!(effect, Effect::Rejected)).collect();
        let is_accepted = !willing.contains(&false);
        if is_accepted {
            self.apply(asked, effects);
        }
        Rc::new(Answer { is_accepted: Some(is_accepted), willing, shown })
    }

    fn is_valid_step(&mut self, asked: &Rc<Asked>, answer: &Rc<Answer>) -> bool {
        self.steps.set(self.steps.get().saturating_sub(1));
        if self.steps.get() == 0 {
            return false;
        }
        if answer.is_accepted != Some(false) && asked.token.as_ref().is_some_and(|token| self.tokens.contains(token)) {
            return true;
        }
        let effects = self.effects(asked);
        let parts = || asked.parts.iter().zip(&effects);
        let is_as_shown = parts().zip(&answer.shown).all(|(((key, _), effect), shown)| {
            let before = self.there.get(key);
            match (shown, effect) {
                (Shown::Nothing, _) => true,
                (Shown::Before(row), _) | (Shown::After(row), Effect::Unchanged) => row.as_ref() == before,
                (Shown::After(row), Effect::Changed(after)) => row.as_ref() == Some(after),
                (Shown::After(_), Effect::Rejected) => false,
            }
        });
        // A row that could accept its part may reject it in some cases. One that must reject it may not accept it.
        let is_as_answered = parts().zip(&answer.willing).all(|(((_, part), effect), is_willing)| match effect {
            Effect::Rejected => !is_willing,
            Effect::Unchanged | Effect::Changed(_) => *is_willing || part.may_be_rejected(),
        });
        if !is_as_shown || !is_as_answered {
            return false;
        }
        let could_be_accepted = !effects.iter().any(|effect| matches!(effect, Effect::Rejected));
        match answer.is_accepted {
            Some(true) | None if could_be_accepted => self.apply(asked, effects),
            Some(true) => return false,
            Some(false) if could_be_accepted && !asked.may_be_rejected() => return false,
            Some(false) | None => {}
        }
        true
    }
}

// What a request says

/// The number of this attribute, or 0.
fn number_in(item: &Value, name: &str) -> u64 {
    item[name]["N"].as_str().and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn text_in(item: &Value, name: &str) -> String {
    item[name]["S"].as_str().unwrap_or_default().to_owned()
}

/// The number that the request sets this to.
#[track_caller]
fn set(write: &Write, name: &str) -> u64 {
    write.number(name).unwrap_or_else(|| panic!("it sets no {name}: {write:?}"))
}

/// The number that the request compares this with.
#[track_caller]
fn compared(write: &Write, name: &str) -> u64 {
    write.compared(name).unwrap_or_else(|| panic!("it compares no {name}: {write:?}"))
}

/// The text that the request wants this to be.
fn text_compared(write: &Write, name: &str) -> String {
    let leaves = write.condition.leaves();
    let mut texts = leaves.into_iter().filter_map(|term| match term {
        Condition::Compare(path, Comparison::Equal, text) if path.name() == name => text.value()?["S"].as_str(),
        _ => None,
    });
    texts.next().unwrap_or_default().to_owned()
}

/// The bounds between which the request wants this to be.
#[track_caller]
fn bounds(write: &Write, name: &str) -> (u64, u64) {
    let leaves = write.condition.leaves();
    let mut bounds = leaves.into_iter().filter_map(|term| match term {
        Condition::Between(path, from, to) if path.name() == name => {
            from.number_in(&Value::Null).zip(to.number_in(&Value::Null))
        }
        _ => None,
    });
    bounds.next().unwrap_or_else(|| panic!("it has no bounds of {name}: {write:?}"))
}
