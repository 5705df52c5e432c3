//! The order of a batch: which items run one after another, and which are copies that run once.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::consumer::Consumer;
use super::source::{Inform, Label, NotDone, Source};
use crate::idempotency::{Identity, Invocation};

/// Items that run one after another: a single item, or the items of one lane of the source.
pub(super) struct Lane<S: Source> {
    pub(super) entries: Vec<Entry<S>>,
    /// Whether the lane stops at its first item that is not done.
    pub(super) is_ordered: bool,
}

/// An item that runs once.
pub(super) struct Entry<S: Source> {
    /// The item in the batch, and its copies.
    pub(super) copies: Vec<Delivered>,
    /// `None` if the item cannot be read, which has been logged.
    pub(super) item: Option<(S::Item, Option<Identity>)>,
}

/// An item as the batch has it.
pub(super) struct Delivered {
    pub(super) position: usize,
    pub(super) label: Label,
    /// What tells the source about the fate of the item.
    pub(super) inform: Option<Inform>,
}

impl<S: Source, H, T, E> Consumer<S, H, T, E> {
    /// Sorts the items of a batch into lanes.
    pub(super) fn lanes(&self, batch: Vec<S::Raw>, invocation: &Invocation) -> Vec<Lane<S>> {
        let mut lanes: Vec<Lane<S>> = Vec::new();
        let mut index_of_lane: HashMap<S::Lane, usize> = HashMap::new();
        // Per lane: a copy in another lane is a separate item, and its outcome affects the order there.
        let mut firsts: HashMap<_, (usize, usize)> = HashMap::new();
        for (position, raw) in batch.into_iter().enumerate() {
            let (mut label, lane) = (Label::of(&self.source, &raw), S::lane(&raw));
            let inform = self.source.inform(&raw);
            let is_ordered = lane.is_some();
            let item = self.read(raw, &label, invocation);
            let identity = item.as_ref().and_then(|(_, identity)| identity.clone());
            label.key = identity.as_ref().map(|identity| self.idempotency.shown_key(identity));
            let id = identity.map(|identity| (lane.clone(), identity));
            let delivered = Delivered { position, label, inform };
            if let Some(&(lane, entry)) = id.as_ref().and_then(|id| firsts.get(id)) {
                lanes[lane].entries[entry].copies.push(delivered);
                // The drop of a body may panic.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(item)));
                continue;
            }
            let next = lanes.len();
            let index = lane.map_or(next, |lane| *index_of_lane.entry(lane).or_insert(next));
            if index == next {
                lanes.push(Lane { entries: Vec::new(), is_ordered });
            }
            let entries = &mut lanes[index].entries;
            if let Some(id) = id {
                firsts.insert(id, (index, entries.len()));
            }
            entries.push(Entry { copies: vec![delivered], item });
        }
        lanes
    }

    /// Returns the parsed item, and the identity of its work.
    fn read(&self, raw: S::Raw, label: &Label, invocation: &Invocation) -> Option<(S::Item, Option<Identity>)> {
        let read = AssertUnwindSafe(|| {
            if label.name.is_none() {
                return Err(format!("it has no {}", S::NAME));
            }
            let item = self.source.read(raw)?;
            let identity = self.idempotency.identify(&item, invocation).map_err(|error| error.to_string())?;
            Ok((item, identity))
        });
        let read = catch_unwind(read).unwrap_or_else(|_| Err("the parser or the key panicked".to_owned()));
        read.inspect_err(|why| S::log(label, &NotDone::Failed { error_type: None, error: why })).ok()
    }
}
