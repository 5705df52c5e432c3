//! What must be equal in a retry.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, Method, StatusCode};
use lambda_http::request::from_str;
use lambda_http::{Body, Request, RequestExt};
use lambda_lock::embedded::Host;
use lambda_lock_tests::invocation::{Counter, invocation};
use serde_json::json;

use crate::{counting, environment, layer, send, to};

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

// behaviour 463
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

// behaviour 463
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

// behaviour 463
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

// behaviour 463
#[tokio::test]
async fn a_rest_api_that_reorders_its_parameters_sends_the_same_request() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    let event = |last: &str| {
        let parameters: serde_json::Map<_, _> =
            (0..20).map(|number| (format!("p{number}"), json!([number.to_string(), last]))).collect();
        json!({
            "resource": "/orders",
            "path": "/orders",
            "httpMethod": "POST",
            "headers": { "idempotency-key": "a", "content-type": "application/json" },
            "multiValueHeaders": {},
            "multiValueQueryStringParameters": parameters,
            "requestContext": { "httpMethod": "POST", "stage": "prod", "identity": {} },
            "body": "{}",
            "isBase64Encoded": false,
        })
    };
    // `lambda_http` keeps parameters in a hash map, whose order differs each time.
    for (last, status) in [("x", 201), ("x", 201), ("x", 201), ("y", 422)] {
        let request = from_str(&event(last).to_string()).unwrap().with_lambda_context(invocation(&host, ()).context);
        assert_eq!(request.uri().query().unwrap().split('&').count(), 40);
        assert_eq!(send(&layer, &counting(&runs), request).await.status, status);
    }
    assert_eq!(runs.get(), 1);
}
