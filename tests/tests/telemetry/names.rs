//! The names, units and labels of the metrics.

use std::time::SystemTime;

use lambda_lock::embedded::DynamoDb;
use lambda_lock::{Locks, metrics as names};
use metrics::Unit;

use crate::TABLE;
use crate::recorder::{Metrics, PINNED};

#[test]
fn names_units_and_labels_are_pinned() {
    let metrics = Metrics::begin();
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH).unwrap();
    let _locks = Locks::builder(engine.client(), TABLE).build().unwrap();
    for (name, pinned, unit) in PINNED {
        assert_eq!(name, pinned);
        match unit {
            Unit::Count if name != names::WAITERS_AHEAD => metrics::counter!(name).increment(1),
            _ => metrics::histogram!(name).record(1.0),
        }
    }
    let described = metrics.snapshotter.snapshot().into_vec();
    assert_eq!(described.len(), PINNED.len());
    for (key, unit, description, _) in described {
        let (_, _, wanted) = PINNED.iter().find(|(name, ..)| *name == key.key().name()).unwrap();
        assert_eq!(unit, Some(*wanted), "the unit of {key:?}");
        assert!(description.is_some_and(|description| !description.is_empty()), "{key:?}");
    }
    assert_eq!((names::REASON, names::OUTCOME), ("reason", "outcome"));
}

#[test]
fn a_later_recorder_can_be_given_the_units() {
    let metrics = Metrics::begin();
    metrics::counter!(names::LOST).increment(1);
    let units = |metrics: &Metrics| metrics.snapshotter.snapshot().into_vec().into_iter().map(|(_, unit, ..)| unit);
    assert_eq!(units(&metrics).collect::<Vec<_>>(), [None]);
    names::describe();
    assert_eq!(units(&metrics).collect::<Vec<_>>(), [Some(Unit::Count)]);
}
