//! What the ledgers know about who has a key or a permit, and what the rules of identities and of operators forbid.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use lambda_lock::{Error, Holder};

use crate::guarantee::FREED;
use crate::request::{LEASE_END, PERMIT_LEASE_END, Purpose, Write, identity_of};

/// What a history knows about owners. A place is a key, or the permit of an identity or of an owner without one: one owner has
/// it at a time.
#[derive(Default)]
pub(crate) struct Identities {
    places: HashMap<String, Place>,
    /// Places and the owners that have lost them to a later acquire of their identity, or because others have freed them. They
    /// may still consider themselves valid.
    superseded: HashSet<(String, String)>,
    /// Permits and the owners whose clients know that they have acquired them.
    known: HashSet<(String, String)>,
    /// Places and identities for which a host has sent a release.
    stopped: HashSet<(String, String)>,
    /// Places, owners and fences that an operator has seen, and may free by force.
    seen: HashSet<(String, String, u64)>,
    /// Places, owners and fences of repeated requests, and the fence that the same request got first.
    first_fences: HashMap<(String, String, u64), u64>,
    /// How often what a place had was released or replaced. The row keeps nothing of a permit that is gone, so a release for an
    /// identity cannot tell the one from the other.
    ended: HashMap<String, usize>,
}

/// The state of a place after the applied requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Place {
    owner: String,
    is_held: bool,
    /// Others have freed it, and its owner has not acquired it again.
    is_freed: bool,
    /// The fence of the row, or of the permit.
    fence: u64,
    /// The end of the lease, as stored.
    end: u64,
    /// How many acquires had the place.
    acquires: usize,
}

/// What an applied request means for identities.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// An acquire has taken over what its identity had.
    pub(crate) has_taken_over: bool,
    /// It has freed the place for its identity.
    pub(crate) is_for_identity: bool,
    /// An operator has freed the place.
    pub(crate) is_by_force: bool,
    /// What the request breaks.
    pub(crate) breaks: Option<String>,
}

impl Identities {
    /// Takes note of a request that is applied to a place now. It was sent at this time, and leaves this fence, if it says so.
    pub(crate) fn applied(&mut self, place: &str, write: &Write, sent: Option<u64>, fence: Option<u64>) -> Effect {
        let owner = &write.owner;
        let end = write.number(LEASE_END).or_else(|| write.number_of_permit(PERMIT_LEASE_END));
        let now = self.places.entry(place.to_owned()).or_default();
        let mut effect = Effect::default();
        let broke = |what: &str| Some(format!("{FREED}: {place}: {what}"));
        match write.purpose {
            Purpose::Acquire => {
                let is_same = identity_of(owner).is_some_and(|identity| now.owner.starts_with(identity));
                effect.has_taken_over = is_same && now.is_held && sent.is_some_and(|sent| sent < now.end);
                if write.is_takeover() && !effect.has_taken_over {
                    effect.breaks = broke("a takeover took what its identity does not hold");
                } else if write.is_takeover() && write.equals("fence").is_some_and(|seen| seen != now.fence) {
                    effect.breaks = broke("a takeover took another acquisition than it names");
                }
                if is_same && now.owner != *owner {
                    self.superseded.insert((place.to_owned(), now.owner.clone()));
                }
                // A client that has acquired the place sends no more attempts. If one arrives late, it takes the place for nobody,
                // and the client has still lost it.
                let of_owner = (place.to_owned(), owner.clone());
                if !self.known.contains(&of_owner) {
                    self.superseded.remove(&of_owner);
                }
                let acquires = now.acquires + 1;
                let (end, fence) = (end.unwrap_or_default(), fence.unwrap_or_default());
                *now = Place { owner: owner.clone(), is_held: true, is_freed: false, fence, end, acquires };
            }
            Purpose::Renew | Purpose::Release | Purpose::Free => {
                if now.owner != *owner {
                    effect.breaks = broke("a request changed what another owner has");
                } else if now.is_freed && write.purpose != Purpose::Free {
                    effect.breaks = broke("its owner changed what others have freed");
                }
                now.end = end.unwrap_or(now.end);
                if write.purpose == Purpose::Renew {
                    // An owner that renews the place has it, even if only a late attempt took it for this owner.
                    self.superseded.remove(&(place.to_owned(), owner.clone()));
                } else {
                    now.is_held = false;
                    *self.ended.entry(place.to_owned()).or_default() += 1;
                }
                if write.purpose == Purpose::Free {
                    self.superseded.insert((place.to_owned(), owner.clone()));
                    let identity = identity_of(owner).unwrap_or_default().to_owned();
                    // An operator becomes the holder of a key. The row of a semaphore does not name it.
                    effect.is_for_identity =
                        write.sets("holder").is_none() && self.stopped.contains(&(place.to_owned(), identity));
                    effect.is_by_force = !effect.is_for_identity;
                    let mut acquisition = (place.to_owned(), owner.clone(), now.fence);
                    let mut is_seen = self.seen.contains(&acquisition);
                    if let Some(first) = self.first_fences.get(&acquisition) {
                        acquisition.2 = *first;
                        is_seen |= self.seen.contains(&acquisition);
                    }
                    if effect.is_by_force && !is_seen {
                        effect.breaks =
                            broke("it was freed, and nobody has stopped its identity or seen this acquisition");
                    }
                    now.is_freed = true;
                }
                now.fence = fence.unwrap_or(now.fence);
            }
            // It has left what a release leaves, where there was nothing.
            Purpose::Withdraw if write.sets("owner").is_some() => {
                let fence = fence.unwrap_or_default();
                *now = Place { owner: owner.clone(), acquires: now.acquires, fence, ..Place::default() };
            }
            _ => {}
        }
        effect
    }

    /// The client of this owner knows that it has acquired the place.
    pub(crate) fn acquired(&mut self, place: &str, owner: &str) {
        self.known.insert((place.to_owned(), owner.to_owned()));
    }

    /// Another client has replaced what was in this place, because its lease had ended.
    pub(crate) fn replaced(&mut self, place: &str) {
        if let Some(now) = self.places.get_mut(place) {
            *self.ended.entry(place.to_owned()).or_default() += usize::from(std::mem::take(&mut now.is_held));
        }
    }

    /// Returns `true` if this owner has lost the place to a later acquire of its identity, or because others have freed it.
    pub(crate) fn is_superseded(&self, place: &str, owner: &str) -> bool {
        self.superseded.contains(&(place.to_owned(), owner.to_owned()))
    }

    /// Takes note of a release for this identity that a host is about to send. Returns what the place has.
    pub(crate) fn stops(&mut self, place: &str, identity: &str) -> Before {
        self.stopped.insert((place.to_owned(), start_of(identity)));
        self.before(place)
    }

    pub(crate) fn before(&self, place: &str) -> Before {
        let ended = self.ended.get(place).copied().unwrap_or_default();
        Before { place: self.places.get(place).cloned().unwrap_or_default(), ended }
    }

    /// Why the answer to a release for this identity is wrong: `now` is later than all clocks.
    pub(crate) fn stopped(
        &self,
        place: &str,
        identity: &str,
        before: &Before,
        is_freed: bool,
        now: SystemTime,
    ) -> Option<String> {
        let ended = self.ended.get(place).copied().unwrap_or_default();
        // The holder itself may have released it meanwhile, or its lease has ended and another client has replaced it.
        if is_freed && ended == before.ended {
            return Some(format!("{place}: a release for its identity was reported that did not happen"));
        }
        if !is_freed && self.has_held(place, identity, before, now) {
            return Some(format!("{FREED}: {place}: a release for its identity did not free it"));
        }
        None
    }

    /// Takes note of an acquisition that an operator has seen in a place.
    pub(crate) fn sees(&mut self, place: &str, seen: &Holder) {
        let (owner, fence) = acquisition(seen);
        self.seen.insert((place.to_owned(), owner.to_owned(), fence));
    }

    /// The network has repeated the acquire that got the fence `first`, and it took a permit for nobody, with another fence. An
    /// operator who has seen the first permit frees this one, too, because both have the number of that request.
    pub(crate) fn repeated(&mut self, place: &str, owner: &str, first: u64, fence: u64) {
        self.first_fences.insert((place.to_owned(), owner.to_owned(), fence), first);
    }

    /// Why the answer to a release by force of this acquisition is wrong. After each answer, the owner has it no longer: it
    /// was freed, or the row has changed.
    pub(crate) fn forced(&self, place: &str, seen: &Holder, answer: &Result<bool, Error>) -> Option<String> {
        let is_freed = answer.as_ref().ok()?;
        let (owner, fence) = acquisition(seen);
        let now = self.places.get(place).filter(|now| now.is_held && now.owner == owner && now.fence == fence);
        now.map(|_| format!("{FREED}: {place}: a release by force answered {is_freed}, and did not free it"))
    }

    /// Returns `true` if the identity had the place at that time, and has had it since.
    pub(crate) fn has_held(&self, place: &str, identity: &str, before: &Before, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let place = self.places.get(place).filter(|place| place.is_held && **place == before.place);
        place.is_some_and(|place| place.owner.starts_with(&start_of(identity)) && now < place.end.into())
    }
}

/// The owner and the fence of an acquisition that was seen.
fn acquisition(seen: &Holder) -> (&str, u64) {
    (seen.owner().unwrap_or_default(), seen.fence().unwrap_or_default())
}

/// The state of a place at a time, and how often an owner's hold of it had ended until then.
#[derive(Debug, Default)]
pub(crate) struct Before {
    place: Place,
    ended: usize,
}

/// The start of the owners of this identity.
pub(crate) fn start_of(identity: &str) -> String {
    format!("{}#{identity}#", identity.len())
}

/// The name of what belongs to this owner: its identity, or itself.
pub(crate) fn name_of(owner: &str) -> &str {
    identity_of(owner).unwrap_or(owner)
}

/// The owner in a log: its identity and the start of its nonce.
pub(crate) fn short(owner: &str) -> &str {
    let start = identity_of(owner).map_or(0, str::len);
    owner.get(..start + 6).unwrap_or("a waiter")
}
