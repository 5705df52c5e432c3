use hmac::{Hmac, KeyInit, Mac};
use lambda_http::{Body, Error, Request, RequestExt, Response, service_fn};
use lambda_lock::{Idempotency, Locks, idempotency::OnMissingKey};
use std::time::{Duration, SystemTime};

#[derive(serde::Deserialize)]
struct Event {
    id: String,
    r#type: String,
    /// Thin events have none.
    #[serde(default)]
    data: serde_json::Value,
}

/// An event of another type is done at once, and Stripe does not send it again.
async fn fulfill(event: &Event) -> Result<(), Error> {
    if event.r#type == "checkout.session.completed" {
        let session = event.data["object"]["id"].as_str().ok_or("the event has no session")?;
        println!("{}: {session} was paid", event.id);
    }
    Ok(())
}

/// An event is recognised by its id. Stripe sends it for up to three days, and a person can send it again for thirty.
fn once(locks: Locks) -> Idempotency<Event, (), Error> {
    Idempotency::new(locks, OnMissingKey::Reject, |event: &Event| Some(event.id.clone()))
        .prefix("{{ project_name }}")
        .window(Duration::from_hours(31 * 24))
}

/// Checks that the body was signed with the secret, and no more than five minutes ago. The header is
/// `t=TIME,v1=SIGNATURE`.
fn check_signature(request: &Request, secret: &str, now: SystemTime) -> Result<(), &'static str> {
    let secret = secret.trim(); // a shell or an editor may have added a line break
    if secret.is_empty() {
        return Err("WEBHOOK_SECRET is empty, and anyone can sign with that");
    }
    let header = request.headers().get("stripe-signature").and_then(|header| header.to_str().ok());
    let header = header.ok_or("there is no header Stripe-Signature")?;
    let values = |name| header.split(',').filter_map(|part| part.split_once('=')).filter(move |part| part.0 == name);
    let time = values("t").next().map_or("", |(_, time)| time);
    let signed_at = time.parse().map_err(|_| "the header Stripe-Signature has no time")?;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if now.saturating_sub(Duration::from_secs(signed_at)) > Duration::from_mins(5) {
        return Err("it was signed more than five minutes ago");
    }
    let mut expected =
        Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).map_err(|_| "WEBHOOK_SECRET cannot be a key")?;
    expected.update(time.as_bytes());
    expected.update(b".");
    expected.update(request.body());
    let is_expected =
        |(_, signature)| hex::decode(signature).is_ok_and(|it| expected.clone().verify_slice(&it).is_ok());
    if values("v1").any(is_expected) { Ok(()) } else { Err("it was not signed with WEBHOOK_SECRET") }
}

type Events = Idempotency<Event, (), Error>;

/// Stripe sends an event again after any answer but a success.
async fn handle(mut events: Events, secret: &str, request: Request) -> Result<Response<Body>, Error> {
    if let Some(context) = request.lambda_context_ref() {
        events = events.deadline(context.deadline());
    }
    let status = if let Err(reason) = check_signature(&request, secret, SystemTime::now()) {
        lambda_http::tracing::warn!(reason, "refused");
        400
    } else {
        match serde_json::from_slice::<Event>(request.body()) {
            Ok(event) => match events.run(&event, async |_| fulfill(&event).await).await {
                Ok(()) => 200,
                Err(error) => {
                    lambda_http::tracing::warn!(?error, event.id, "not fulfilled");
                    503
                }
            },
            // The error's text would show a part of the body.
            Err(error) => {
                lambda_http::tracing::warn!(line = error.line(), column = error.column(), "signed, but not understood");
                503
            }
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
    use lambda_http::tracing::subscriber::{fmt, util::SubscriberInitExt};
    use lambda_lock::embedded::DynamoDb;
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    const PAID: &str = r#"{"id": "evt_1", "type": "checkout.session.completed", "data": {"object": {"id": "cs_1"}}}"#;

    fn delivery_of(body: &str, secret: &str, age: Duration) -> Request {
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap().abs_diff(age).as_secs();
        let mut signature = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        signature.update(format!("{time}.{body}").as_bytes());
        let signature = hex::encode(signature.finalize().into_bytes());
        let mut request = Request::new(Body::from(body));
        request.headers_mut().insert("stripe-signature", format!("t={time},v1={signature}").parse().unwrap());
        request
    }

    fn delivery(body: &str) -> Request {
        delivery_of(body, "secret", Duration::ZERO)
    }

    async fn events() -> Events {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        locks.create_table().await.unwrap();
        once(locks)
    }

    async fn status(events: &Events, delivery: Request) -> u16 {
        handle(events.clone(), "secret", delivery).await.unwrap().status().as_u16()
    }

    /// While the first one runs, another one is answered with 503, so Stripe sends it again.
    #[tokio::test]
    async fn an_event_is_not_acknowledged_while_it_is_fulfilled() {
        let events = events().await;
        let event = serde_json::from_str(PAID).unwrap();
        let first = events.run(&event, async |_| {
            assert_eq!(status(&events, delivery(PAID)).await, 503);
            Ok(())
        });
        first.await.unwrap();
    }

    /// After the first one has finished, another one is answered with 200 and does not run.
    #[tokio::test]
    async fn an_event_that_is_delivered_twice_is_fulfilled_once() {
        let events = events().await;
        assert_eq!(status(&events, delivery(PAID)).await, 200);
        let event = serde_json::from_str(PAID).unwrap();
        events.run(&event, async |_| panic!("it runs twice")).await.unwrap();
        assert_eq!(status(&events, delivery(PAID)).await, 200);
    }

    #[tokio::test]
    async fn a_secret_with_a_line_break_at_its_end_is_the_secret() {
        let answer = handle(events().await, "secret\r\n", delivery(PAID)).await.unwrap();
        assert_eq!(answer.status(), 200);
    }

    #[tokio::test]
    async fn an_event_without_data_is_acknowledged() {
        let thin = r#"{"id": "evt_2", "object": "v2.core.event", "type": "v1.billing.meter.no_meter_found"}"#;
        assert_eq!(status(&events().await, delivery(thin)).await, 200);
    }

    #[tokio::test]
    async fn a_signed_body_that_is_not_understood_is_sent_again() {
        let events = events().await;
        for body in ["", "[]", r#"{"object": "event"}"#, r#"{"id": "evt_3", "type": "checkout.session.completed"}"#] {
            assert_eq!(status(&events, delivery(body)).await, 503, "{body}");
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_event_that_stripe_did_not_sign_is_refused_with_a_warning() {
        let (events, log) = (events().await, Log::default());
        let writer = log.clone();
        let _here = fmt().with_ansi(false).with_writer(move || writer.clone()).set_default();
        let refused = [
            ("secret", Request::new(Body::from(PAID))),
            ("secret", delivery_of(PAID, "guess", Duration::ZERO)),
            ("secret", delivery_of(PAID, "secret", Duration::from_mins(6))),
            ("", delivery_of(PAID, "", Duration::ZERO)),
            ("\n", delivery_of(PAID, "\n", Duration::ZERO)),
        ];
        for (secret, delivery) in refused {
            assert_eq!(handle(events.clone(), secret, delivery).await.unwrap().status(), 400);
            let lines = String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
            assert!(lines.contains("WARN") && lines.contains("reason="), "{lines}");
            assert!(!lines.contains("cs_1") && !lines.contains("secret"), "{lines}");
        }
    }
}
