//! What a process believes, one line of JSON for each thing, in a file of its own that it only appends to. A line is in the
//! file before the process goes on, so SIGKILL loses none.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::clocks;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// The true time, in nanoseconds. All processes of the machine share it.
    pub(crate) at: u64,
    /// How far the wall clock of the process is ahead of the true one, in milliseconds.
    pub(crate) ahead: i64,
    /// The operation, a number of the process.
    pub(crate) op: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum What {
    /// An acquire begins. `lease` is in milliseconds. Without `waits`, it is a single attempt.
    Asks {
        keys: Vec<String>,
        permits: u32,
        lease: u64,
        waits: bool,
    },
    /// A request begins that may end what an earlier one of this identity has.
    Claims {
        key: String,
        identity: String,
    },
    /// The keys are held, with these fences.
    Has {
        keys: Vec<String>,
        fences: Vec<u64>,
    },
    /// The holder considers itself valid: `is_valid` was asked at this time or later, and said yes.
    Valid,
    /// The holder does not consider itself valid any more.
    Invalid,
    /// A renewal begins. `lease` is in milliseconds.
    Renews {
        lease: u64,
    },
    Renewed,
    /// The lock stays held for its identity.
    Kept,
    /// The identity holds nothing any more.
    Freed,
    Releases,
    /// A release is confirmed.
    Released,
    /// This holder has the key, or one of the permits.
    Refused {
        key: String,
        by: Option<String>,
        fence: Option<u64>,
    },
    /// An error, of this kind.
    Failed {
        why: String,
    },
    /// A write to the fenced store begins.
    Writes {
        key: String,
        fence: u64,
    },
    /// The store has this value now.
    Wrote {
        key: String,
        fence: u64,
        value: u64,
    },
    /// A transaction with the business write and this result begins.
    Commits {
        key: String,
        result: String,
    },
    /// The caller has the result of the key.
    Replied {
        key: String,
        result: String,
    },
    /// The message is done: its queue deletes it.
    Done {
        key: String,
    },
    /// The message returns to its queue.
    Undone {
        key: String,
    },
    /// A call of a rate begins. Its numbers are in microseconds.
    Calls {
        key: String,
        interval: u64,
        tolerance: u64,
    },
    /// The call may go on: now, or after this wait, in microseconds.
    MayCall {
        wait: Option<u64>,
    },
    /// The operation goes on with the invocation of this one, which has failed, or has to run once more.
    GoesOn {
        of: u64,
    },
    /// A request that leaves the work to the holder with this fence and this name begins.
    Leaves {
        key: String,
        fence: u64,
        to: String,
    },
    /// The work is left to it, and the invocation is skipped.
    Left {
        key: String,
        fence: u64,
        to: String,
    },
    /// The release has said that work was left to this holder.
    RunsAgain,
}

/// The file of a process.
#[derive(Debug)]
pub(crate) struct Log(Mutex<File>);

impl Log {
    pub(crate) fn open(path: &Path) -> Self {
        Self(Mutex::new(OpenOptions::new().create(true).append(true).open(path).unwrap()))
    }

    pub(crate) fn note(&self, op: u64, what: What) {
        self.note_at(clocks::now(), op, what);
    }

    /// For a time that was read before.
    pub(crate) fn note_at(&self, at: u64, op: u64, what: What) {
        let mut line = serde_json::to_vec(&Event { at, ahead: clocks::ahead(), op, what }).unwrap();
        line.push(b'\n');
        self.0.lock().unwrap().write_all(&line).unwrap();
    }
}

/// Reads the file of a process. SIGKILL may have cut its last line.
pub(crate) fn read(path: &Path) -> Vec<Event> {
    let text = fs::read_to_string(path).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
