//! What the row of a key is, one request after the other, in the words of the protocol and without its expressions. A request says
//! here what it is meant to do; whether its condition says so, too, is what the checker finds out.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::Value;
use stateright::semantics::SequentialSpec;

use crate::request::{LEASE_END, Purpose, Write};

/// The attributes that say who has the key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    owner: String,
    /// The last number that the row has accepted.
    fence: u64,
    /// The number of the last release.
    released: u64,
    withdrawn: u64,
    /// The end of the lease, in milliseconds.
    end: u64,
    sequence: u64,
    /// The process that used up the last ticket.
    resumed: String,
}

impl State {
    pub(super) fn of(item: &Value) -> Self {
        let number = |name: &str| item[name]["N"].as_str().map_or(0, |number| number.parse().unwrap());
        let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
        Self {
            owner: text("owner"),
            fence: number("fence"),
            released: number("released"),
            withdrawn: number("withdrawn"),
            end: number(LEASE_END),
            sequence: number("sequence"),
            resumed: text("resumed"),
        }
    }

    /// The lock of a ticket with this sequence, which nobody has used since.
    fn is_of_ticket(&self, ticket: &Ticket) -> bool {
        self.is_of(&ticket.owner, ticket.own) && self.end > ticket.now && self.sequence <= ticket.sequence
    }

    fn is_of(&self, owner: &str, fence: u64) -> bool {
        self.owner == owner && self.fence == fence
    }
}

/// What a request with a ticket knows of the lock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ticket {
    owner: String,
    own: u64,
    /// The lease has to end after this.
    now: u64,
    sequence: u64,
}

/// A request to the row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operation {
    Read,
    /// A request that leaves all of [`State`] as it is, and may be rejected at any time: a place in the queue.
    Other,
    Acquire {
        owner: String,
        number: u64,
        now: u64,
        end: u64,
        /// A waiter also leaves a free key to those ahead of it.
        leaves_it: bool,
    },
    Renew {
        owner: String,
        own: u64,
        now: u64,
        end: u64,
        sequence: u64,
    },
    Release {
        owner: String,
        own: u64,
        number: u64,
        end: u64,
        sequence: u64,
    },
    /// Uses a ticket up.
    Resume {
        ticket: Ticket,
        by: String,
    },
    /// Moves the end of a ticket's lease to a later time.
    RenewByTicket {
        ticket: Ticket,
        end: u64,
    },
    /// Uses up all earlier sequences of a ticket whose lease ends late enough.
    KeepByTicket {
        ticket: Ticket,
        end: u64,
    },
    /// Frees the key for others than its owner.
    Free {
        owner: String,
        seen: u64,
        number: u64,
        now: u64,
    },
    /// Gives up the numbers up to this one.
    Withdraw {
        number: u64,
    },
    /// The same, if there is no row.
    WithdrawWithoutRow {
        owner: String,
        number: u64,
    },
}

impl Operation {
    /// What an update is meant to do.
    pub(super) fn of(write: &Write) -> Self {
        let number = |name: &str| write.number(name).unwrap_or_else(|| panic!("no {name} in {write:?}"));
        let compared = |name: &str| write.compared(name).unwrap_or_else(|| panic!("no {name} in {write:?}"));
        let owner = write.owner.clone();
        let ticket =
            |sequence| Ticket { owner: owner.clone(), own: compared("fence"), now: compared(LEASE_END), sequence };
        match write.purpose {
            Purpose::Resume => {
                let by = write.text("resumed").unwrap_or_default().to_owned();
                Self::Resume { ticket: ticket(number("sequence") - 1), by }
            }
            Purpose::RenewByTicket => {
                Self::RenewByTicket { ticket: ticket(number("sequence")), end: number(LEASE_END) }
            }
            Purpose::KeepByTicket => {
                let end = write.equals(LEASE_END).unwrap_or_else(|| panic!("no end in {write:?}"));
                Self::KeepByTicket { ticket: ticket(number("sequence")), end }
            }
            Purpose::Acquire => Self::Acquire {
                owner,
                number: number("fence"),
                now: number("acquired_at"),
                end: number(LEASE_END),
                leaves_it: ["head", "freed_at", "reserved_until"].iter().any(|name| write.mentions(name)),
            },
            Purpose::Renew => Self::Renew {
                owner,
                own: compared("fence"),
                now: compared(LEASE_END),
                end: number(LEASE_END),
                sequence: number("sequence"),
            },
            Purpose::Release => Self::Release {
                owner,
                own: compared("fence"),
                number: number("fence"),
                end: number(LEASE_END),
                sequence: number("sequence"),
            },
            Purpose::Free => {
                Self::Free { owner, seen: compared("fence"), number: number("fence"), now: compared(LEASE_END) }
            }
            Purpose::Withdraw if write.sets("owner").is_some() => {
                Self::WithdrawWithoutRow { owner, number: number("fence") }
            }
            Purpose::Withdraw => Self::Withdraw { number: number("withdrawn") },
            Purpose::Join | Purpose::Look => Self::Other,
            other => panic!("these histories have no {other:?}"),
        }
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// `None` if the answer was lost.
    pub(super) is_accepted: Option<bool>,
    pub(super) row: Shown,
}

/// What an answer shows of the row before the request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shown {
    Nothing,
    /// The row, or that there was none.
    Row(Option<State>),
}

/// A row, and how many steps the checker may still try.
#[derive(Clone, Debug)]
pub(super) struct Row {
    state: Option<State>,
    steps: Rc<Cell<u64>>,
}

impl Row {
    /// A key that nobody has had.
    pub(super) fn new(steps: &Rc<Cell<u64>>) -> Self {
        Self { state: None, steps: Rc::clone(steps) }
    }

    /// The state after the operation if the row accepts it. `None` if the row must reject it.
    fn accepted(&self, operation: &Operation) -> Option<State> {
        let state = self.state.as_ref();
        match operation {
            Operation::Read | Operation::Other => None,
            Operation::Acquire { owner, number, now, end, .. } => {
                let is_free = state.is_none_or(|row| *number > row.fence && *number > row.withdrawn && row.end <= *now);
                let before = state.cloned().unwrap_or_default();
                let after = State { owner: owner.clone(), fence: *number, end: *end, sequence: 0, ..before };
                is_free.then_some(after)
            }
            Operation::Renew { owner, own, now, end, sequence } => {
                let row = state.filter(|row| row.is_of(owner, *own) && row.end > *now && row.sequence < *sequence)?;
                Some(State { end: *end, sequence: *sequence, ..row.clone() })
            }
            Operation::Release { owner, own, number, end, sequence } => {
                let is_again = |row: &State| row.is_of(owner, *number) && row.released == *number;
                let row = state.filter(|row| row.is_of(owner, *own) || is_again(row))?;
                let after = State { fence: *number, released: *number, end: *end, sequence: *sequence, ..row.clone() };
                (row.sequence < *sequence).then_some(after)
            }
            Operation::Resume { ticket, by } => {
                let row = state.filter(|row| row.is_of_ticket(ticket))?;
                Some(State { sequence: ticket.sequence + 1, resumed: by.clone(), ..row.clone() })
            }
            Operation::RenewByTicket { ticket, end } => {
                let row = state.filter(|row| row.is_of_ticket(ticket) && row.end < *end)?;
                Some(State { end: *end, sequence: ticket.sequence, ..row.clone() })
            }
            Operation::KeepByTicket { ticket, end } => {
                let row = state.filter(|row| row.is_of_ticket(ticket) && row.end == *end)?;
                Some(State { sequence: ticket.sequence, ..row.clone() })
            }
            Operation::Free { owner, seen, number, now } => {
                let is_free = |row: &State| row.released == row.fence && row.end <= *now;
                let row = state.filter(|row| row.is_of(owner, *seen) && !is_free(row))?;
                Some(State { fence: *number, released: *number, end: 1, ..row.clone() })
            }
            Operation::Withdraw { number } => {
                let row = state.filter(|row| row.withdrawn < *number)?;
                Some(State { withdrawn: *number, ..row.clone() })
            }
            Operation::WithdrawWithoutRow { owner, number } => state.is_none().then(|| State {
                owner: owner.clone(),
                fence: *number,
                released: *number,
                end: 1,
                ..State::default()
            }),
        }
    }

    /// The row may reject what it could accept.
    pub(super) fn may_reject(operation: &Operation) -> bool {
        matches!(
            operation,
            // A withdrawal also asks for how long the row stays.
            Operation::Other
                | Operation::Read
                | Operation::Withdraw { .. }
                | Operation::Acquire { leaves_it: true, .. }
        )
    }
}

impl SequentialSpec for Row {
    type Op = Operation;
    type Ret = Answer;

    fn invoke(&mut self, operation: &Operation) -> Answer {
        self.steps.set(self.steps.get().saturating_sub(1));
        let row = Shown::Row(self.state.clone());
        let after = self.accepted(operation);
        let is_accepted = Some(after.is_some());
        self.state = after.or(self.state.take());
        Answer { is_accepted, row }
    }

    fn is_valid_step(&mut self, operation: &Operation, answer: &Answer) -> bool {
        self.steps.set(self.steps.get().saturating_sub(1));
        let is_as_shown = match &answer.row {
            Shown::Row(row) => *row == self.state,
            Shown::Nothing => true,
        };
        if self.steps.get() == 0 || !is_as_shown {
            return false;
        }
        match (answer.is_accepted, self.accepted(operation)) {
            (Some(true) | None, Some(after)) => self.state = Some(after),
            // A place and a read leave the row as it is.
            (Some(true), None) => return matches!(operation, Operation::Other | Operation::Read),
            (Some(false), Some(_)) => return Self::may_reject(operation),
            (Some(false) | None, None) => {}
        }
        true
    }
}
