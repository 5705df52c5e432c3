//! The order of a batch: which items run one after another, and which are copies that run once.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::consumer::Consumer;
use super::source::{Inform, Label, NotDone, Source};
use crate::idempotency::{Identity, Invocation};

/// Items that run one after another.
pub(super) struct Lane<S: Source> {
    pub(super) entries: Vec<Entry<S>>,
    /// Whether the lane stops at its first item that is not done.
    pub(super) is_ordered: bool,
}

/// What items have in common that run one after another.
#[derive(PartialEq, Eq, Hash)]
enum Common<L> {
    /// Their lane in the source.
    Lane(L),
    /// The key of their row. Without an order they would run at once, and the second would find the first in progress.
    Key(String),
}

/// An item that runs once.
pub(super) struct Entry<S: Source> {
    /// The item in the batch, and its copies: other deliveries of the same item. Another item with the same key is no copy,
    /// so that its outcome does not depend on what shares its batch.
    pub(super) copies: Vec<Delivered>,
    /// Or why the item cannot be read, which has been logged.
    pub(super) item: Result<(S::Item, Option<Identity>), String>,
}

/// An item as the batch has it.
pub(super) struct Delivered {
    pub(super) position: usize,
    pub(super) label: Arc<Label>,
    /// What tells the source about the fate of the item.
    pub(super) inform: Option<Inform>,
}

impl<S: Source, H, T, E> Consumer<S, H, T, E> {
    /// Sorts the items of a batch into lanes.
    pub(super) fn lanes(&self, batch: Vec<S::Raw>, invocation: &Invocation) -> Vec<Lane<S>> {
        let mut lanes: Vec<Lane<S>> = Vec::new();
        let mut index_of_lane = HashMap::new();
        // Per lane: a copy in another lane is a separate item, and its outcome affects the order there.
        let mut index_of_entry = HashMap::new();
        for (position, raw) in batch.into_iter().enumerate() {
            let (mut label, lane) = (Label::of(&self.source, &raw), S::lane(&raw));
            let inform = self.source.inform(&raw);
            let is_ordered = lane.is_some();
            let item = self.read(raw, &label, invocation);
            let identity = item.as_ref().ok().and_then(|(_, identity)| identity.clone());
            label.key = identity.as_ref().map(|identity| self.idempotency.shown_key(identity));
            let key = || identity.as_ref().map(|identity| Common::Key(identity.key().to_owned()));
            let next = lanes.len();
            let common = lane.map(Common::Lane).or_else(key);
            let index = common.map_or(next, |common| *index_of_lane.entry(common).or_insert(next));
            if index == next {
                lanes.push(Lane { entries: Vec::new(), is_ordered });
            }
            let entries = &mut lanes[index].entries;
            let of_item =
                |identity| *index_of_entry.entry((index, label.name.clone(), identity)).or_insert(entries.len());
            let entry = identity.map(of_item);
            let delivered = Delivered { position, label: Arc::new(label), inform };
            match entry.and_then(|entry| entries.get_mut(entry)) {
                Some(first) => {
                    first.copies.push(delivered);
                    // The drop of a body may panic.
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(item)));
                }
                None => entries.push(Entry { copies: vec![delivered], item }),
            }
        }
        lanes
    }

    /// Returns the parsed item, and the identity of its work.
    fn read(&self, raw: S::Raw, label: &Label, invocation: &Invocation) -> Result<(S::Item, Option<Identity>), String> {
        let read = AssertUnwindSafe(|| {
            if label.name.is_none() {
                return Err(format!("it has no {}", S::NAME));
            }
            let source = S::source(&raw);
            let item = self.source.read(raw)?;
            let identity = self.idempotency.identify(&item, source.as_deref(), invocation);
            let identity = identity.map_err(|error| format!("{error:?}"))?;
            Ok((item, identity))
        });
        let read = catch_unwind(read).unwrap_or_else(|_| Err("the parser or the key panicked".to_owned()));
        read.inspect_err(|why| S::log(label, &NotDone::Failed { error_type: None, error: why }))
    }
}
