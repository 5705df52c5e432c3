//! The order of a batch: which items run one after another, and which run once for several records.

use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::settings::Settings;
use super::source::{Name, Source};
use crate::idempotency::{Identity, Invocation};

/// Items that run one after another: a single item, or the items of one lane of the source.
pub(super) struct Lane<C: Source> {
    pub(super) entries: Vec<Entry<C>>,
    /// Whether the lane stops at its first item that is not done.
    pub(super) is_ordered: bool,
}

/// An item that runs once, and its copies in the batch.
pub(super) struct Entry<C: Source> {
    /// The positions in the batch of the item and of its copies.
    pub(super) positions: Vec<usize>,
    pub(super) name: Name,
    /// `None` if the record cannot be read, which has been logged.
    pub(super) item: Option<(C::Item, Option<Identity>)>,
    pub(super) copies: Vec<C::Copy>,
}

impl<C: Source, T, E> Settings<C, T, E> {
    /// Sorts the records of a batch into lanes.
    pub(super) fn lanes(&self, records: Vec<C::Record>, invocation: &Invocation) -> Vec<Lane<C>> {
        let mut lanes: Vec<Lane<C>> = Vec::new();
        let mut index_of_lane: HashMap<C::Lane, usize> = HashMap::new();
        // Per lane: a copy in another lane is a separate item, and its outcome affects the order there.
        let mut firsts: HashMap<_, (usize, usize)> = HashMap::new();
        for (position, record) in records.into_iter().enumerate() {
            let (name, lane) = (C::name(&record), C::lane(&record));
            let is_ordered = lane.is_some();
            let item = self.read(record, &name, invocation);
            let identity = item.as_ref().and_then(|(_, identity)| identity.clone());
            let id = identity.map(|identity| (lane.clone(), identity));
            if let Some(&(lane, entry)) = id.as_ref().and_then(|id| firsts.get(id)) {
                let first = &mut lanes[lane].entries[entry];
                first.positions.push(position);
                first.copies.extend(item.map(|(item, _)| C::copy(item)));
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
            entries.push(Entry { positions: vec![position], name, item, copies: Vec::new() });
        }
        lanes
    }

    /// Returns the parsed record, and the identity of its work.
    fn read(&self, record: C::Record, name: &Name, invocation: &Invocation) -> Option<(C::Item, Option<Identity>)> {
        let failed = |why: &dyn Display| {
            let (message_id, sequence_number) = (name.message_id(), name.sequence_number());
            tracing::error!(message_id, sequence_number, error = %why, "{}", C::NOT_DONE);
        };
        let read = AssertUnwindSafe(|| {
            let item = self.source.read(record)?;
            let identity = self.idempotency.identify(&item, invocation).map_err(|error| error.to_string())?;
            Ok::<_, String>((item, identity))
        });
        match catch_unwind(read) {
            Ok(Ok(item)) => Some(item),
            Ok(Err(why)) => {
                failed(&why);
                None
            }
            Err(_) => {
                failed(&"the parser or the key panicked");
                None
            }
        }
    }
}
