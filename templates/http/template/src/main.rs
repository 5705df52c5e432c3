use lambda_http::{Body, Error, Request, Response, service_fn, tower::Layer};
use lambda_lock::Locks;
use lambda_lock::http::{Caller, HttpIdempotencyLayer};

async fn place(request: Request) -> Result<Response<Body>, Error> {
    let order = String::from_utf8_lossy(request.body());
    Ok(Response::builder().status(201).body(format!("placed {order}").into())?)
}

/// A key belongs to one caller. A `POST` without a key is refused.
fn once(locks: Locks, caller: Caller) -> HttpIdempotencyLayer {
    HttpIdempotencyLayer::new(locks, caller).prefix("{{ project_name }}")
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_http::tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    lambda_http::run(once(locks, Caller::jwt_subject()).layer(service_fn(place))).await
}

#[cfg(test)]
mod tests {
    use lambda_http::tower::ServiceExt;
    use lambda_lock::embedded::DynamoDb;

    use super::*;

    fn post(order: &str) -> Request {
        let request = lambda_http::http::Request::post("/orders").header("idempotency-key", "\"key-1\"");
        request.body(Body::from(order)).unwrap()
    }

    #[tokio::test]
    async fn a_retry_gets_the_first_response() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        let function = once(locks, Caller::shared()).layer(service_fn(place));

        assert_eq!(function.clone().oneshot(post("tea")).await.unwrap().status(), 201);
        let again = function.clone().oneshot(post("tea")).await.unwrap();
        assert_eq!(again.headers()["idempotency-replayed"], "true");
        assert_eq!(function.oneshot(post("coffee")).await.unwrap().status(), 422);
    }
}
