//! The requests of the protocol, as they are on the wire. What each one is follows from the attributes that it writes, and
//! what it checks. A request that is none of them is a mistake of this parser or of the crate: it panics.

// `tests/chaos` includes this file by its path.
#[path = "request/expression.rs"]
pub(crate) mod expression;
#[path = "request/mistakes.rs"]
pub(crate) mod mistakes;

use serde_json::{Value, json};

use expression::{Comparison, Condition, Operand, Path, Update};

/// What an update is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Purpose {
    /// Takes a key, a permit or a record.
    Acquire,
    /// Takes a place in the queue of a key.
    Join,
    /// Reserves a key for a waiter for several.
    Reserve,
    /// Gives up the attempts of an acquire that has ended without the key.
    Withdraw,
    /// Puts back the row that an acquire by a wrong clock has replaced.
    PutBack,
    /// Moves the end of the lease.
    Renew,
    /// Frees a key, a permit or a record, also as a part of a withdrawal.
    Release,
    /// Frees what another holder has, for an operator or for an identity.
    Free,
    /// Changes nothing: the refusal shows the row.
    Look,
    /// Asks a holder to run once more.
    Ask,
    /// Takes the next call of a rate.
    Call,
    /// Stores the outcome of a run.
    Complete,
    /// A write of the caller's own, in its transaction or beside it.
    Own,
}

/// Returns what this request is for, if it is one update: `operation` and `request` as an [`Intercept`] gets them.
///
/// [`Intercept`]: lambda_lock::embedded::Intercept
#[must_use]
pub fn purpose_of(operation: &str, request: &Value) -> Option<Purpose> {
    Request::parse(operation, request).update().map(|update| update.purpose)
}

/// The attributes that only the crate writes. A test compares them with `row/names` of the crate.
pub const ATTRIBUTES: [&str; 25] = [
    "status",
    LEASE_END,
    "expiration",
    "owner",
    "released",
    "sequence",
    "withdrawn",
    "fence",
    "holder",
    "acquired_at",
    "held_since",
    "data",
    "validation",
    "error",
    "hold",
    "hold_deviation",
    "tail",
    "head",
    "tail_until",
    "reserved_until",
    "reserved_by",
    "permits",
    "freed_at",
    DUE,
    ASKED,
];
/// The number of the acquisition whose holder was asked to run once more.
pub(crate) const ASKED: &str = "asked";
/// When the next call of a rate is due.
pub(crate) const DUE: &str = "due";
/// The end of the lease in the row of a lock or a record.
pub(crate) const LEASE_END: &str = "in_progress_expiration";
/// The end of the lease in the map of a permit.
pub(crate) const PERMIT_LEASE_END: &str = "end";
const PERMIT: &str = "permit:";
const PERMIT_FENCE: &str = "fence:";
/// The nonce of an owner that has an identity, in the map of its permit.
const PERMIT_NONCE: &str = "nonce";
/// The digits of a nonce, which ends each owner.
const NONCE_DIGITS: usize = 32;
/// The sequence of the release that a withdrawal sends.
pub(crate) const LAST_SEQUENCE: u64 = i64::MAX as u64;
/// The number of the attempt that has a permit, in the map of the permit.
pub(crate) const PERMIT_NUMBER: &str = "no";

/// A request, with its writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) is_transaction: bool,
    /// None if it reads.
    pub(crate) writes: Vec<Write>,
}

impl Request {
    pub(crate) fn parse(operation: &str, request: &Value) -> Self {
        let (is_transaction, writes) = match operation {
            "UpdateItem" => (false, vec![Write::parse(request)]),
            "TransactWriteItems" => {
                let items = request["TransactItems"].as_array().unwrap();
                (true, items.iter().map(Write::of_item).collect())
            }
            "GetItem" | "Query" | "Scan" | "CreateTable" | "DescribeTable" | "DescribeTimeToLive"
            | "UpdateTimeToLive" => (false, Vec::new()),
            _ => panic!("an unknown operation: {operation} {request}"),
        };
        Self { is_transaction, writes }
    }

    /// Writes what has changed since this was parsed.
    pub(crate) fn write_to(&self, request: &mut Value) {
        if self.is_transaction {
            request["TransactItems"] = self.writes.iter().map(Write::to_item).collect();
        } else if let [update] = &self.writes[..] {
            *request = update.to_request();
        }
    }

    /// The only write, outside of transactions.
    pub(crate) fn update(&self) -> Option<&Write> {
        self.writes.first().filter(|_| !self.is_transaction)
    }

    /// The only write, outside of transactions, if it is for this.
    pub(crate) fn update_for(&mut self, purpose: Purpose) -> Option<&mut Write> {
        self.writes.first_mut().filter(|write| !self.is_transaction && write.purpose == purpose)
    }

    /// The writes that are for this, in a transaction or alone.
    pub(crate) fn writes_for(&mut self, purpose: Purpose) -> impl Iterator<Item = &mut Write> {
        self.writes.iter_mut().filter(move |write| write.purpose == purpose)
    }

    /// The writes of a transaction that are for this.
    pub(crate) fn items_for(&mut self, purpose: Purpose) -> impl Iterator<Item = &mut Write> {
        let is_transaction = self.is_transaction;
        self.writes.iter_mut().filter(move |write| is_transaction && write.purpose == purpose)
    }

    pub(crate) fn is_update_for(&self, purpose: Purpose) -> bool {
        self.update().is_some_and(|update| update.purpose == purpose)
    }

    /// Returns `true` for a transaction that begins with this.
    pub(crate) fn is_transaction_for(&self, purpose: Purpose) -> bool {
        self.is_transaction && self.writes.first().is_some_and(|write| write.purpose == purpose)
    }
}

/// A write to one row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) purpose: Purpose,
    pub(crate) key: String,
    /// The nonce of the acquisition, or nothing: a withdrawal names no owner.
    pub(crate) owner: String,
    pub(crate) condition: Condition,
    pub(crate) update: Update,
    /// The request, or the item of the transaction if it is no update.
    json: Value,
}

impl Write {
    fn parse(request: &Value) -> Self {
        let (condition, update) = (expression::condition(request), expression::update(request));
        let (purpose, owner) = of_permit(&condition, &update).unwrap_or_else(|| {
            let purpose = of_row(&condition, &update).unwrap_or_else(|| panic!("an unknown request: {request}"));
            (purpose, owner_of_row(&condition, &update))
        });
        let key = request["Key"]["id"]["S"].as_str().unwrap_or_default().to_owned();
        Self { purpose, key, owner, condition, update, json: request.clone() }
    }

    fn of_item(item: &Value) -> Self {
        let update = &item["Update"];
        if update.is_object() {
            return Self::parse(update);
        }
        let (condition, update) = (Condition::True, Update::default());
        Self { purpose: Purpose::Own, key: String::new(), owner: String::new(), condition, update, json: item.clone() }
    }

    fn to_item(&self) -> Value {
        let is_update = self.json["Key"].is_object();
        if is_update { json!({ "Update": self.to_request() }) } else { self.json.clone() }
    }

    fn to_request(&self) -> Value {
        let mut request = self.json.clone();
        expression::write(&mut request, &self.condition, &self.update);
        request
    }

    pub(crate) fn table(&self) -> &str {
        self.json["TableName"].as_str().unwrap_or_default()
    }

    /// Whether the condition looks at this attribute.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.condition.leaves().into_iter().filter_map(Condition::path).any(|path| path.attribute == name)
    }

    /// What this attribute, or this field of a permit, is set to.
    pub(crate) fn sets(&self, name: &str) -> Option<&Operand> {
        self.update.set.iter().find(|(path, _)| path.name() == name).map(|(_, operand)| operand)
    }

    /// The number that this attribute, or this field of a permit, is set to.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.sets(name)?.number_in(&Value::Null)
    }

    /// The number that the condition compares this attribute, or this field of a permit, with.
    pub(crate) fn compared(&self, name: &str) -> Option<u64> {
        self.condition.leaves().into_iter().find_map(|term| match term {
            Condition::Compare(path, _, number) if path.name() == name => number.number_in(&Value::Null),
            _ => None,
        })
    }

    /// The number that the condition wants this attribute to be.
    pub(crate) fn equals(&self, name: &str) -> Option<u64> {
        self.condition.leaves().into_iter().find_map(|term| match term {
            Condition::Compare(path, Comparison::Equal, number) if path.name() == name => {
                number.number_in(&Value::Null)
            }
            _ => None,
        })
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.sets(name)?.value()?["S"].as_str()
    }

    /// What this field of its permit is set to. A takeover sets fields of a permit, every other acquire sets the permit.
    pub(crate) fn of_permit(&self, field: &str) -> Option<&Value> {
        let permit = permit_of(&self.owner);
        if let Some(permit) = self.sets(&permit) {
            return Some(&permit.value()?["M"][field]);
        }
        let path = Path::field(&permit, field);
        self.update.set.iter().find(|(set, _)| *set == path)?.1.value()
    }

    /// The number that this field of its permit is set to.
    pub(crate) fn number_of_permit(&self, field: &str) -> Option<u64> {
        self.of_permit(field)?["N"].as_str()?.parse().ok()
    }

    /// The names of the other permits that this replaces: their owners, without the nonces of those that have an identity.
    pub(crate) fn other_permits(&self) -> impl Iterator<Item = String> {
        let own = permit_of(&self.owner);
        self.update.remove.iter().filter(move |path| path.attribute != own).filter_map(name_of_permit)
    }

    /// This write once for each permit that it frees for others, with the owner of that permit.
    pub(crate) fn frees(&self) -> impl Iterator<Item = Self> {
        let names = self.update.remove.iter().filter_map(name_of_permit);
        let names = names.filter(|_| self.purpose == Purpose::Free);
        let owners = names.map(|name| owner_of_permit(name, &self.condition, &self.update));
        owners.map(|owner| Self { owner, ..self.clone() })
    }

    /// The number of an attempt, of a key or of a permit.
    pub(crate) fn attempt(&self) -> Option<u64> {
        let of_key = || self.sets("fence").and_then(|fence| fence.number_in(&Value::Null));
        if self.is_of_permit() { self.number_of_permit(PERMIT_NUMBER) } else { of_key() }
    }

    /// The number up to which this gives attempts up, if it does.
    pub(crate) fn gives_up(&self) -> Option<u64> {
        self.number("withdrawn")
    }

    /// It is for a permit of a semaphore.
    pub(crate) fn is_of_permit(&self) -> bool {
        let permit = permit_of(&self.owner);
        let mut paths = self.update.set.iter().map(|(path, _)| path).chain(&self.update.remove);
        !self.owner.is_empty() && paths.any(|path| path.attribute == permit)
    }

    /// A takeover of what the identity has, rather than an acquire that may take what is free.
    pub(crate) fn is_takeover(&self) -> bool {
        self.purpose == Purpose::Acquire && self.sets("held_since").is_some()
    }

    /// The fence that an acquire wrote. The answer to an update has the row before it.
    pub(crate) fn fence_written(&self, answer: &Value) -> u64 {
        self.sets("fence").unwrap().number_in(&answer["Attributes"]).unwrap()
    }

    /// When the request was sent, in milliseconds by the clock of its sender, if it says so.
    pub(crate) fn sent(&self) -> Option<u64> {
        let condition = self.condition.leaves();
        let ends_later = condition.iter().find_map(|term| match term {
            Condition::Compare(path, Comparison::Greater, now) if is_lease_end(path) => now.number_in(&Value::Null),
            _ => None,
        });
        self.number("acquired_at").or(ends_later)
    }

    /// The operand that this attribute, or this field of a permit, is set to. Panics if it is not set.
    #[track_caller]
    pub(crate) fn set_mut(&mut self, name: &str) -> &mut Operand {
        let operand = self.update.set.iter_mut().find(|(path, _)| path.name() == name).map(|(_, operand)| operand);
        operand.unwrap_or_else(|| panic!("{:?} does not set `{name}`", self.purpose))
    }

    /// Sets this attribute to another number. Panics if it is not set.
    #[track_caller]
    pub(crate) fn change(&mut self, name: &str, change: impl FnOnce(u64) -> u64) {
        let operand = self.set_mut(name);
        *operand = Operand::number(change(operand.number_in(&Value::Null).unwrap()));
    }

    /// Changes terms of the condition. Panics if none has changed.
    #[track_caller]
    pub(crate) fn rewrite(&mut self, mut rewrite: impl FnMut(&mut Condition)) {
        let before = self.condition.clone();
        self.condition.each_term(&mut rewrite);
        assert_ne!(before, self.condition, "nothing changed in {:?}", self.purpose);
    }

    /// Changes the comparisons of this attribute, or of this field of a permit. Panics if none has changed.
    #[track_caller]
    pub(crate) fn compare(&mut self, name: &str, mut rewrite: impl FnMut(&Path, Comparison, &Operand) -> Condition) {
        self.rewrite(|term| {
            if let Condition::Compare(path, comparison, operand) = term
                && path.name() == name
            {
                *term = rewrite(path, *comparison, operand);
            }
        });
    }

    /// Makes each comparison of this attribute hold, whatever its value. Panics if there is none.
    #[track_caller]
    pub(crate) fn loosen(&mut self, name: &str) {
        self.compare(name, either);
    }

    /// Drops each term that this attribute is not compared so. Panics if there is none.
    #[track_caller]
    pub(crate) fn ignore(&mut self, name: &str) {
        self.rewrite(|term| {
            if let Condition::Not(negated) = term
                && let Condition::Compare(path, ..) = &**negated
                && path.name() == name
            {
                *term = Condition::True;
            }
        });
    }

    /// Makes the comparisons of this attribute by this operator hold, whatever its value. Panics if there is none.
    #[track_caller]
    pub(crate) fn loosen_only(&mut self, name: &str, only: Comparison) {
        self.compare(name, |path, comparison, operand| {
            if comparison == only {
                either(path, comparison, operand)
            } else {
                Condition::Compare(path.clone(), comparison, operand.clone())
            }
        });
    }

    /// Renames an attribute in all expressions.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let rename = &mut |path: &mut Path| {
            if path.attribute == from {
                to.clone_into(&mut path.attribute);
            }
        };
        self.condition.each_path(rename);
        self.update.each_path(rename);
    }
}

/// This comparison or its opposite: it holds if the attribute is there. DynamoDB could not check a condition without terms.
pub(crate) fn either(path: &Path, comparison: Comparison, operand: &Operand) -> Condition {
    let compare = |comparison| Condition::Compare(path.clone(), comparison, operand.clone());
    Condition::Or(vec![compare(comparison), compare(comparison.opposite())])
}

/// The start of the owners of the same identity, if this one has an identity.
pub(crate) fn identity_of(owner: &str) -> Option<&str> {
    let nonce_at = owner.len().checked_sub(NONCE_DIGITS).filter(|at| *at > 0)?;
    owner.get(..nonce_at)
}

pub(crate) fn permit_of(owner: &str) -> String {
    format!("{PERMIT}{}", identity_of(owner).unwrap_or(owner))
}

pub(crate) fn permit_fence_of(owner: &str) -> String {
    format!("{PERMIT_FENCE}{}", identity_of(owner).unwrap_or(owner))
}

fn name_of_permit(path: &Path) -> Option<String> {
    path.attribute.strip_prefix(PERMIT).map(str::to_owned)
}

/// The owner of a request for the permit of this name. The name has the identity of an owner, and the request its nonce.
fn owner_of_permit(mut name: String, condition: &Condition, update: &Update) -> String {
    let attribute = format!("{PERMIT}{name}");
    let set = |path: &Path| update.set.iter().find(|(set, _)| set == path)?.1.value();
    let nonce = Path::field(&attribute, PERMIT_NONCE);
    let leaves = condition.leaves();
    let compared = leaves.iter().find_map(|term| match term {
        Condition::Compare(path, _, operand) if *path == nonce => operand.value(),
        _ => None,
    });
    // A takeover compares with the nonce that it replaces.
    let written = set(&Path::attribute(&attribute)).map(|permit| &permit["M"][PERMIT_NONCE]);
    let written = written.or_else(|| set(&nonce)).or(compared);
    name += written.and_then(|nonce| nonce["S"].as_str()).unwrap_or_default();
    name
}

fn is_lease_end(path: &Path) -> bool {
    [LEASE_END, PERMIT_LEASE_END].contains(&path.name())
}

/// What an update of the row of a semaphore is for, and for which permit.
fn of_permit(condition: &Condition, update: &Update) -> Option<(Purpose, String)> {
    let (purpose, name) = of_permit_named(condition, update)?;
    Some((purpose, owner_of_permit(name, condition, update)))
}

/// The same, with the name of the permit.
fn of_permit_named(condition: &Condition, update: &Update) -> Option<(Purpose, String)> {
    let set = || update.set.iter().filter_map(|(path, operand)| Some((name_of_permit(path)?, path, operand)));
    if let Some((name, ..)) = set().find(|(_, path, _)| path.field.is_none()) {
        return Some((Purpose::Acquire, name));
    }
    if let Some((of, ..)) = set().next() {
        let has = |name: &str| set().any(|(_, path, _)| path.name() == name);
        let purpose = match () {
            () if has("by") => Purpose::Acquire,
            () if has(PERMIT_LEASE_END) => Purpose::Renew,
            () => return None,
        };
        return Some((purpose, of));
    }
    let freed = update.remove.iter().find_map(name_of_permit)?;
    // Only the owner knows its sequence.
    let is_own = condition.leaves().into_iter().filter_map(Condition::path).any(|path| path.name() == "sequence");
    Some((if is_own { Purpose::Release } else { Purpose::Free }, freed))
}

/// What an update of any other row is for.
fn of_row(condition: &Condition, update: &Update) -> Option<Purpose> {
    let set = |name: &str| update.set.iter().find(|(path, _)| path.attribute == name).map(|(_, operand)| operand);
    let has = |name: &str| set(name).is_some();
    let paths = || update.set.iter().chain(&update.add).map(|(path, _)| path).chain(&update.remove);
    let purpose = match () {
        () if is_never_met(condition) => Purpose::Look,
        () if has("withdrawn") && paths().map(Path::name).any(|name| name == "held_since") => Purpose::PutBack,
        () if has(DUE) => Purpose::Call,
        // A takeover also passes on what its identity was asked.
        () if has(ASKED) && !has("acquired_at") => Purpose::Ask,
        () if has("tail") => Purpose::Join,
        () if has("reserved_until") => Purpose::Reserve,
        () if set("status").and_then(Operand::value).is_some_and(|status| status["S"] == "COMPLETED") => {
            Purpose::Complete
        }
        () if has("withdrawn") || (has("acquired_at") && has("released")) => Purpose::Withdraw,
        () if has("acquired_at") => Purpose::Acquire,
        () if has("released") && has("sequence") => Purpose::Release,
        () if has("released") => Purpose::Free,
        () if has(LEASE_END) => Purpose::Renew,
        () if paths().map(Path::name).any(|name| ATTRIBUTES.contains(&name)) => return None,
        () => Purpose::Own,
    };
    Some(purpose)
}

/// A row cannot be there and missing at once.
fn is_never_met(condition: &Condition) -> bool {
    let Condition::And(terms) = condition else { return false };
    matches!(&terms[..], [Condition::Exists(one), Condition::Missing(other)] if one == other)
}

fn owner_of_row(condition: &Condition, update: &Update) -> String {
    let owner = update.set.iter().find(|(path, _)| path.attribute == "owner").map(|(_, operand)| operand);
    let leaves = condition.leaves();
    let compared = leaves.iter().find_map(|term| match term {
        Condition::Compare(path, _, operand @ Operand::Value(_)) if path.attribute == "owner" => Some(operand),
        _ => None,
    });
    owner.or(compared).and_then(Operand::value).and_then(|owner| owner["S"].as_str()).unwrap_or_default().to_owned()
}
