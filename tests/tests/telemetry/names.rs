//! The units of the metrics.

use lambda_lock::metrics as names;
use metrics::Unit;

use crate::recorder::Metrics;

#[test]
fn a_later_recorder_can_be_given_the_units() {
    let metrics = Metrics::begin();
    metrics::counter!(names::LOST).increment(1);
    let units = |metrics: &Metrics| metrics.snapshotter.snapshot().into_vec().into_iter().map(|(_, unit, ..)| unit);
    assert_eq!(units(&metrics).collect::<Vec<_>>(), [None]);
    names::describe();
    assert_eq!(units(&metrics).collect::<Vec<_>>(), [Some(Unit::Count)]);
}
