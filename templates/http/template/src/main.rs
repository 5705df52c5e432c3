use lambda_http::{Body, Error, Request, Response, service_fn, tower::Layer};
use lambda_lock::Locks;
use lambda_lock::http::{Caller, HttpIdempotencyLayer};
use std::time::Duration;

/// A second less than the function's timeout, so that a request which takes too long is answered with 503 in time.
const LEASE: Duration = Duration::from_secs(28);

async fn place(request: Request) -> Result<Response<Body>, Error> {
    let order = String::from_utf8_lossy(request.body());
    Ok(Response::builder().status(201).body(format!("placed {order}").into())?)
}

/// A key belongs to one caller. A `POST` without a key is refused.
fn once(locks: Locks, caller: Caller) -> HttpIdempotencyLayer {
    HttpIdempotencyLayer::new(locks, caller).prefix("{{ project_name }}").lease(LEASE)
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
    use tokio::time::sleep;

    use super::*;

    async fn layer() -> HttpIdempotencyLayer {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        once(locks, Caller::shared())
    }

    fn post(order: &str) -> Request {
        let request = lambda_http::http::Request::post("/orders").header("idempotency-key", "\"key-1\"");
        request.body(Body::from(order)).unwrap()
    }

    /// While the first one runs, another one is answered with 409.
    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn a_retry_gets_409_while_the_first_request_runs() {
        let function = layer().await.layer(service_fn(async |request: Request| {
            sleep(Duration::from_secs(2)).await;
            place(request).await
        }));
        let again = async {
            sleep(Duration::from_secs(1)).await;
            function.clone().oneshot(post("tea")).await.unwrap().status()
        };
        let (first, again) = tokio::join!(function.clone().oneshot(post("tea")), again);
        assert_eq!((first.unwrap().status().as_u16(), again.as_u16()), (201, 409));
    }

    /// After the first one has finished, another one gets the first response.
    #[tokio::test]
    async fn a_retry_gets_the_first_response() {
        let function = layer().await.layer(service_fn(place));

        assert_eq!(function.clone().oneshot(post("tea")).await.unwrap().status(), 201);
        let again = function.clone().oneshot(post("tea")).await.unwrap();
        assert_eq!(again.status(), 201);
        assert_eq!(again.headers()["idempotency-replayed"], "true");
        assert_eq!(function.oneshot(post("coffee")).await.unwrap().status(), 422);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_takes_too_long_gets_503_and_its_retry_runs() {
        let layer = layer().await;
        let slow = layer.layer(service_fn(async |request: Request| {
            sleep(LEASE).await;
            place(request).await
        }));
        assert_eq!(slow.oneshot(post("tea")).await.unwrap().status(), 503);
        assert_eq!(layer.layer(service_fn(place)).oneshot(post("tea")).await.unwrap().status(), 201);
    }
}
