use lambda_lock::{Idempotency, IdempotencyLayer, Locks, idempotency::OnMissingKey};
use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn, tower::Layer};
use serde::{Deserialize, Serialize};

#[derive(Clone, Deserialize)]
struct Order {
    id: Option<String>,
    amount: u32,
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Receipt {
    request: String,
    amount: u32,
}

async fn charge(order: LambdaEvent<Order>) -> Result<Receipt, Error> {
    Ok(Receipt { request: order.context.request_id, amount: order.payload.amount })
}

/// An order is recognised by its id. The same id with another amount is an error, and so is an order without an id.
fn once(locks: Locks) -> Idempotency<LambdaEvent<Order>, Receipt, Error> {
    Idempotency::new(locks, OnMissingKey::Reject, |event: &LambdaEvent<Order>| event.payload.id.clone())
        .validate(|event| event.payload.amount)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    Runtime::new(IdempotencyLayer::new(once(locks)).layer(service_fn(charge))).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, Diagnostic, tower::ServiceExt};
    use std::time::Duration;
    use tokio::time::sleep;

    use super::*;

    async fn locks() -> Locks {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        locks
    }

    fn order(request: &str, amount: u32) -> LambdaEvent<Order> {
        let mut context = Context::default();
        context.request_id = request.to_owned();
        LambdaEvent::new(Order { id: Some("order-1".to_owned()), amount }, context)
    }

    /// While the first one runs, another one fails with `IdempotencyInProgress`.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn an_order_fails_while_the_same_order_runs() {
        let function =
            IdempotencyLayer::new(once(locks().await)).layer(service_fn(async |order: LambdaEvent<Order>| {
                sleep(Duration::from_secs(2)).await;
                charge(order).await
            }));
        let again = async {
            sleep(Duration::from_secs(1)).await;
            function.clone().oneshot(order("second", 700)).await
        };
        let (receipt, refused) = tokio::join!(function.clone().oneshot(order("first", 700)), again);
        assert_eq!(receipt.unwrap().request, "first");
        assert_eq!(Diagnostic::from(refused.unwrap_err()).error_type, "IdempotencyInProgress");
    }

    /// After the first one has finished, another one gets the first result.
    #[tokio::test]
    async fn a_repeated_order_gets_the_first_receipt() {
        let function = IdempotencyLayer::new(once(locks().await)).layer(service_fn(charge));

        let receipt = function.clone().oneshot(order("first", 700)).await.unwrap();
        assert_eq!(function.clone().oneshot(order("second", 700)).await.unwrap(), receipt);
        assert_eq!(receipt.request, "first");
        assert!(function.oneshot(order("third", 800)).await.is_err());
    }
}
