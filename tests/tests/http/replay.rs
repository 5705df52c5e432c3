//! What a replay has of the first response.

use std::convert::Infallible;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, ETAG, LOCATION, SET_COOKIE, VARY};
use http::{HeaderName, HeaderValue};
use lambda_http::{Body, Request, Response};
use lambda_lock::http::HttpIdempotencyBody;
use lambda_lock_tests::invocation::Counter;
use tower::service_fn;

use crate::{MOST, Reply, answering, counting, environment, layer, order, send};

/// A response with headers of all kinds.
fn with_headers(_: u32) -> Response<Body> {
    let mut response = Response::builder()
        .status(303)
        .header(LOCATION, "/orders/1")
        .header(VARY, "accept")
        .header(VARY, "origin")
        .header(ETAG, HeaderValue::from_bytes(b"\"\xe9\xff\"").unwrap())
        .header("x-empty", "")
        .header(SET_COOKIE, "session=secret")
        .header(SET_COOKIE, "theme=dark")
        .header(DATE, "Sun, 22 Nov 2026 12:00:00 GMT")
        .header(CONTENT_LENGTH, "4");
    for name in [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ] {
        response = response.header(name, "x");
    }
    response.body("é\r\n".into()).unwrap()
}

/// The values of a header.
fn values<'a>(reply: &'a Reply, name: &HeaderName) -> Vec<&'a [u8]> {
    reply.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
}

#[tokio::test]
async fn a_replay_has_the_status_the_headers_and_the_bytes_of_the_first_response() {
    let (world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let first = send(&layer, &answering(&runs, with_headers), order(&host)).await;
    assert_eq!(first, Reply::of(with_headers(1).map(HttpIdempotencyBody::<Body>::from)).await);

    let replay = send(&layer, &answering(&runs, with_headers), order(&host)).await;
    assert!(replay.is_replay());
    assert_eq!((replay.status.as_u16(), &replay.body[..]), (303, "é\r\n".as_bytes()));
    let mut names: Vec<_> = replay.headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["etag", "idempotency-replayed", "location", "vary", "x-empty"]);
    for name in [ETAG, LOCATION, VARY, HeaderName::from_static("x-empty")] {
        assert_eq!(values(&replay, &name), values(&first, &name));
    }
    assert_eq!((runs.get(), host.requests()), (1, 3));

    // Also from another environment.
    let other = world.host().build();
    let locks = world.locks(&other).build().unwrap();
    assert_eq!(send(&crate::layer(&locks), &counting(&runs), order(&other)).await, replay);
}

#[tokio::test]
async fn chosen_headers_are_stored_also_cookies() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks).store_headers([SET_COOKIE, ETAG]), Counter::default());
    let first = send(&layer, &answering(&runs, with_headers), order(&host)).await;
    let replay = send(&layer, &answering(&runs, with_headers), order(&host)).await;
    let mut names: Vec<_> = replay.headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["etag", "idempotency-replayed", "set-cookie"]);
    assert_eq!(values(&replay, &SET_COOKIE), values(&first, &SET_COOKIE));
}

#[tokio::test]
async fn headers_that_connection_names_are_not_replayed() {
    let hop = || {
        let response = Response::builder().header(CONNECTION, "close, X-Hop").header(CONNECTION, " x-other ,");
        response.header("x-hop", "1").header("x-other", "2").header("x-end", "3").body(Body::Empty).unwrap()
    };
    let (x_hop, x_end) = (HeaderName::from_static("x-hop"), HeaderName::from_static("x-end"));
    let (_world, host, locks) = environment().await;
    for layer in [layer(&locks), layer(&locks).prefix("chosen").store_headers([x_hop, x_end])] {
        let handler = answering(&Counter::default(), move |_| hop());
        let first = send(&layer, &handler, order(&host)).await;
        assert_eq!((first.header("x-hop"), first.header("x-other")), (Some("1"), Some("2")));
        let replay = send(&layer, &handler, order(&host)).await;
        let mut names: Vec<_> = replay.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["idempotency-replayed", "x-end"]);
    }
}

#[tokio::test]
async fn a_binary_body_is_replayed_byte_by_byte() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let bytes: Vec<u8> = (0..=255).collect();
    for body in [bytes, Vec::new(), vec![0xff; MOST * 3 / 4 - 200]] {
        let handler = answering(&runs, {
            let body = body.clone();
            move |_| Response::new(Body::Binary(body.clone()))
        });
        let key = format!("of {} bytes", body.len());
        for is_replay in [false, true] {
            let reply = send(&layer, &handler, crate::order_of(&host, &key, &().into())).await;
            assert_eq!((reply.is_replay(), &reply.body[..]), (is_replay, &body[..]), "{key}");
        }
    }
}

#[tokio::test]
async fn a_cached_response_is_replayed_without_a_request() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks).cache(10), Counter::default());
    let first = send(&layer, &counting(&runs), order(&host)).await;
    let replay = send(&layer.clone(), &counting(&runs), order(&host)).await;
    assert_eq!((replay.made_by(), &replay.body), ((201, 1, true), &first.body));
    assert_eq!(host.requests(), 2);
}

#[tokio::test]
async fn a_response_is_replayed_for_the_window() {
    let (world, host, locks) = environment().await;
    let runs = Counter::default();
    send(&layer(&locks), &counting(&runs), order(&host)).await;
    for (hours, expected) in [(23, (201, 1, true)), (25, (201, 2, false))] {
        let later = world.host().later(Duration::from_hours(hours)).build();
        let locks = world.locks(&later).build().unwrap();
        assert_eq!(send(&layer(&locks), &counting(&runs), order(&later)).await.made_by(), expected);
    }
}

#[tokio::test]
async fn the_handler_gets_the_request_unchanged() {
    let (_world, host, locks) = environment().await;
    let echo = service_fn(async |request: Request| {
        let (parts, body) = request.into_parts();
        let kind = match &body {
            Body::Text(_) => "text",
            Body::Binary(_) => "binary",
            _ => "empty",
        };
        let mut response = Response::new(Body::from(body.to_vec()));
        *response.headers_mut() = parts.headers;
        response.headers_mut().insert("x-kind", HeaderValue::from_static(kind));
        response.headers_mut().insert("x-uri", parts.uri.to_string().parse().unwrap());
        Ok::<_, Infallible>(response)
    });
    for (key, body, kind) in [
        ("text", Body::from("{ \"a\": 1 }"), "text"),
        ("binary", Body::from(b"abc".to_vec()), "binary"),
        ("empty", Body::Empty, "empty"),
    ] {
        let bytes = body.to_vec();
        let request = crate::with_key(&host, key).header("x-other", "1").body(body).unwrap();
        let reply = send(&layer(&locks), &echo, request).await;
        assert_eq!((reply.header("x-kind"), &reply.body[..]), (Some(kind), &bytes[..]));
        assert_eq!((reply.header("idempotency-key"), reply.header("x-other")), (Some(key), Some("1")));
        assert_eq!(reply.header("x-uri"), Some("https://api.example/orders"));
    }
}
