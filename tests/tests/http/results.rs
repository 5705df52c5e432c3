//! Which responses are stored, and what happens to the others.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use lambda_http::{Body, Request};
use lambda_lock::http::HttpIdempotencyLayer;
use lambda_lock::idempotency::OnUnstorableResult;
use lambda_lock_tests::invocation::Counter;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{MOST, Reply, TOO_LONG, answering, counting, environment, layer, order, order_of, send};

const GUIDE: &str = include_str!("../../../lock/docs/reference/http.md");

fn with_status(status: u16) -> impl Fn(u32) -> Response<Body> + Clone {
    move |run| Response::builder().status(status).body(run.to_string().into()).unwrap()
}

#[tokio::test]
async fn a_response_that_nothing_was_done_is_not_stored() {
    let (_world, host, locks) = environment().await;
    let layer = layer(&locks);
    for (statuses, is_result) in [
        (&[200_u16, 201, 204, 302, 303, 400, 402, 404, 410, 422, 499][..], true),
        (&[301, 307, 308, 401, 403, 407, 408, 409, 412, 421, 423, 425, 428, 429][..], false),
        (&[500, 502, 503, 504, 599][..], false),
    ] {
        for status in statuses {
            let (runs, key) = (Counter::default(), status.to_string());
            for is_first in [true, false] {
                let reply =
                    send(&layer, &answering(&runs, with_status(*status)), order_of(&host, &key, &().into())).await;
                assert_eq!((reply.status.as_u16(), reply.is_replay()), (*status, is_result && !is_first));
                assert_eq!(reply.body, if is_result || is_first { "1" } else { "2" });
            }
        }
    }
}

#[test]
fn the_guide_says_of_each_status_whether_it_is_a_result() {
    let mut documented = BTreeMap::new();
    for line in GUIDE.lines() {
        let [_, statuses, is_result @ ("yes" | "no"), _, _] = line.split('|').map(str::trim).collect::<Vec<_>>()[..]
        else {
            continue;
        };
        for range in statuses.split(", ") {
            let (first, last) = range.split_once(" to ").unwrap_or((range, range));
            for status in first.parse::<u16>().unwrap()..=last.parse().unwrap() {
                assert_eq!(documented.insert(status, is_result == "yes"), None, "{status}");
            }
        }
    }
    let by_default = (100..600).map(|status| {
        (status, HttpIdempotencyLayer::is_result(StatusCode::from_u16(status).unwrap(), &HeaderMap::new()))
    });
    assert_eq!(documented, by_default.collect::<BTreeMap<_, _>>());
}

#[tokio::test]
async fn a_stream_of_events_is_passed_on_and_not_stored() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let events = service_fn({
        let runs = runs.clone();
        move |_: Request| {
            let event = format!("data: {}\n\n", runs.count());
            let body = stream::iter([Ok::<_, Infallible>(event)]).chain(stream::pending());
            let response = Response::builder().header(CONTENT_TYPE, "Text/Event-Stream; charset=utf-8");
            async { Ok::<_, Infallible>(response.body(axum::body::Body::from_stream(body)).unwrap()) }
        }
    });
    for run in 1..3 {
        let answer = timeout(TOO_LONG, send_to(&layer(&locks), events.clone(), order(&host))).await;
        let event = answer.expect("it is not read to its end").into_body().frame().await.unwrap().unwrap();
        assert_eq!(event.into_data().unwrap(), format!("data: {run}\n\n"));
    }
}

#[tokio::test]
async fn a_closure_says_which_responses_are_results() {
    let (_world, host, locks) = environment().await;
    let layer = layer(&locks).results(|status, headers| status == 500 && headers.contains_key("x-final"));
    let runs = Counter::default();
    let with_final = |run| {
        let mut response = with_status(500)(run);
        response.headers_mut().insert("x-final", "1".parse().unwrap());
        response
    };
    for (handler_answer, is_replay) in
        [(with_status(500)(1), false), (with_status(200)(1), false), (with_final(1), false), (with_final(2), true)]
    {
        let (parts, body) = handler_answer.into_parts();
        let body = body.to_vec();
        let handler = answering(&runs, move |_| Response::from_parts(parts.clone(), body.clone().into()));
        assert_eq!(send(&layer, &handler, order(&host)).await.is_replay(), is_replay);
    }
    assert_eq!(runs.get(), 3);
}

#[tokio::test]
async fn an_error_of_the_handler_is_returned_and_releases_the_record() {
    let (_world, host, locks) = environment().await;
    let failing = service_fn(async |_: Request| Err::<Response<Body>, _>("the handler's own error"));
    let error = layer(&locks).layer(failing).oneshot(order(&host)).await.unwrap_err();
    assert_eq!(error, "the handler's own error");
    let runs = Counter::default();
    assert_eq!(send(&layer(&locks), &counting(&runs), order(&host)).await.made_by(), (201, 1, false));
    assert_eq!(host.requests(), 4);
}

/// Sends an order to a handler whose body is a stream.
async fn send_to<S>(layer: &HttpIdempotencyLayer, handler: S, request: Request) -> Response<axum::body::Body>
where
    S: Service<Request, Response = Response<axum::body::Body>, Error: Debug + Send, Future: Send>
        + Clone
        + Send
        + 'static,
{
    layer.layer(handler).oneshot(request).await.unwrap().map(axum::body::Body::new)
}

#[tokio::test]
async fn a_body_in_pieces_is_stored_as_a_whole() {
    let (_world, host, locks) = environment().await;
    let pieces = service_fn(async |_: Request| {
        let pieces = stream::iter(["a", "", "b", "c"].map(Ok::<_, Infallible>));
        Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(pieces)))
    });
    for is_replay in [false, true] {
        let reply = send_to(&layer(&locks), pieces, order(&host)).await;
        assert_eq!(reply.headers().contains_key("idempotency-replayed"), is_replay);
        assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "abc");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_reaches_the_client_and_releases_the_record() {
    let (_world, host, locks) = environment().await;
    let broken = service_fn(async |_: Request| {
        let pieces = stream::iter([Ok("abc"), Err("the source was lost")]);
        Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(pieces)))
    });
    let mut body = send_to(&layer(&locks), broken, order(&host)).await.into_body();
    // With a length, the client would take the start for the whole.
    assert_eq!(body.size_hint().exact(), None);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
    assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "the source was lost");
    let runs = Counter::default();
    assert_eq!(send(&layer(&locks), &counting(&runs), order(&host)).await.made_by(), (201, 1, false));
}

/// A handler whose body does not end.
fn endless()
-> impl Service<Request, Response = Response<axum::body::Body>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
    service_fn(async |_: Request| {
        let pieces = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1000])));
        Ok(Response::new(axum::body::Body::from_stream(pieces)))
    })
}

/// The size of the JSON text that a record has for this body, and whether it is stored as Base64.
async fn stored_form(body: &[u8]) -> (usize, bool) {
    let (world, host, locks) = environment().await;
    let handler = answering(&Counter::default(), {
        let body = body.to_vec();
        move |_| Response::new(body.clone().into())
    });
    for is_replay in [false, true] {
        let reply = send(&layer(&locks), &handler, order(&host)).await;
        assert_eq!((reply.is_replay(), &reply.body[..]), (is_replay, body));
    }
    let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
    let data = rows[0]["data"].as_s().unwrap();
    (data.len(), data.contains("\"base64\""))
}

#[tokio::test]
async fn a_body_is_stored_in_the_shorter_form() {
    for (body, is_base64) in [
        ("{\"item\":\"tea\"}", false),
        ("\u{1}", true),
        ("\u{1}\u{2}\u{3}", true),
        ("line\nline\n", false),
        ("\"\"\"\"\"\"\"\"\"\"\"\"", true),
        ("\u{7f}é😀", false),
    ] {
        assert_eq!(stored_form(body.as_bytes()).await.1, is_base64, "{body:?}");
    }
}

#[tokio::test]
async fn any_body_of_290_kib_is_stored_with_headers_of_3_kib() {
    const BODY: usize = 290 * 1024;
    for (name, byte) in [("control characters", 1), ("quotes", b'"'), ("letters", b'x'), ("binary", 0xff)] {
        let (_world, host, locks) = environment().await;
        let handler = answering(&Counter::default(), move |_| {
            let headers = Response::builder().header("x-long", "x".repeat(3 * 1024 - "x-long".len()));
            headers.body(vec![byte; BODY].into()).unwrap()
        });
        for is_replay in [false, true] {
            let reply = send(&layer(&locks), &handler, order(&host)).await;
            assert_eq!((reply.status.as_u16(), reply.is_replay(), reply.body.len()), (200, is_replay, BODY), "{name}");
            assert!(reply.body.iter().all(|read| *read == byte), "{name}");
        }
    }
}

/// A response with this many headers.
fn with_headers(headers: usize) -> impl Fn(u32) -> Response<Body> + Clone {
    move |_| {
        let mut response = Response::new(Body::Empty);
        for _ in 0..headers {
            response.headers_mut().append("x-header", HeaderValue::from_static("1"));
        }
        response
    }
}

#[tokio::test]
async fn a_response_with_more_than_10_000_headers_cannot_be_stored() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    for is_replay in [false, true] {
        let reply = send(&layer, &answering(&runs, with_headers(10_000)), order(&host)).await;
        assert_eq!((reply.status.as_u16(), reply.is_replay()), (200, is_replay));
        assert_eq!(reply.headers.get_all("x-header").iter().count(), 10_000);
    }
    let failing = layer.clone().on_unstorable_result(OnUnstorableResult::Fail);
    let too_many = send(&failing, &answering(&runs, with_headers(10_001)), order_of(&host, "b", &().into())).await;
    assert_eq!(too_many.problem(), (500, "result-unusable".to_owned()));
    let first = send(&layer, &answering(&runs, with_headers(10_001)), order_of(&host, "c", &().into())).await;
    assert_eq!((first.status.as_u16(), first.headers.len()), (200, 10_001));
    let retry = send(&layer, &answering(&runs, with_headers(10_001)), order_of(&host, "c", &().into())).await;
    assert_eq!(retry.problem(), (409, "result-not-stored".to_owned()));
}

#[tokio::test]
async fn an_endless_body_is_passed_on_and_the_record_is_completed_without_it() {
    let (_world, host, locks) = environment().await;
    let layer = layer(&locks);
    let mut body = send_to(&layer, endless(), order(&host)).await.into_body().into_data_stream();
    let mut bytes = 0;
    while bytes < 3 * MOST {
        let piece = body.next().await.unwrap().unwrap();
        assert!(piece.iter().all(|byte| *byte == b'x'));
        bytes += piece.len();
    }
    let retry = send(&layer, &counting(&Counter::default()), order(&host)).await;
    assert_eq!(retry.status, 409);
}

#[tokio::test]
async fn a_body_that_stops_without_an_end_is_interrupted_with_the_lease() {
    let (_world, host, locks) = environment().await;
    let stuck = service_fn(async |_: Request| {
        let pieces = stream::iter(["a"].map(Ok::<_, Infallible>)).chain(stream::pending());
        Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(pieces)))
    });
    let reply = send_to(&layer(&locks).lease(Duration::from_millis(300)), stuck, order(&host)).await;
    assert_eq!(reply.status(), 503);
}

#[tokio::test]
async fn a_body_knows_its_size() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let service = layer(&locks).layer(counting(&runs));
    for _ in 0..2 {
        let answer = service.clone().oneshot(order(&host)).await.unwrap();
        assert_eq!(answer.body().size_hint().exact(), Some(9));
        assert!(!answer.body().is_end_stream());
        assert_eq!(Reply::of(answer).await.body.len(), 9);
    }
}
