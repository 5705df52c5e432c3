//! Deliberate mistakes: each changes the requests of one kind, and a check must find it.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::model::Request;

use crate::expression::{Comparison, Condition, Operand, Path, Update};
use crate::table::Parsed;

/// A deliberate mistake, which a check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// An attempt does not read the numbers that a place has accepted.
    NumbersIgnored,
    /// An attempt does not read the numbers that were given up.
    WithdrawalIgnored,
    /// An attempt takes what is held.
    EndIgnored,
    /// An attempt takes a permit more than there are.
    CountIgnored,
    /// An attempt runs what was done, or what another library runs, again.
    WindowIgnored,
    /// An attempt replaces permits that were renewed since it saw them.
    EndedUnread,
    /// An attempt is repeated with a number that was too small.
    NumberNotRaised,
    /// A takeover does not read which acquisition it saw, or was told.
    TakeoverUnread,
    /// A takeover takes what has ended.
    TakeoverOfEnded,
    /// A takeover leaves the owner.
    TakeoverLeavesOwner,
    /// The fence of a semaphore is the clock.
    FenceOfClock,
    /// A release leaves no number.
    ReleaseWithoutNumber,
    /// The number of a release is larger than those of its owner only, not than those of others that have died.
    ReleaseWithoutClock,
    /// A request does not read whether a later one was applied.
    SequenceIgnored,
    /// A withdrawal ends what is in progress.
    WithdrawalEnds,
    /// A withdrawal does not keep its row.
    WithdrawalExpires,
    /// A withdrawal frees what a later attempt has taken.
    WithdrawalUnnumbered,
    /// A withdrawal of several keys looks at one.
    WithdrawalOfOneKey,
    /// An operator gives up fewer numbers than were given up before.
    FreeingSetsBack,
    /// An operator frees without the numbers that the owner may have sent.
    FreeingWithoutNumbers,
    /// An operator frees what is no longer as it was seen.
    FreeingUnread,
    /// The work is left to a holder that has gone.
    AskedUnread,
    /// A client that was skipped does not give up its attempts.
    AskedWithoutNumbers,
    /// The wrong number is asked.
    AskedAnother,
}

impl Mistake {
    /// Plants this mistake in the requests that are sent together, at this time.
    pub(crate) fn plant(self, what: &str, requests: &[Request], now: Duration) -> Vec<Parsed> {
        let mut requests = requests.to_vec();
        if self == Self::WithdrawalOfOneKey && what == "withdraw" {
            requests.truncate(1);
        }
        for request in &mut requests {
            self.change_number(what, request, now);
        }
        let mut parsed: Vec<_> = requests.iter().map(Parsed::of).collect();
        for request in &mut parsed {
            self.change(what, &mut request.condition, &mut request.update, now);
        }
        parsed
    }

    /// Changes the number of a request.
    fn change_number(self, what: &str, request: &mut Request, now: Duration) {
        let number = match (self, what) {
            (Self::NumberNotRaised, "acquire") => now.as_micros(),
            (Self::ReleaseWithoutClock, "release") => number_in(request, ":own") + 1,
            (Self::FreeingWithoutNumbers, "free") => number_in(request, ":fence") + 1,
            _ => return,
        };
        if let Some(value) = request.values.get_mut(":number") {
            *value = AttributeValue::N(number.to_string());
        }
    }

    fn change(self, what: &str, condition: &mut Condition, update: &mut Update, now: Duration) {
        let is_takeover = update.set.iter().any(|(path, _)| path.name() == "held_since");
        match (self, what) {
            (Self::NumbersIgnored, "acquire") => ignore(condition, &["fence"], Comparison::GreaterOrEqual),
            (Self::WithdrawalIgnored, "acquire") => ignore(condition, &["withdrawn"], Comparison::GreaterOrEqual),
            (Self::EndIgnored, "acquire") => ignore(condition, &["in_progress_expiration"], Comparison::LessOrEqual),
            (Self::WindowIgnored, "acquire") => ignore(condition, &["expiration"], Comparison::LessOrEqual),
            (Self::CountIgnored, "acquire") => condition.each_term(&mut |term| {
                if matches!(term, Condition::Between(path, ..) if path.name() == "permits") {
                    *term = Condition::True;
                }
            }),
            (Self::EndedUnread, "acquire") if !is_takeover => condition.each_term(&mut |term| {
                if matches!(term, Condition::Compare(path, Comparison::Equal, _) if path.name().starts_with("permit:"))
                {
                    *term = Condition::True;
                }
            }),
            (Self::TakeoverUnread, "acquire") if is_takeover => {
                ignore(condition, &["owner", "fence", "nonce", "no"], Comparison::Equal);
                condition.each_term(&mut |term| {
                    if matches!(term, Condition::BeginsWith(..)) {
                        *term = Condition::True;
                    }
                });
            }
            (Self::TakeoverOfEnded, "acquire") if is_takeover => {
                ignore(condition, &["in_progress_expiration", "end"], Comparison::LessOrEqual);
            }
            (Self::TakeoverLeavesOwner, "acquire") if is_takeover => {
                update.set.retain(|(path, _)| !["owner", "nonce"].contains(&path.name()));
            }
            (Self::FenceOfClock, "acquire") => {
                let fence = update.set.iter_mut().find(|(path, _)| path.name() == "fence");
                fence.unwrap().1 = Operand::number(u64::try_from(now.as_micros()).unwrap());
            }
            (Self::ReleaseWithoutNumber, "release") => {
                update.set.retain(|(path, _)| !["fence", "released", "withdrawn"].contains(&path.name()));
                update.remove.push(Path::attribute("owner"));
            }
            (Self::FreeingWithoutNumbers, "free") => {
                update.set.retain(|(path, _)| path.name() != "withdrawn");
            }
            (Self::SequenceIgnored, _) => ignore(condition, &["sequence"], Comparison::GreaterOrEqual),
            (Self::WithdrawalEnds, "withdraw") => {
                *condition = Condition::True;
                update.set.push((Path::attribute("in_progress_expiration"), Operand::number(1)));
            }
            (Self::WithdrawalExpires, "withdraw") => {
                ignore(condition, &["expiration"], Comparison::Less);
                update.set.retain(|(path, _)| path.name() != "expiration");
            }
            (Self::FreeingSetsBack, "free") => {
                ignore(condition, &["withdrawn"], Comparison::Greater);
                for (_, operand) in update.set.iter_mut().filter(|(path, _)| path.name() == "withdrawn") {
                    *operand = Operand::number(1);
                }
            }
            (Self::AskedUnread, "ask") => {
                ignore(condition, &["owner", "fence"], Comparison::Equal);
                ignore(condition, &["in_progress_expiration"], Comparison::Greater);
            }
            (Self::AskedWithoutNumbers, "ask") => {
                ignore(condition, &["withdrawn"], Comparison::GreaterOrEqual);
                update.set.retain(|(path, _)| path.name() != "withdrawn");
            }
            (Self::AskedAnother, "ask") => {
                for (_, operand) in update.set.iter_mut().filter(|(path, _)| path.name() == "asked") {
                    *operand = Operand::number(1);
                }
            }
            (Self::WithdrawalUnnumbered, "withdraw") | (Self::FreeingUnread, "free") => {
                ignore(condition, &["owner", "fence", "nonce", "no"], Comparison::Equal);
            }
            _ => {}
        }
    }
}

fn number_in(request: &Request, name: &str) -> u128 {
    request.values.get(name).and_then(|value| value.as_n().ok()?.parse().ok()).unwrap_or_default()
}

/// Makes these comparisons hold always, also where they are negated.
fn ignore(condition: &mut Condition, names: &[&str], ignored: Comparison) {
    let is_ignored = |term: &Condition| {
        matches!(term, Condition::Compare(path, comparison, _)
            if *comparison == ignored && names.contains(&path.name()))
    };
    condition.each_term(&mut |term| {
        let is_negated = matches!(term, Condition::Not(negated) if **negated == Condition::True || is_ignored(negated));
        if is_negated || is_ignored(term) {
            *term = Condition::True;
        }
    });
}
