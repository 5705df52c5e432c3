//! What can happen next in a state, and what it leads to.

use std::sync::Arc;

use lambda_lock::model::{Operation, Reply};
use stateright::{Model, Property};

use super::rows::{identity_of, number};
use super::{Action, Client, Phase, State, Subject, TICK, WINDOW, What, World, clocks};
use crate::printed::Printed;
use crate::table::to_item;

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let left = &state.left;
        let has_ended = |client: &Arc<Printed<Client>>| {
            matches!(client.phase, Phase::Kept(_) | Phase::Ended | Phase::LeftTo(_) | Phase::Left | Phase::Dead)
        };
        // What is late does not depend on the time.
        let depends_on_time = left.deletions + left.frees > 0 || !state.clients.iter().all(has_ended);
        if state.ticks < self.bounds.ticks && depends_on_time {
            actions.push(Action::Tick);
        }
        for (index, client) in state.clients.iter().enumerate() {
            let is_record = matches!(self.subject, Subject::Record | Subject::UnfinishedRecord);
            let mut does = |what| actions.push(Action::Does(index, what));
            match &client.phase {
                Phase::Ready(_) => does(What::GoOn),
                Phase::Holding(held) => {
                    does(What::GoOn);
                    if is_record {
                        does(What::Complete);
                    }
                    if left.renewals > 0 && held.is_valid(state.now(index)) {
                        does(What::Renew);
                    }
                    if left.keeps > 0 && identity_of(&client.owner).is_some() {
                        does(What::Keep);
                    }
                }
                Phase::Asking(..) | Phase::Operating(..) => {
                    actions.push(Action::Answered(index));
                    // Of others, nobody sees a difference between one that has died and one that does nothing more.
                    if left.deaths > 0 {
                        actions.push(Action::Dies(index));
                    }
                    if left.unanswered > 0 {
                        actions.extend([Action::Late(index), Action::Twice(index)]);
                        if self.subject == Subject::Coalesced && matches!(client.phase, Phase::Asking(..)) {
                            actions.push(Action::Repeated(index));
                        }
                        if matches!(client.phase, Phase::Operating(_, _, Some(_))) {
                            actions.push(Action::Leaves(index));
                        }
                    }
                }
                Phase::Kept(_) | Phase::Ended | Phase::LeftTo(_) | Phase::Left | Phase::Dead => continue,
            }
            if left.steps > 0 {
                actions.push(Action::Steps(index));
            }
        }
        let is_first = |index: usize| index == 0 || state.late[index] != state.late[index - 1];
        actions.extend((0..state.late.len()).filter(|index| is_first(*index)).map(Action::Arrives));
        for (key, row) in state.table.rows() {
            if left.frees > 0 {
                actions.push(Action::Frees(key.clone()));
            }
            if left.deletions > 0 && number(&row["expiration"]) <= Some(clocks(state.ticks, false).wall.as_secs()) {
                actions.push(Action::Deletes(key.clone()));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match &action {
            Action::Tick => state.ticks += 1,
            Action::Does(index, what) => {
                let (index, now) = (*index, last.now(*index));
                let renewal = TICK * (self.bounds.lease + 1);
                let operation = match (what, last.clients[index].phase.clone()) {
                    (What::GoOn, Phase::Ready(mut acquiring)) => {
                        self.check_free(&mut state, index);
                        let step = acquiring.go_on(now);
                        self.step(&mut state, index, acquiring, step);
                        None
                    }
                    (What::GoOn, Phase::Holding(held)) => Some(held.release(now)),
                    (What::Complete, Phase::Holding(held)) => Some(held.complete(TICK * WINDOW, now)),
                    (What::Renew, Phase::Holding(held)) => {
                        state.left.renewals -= 1;
                        Some(held.renew(renewal, &self.locks, now))
                    }
                    (What::Keep, Phase::Holding(held)) => {
                        state.left.keeps -= 1;
                        // Two processes do the next step. One of them knows the fence.
                        self.take_over(&mut state, None);
                        self.take_over(&mut state, Some(held.fence()));
                        state.change(index, |client| client.phase = Phase::Kept(held));
                        None
                    }
                    _ => return None,
                };
                if let Some(operation) = operation {
                    self.operate(&mut state, index, operation, None);
                }
            }
            Action::Answered(index) | Action::Late(index) | Action::Twice(index) | Action::Repeated(index) => {
                self.deliver(&mut state, &action, *index)?;
            }
            Action::Leaves(index) => {
                state.left.unanswered -= 1;
                let Phase::Operating(operation, sent, Some(mut acquiring)) = last.clients[*index].phase.clone() else {
                    return None;
                };
                state.add(String::new(), Phase::Operating(operation, sent, None), last.clients[*index].is_ahead);
                state.change(*index, |client| client.is_unsure = true);
                let step = acquiring.go_on(last.now(*index));
                self.step(&mut state, *index, acquiring, step);
            }
            Action::Arrives(index) => {
                let sent = state.late.remove(*index);
                if matches!(self.apply(&mut state, &sent), Reply::Applied { .. }) {
                    self.reach("arrived late");
                }
            }
            Action::Dies(index) => {
                state.left.deaths -= 1;
                if let Phase::Asking(_, sent) | Phase::Operating(_, sent, _) = &last.clients[*index].phase {
                    state.add_late(sent.clone());
                }
                state.change(*index, |client| client.phase = Phase::Dead);
            }
            Action::Steps(index) => {
                state.left.steps -= 1;
                self.reach("a clock stepped");
                state.change(*index, |client| client.is_ahead = !client.is_ahead);
            }
            Action::Frees(key) => {
                state.left.frees -= 1;
                let operation = Operation::free(key, to_item(last.table.row(key)?), clocks(state.ticks, false))?;
                let operator = state.add(String::new(), Phase::Left, false);
                self.operate(&mut state, operator, operation, None);
            }
            Action::Deletes(key) => {
                state.left.deletions -= 1;
                self.reach("deleted by TTL");
                state.table.remove(key);
            }
        }
        self.check(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("the protocol holds", |_, state: &State| state.broken.is_none())]
    }
}
