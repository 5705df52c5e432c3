//! The function `order-totals`: each order is counted once.
//!
//! `MiniStack` delivers the records of the table's stream, by the filter of the mapping. It ignores the answer to a batch:
//! it neither delivers again from the number that the answer names, nor bisects, nor counts retries. So
//! `tests/tests/examples/totals.rs` delivers again.

use std::time::Duration;

use crate::loop_until;
use crate::stack::Stack;

/// Needs the placed order of two items, and no other.
pub(crate) async fn a_placed_order_is_counted_once(stack: &Stack) {
    let counted = loop_until(Duration::from_mins(1), async || stack.total("tea").await).await;
    assert_eq!(counted, [1, 2]);
    // The total did not invoke the function. The log has its lines a moment later.
    let runs = async || {
        let lines = stack.log("order-totals").await;
        let runs = lines.iter().filter(|line| line["fields"]["message"] == "counted").count();
        (runs > 0).then_some(runs)
    };
    assert_eq!(loop_until(Duration::from_secs(10), runs).await, 1);
}
