//! Deliberate mistakes in requests and in answers, which both the histories and `tests/chaos` plant.

use serde_json::{Value, json};

use super::expression::{Comparison, Condition, Operand, Path};
use super::{ASKED, DUE, LEASE_END, Purpose, Request, Write, either};

/// Makes the comparisons of this attribute hold in updates that are for this.
pub(crate) fn loosen(request: &mut Request, purpose: Purpose, attribute: &str) {
    if let Some(update) = request.update_for(purpose) {
        update.loosen(attribute);
    }
}

pub(crate) fn takeovers(request: &mut Request) -> impl Iterator<Item = &mut Write> {
    request.writes_for(Purpose::Acquire).filter(|acquire| acquire.is_takeover())
}

pub(crate) fn acquire_ignores_end(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire).filter(|acquire| !acquire.is_takeover()) {
        acquire.loosen_only(LEASE_END, Comparison::LessOrEqual);
    }
}

pub(crate) fn acquire_ignores_window(request: &mut Request) {
    loosen(request, Purpose::Acquire, "expiration");
}

pub(crate) fn numbers_ignored(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.ignore("fence");
    }
}

pub(crate) fn lease_too_long(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.change(LEASE_END, |end| end + 600_000);
    }
}

/// One more than the number of permits that its caller allows.
pub(crate) fn one_more(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire).filter(|acquire| !acquire.is_takeover()) {
        acquire.rewrite(|term| {
            if let Condition::Between(path, _, most) = term
                && path.name() == "permits"
            {
                *most = Operand::number(most.number_in(&Value::Null).unwrap() + 1);
            }
        });
    }
}

pub(crate) fn halve(request: &mut Request, purpose: Purpose) {
    if request.is_transaction_for(purpose) {
        request.writes.truncate(request.writes.len().div_ceil(2));
    }
}

/// A takeover does not compare these attributes with what it saw, or was told.
pub(crate) fn takeover_unread(request: &mut Request, attributes: &[&str]) {
    for takeover in takeovers(request) {
        let is_unread = |path: &Path| attributes.contains(&path.name());
        takeover.rewrite(|term| match term {
            Condition::BeginsWith(path, _) if is_unread(path) => *term = Condition::Exists(path.clone()),
            Condition::Compare(path, Comparison::Equal, seen) if is_unread(path) => {
                *term = either(path, Comparison::Equal, seen);
            }
            _ => {}
        });
    }
}

pub(crate) fn takeover_keeps_fence(request: &mut Request) {
    for takeover in takeovers(request) {
        let seen = takeover.equals("fence").unwrap();
        takeover.change("fence", |_| seen);
    }
}

pub(crate) fn renew_without_condition(request: &mut Request) {
    if let Some(renew) = request.update_for(Purpose::Renew) {
        for attribute in ["owner", "fence", LEASE_END] {
            renew.loosen(attribute);
        }
        renew.ignore("sequence");
    }
}

pub(crate) fn release_without_owner(request: &mut Request) {
    if let Some(release) = request.update_for(Purpose::Release) {
        release.loosen("owner");
        release.loosen("fence");
        release.ignore("sequence");
    }
}

pub(crate) fn transaction_without_condition(request: &mut Request) {
    for completion in request.items_for(Purpose::Complete) {
        completion.loosen("owner");
        completion.loosen("fence");
        completion.loosen("status");
    }
}

pub(crate) fn half_an_interval(request: &mut Request) {
    if let Some(Operand::Plus(_, interval)) = request.update_for(Purpose::Call).map(|call| call.set_mut(DUE)) {
        **interval = Operand::number(interval.number_in(&Value::Null).unwrap() / 2);
    }
}

pub(crate) fn asks_anybody(request: &mut Request) {
    if let Some(ask) = request.update_for(Purpose::Ask) {
        ask.loosen("fence");
        ask.loosen(LEASE_END);
    }
}

pub(crate) fn foreign_owner(request: &Request, status: u16, answer: &mut Value) {
    let Some(acquire) = request.update().filter(|update| update.purpose == Purpose::Acquire) else { return };
    if status == 400 && answer["Item"]["owner"]["S"] == *acquire.owner {
        answer["Item"]["owner"] = json!({ "S": "someone else" });
    }
}

pub(crate) fn given_the_past(request: &Request, status: u16, answer: &mut Value) {
    if request.is_update_for(Purpose::Call) && status == 200 {
        answer["Attributes"][DUE] = json!({ "N": "1" });
    }
}

/// A release does not see what was left in this row of its answer.
pub(crate) fn release_forgets(request: &Request, answer: &mut Value, row: &str) {
    if request.is_update_for(Purpose::Release)
        && let Some(row) = answer[row].as_object_mut()
    {
        row.remove(ASKED);
    }
}
