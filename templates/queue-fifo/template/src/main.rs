use lambda_lock::{Backoff, Idempotency, Jitter, Locks, SqsConsumer};
use lambda_lock::{idempotency::OnMissingKey, lambda::SqsMessage};
use lambda_runtime::{Diagnostic, Error, Runtime, service_fn, tower::Layer};
use std::{convert::Infallible, env, time::Duration};

#[derive(serde::Deserialize)]
struct Order {
    id: String,
    quantity: u32,
}

/// The body of a message. The handler gets what is not an order, too, and so can make a dead letter of it.
enum Body {
    Order(Order),
    Unreadable,
}

fn parse(text: &str) -> Result<Body, Infallible> {
    Ok(serde_json::from_str(text).map_or(Body::Unreadable, Body::Order))
}

/// Why an order was not placed.
enum Failure {
    Unreadable,
    Empty,
    #[allow(dead_code, reason = "for the work that you put in")]
    Unreachable,
}

impl Failure {
    /// Why no retry can succeed, which the dead letter says.
    fn is_final(&self) -> Option<String> {
        match self {
            Self::Unreadable => Some("the body is not an order".to_owned()),
            Self::Empty => Some("the order has no items".to_owned()),
            Self::Unreachable => None,
        }
    }
}

/// For the log.
impl From<Failure> for Diagnostic {
    fn from(failure: Failure) -> Self {
        let message = failure.is_final().unwrap_or_else(|| "the shop does not answer".to_owned());
        Self { error_type: "Failure".to_owned(), error_message: message }
    }
}

async fn place(message: SqsMessage<Body>) -> Result<(), Failure> {
    let Body::Order(order) = message.body else { return Err(Failure::Unreadable) };
    if order.quantity == 0 {
        return Err(Failure::Empty);
    }
    println!("{}: placed", order.id);
    Ok(())
}

/// An order is recognised by its id, and what is not an order by the id of its message.
fn key(message: &SqsMessage<Body>) -> Option<String> {
    match &message.body {
        Body::Order(order) => Some(format!("order {}", order.id)),
        Body::Unreadable => message.message_id().map(|id| format!("message {id}")),
    }
}

type Orders = SqsConsumer<Body, Failure>;

fn orders(locks: Locks, queues: aws_sdk_sqs::Client, dead_letters: String) -> Orders {
    let once = Idempotency::new(locks, OnMissingKey::Reject, key).window(Duration::from_hours(43 * 24)); // covers a redrive from the dead-letter queue
    // After 30 s, then after a minute, at last after an hour.
    let delays = Backoff::new().base(Duration::from_secs(30)).cap(Duration::from_hours(1)).jitter(Jitter::None);
    SqsConsumer::with_parser(once, parse)
        .max_receive_count(10) // as the queue has it
        .back_off(queues.clone(), delays)
        .dead_letter_if(queues, dead_letters, Failure::is_final)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_runtime::tracing::init_default_subscriber(); // to CloudWatch Logs
    let queues = aws_sdk_sqs::Client::new(&aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await);
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    let dead_letters = env::var("DEAD_LETTERS_URL").map_err(|error| format!("DEAD_LETTERS_URL: {error}"))?;
    Runtime::new(orders(locks, queues, dead_letters).layer(service_fn(place))).run().await
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::config::{BehaviorVersion, Region};
    use aws_smithy_runtime_api::client::http::{
        HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
    };
    use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
    use aws_smithy_types::body::SdkBody;
    use lambda_lock::embedded::DynamoDb;
    use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;

    /// An SQS that does what it is asked.
    #[derive(Debug)]
    struct Queues;

    impl HttpConnector for Queues {
        fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
            HttpConnectorFuture::ready(Ok(HttpResponse::new(200.try_into().unwrap(), SdkBody::from("{}"))))
        }
    }

    fn message(id: &str, body: &str) -> Value {
        json!({
            "messageId": id,
            "receiptHandle": "handle",
            "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:orders.fifo",
            "attributes": { "MessageGroupId": "ada" },
            "body": body,
        })
    }

    fn order(id: &str, quantity: u32) -> String {
        json!({ "id": id, "quantity": quantity }).to_string()
    }

    fn batch<Event: DeserializeOwned>(messages: &[Value]) -> LambdaEvent<Event> {
        LambdaEvent::new(serde_json::from_value(json!({ "Records": messages })).unwrap(), Context::default())
    }

    async fn consumer() -> Orders {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("eu-west-1"))
            .allow_no_auth()
            .http_client(http_client_fn(|_, _| SharedHttpConnector::new(Queues)));
        let queues = aws_sdk_sqs::Client::from_conf(config.build());
        orders(locks, queues, "https://sqs.eu-west-1.amazonaws.com/123456789012/letters.fifo".to_owned())
    }

    /// While the first one runs, another one returns to the queue, and so do the later messages of its group.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_message_returns_with_its_group_while_its_order_is_placed() {
        let function = consumer().await.layer(service_fn(async |message: SqsMessage<Body>| {
            sleep(Duration::from_secs(2)).await;
            place(message).await
        }));
        let again = async {
            sleep(Duration::from_secs(1)).await;
            function.clone().oneshot(batch(&[message("2", &order("tea", 1)), message("3", &order("jam", 1))])).await
        };
        let (first, again) = tokio::join!(function.clone().oneshot(batch(&[message("1", &order("tea", 1))])), again);
        assert!(first.unwrap().batch_item_failures.is_empty());
        let again = again.unwrap();
        let returned: Vec<_> = again.batch_item_failures.iter().map(|failure| &failure.item_identifier).collect();
        assert_eq!(returned, ["2", "3"]);
    }

    /// After the first one has finished, another one is deleted and does not run.
    #[tokio::test]
    async fn an_order_that_was_placed_is_not_placed_again() {
        let consumer = consumer().await;
        let first = consumer.layer(service_fn(place)).oneshot(batch(&[message("1", &order("tea", 1))])).await.unwrap();
        assert!(first.batch_item_failures.is_empty());
        let again = consumer.layer(service_fn(async |_: SqsMessage<Body>| Err(Failure::Unreachable)));
        let again = again.oneshot(batch(&[message("2", &order("tea", 1))])).await.unwrap();
        assert!(again.batch_item_failures.is_empty());
    }

    #[tokio::test]
    async fn what_no_retry_helps_is_a_dead_letter_and_what_a_retry_may_help_returns_with_its_group() {
        let function = consumer().await.layer(service_fn(async |message: SqsMessage<Body>| match &message.body {
            Body::Order(order) if order.id == "late" => Err(Failure::Unreachable),
            _ => place(message).await,
        }));

        let messages = [
            message("1", "?"),
            message("2", &order("empty", 0)),
            message("3", &order("tea", 1)),
            message("4", &order("late", 1)),
            message("5", &order("jam", 1)),
        ];
        let answer = function.oneshot(batch(&messages)).await.unwrap();
        let returned: Vec<_> = answer.batch_item_failures.iter().map(|failure| &failure.item_identifier).collect();
        assert_eq!(returned, ["4", "5"]);
    }
}
