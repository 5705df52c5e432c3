//! What must hold: a request that arrives, and the state after each action, are compared with the rules.

use lambda_lock::model::{Reply, Step};
use serde_json::Value;

use super::rows::{self, identity_of, is_held_by, millis, number, number_of, permits_until};
use super::{KEYS, Message, Phase, Sent, State, Subject, WINDOW, World, clocks};
use crate::table::Table;

const HOLDERS: &str = "no more valid holders than there may be";
const PLACE: &str = "a valid holder's place is its own";
const NUMBERS: &str = "numbers only grow";
const ENDED: &str = "what has ended holds nothing";
const LATE: &str = "a late request undoes no later one";
const COUNT: &str = "a semaphore counts its permits";
const GROWTH: &str = "no row grows";
const FREE: &str = "a free place is refused once more at most";
const TAKEOVER: &str = "a takeover takes what its identity holds";
const AGAIN: &str = "one effect for each key";
const SKIPPED: &str = "after a client that was skipped, a run begins";

impl World {
    /// Applies a request to the table, and looks at what it has changed.
    pub(super) fn apply(&self, state: &mut State, sent: &Sent) -> Reply {
        let Message { what, from, at, requests } = &**sent.message;
        let before = state.table.clone();
        let reply = state.table.apply(requests);
        let is_acquire = *what == "acquire";
        let now = millis(clocks(state.ticks, false));
        if matches!(reply, Reply::Refused(_)) {
            let mut rows = before.rows().map(|(_, row)| permits_until(row, now));
            if is_acquire && self.has_permits() && rows.any(|permits| permits > self.permits_of(*from)) {
                self.reach("refused by more permits than there should be");
            }
            return reply;
        }
        if is_acquire && requests.len() > 1 {
            self.reach("several keys acquired");
        }
        for request in requests {
            let (old, new) = (before.row(&request.key).unwrap_or(&Value::Null), state.table.row(&request.key).unwrap());
            let has_shrunk = |name: &str| number(&new[name]) < number(&old[name]);
            let is_new_fence = number(&new["fence"]) > state.fences.get(&request.key).copied();
            if has_shrunk("fence") || has_shrunk("withdrawn") || (is_acquire && !is_new_fence) {
                state.broken = Some(NUMBERS);
            }
            if is_acquire {
                state.fences.insert(request.key.clone(), number(&new["fence"]).unwrap_or_default());
            }
            let (permits, all) = (rows::permits(new).count(), new.as_object().map_or(0, serde_json::Map::len));
            if permits > self.permits() || all > 20 + 2 * self.permits() {
                state.broken = Some(GROWTH);
            }
            if is_acquire && old["status"]["S"] == "INPROGRESS" && old["owner"].is_null() {
                self.reach("taken from another library");
            }
            let is_kept = number(&new["in_progress_expiration"]) > Some(now);
            if *what == "release" && is_kept {
                self.reach("released, and held for a minimum time");
            }
            if self.has_permits() && number(&new["permits"]) != Some(permits as u64) {
                state.broken = Some(COUNT);
            }
            if is_acquire && permits_until(new, now) > self.permits_of(*from) {
                state.broken = Some(HOLDERS);
            }
            if permits + 1 < rows::permits(old).count() || (is_acquire && permits < rows::permits(old).count()) {
                self.reach("several permits freed at once");
            }
            let is_over = new["status"]["S"] != "COMPLETED" && new["fence"] == new["released"];
            // The end in the row has the skew. A client whose lease has ended when its acquire arrives runs nothing.
            let begins = || {
                number(&new["in_progress_expiration"])
                    > Some(millis(clocks(state.ticks + 1, state.clients[*from].is_ahead)))
            };
            match *what {
                "complete" => state.taken_until = at + WINDOW,
                "acquire" if state.ticks + 1 < state.taken_until => state.broken = Some(AGAIN),
                "acquire" if self.subject == Subject::UnfinishedRecord && begins() => state.taken_until = at + WINDOW,
                _ if is_over => state.taken_until = 0,
                _ => {}
            }
        }
        if is_acquire {
            self.acquired(state, sent, &before);
        }
        if *what == "release" {
            state.released = *at;
        }
        if *what == "free" {
            for index in 0..state.clients.len() {
                let client = &state.clients[index];
                let had_place = client.has_place(&before) && !client.has_place(&state.table);
                // One that still asks begins anew.
                if had_place && !client.asks() {
                    self.reach("freed by an operator");
                    state.change(index, |client| client.is_freed = true);
                }
            }
        }
        reply
    }

    /// Looks at what an acquire has taken from others.
    fn acquired(&self, state: &mut State, sent: &Sent, before: &Table) {
        let from = sent.message.from;
        let is_dead = matches!(state.clients[from].phase, Phase::Dead);
        // The number of the release was larger, whichever clocks made the two.
        if is_dead && !self.has_permits() && sent.message.at + 1 < state.released {
            state.broken = Some(LATE);
        }
        let Some(identity) = identity_of(&state.clients[from].owner).map(str::to_owned) else { return };
        let is_of_identity = |owner: &str| identity_of(owner) == Some(&*identity);
        let now = millis(clocks(sent.message.at, false));
        if state.clients[from].takes_over && !before.rows().any(|(_, row)| is_held_by(row, &identity, now)) {
            state.broken = Some(TAKEOVER);
        }
        for index in (0..state.clients.len()).filter(|index| *index != from) {
            let client = &state.clients[index];
            if !is_of_identity(&client.owner) || !client.has_place(before) || client.has_place(&state.table) {
                continue;
            }
            if sent.before & 1 << index != 0 && client.is_valid(state.ticks) {
                state.broken = Some(LATE);
            }
            self.reach("taken over");
            state.change(index, |client| client.is_lost = true);
        }
        state.late.iter_mut().filter(|late| late.message.from != from).for_each(|late| late.before |= 1 << from);
        for index in (0..state.clients.len()).filter(|index| *index != from) {
            if matches!(state.clients[index].phase, Phase::Asking(..)) {
                state.change(index, |client| {
                    if let Phase::Asking(_, sent) = &mut client.phase {
                        sent.before |= 1 << from;
                    }
                });
            }
        }
        state.late.sort_by_key(|sent| (sent.message.print(), sent.before));
    }

    pub(super) fn check(&self, state: &mut State) {
        let mut holders = 0;
        for (index, client) in state.clients.iter().enumerate().filter(|(_, client)| !client.owner.is_empty()) {
            if let Some(held) = client.valid(state.ticks) {
                holders += 1;
                let places: Vec<_> = state.table.rows().filter_map(|(_, row)| number_of(row, &client.owner)).collect();
                if places != vec![held.number(); self.keys_of(index).len()] {
                    state.broken = Some(PLACE);
                }
            }
            let has_ended = match client.phase {
                Phase::Ended | Phase::LeftTo(_) => true,
                _ => client.is_freed,
            };
            // What a later acquire of its identity has taken does not come back. The row of a semaphore keeps nothing of a
            // permit that is gone: a late attempt of a client that is gone, too, takes one until its lease ends.
            let is_gone = client.is_lost && matches!(client.phase, Phase::Kept(_));
            if is_gone && !self.has_permits() && client.has_place(&state.table) {
                state.broken = Some(LATE);
            }
            // Nobody has acquired the key since.
            if matches!(client.phase, Phase::LeftTo(number)
                if state.done.contains(&number) && state.fences.get(KEYS[1]) == Some(&number))
            {
                state.broken = Some(SKIPPED);
            }
            if has_ended && client.has_place(&state.table) {
                state.broken = Some(ENDED);
            }
        }
        if holders > self.permits() {
            state.broken = Some(HOLDERS);
        }
    }

    /// A client that nobody disturbs gets a free place with its second request at the latest.
    pub(super) fn check_free(&self, state: &mut State, index: usize) {
        let now = state.now(index);
        let keys = self.keys_of(index);
        let is_free = |key: &&str| match state.table.row(key) {
            Some(row) => self.is_free(row, state, index),
            None => !state.clients[index].takes_over,
        };
        if !keys.iter().all(is_free) {
            return;
        }
        let Phase::Ready(mut acquiring) = state.clients[index].phase.clone() else { return };
        let (mut table, mut step) = (state.table.clone(), acquiring.go_on(now));
        for _ in 0..2 {
            let Step::Send(requests) = step else { break };
            let sent = self.send(state, index, "acquire", &requests);
            step = acquiring.answered(Some(table.apply(&sent.message.requests)), now);
        }
        if matches!(step, Step::Held(_)) {
            self.reach("found a free place");
        } else {
            state.broken = Some(FREE);
        }
    }

    /// Whether the place of this row is free for a client.
    fn is_free(&self, row: &Value, state: &State, index: usize) -> bool {
        let (client, now) = (&state.clients[index], millis(state.now(index)));
        if number_of(row, &client.owner).is_some() {
            return false;
        }
        if client.takes_over {
            return identity_of(&client.owner).is_some_and(|identity| is_held_by(row, identity, now));
        }
        if row["status"]["S"] == "SEMAPHORE" {
            return permits_until(row, now) < if self.has_identity() { 1 } else { self.permits_of(index) };
        }
        let expiration = number(&row["expiration"]).unwrap_or_default() * 1000;
        let end = match number(&row["in_progress_expiration"]) {
            Some(end) if row["status"]["S"] == "INPROGRESS" => end,
            _ => expiration,
        };
        let is_unfinished = self.subject == Subject::UnfinishedRecord && row["released"] != row["fence"];
        end <= now && !is_unfinished
    }
}

impl State {
    /// A further run is left to another client only if that one has begun, or has died and is retried.
    pub(super) fn check_begun(&mut self) {
        let Some(row) = self.table.row(KEYS[1]) else { return };
        let has_begun = self.clients.iter().any(|client| match client.phase {
            Phase::LeftTo(_) => false,
            // It has run and released the key meanwhile.
            Phase::Ended => row["owner"]["S"] == client.owner.as_str() && row["released"] == row["fence"],
            _ => number_of(row, &client.owner).is_some(),
        });
        if !has_begun {
            self.broken = Some(SKIPPED);
        }
    }
}
