//! The release of what an identity has, without its nonce.

use std::time::Duration;

use super::kind::{Acquisition, Kind};
use super::names::MAX_SEQUENCE;
use super::owner::start_of;
use super::rules::{Hold, Release, TRIES};
use super::table::Table;
use crate::clock::Moment;
use crate::error::{Cause, Error};
use crate::holder::{Holder, HolderKind};

impl Table {
    /// Frees the key, or the permit, that this identity has. Returns `false` if it has none. A consistent read, and one more
    /// request to free it; again if others change the row.
    pub(crate) async fn release_identity(&self, key: &str, identity: &str, now: Moment) -> Result<bool, Error> {
        let start = start_of(identity);
        for _ in 0..TRIES {
            let Some(holder) = self.get(key, now).await? else { return Ok(false) };
            let (kind, all) = match holder.kind {
                HolderKind::Key => (Kind::key(key.to_owned()), std::slice::from_ref(&holder)),
                HolderKind::Semaphore | HolderKind::Permit => (Kind::any_permit(key.to_owned()), &holder.permits[..]),
            };
            let is_held = |held: &&Holder| held.current && !held.released;
            let own = all.iter().filter(is_held).find_map(|held| {
                let owner = held.owner().filter(|owner| owner.starts_with(&start))?;
                Some((owner.to_owned(), held))
            });
            let Some((owner, held)) = own else { return Ok(false) };
            let before = holder.queue.hold_time;
            let since = held.held_since.map(Duration::from_millis);
            let release = Release {
                // No later request of this owner counts.
                sequence: MAX_SEQUENCE,
                now,
                fence: held.fence,
                asked_at: Duration::from_millis(held.since.unwrap_or_default()),
                hold_until: None,
                hold: since.map(|since| Hold { since, before, is_before_known: true }),
                data: None,
            };
            match self.release(&Acquisition::new(kind, owner), &release).await {
                // A later acquire of the identity may have taken it over.
                Err(error) if error.is_lost() => {}
                released => return released.map(|_| true),
            }
        }
        Err(Error::new(Cause::Conflict, self.place(), key))
    }
}
