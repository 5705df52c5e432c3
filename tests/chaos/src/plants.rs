//! Deliberate mistakes: guards that a request or an answer loses on the wire, as if the product's build had none. Our checker
//! and the foreign one must find each of them.

use serde_json::{Value, json};

use crate::arena::CLOCK_SKEW;
use crate::checker::Broken;
use crate::request::mistakes::{
    acquire_ignores_end, acquire_ignores_window, asks_anybody, foreign_owner, given_the_past, half_an_interval, halve,
    lease_too_long, numbers_ignored, one_more, release_forgets, release_without_owner, renew_without_condition,
    takeover_keeps_fence, takeover_unread, transaction_without_condition,
};
use crate::request::{ASKED, LEASE_END, Purpose, Request};
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
    answer: fn(&Request, u16, &mut Value),
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
            request: lease_too_long,
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
            request: |request| halve(request, Purpose::Acquire),
            ..Self::NONE
        },
        Self {
            name: "a takeover does not read whose lock it takes",
            kind: Kind::Identities,
            breaks: &[Broken::Alone],
            request: |request| takeover_unread(request, &["owner", "fence"]),
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
            request: transaction_without_condition,
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
            answer: |request, _, answer| release_forgets(request, answer, "Attributes"),
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

    pub(crate) fn answer(&self, operation: &str, request: &Value, status: u16, answer: &mut Value) {
        (self.answer)(&Request::parse(operation, request), status, answer);
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

fn in_progress_replays(request: &Request, _: u16, answer: &mut Value) {
    let row = &mut answer["Item"];
    if request.is_update_for(Purpose::Acquire) && row["status"]["S"] == "INPROGRESS" {
        row["status"] = json!({ "S": "COMPLETED" });
        row["data"] = json!({ "S": "\"nothing\"" });
    }
}

fn release_imagines(request: &Request, status: u16, answer: &mut Value) {
    if let Some(release) = request.update().filter(|update| update.purpose == Purpose::Release)
        && status == 200
        && let Some(own) = release.compared("fence")
    {
        answer["Attributes"][ASKED] = json!({ "N": own.to_string() });
    }
}
