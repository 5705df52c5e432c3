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
    use lambda_runtime::{Context, tower::ServiceExt};

    use super::*;

    fn order(request: &str, amount: u32) -> LambdaEvent<Order> {
        let mut context = Context::default();
        context.request_id = request.to_owned();
        LambdaEvent::new(Order { id: Some("order-1".to_owned()), amount }, context)
    }

    #[tokio::test]
    async fn a_repeated_order_gets_the_first_receipt() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let function = IdempotencyLayer::new(once(locks)).layer(service_fn(charge));

        let receipt = function.clone().oneshot(order("first", 700)).await.unwrap();
        assert_eq!(function.clone().oneshot(order("second", 700)).await.unwrap(), receipt);
        assert_eq!(receipt.request, "first");
        assert!(function.oneshot(order("third", 800)).await.is_err());
    }
}
