//! The function `payment-queue`: each payment is made once.

use std::array;
use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use lambda_example::Payment;
use serde_json::{Value, json};

use crate::stack::{Stack, entry, payment};
use crate::{VISIBILITY_TIMEOUT, loop_until, number};

pub(crate) async fn a_payment_in_progress_is_hidden_until_its_lease_ends(stack: &Stack) {
    let queue = stack.queue("Payments").await;
    let payment = Payment { paying_ms: 3000, ..payment("hidden", 0) };
    queue.send(&json!(payment)).await;
    loop_until(Duration::from_secs(5), async || stack.lock("payment-queue", "idempotency#hidden").await).await;
    queue.send(&json!(payment)).await;
    loop_until(VISIBILITY_TIMEOUT * 3 / 4, async || queue.is_empty().await.then_some(())).await;
    assert_eq!(stack.times_paid("hidden").await, 1);
}

/// Returns the payment that panics. It becomes a dead letter after enough deliveries. With `panic = "abort"`, the whole
/// batch becomes dead letters.
pub(crate) async fn only_the_payment_that_panics_goes_back(stack: &Stack) -> Value {
    let queue = stack.queue("Payments").await;
    let payments: [_; 10] =
        array::from_fn(|index| Payment { panics: index == 4, ..payment(&format!("ten-{index}"), 0) });
    queue.send_all(payments.iter().map(entry)).await;
    // Within the first delivery: a message that goes back is hidden for longer.
    let made = async || {
        let rows = join_all(payments.iter().map(|payment| stack.payment(&payment.id))).await;
        let made: Vec<_> = rows.iter().map(Option::is_some).collect();
        (made == payments.each_ref().map(|payment| !payment.panics)).then_some(())
    };
    loop_until(VISIBILITY_TIMEOUT * 3 / 4, made).await;
    json!(payments[4])
}

pub(crate) async fn payments_are_made_once_and_poison_becomes_dead_letters(stack: &Stack, panicking: Value) {
    let (queue, dead_letters) = (stack.queue("Payments").await, stack.queue("PaymentDeadLetters").await);
    let poison = json!(payment("poison", u64::MAX));
    for _ in 0..4 {
        queue.send(&json!(payment("duplicate", 0))).await;
    }
    queue.send(&json!(payment("fails-twice", 2))).await;
    queue.send(&poison).await;
    queue.send(&json!("not a payment")).await;

    loop_until(VISIBILITY_TIMEOUT * 8, async || queue.is_empty().await.then_some(())).await;
    assert_eq!(stack.times_paid("duplicate").await, 1);
    assert_eq!(stack.times_paid("fails-twice").await, 1);
    assert_eq!(stack.payment("poison").await, None);
    let dead: BTreeSet<_> = dead_letters.receive_all().await.iter().map(Value::to_string).collect();
    assert_eq!(dead, [json!("not a payment"), poison, panicking].map(|body| body.to_string()).into());
    for index in [0, 1, 2, 3, 5, 6, 7, 8, 9] {
        assert_eq!(stack.times_paid(&format!("ten-{index}")).await, 1);
    }
}

pub(crate) async fn payments_of_a_group_stay_in_order_after_a_failure(stack: &Stack) {
    let queue = stack.queue("OrderedPayments").await;
    let first_of_other = payment("b-1", 0);
    queue.send_in_order("a", &[payment("a-1", 0), payment("a-2", 1), payment("a-3", 0)], &first_of_other).await;
    loop_until(VISIBILITY_TIMEOUT * 3, async || queue.is_empty().await.then_some(())).await;

    let mut began = Vec::new();
    for id in ["a-1", "b-1", "a-2", "a-3"] {
        assert_eq!(stack.times_paid(id).await, 1);
        let record = stack.lock("payment-queue", &format!("idempotency#{id}")).await.unwrap();
        began.push(number(&record, "acquired_at"));
    }
    let [a1, b1, a2, a3] = began[..] else { unreachable!() };
    // These are the times of the last runs. The failed payment ran again after its return, and the rest of its group
    // waited.
    assert!(a2 >= a1 + 1000 * (VISIBILITY_TIMEOUT.as_secs() - 1), "began: {began:?}");
    assert!(a3 > a2 && b1 < a2, "began: {began:?}");
}
