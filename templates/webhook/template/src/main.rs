use hmac::{Hmac, KeyInit, Mac};
use lambda_http::{Body, Error, Request, RequestExt, Response, service_fn};
use lambda_lock::{Idempotency, Locks, idempotency::OnMissingKey};
use std::time::{Duration, SystemTime};

#[derive(serde::Deserialize)]
struct Event {
    id: String,
    r#type: String,
    data: serde_json::Value,
}

/// An event of another type is done at once, and Stripe does not send it again.
async fn fulfil(event: &Event) -> Result<(), Error> {
    if event.r#type == "checkout.session.completed" {
        println!("{}: {} was paid", event.id, event.data["object"]["id"]);
    }
    Ok(())
}

/// An event is recognised by its id. Stripe sends it for up to three days, and a person can send it again for thirty.
fn once(locks: Locks) -> Idempotency<Event, (), Error> {
    Idempotency::new(locks, OnMissingKey::Reject, |event: &Event| Some(event.id.clone()))
        .prefix("{{ project_name }}")
        .window(Duration::from_hours(31 * 24))
}

/// Returns the event if it was signed with the secret, and no more than five minutes ago. The header is
/// `t=TIME,v1=SIGNATURE`.
fn signed(request: &Request, secret: &str, now: SystemTime) -> Option<Event> {
    // Anyone can sign with an empty secret.
    if secret.is_empty() {
        return None;
    }
    let header = request.headers().get("stripe-signature")?.to_str().ok()?;
    let values = |name| header.split(',').filter_map(|part| part.split_once('=')).filter(move |part| part.0 == name);
    let (_, time) = values("t").next()?;
    let signed_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time.parse().ok()?))?;
    if now.duration_since(signed_at).is_ok_and(|age| age > Duration::from_mins(5)) {
        return None;
    }
    let mut expected = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).ok()?;
    expected.update(time.as_bytes());
    expected.update(b".");
    expected.update(request.body());
    let is_expected =
        |(_, signature)| hex::decode(signature).is_ok_and(|it| expected.clone().verify_slice(&it).is_ok());
    if !values("v1").any(is_expected) {
        return None;
    }
    serde_json::from_slice(request.body()).ok()
}

type Events = Idempotency<Event, (), Error>;

/// Stripe sends an event again after any answer but a success.
async fn handle(mut events: Events, secret: &str, request: Request) -> Result<Response<Body>, Error> {
    let Some(event) = signed(&request, secret, SystemTime::now()) else {
        return Ok(Response::builder().status(400).body(Body::Empty)?);
    };
    if let Some(context) = request.lambda_context_ref() {
        events = events.until(context.deadline());
    }
    let status = match events.run(&event, async |_| fulfil(&event).await).await {
        Ok(()) => 200,
        Err(error) => {
            lambda_http::tracing::warn!(%error, event.id, "not fulfilled");
            503
        }
    };
    Ok(Response::builder().status(status).body(Body::Empty)?)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    lambda_http::tracing::init_default_subscriber(); // to CloudWatch Logs
    let events = once(Locks::from_env().await?); // the table is LOCK_TABLE_NAME
    let secret = &std::env::var("WEBHOOK_SECRET")?;
    lambda_http::run(service_fn(|request| handle(events.clone(), secret, request))).await
}

#[cfg(test)]
mod tests {
    use lambda_http::http;
    use lambda_lock::embedded::DynamoDb;

    use super::*;

    fn delivery(secret: &str, age: Duration) -> Request {
        let body = r#"{"id": "evt_1", "type": "checkout.session.completed", "data": {"object": {"id": "cs_1"}}}"#;
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap().abs_diff(age).as_secs();
        let mut signature = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        signature.update(format!("{time}.{body}").as_bytes());
        let signature = hex::encode(signature.finalize().into_bytes());
        let request = http::Request::builder().header("stripe-signature", format!("t={time},v1={signature}"));
        request.body(Body::from(body)).unwrap()
    }

    #[tokio::test]
    async fn an_event_that_is_delivered_twice_is_fulfilled_once() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();

        let mut fences = Vec::new();
        for _ in 0..2 {
            let answer = handle(once(locks.clone()), "secret", delivery("secret", Duration::ZERO)).await.unwrap();
            assert_eq!(answer.status(), 200);
            let record = locks.get("{{ project_name }}#evt_1").await.unwrap().unwrap();
            assert!(record.is_completed());
            fences.push(record.fence());
        }
        assert_eq!(fences[0], fences[1], "it ran twice");
    }

    #[tokio::test]
    async fn an_event_of_somebody_else_and_an_old_one_are_refused() {
        let engine = DynamoDb::new().unwrap();
        let locks = Locks::builder(engine.client(), "locks").build().unwrap();

        let refused = [
            ("secret", delivery("guess", Duration::ZERO)),
            ("secret", delivery("secret", Duration::from_mins(6))),
            ("", delivery("", Duration::ZERO)),
        ];
        for (secret, delivery) in refused {
            assert_eq!(handle(once(locks.clone()), secret, delivery).await.unwrap().status(), 400);
        }
    }
}
