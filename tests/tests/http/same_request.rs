//! What must be equal in a retry.

use std::slice::from_ref;

use aws_sdk_dynamodb::types::AttributeValue;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderName, Method, StatusCode};
use lambda_http::{Body, Request};
use lambda_lock::embedded::Host;
use lambda_lock_tests::invocation::Counter;
use serde_json::Value;

use crate::{Reply, counting, environment, layer, send, to};

/// A request with the key `a`.
fn request(host: &Host, method: Method, uri: &str, content_type: &str, body: &str) -> Request {
    let head = to(host, method, uri).header("idempotency-key", "a").header(CONTENT_TYPE, content_type);
    head.body(body.into()).unwrap()
}

/// Asserts that the second request is a retry of the first, or another request.
async fn assert_equal(first: impl Fn(&Host) -> Request, second: impl Fn(&Host) -> Request, is_equal: bool) {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    assert_eq!(send(&layer, &counting(&runs), first(&host)).await.made_by(), (201, 1, false));
    let retry = send(&layer, &counting(&runs), second(&host)).await;
    let expected = if is_equal { StatusCode::CREATED } else { StatusCode::UNPROCESSABLE_ENTITY };
    assert_eq!((retry.status, retry.is_replay(), runs.get()), (expected, is_equal, 1), "{:?}", second(&host));
}

#[tokio::test]
async fn method_path_query_and_body_must_be_equal() {
    const JSON: &str = "application/json";
    let first = |host: &Host| request(host, Method::POST, "https://a.example/orders?x=1&y=2", JSON, r#"{"a":1,"b":2}"#);
    for (method, uri, content_type, body, is_equal) in [
        (Method::POST, "https://a.example/orders?x=1&y=2", JSON, r#"{"a":1,"b":2}"#, true),
        (Method::POST, "https://b.example/orders?y=2&x=1", JSON, r#"{ "b": 2, "a": 1 }"#, true),
        (Method::PATCH, "https://a.example/orders?x=1&y=2", JSON, r#"{"a":1,"b":2}"#, false),
        (Method::POST, "https://a.example/order?x=1&y=2", JSON, r#"{"a":1,"b":2}"#, false),
        (Method::POST, "https://a.example/orders?x=1&y=3", JSON, r#"{"a":1,"b":2}"#, false),
        (Method::POST, "https://a.example/orders", JSON, r#"{"a":1,"b":2}"#, false),
        (Method::POST, "https://a.example/orders?x=1&y=2", JSON, r#"{"a":1,"b":2.0}"#, false),
        (Method::POST, "https://a.example/orders?x=1&y=2", JSON, r#"{"a":1,"b":2,"b":2}"#, false),
        (Method::POST, "https://a.example/orders?x=1&y=2", "text/plain", r#"{ "a":1,"b":2}"#, false),
        (Method::POST, "https://a.example/orders?x=1&y=2", JSON, "", false),
    ] {
        let second = |host: &Host| request(host, method.clone(), uri, content_type, body);
        assert_equal(first, second, is_equal).await;
    }
}

#[tokio::test]
async fn bytes_are_compared_as_they_are() {
    let of = |bytes: &'static [u8]| {
        move |host: &Host| {
            let head = to(host, Method::POST, "/").header("idempotency-key", "a");
            head.body(Body::Binary(bytes.to_vec())).unwrap()
        }
    };
    assert_equal(of(b"\xff\x00"), of(b"\xff\x00"), true).await;
    assert_equal(of(b"\xff\x00"), of(b"\xfe\x00"), false).await;
    // Text and binary are the same bytes.
    let text = |host: &Host| request(host, Method::POST, "/", "text/plain", "abc");
    assert_equal(text, of(b"abc"), true).await;
}

/// A form with this boundary and these parts.
fn form(host: &Host, boundary: &str, parts: &[&str]) -> Request {
    let parts = parts.join(&format!("\r\n--{boundary}\r\n"));
    let body = format!("--{boundary}\r\n{parts}\r\n--{boundary}--\r\n");
    request(host, Method::POST, "/orders", &format!("multipart/form-data; boundary=\"{boundary}\""), &body)
}

const ITEM: &str = "Content-Disposition: form-data; name=\"item\"\r\n\r\ntea";
const NOTE: &str = "Content-Disposition: form-data; name=\"note\"\r\n\r\n\r\n--\r\n";

#[tokio::test]
async fn a_form_that_is_built_anew_with_another_boundary_is_equal() {
    let first = |host: &Host| form(host, "a", &[ITEM, NOTE]);
    assert_equal(first, |host| form(host, "b c", &[ITEM, NOTE]), true).await;
    assert_equal(first, |host| form(host, "----x'=?", &[ITEM, NOTE]), true).await;
    assert_equal(first, |host| form(host, "a", &[ITEM]), false).await;
    assert_equal(first, |host| form(host, "a", &[NOTE, ITEM]), false).await;
    assert_equal(first, |host| form(host, "a", &[&ITEM.replace("tea", "coffee"), NOTE]), false).await;
}

#[tokio::test]
async fn the_boundary_does_not_count_as_a_part_of_a_chosen_header() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks).fingerprint_headers([CONTENT_TYPE]), Counter::default());
    for boundary in ["a", "b"] {
        assert_eq!(send(&layer, &counting(&runs), form(&host, boundary, &[ITEM])).await.status, 201);
    }
    assert_eq!(runs.get(), 1);
}

/// A body as gzip makes it at this time.
fn compressed(host: &Host, coding: &str, time: u8, content: u8) -> Request {
    let head = to(host, Method::POST, "/orders").header("idempotency-key", "a").header(CONTENT_ENCODING, coding);
    head.body(Body::Binary(vec![0x1f, 0x8b, 8, 0, time, 0, 0, 0, 0, 3, content])).unwrap()
}

#[tokio::test]
async fn a_body_that_is_compressed_at_another_time_is_equal() {
    assert_equal(|host| compressed(host, "gzip", 1, 7), |host| compressed(host, "GZIP", 2, 7), true).await;
    assert_equal(|host| compressed(host, "gzip", 1, 7), |host| compressed(host, "gzip", 1, 8), false).await;
    // A file in gzip's format: the time is a part of it.
    assert_equal(|host| compressed(host, "br", 1, 7), |host| compressed(host, "br", 2, 7), false).await;
}

#[tokio::test]
async fn a_closure_says_what_of_a_body_counts() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let layer = layer.fingerprint_body(|head, body| {
        assert_eq!(head.uri.path(), "/orders");
        let mut order: Value = serde_json::from_slice(body).ok()?;
        order.as_object_mut()?.remove("sent_at");
        Some(order)
    });
    for (key, body, status) in [
        ("a", r#"{"item":"tea","count":1,"sent_at":1}"#, 201),
        ("a", r#"{"sent_at":2,"count":1,"item":"tea"}"#, 201),
        ("a", r#"{"item":"tea","count":2,"sent_at":1}"#, 422),
        // Unreadable for the closure: all of it counts.
        ("b", "tea at 1", 201),
        ("b", "tea at 1", 201),
        ("b", "tea at 2", 422),
    ] {
        let mut request = request(&host, Method::POST, "/orders", "text/plain", body);
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        assert_eq!(send(&layer, &counting(&runs), request).await.status, status, "{body}");
    }
    assert_eq!(runs.get(), 2);
}

#[tokio::test]
async fn chosen_headers_must_be_equal() {
    let version = HeaderName::from_static("x-version");
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks).fingerprint_headers([version.clone()]), Counter::default());
    for (versions, accept, status) in [
        (&["1"] as &[_], "text/html", 201),
        (&["1"], "text/plain", 201),
        (&["2"], "text/html", 422),
        (&[], "text/html", 422),
        (&["1", "1"], "text/html", 422),
    ] {
        let mut request = request(&host, Method::POST, "/orders", "text/plain", "tea");
        for version_value in versions {
            request.headers_mut().append(&version, version_value.parse().unwrap());
        }
        request.headers_mut().insert(ACCEPT, accept.parse().unwrap());
        assert_eq!(send(&layer, &counting(&runs), request).await.status, status, "{versions:?}");
    }
}

/// The answers to requests with this value of a header, before and after a deployment that changes the chosen headers.
async fn across_a_deployment(before: &[HeaderName], after: &[HeaderName], second: impl Fn(&Host) -> Request) -> Reply {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let first = layer(&locks).fingerprint_headers(before.iter().cloned());
    assert_eq!(send(&first, &counting(&runs), versioned(&host, "tea", "1")).await.made_by(), (201, 1, false));
    let reply = send(&layer(&locks).fingerprint_headers(after.iter().cloned()), &counting(&runs), second(&host)).await;
    assert_eq!(runs.get(), 1);
    reply
}

/// A request with this body and this value of `x-version`.
fn versioned(host: &Host, body: &str, version: &str) -> Request {
    let mut request = request(host, Method::POST, "/orders", "text/plain", body);
    request.headers_mut().insert("x-version", version.parse().unwrap());
    request
}

#[tokio::test]
async fn a_retry_after_a_deployment_that_changes_the_chosen_headers_gets_the_response() {
    let version = HeaderName::from_static("x-version");
    let both = [version, CONTENT_TYPE];
    let [version, content_type] = both.each_ref().map(from_ref);
    for (before, after) in [(&[][..], version), (version, &[]), (version, content_type), (&both, content_type)] {
        let reply = across_a_deployment(before, after, |host| versioned(host, "tea", "1")).await;
        assert_eq!(reply.made_by(), (201, 1, true), "{before:?} {after:?}");
    }
}

#[tokio::test]
async fn another_request_after_a_deployment_that_changes_the_chosen_headers_is_another_request() {
    let version = HeaderName::from_static("x-version");
    let reply = across_a_deployment(&[], &[version], |host| versioned(host, "coffee", "1")).await;
    assert_eq!(reply.problem(), (422, "key-reused".to_owned()));
}

#[tokio::test]
async fn a_header_that_both_deployments_choose_is_compared() {
    let (version, both) = (HeaderName::from_static("x-version"), [HeaderName::from_static("x-version"), CONTENT_TYPE]);
    for (before, after) in [(&both[..], &[version.clone()][..]), (&[version][..], &both[..])] {
        let reply = across_a_deployment(before, after, |host| versioned(host, "tea", "2")).await;
        assert_eq!(reply.problem(), (422, "key-reused".to_owned()));
    }
}

#[tokio::test]
async fn the_order_of_the_chosen_headers_does_not_count() {
    let before = [HeaderName::from_static("x-version"), CONTENT_TYPE];
    let mut after = before.clone();
    after.reverse();
    let reply = across_a_deployment(&before, &after, |host| versioned(host, "tea", "2")).await;
    assert_eq!(reply.problem(), (422, "key-reused".to_owned()));
}

#[tokio::test]
async fn a_record_with_a_digest_of_another_version_of_the_crate_is_replayed() {
    let (world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    send(&layer, &counting(&runs), versioned(&host, "tea", "1")).await;
    let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
    let mut row = rows.into_iter().next().unwrap();
    // As the versions wrote it whose digest did not say how it was made.
    row.insert("validation".to_owned(), AttributeValue::S("0".repeat(64)));
    world.put_row(row).await;
    assert_eq!(send(&layer, &counting(&runs), versioned(&host, "tea", "1")).await.made_by(), (201, 1, true));
}
