//! Deliberate mistakes in the protocol of the semaphore.

use std::cell::RefCell;

use lambda_lock::embedded::Answer;
use serde_json::json;

use crate::guarantee::{FENCES, FREED, HOLDERS, ITSELF, ORDER, OWNERS, READABLE, WITHDRAWN};
use crate::history::Mutation;
use crate::history::mutation::{freed_unread, refused_release_succeeds, skew_in, takeover_leaves, takeover_of_ended};
use crate::request::expression::{Comparison, Condition, Operand, Path};
use crate::request::mistakes::{one_more, takeover_unread};
use crate::request::{
    PERMIT_LEASE_END, PERMIT_NUMBER, Purpose, Request, Write, identity_of, permit_fence_of, permit_of,
};

/// The mistakes, and the violation that each causes.
pub const MUTATIONS: [Mutation; 20] = [
    Mutation { name: "N + 1 permits", breaks: HOLDERS, is_common: true, request: one_more, ..Mutation::NONE },
    Mutation {
        name: "the next in line takes one more permit",
        breaks: HOLDERS,
        request: place_as_permit,
        ..Mutation::NONE
    },
    Mutation {
        name: "a permit is replaced without checking whose it is",
        breaks: HOLDERS,
        request: replaces_unchecked,
        answer: shows_ended,
        ..Mutation::NONE
    },
    Mutation { name: "another's permit is released", breaks: OWNERS, request: releases_another, ..Mutation::NONE },
    Mutation {
        name: "a fence repeats",
        breaks: FENCES,
        is_common: true,
        request: fence_stands_still,
        ..Mutation::NONE
    },
    Mutation { name: "clock skew not added", breaks: HOLDERS, first_seed: 29, request: no_skew, ..Mutation::NONE },
    Mutation { name: "no nonce check on refusal", breaks: ITSELF, answer: foreign_nonce, ..Mutation::NONE },
    Mutation {
        name: "a release lowers the count twice",
        breaks: READABLE,
        is_common: true,
        request: released_twice,
        ..Mutation::NONE
    },
    Mutation {
        name: "a release forgets the attempts that were not answered",
        breaks: OWNERS,
        first_seed: 92,
        request: unanswered_forgotten,
        ..Mutation::NONE
    },
    Mutation {
        name: "a late renewal moves the end back",
        breaks: ORDER,
        is_common: true,
        request: sequence_ignored,
        ..Mutation::NONE
    },
    Mutation {
        name: "a refused release counts as success",
        breaks: "reported a release",
        answer: refused_release_succeeds,
        ..Mutation::NONE
    },
    Mutation {
        name: "TTL earlier than the leases' end",
        breaks: HOLDERS,
        first_seed: 38,
        request: ttl_too_early,
        ..Mutation::NONE
    },
    Mutation {
        name: "a takeover leaves the sequence of the earlier holder",
        breaks: OWNERS,
        first_seed: 245,
        request: takeover_leaves_sequence,
        ..Mutation::NONE
    },
    Mutation { name: "a takeover takes what has ended", breaks: FREED, request: takeover_of_ended, ..Mutation::NONE },
    Mutation {
        name: "a takeover does not read which permit it saw",
        breaks: FREED,
        first_seed: 2396,
        request: |request| takeover_unread(request, &["nonce", PERMIT_NUMBER]),
        ..Mutation::NONE
    },
    Mutation {
        name: "a takeover leaves the nonce of the earlier holder",
        breaks: OWNERS,
        request: |request| takeover_leaves(request, "nonce"),
        ..Mutation::NONE
    },
    Mutation {
        name: "a release for an identity does not read whose permit it is",
        breaks: FREED,
        first_seed: 200,
        request: |request| freed_unread(request, "nonce"),
        ..Mutation::NONE
    },
    Mutation {
        name: "a release for an identity frees another's permit",
        breaks: FREED,
        request: |request| frees_another(request, true),
        ..Mutation::NONE
    },
    Mutation {
        name: "a release by force frees another's permit",
        breaks: "seen this acquisition",
        is_common: true,
        request: |request| frees_another(request, false),
        ..Mutation::NONE
    },
    Mutation { name: "acquire ignores a withdrawal", breaks: WITHDRAWN, request: withdrawal_ignored, ..Mutation::NONE },
];

fn fence_stands_still(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        let fence = acquire.set_mut("fence");
        let Operand::Plus(last, _) = fence else { panic!("{fence:?}") };
        *fence = (**last).clone();
    }
}

/// A place in the queue entitles its waiter to a permit.
fn place_as_permit(request: &mut Request) {
    let Some(acquire) = request.update_for(Purpose::Acquire) else { return };
    if acquire.sets("head").is_some() {
        acquire.rewrite(|term| match term {
            Condition::Between(path, ..) if path.name() == "permits" => *term = Condition::Exists(path.clone()),
            Condition::Not(of) if matches!(&**of, Condition::Between(path, ..) if path.name() == "freed_at") => {
                *term = Condition::Exists(Path::attribute("permits"));
            }
            _ => {}
        });
    }
}

/// Every refusal shows permits that have ended.
fn shows_ended(request: &Request, answer: &mut Answer) {
    let Some(acquire) = request.update().filter(|update| update.purpose == Purpose::Acquire) else { return };
    if answer.status == 400 {
        let own = permit_of(&acquire.owner);
        for (name, value) in answer.body["Item"].as_object_mut().into_iter().flatten() {
            if name.starts_with(&permit_of("")) && *name != own && value["M"][PERMIT_LEASE_END].is_object() {
                value["M"][PERMIT_LEASE_END] = json!({ "N": "0" });
            }
        }
    }
}

/// An acquire does not compare the permits that it replaces with those that it saw.
fn replaces_unchecked(request: &mut Request) {
    let Some(acquire) = request.update_for(Purpose::Acquire) else { return };
    if acquire.other_permits().next().is_some() {
        acquire.rewrite(|term| {
            if let Condition::Compare(path, _, Operand::Value(seen)) = term
                && seen["M"].is_object()
            {
                *term = Condition::Exists(path.clone());
            }
        });
    }
}

fn releases_another(request: &mut Request) {
    thread_local! {
        static LAST: RefCell<String> = RefCell::default();
    }
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        LAST.set(acquire.owner.clone());
    } else if let Some(release) =
        request.writes.first_mut().filter(|write| [Purpose::Free, Purpose::Release].contains(&write.purpose))
    {
        let (own, other) = (release.owner.clone(), LAST.with_borrow(Clone::clone));
        release.rename(&permit_of(&own), &permit_of(&other));
        release.rename(&permit_fence_of(&own), &permit_fence_of(&other));
    }
}

fn no_skew(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        let skew = skew_in(acquire.of_permit("by").and_then(|by| by["S"].as_str()));
        change_permit(acquire, PERMIT_LEASE_END, |end| end - skew);
    }
}

/// Changes a number in the permit that an acquire writes.
fn change_permit(acquire: &mut Write, field: &str, change: impl FnOnce(u64) -> u64) {
    if acquire.is_takeover() {
        return acquire.change(field, change);
    }
    let permit = permit_of(&acquire.owner);
    let Operand::Value(permit) = acquire.set_mut(&permit) else { panic!("a permit is a value") };
    let number = &mut permit["M"][field];
    *number = json!({ "N": change(number["N"].as_str().unwrap().parse().unwrap()).to_string() });
}

fn foreign_nonce(request: &Request, answer: &mut Answer) {
    let Some(acquire) = request.update().filter(|update| update.purpose == Purpose::Acquire) else { return };
    if answer.status == 400 {
        let Some(row) = answer.body["Item"].as_object_mut() else { return };
        for named in [permit_of, permit_fence_of] {
            if let Some(value) = row.remove(&named(&acquire.owner)) {
                row.insert(named("someone else"), value);
            }
        }
    }
}

/// A release is also applied to a permit that is gone.
fn released_twice(request: &mut Request) {
    if let Some(release) = request.update_for(Purpose::Release) {
        let permit = permit_of(&release.owner);
        release.rewrite(|term| {
            if let Condition::Compare(path, Comparison::Equal, _) = term
                && path.attribute == permit
            {
                *term = Condition::True;
            }
        });
    }
}

fn unanswered_forgotten(request: &mut Request) {
    if let Some(release) = request.update_for(Purpose::Release).filter(|release| release.gives_up().is_some()) {
        release.ignore("withdrawn");
        release.update.set.retain(|(path, _)| path.name() != "withdrawn");
    }
}

fn sequence_ignored(request: &mut Request) {
    if let Some(renewal) = request.update_for(Purpose::Renew) {
        renewal.ignore("sequence");
    }
}

fn ttl_too_early(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        let now = acquire.number_of_permit("since").unwrap();
        acquire.change("expiration", |_| now / 1000);
    }
}

/// Who frees a permit with an identity, or one without, frees the one that was acquired last.
fn frees_another(request: &mut Request, has_identity: bool) {
    if request.is_update_for(Purpose::Release) {
        return;
    }
    if let Some(freeing) = request.update_for(Purpose::Free) {
        if identity_of(&freeing.owner).is_some() != has_identity {
            return;
        }
        freeing.loosen(PERMIT_NUMBER);
        if has_identity {
            freeing.loosen("nonce");
        }
    }
    releases_another(request);
}

fn withdrawal_ignored(request: &mut Request) {
    if let Some(acquire) = request.update_for(Purpose::Acquire) {
        acquire.ignore("withdrawn");
    }
}

fn takeover_leaves_sequence(request: &mut Request) {
    if let Some(takeover) = request.update_for(Purpose::Acquire).filter(|acquire| acquire.is_takeover()) {
        takeover.update.remove.retain(|path| path.name() != "sequence");
    }
}
