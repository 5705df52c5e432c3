//! Deliberate mistakes: guards that a request or an answer loses on the wire, as if the product's build had none. Our checker
//! and the foreign one must find each of them.

use serde_json::{Value, json};

use crate::arena::CLOCK_SKEW;
use crate::checker::Broken;
use crate::request::expression::{Comparison, Condition, Operand};
use crate::request::{ASKED, DUE, LEASE_END, Purpose, Request};
use crate::worker::Kind;

/// A mistake.
#[derive(Debug)]
pub(crate) struct Plant {
    pub(crate) name: &'static str,
    /// The kind of lock that shows it.
    pub(crate) kind: Kind,
    /// Violations that it causes. Our checker must report one of them.
    pub(crate) breaks: &'static [Broken],
    /// How many requests of a thousand have a fault. Some mistakes need a request that arrives late.
    pub(crate) faults: u32,
    request: fn(&mut Request),
    answer: fn(&Request, &mut u16, &mut Value),
}

impl Plant {
    pub(crate) const ALL: [Self; 20] = [
        Self {
            name: "a lock is acquired before its lease has ended",
            breaks: &[Broken::Alone],
            request: acquire_ignores_end,
            ..Self::NONE
        },
        Self { name: "the clock skew is not added", breaks: &[Broken::Alone], request: no_skew, ..Self::NONE },
        Self {
            name: "a release does not check the owner",
            breaks: &[Broken::Alone],
            faults: 200,
            request: release_without_owner,
            ..Self::NONE
        },
        Self {
            name: "a renewal checks nothing",
            breaks: &[Broken::Alone, Broken::Blocked],
            faults: 200,
            request: renew_without_condition,
            ..Self::NONE
        },
        Self {
            name: "an acquire ignores the numbers",
            breaks: &[Broken::Fences],
            request: numbers_ignored,
            ..Self::NONE
        },
        Self {
            name: "a retry does not recognise its own acquire",
            breaks: &[Broken::Itself],
            faults: 200,
            answer: foreign_owner,
            ..Self::NONE
        },
        Self {
            name: "the lease in the row is ten minutes longer",
            breaks: &[Broken::Blocked],
            request: |request| later_end(request, 600_000),
            ..Self::NONE
        },
        Self {
            name: "a semaphore has one more permit",
            kind: Kind::Permits,
            breaks: &[Broken::Permits],
            request: one_more,
            ..Self::NONE
        },
        Self {
            name: "half of a set is acquired",
            kind: Kind::Sets,
            breaks: &[Broken::Alone],
            request: half_acquired,
            ..Self::NONE
        },
        Self {
            name: "a takeover does not read whose lock it takes",
            kind: Kind::Identities,
            breaks: &[Broken::Alone],
            request: takeover_unread,
            ..Self::NONE
        },
        Self {
            name: "a takeover keeps the fence of the step before",
            kind: Kind::Identities,
            breaks: &[Broken::Fences],
            request: takeover_keeps_fence,
            ..Self::NONE
        },
        Self {
            name: "a completion in a transaction checks nothing",
            kind: Kind::Records,
            breaks: &[Broken::Once],
            faults: 400,
            request: completion_without_condition,
            ..Self::NONE
        },
        Self {
            name: "a run in progress is replayed",
            kind: Kind::Records,
            breaks: &[Broken::Replies, Broken::Kept],
            answer: in_progress_replays,
            ..Self::NONE
        },
        Self {
            name: "a message that is done is free",
            kind: Kind::Queue,
            breaks: &[Broken::Once],
            request: acquire_ignores_window,
            ..Self::NONE
        },
        Self {
            name: "a message in progress counts as done",
            kind: Kind::Queue,
            breaks: &[Broken::Kept],
            answer: in_progress_replays,
            ..Self::NONE
        },
        Self {
            name: "a call takes half of its time",
            kind: Kind::Rates,
            breaks: &[Broken::Times],
            request: half_an_interval,
            ..Self::NONE
        },
        Self {
            name: "a call that has to wait passes at once",
            kind: Kind::Rates,
            breaks: &[Broken::Times],
            answer: given_the_past,
            ..Self::NONE
        },
        Self {
            name: "work is left to a holder that has released",
            kind: Kind::Rebuilds,
            breaks: &[Broken::Again],
            request: asks_anybody,
            ..Self::NONE
        },
        Self {
            name: "a release does not see what was left",
            kind: Kind::Rebuilds,
            breaks: &[Broken::Again],
            answer: release_forgets,
            ..Self::NONE
        },
        Self {
            name: "a release sees what was left to nobody",
            kind: Kind::Rebuilds,
            breaks: &[Broken::Again],
            answer: release_imagines,
            ..Self::NONE
        },
    ];

    const NONE: Self =
        Self { name: "", kind: Kind::Locks, breaks: &[], faults: 60, request: |_| {}, answer: |_, _, _| {} };

    pub(crate) fn request(&self, operation: &str, request: &mut Value) {
        let before = Request::parse(operation, request);
        let mut planted = before.clone();
        (self.request)(&mut planted);
        if planted != before {
            planted.write_to(request);
        }
    }

    pub(crate) fn answer(&self, operation: &str, request: &Value, status: &mut u16, answer: &mut Value) {
        (self.answer)(&Request::parse(operation, request), status, answer);
    }
}

fn acquire_ignores_end(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.loosen_only(LEASE_END, Comparison::LessOrEqual);
    }
}

fn no_skew(request: &mut Request) {
    let skew = u64::try_from(CLOCK_SKEW.as_millis()).unwrap();
    for purpose in [Purpose::Acquire, Purpose::Renew] {
        if let Some(write) = request.update_for(purpose) {
            write.change(LEASE_END, |end| end - skew);
        }
    }
}

fn later_end(request: &mut Request, millis: u64) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.change(LEASE_END, |end| end + millis);
    }
}

fn release_without_owner(request: &mut Request) {
    if let Some(release) = request.update_for(Purpose::Release) {
        release.loosen("owner");
        release.loosen("fence");
        release.ignore("sequence");
    }
}

fn renew_without_condition(request: &mut Request) {
    if let Some(renew) = request.update_for(Purpose::Renew) {
        for attribute in ["owner", "fence", LEASE_END] {
            renew.loosen(attribute);
        }
        renew.ignore("sequence");
    }
}

fn numbers_ignored(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.ignore("fence");
    }
}

fn foreign_owner(request: &Request, status: &mut u16, answer: &mut Value) {
    let Some(acquire) = request.update().filter(|update| update.purpose == Purpose::Acquire) else { return };
    if *status == 400 && answer["Item"]["owner"]["S"] == *acquire.owner {
        answer["Item"]["owner"] = json!({ "S": "someone else" });
    }
}

fn one_more(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.rewrite(|term| {
            if let Condition::Between(path, _, most) = term
                && path.name() == "permits"
            {
                *most = Operand::number(most.number_in(&Value::Null).unwrap() + 1);
            }
        });
    }
}

fn half_acquired(request: &mut Request) {
    if request.is_transaction_for(Purpose::Acquire) {
        request.writes.truncate(request.writes.len().div_ceil(2));
    }
}

fn takeover_unread(request: &mut Request) {
    if let Some(takeover) = request.update_for(Purpose::Acquire).filter(|acquire| acquire.is_takeover()) {
        takeover.rewrite(|term| match term {
            Condition::BeginsWith(path, _) => *term = Condition::Exists(path.clone()),
            Condition::Compare(path, Comparison::Equal, _) if ["owner", "fence"].contains(&path.name()) => {
                *term = Condition::Exists(path.clone());
            }
            _ => {}
        });
    }
}

fn takeover_keeps_fence(request: &mut Request) {
    if let Some(takeover) = request.update_for(Purpose::Acquire).filter(|acquire| acquire.is_takeover()) {
        let seen = takeover.equals("fence").unwrap();
        takeover.change("fence", |_| seen);
    }
}

fn completion_without_condition(request: &mut Request) {
    for completion in request.items_for(Purpose::Complete) {
        completion.loosen("owner");
        completion.loosen("fence");
        completion.loosen("status");
    }
}

fn in_progress_replays(request: &Request, _: &mut u16, answer: &mut Value) {
    let row = &mut answer["Item"];
    if request.is_update_for(Purpose::Acquire) && row["status"]["S"] == "INPROGRESS" {
        row["status"] = json!({ "S": "COMPLETED" });
        row["data"] = json!({ "S": "\"nothing\"" });
    }
}

fn acquire_ignores_window(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.loosen("expiration");
    }
}

fn half_an_interval(request: &mut Request) {
    if let Some(Operand::Plus(_, interval)) = request.update_for(Purpose::Call).map(|call| call.set_mut(DUE)) {
        **interval = Operand::number(interval.number_in(&Value::Null).unwrap() / 2);
    }
}

fn given_the_past(request: &Request, status: &mut u16, answer: &mut Value) {
    if request.is_update_for(Purpose::Call) && *status == 200 {
        answer["Attributes"][DUE] = json!({ "N": "1" });
    }
}

fn asks_anybody(request: &mut Request) {
    if let Some(ask) = request.update_for(Purpose::Ask) {
        ask.loosen("fence");
        ask.loosen(LEASE_END);
    }
}

fn release_forgets(request: &Request, _: &mut u16, answer: &mut Value) {
    if request.is_update_for(Purpose::Release)
        && let Some(row) = answer["Attributes"].as_object_mut()
    {
        row.remove(ASKED);
    }
}

fn release_imagines(request: &Request, status: &mut u16, answer: &mut Value) {
    if let Some(release) = request.update().filter(|update| update.purpose == Purpose::Release)
        && *status == 200
        && let Some(own) = release.compared("fence")
    {
        answer["Attributes"][ASKED] = json!({ "N": own.to_string() });
    }
}
