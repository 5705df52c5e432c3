//! Which requests have a key, and which key.

use http::Method;
use lambda_http::Body;
use lambda_lock::http::HttpRun;
use lambda_lock_tests::invocation::{Counter, keep_log, logged};
use lambda_lock_tests::rows::from_json;
use serde_json::json;
use tower::service_fn;

use crate::{counting, created, environment, layer, order, order_of, send, to};

#[tokio::test]
async fn a_key_with_quotes_is_the_key_without_them() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    for (key, expected) in [("a-1", (201, 1, false)), ("\"a-1\"", (201, 1, true)), ("\"a-1\";v=1", (201, 1, true))] {
        assert_eq!(send(&layer, &counting(&runs), order_of(&host, key, &json!({}))).await.made_by(), expected);
    }
}

#[tokio::test]
async fn two_keys_are_two_requests() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks), Counter::default());
    for (key, run) in [("a", 1), ("A", 2), ("\"a \"", 3)] {
        assert_eq!(send(&layer, &counting(&runs), order_of(&host, key, &json!({}))).await.made_by().1, run, "{key}");
    }
}

#[tokio::test]
async fn other_methods_pass_through() {
    let (_world, host, locks) = environment().await;
    let runs = Counter::default();
    let request = |method: &Method| {
        to(&host, method.clone(), "/orders").header("idempotency-key", "a").body(Body::Empty).unwrap()
    };
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::HEAD, Method::OPTIONS] {
        for _ in 0..2 {
            assert!(!send(&layer(&locks), &counting(&runs), request(&method)).await.is_replay(), "{method}");
        }
    }
    assert_eq!((runs.get(), host.requests()), (10, 0));
    assert_eq!(send(&layer(&locks), &counting(&runs), request(&Method::PATCH)).await.status, 201);
    assert!(send(&layer(&locks), &counting(&runs), request(&Method::PATCH)).await.is_replay());
    let chosen = layer(&locks).methods([Method::DELETE]).prefix("chosen");
    for is_replay in [false, true] {
        assert_eq!(send(&chosen, &counting(&runs), request(&Method::DELETE)).await.is_replay(), is_replay);
        assert!(!send(&chosen, &counting(&runs), request(&Method::POST)).await.is_replay());
    }
}

#[tokio::test]
async fn a_request_without_an_optional_key_runs_unprotected() {
    let (_world, host, locks) = environment().await;
    let layer = layer(&locks).optional_key();
    let handler = service_fn(async |request: lambda_http::Request| {
        let run = request.extensions().get::<HttpRun>().unwrap();
        assert!(!run.lock().is_enforced());
        // A check that always holds.
        let check = run.complete_in(&created(1)).unwrap();
        assert!(check.condition_check().is_some());
        Ok::<_, std::convert::Infallible>(created(1))
    });
    for _ in 0..2 {
        let unkeyed = to(&host, Method::POST, "/orders").body(Body::Empty).unwrap();
        assert_eq!(send(&layer, &handler, unkeyed).await.made_by(), (201, 1, false));
    }
    assert_eq!(host.requests(), 0);
    let runs = Counter::default();
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 1, false));
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 1, true));
}

#[tokio::test]
async fn an_empty_key_is_missing_also_if_the_key_is_optional() {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (layer(&locks).optional_key(), Counter::default());
    for key in ["", " ", "\"\""] {
        let reply = send(&layer, &counting(&runs), order_of(&host, key, &json!({}))).await;
        assert_eq!(reply.problem(), (400, "key-missing".to_owned()), "{key:?}");
    }
    assert_eq!((runs.get(), host.requests()), (0, 0));
}

#[tokio::test]
async fn disabled_locks_let_every_request_run() {
    let (world, host, _) = environment().await;
    let locks = world.locks(&host).enabled(false).build().unwrap();
    let (layer, runs) = (layer(&locks), Counter::default());
    let unkeyed = || to(&host, Method::POST, "/orders").body(Body::Empty).unwrap();
    for (run, request) in [order(&host), order(&host), unkeyed()].into_iter().enumerate() {
        let expected = (201, u64::try_from(run).unwrap() + 1, false);
        assert_eq!(send(&layer, &counting(&runs), request).await.made_by(), expected);
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn records_without_a_prefix_outside_of_lambda_are_warned_about_once() {
    keep_log();
    let (world, host, locks) = environment().await;
    let own_prefix = world.locks(&host).key_prefix("orders/").build().unwrap();
    let warnings = || {
        let lines = logged(&world.table).into_iter();
        lines.filter(|line| line.contains("WARN") && line.contains("share their keys")).count()
    };
    let (runs, mut key) = (Counter::default(), 0);
    for (layer, expected) in [
        (layer(&locks).prefix("orders"), 0),
        (layer(&locks).prefix(""), 0),
        (layer(&own_prefix), 0),
        (layer(&locks), 1),
        (layer(&locks), 2),
    ] {
        for layer in [&layer, &layer.clone()] {
            key += 1;
            let mut request = order_of(&host, &key.to_string(), &json!({}));
            request.extensions_mut().clear();
            assert_eq!(send(layer, &counting(&runs), request).await.status, 201);
            assert_eq!(warnings(), expected);
        }
    }
    // In an invocation, the name of the function is the prefix.
    send(&layer(&locks), &counting(&runs), order(&host)).await;
    assert_eq!(warnings(), 2);
}

/// The record of the first version, as text: a later version finds it, compares its digest and replays its response.
#[tokio::test]
async fn a_record_of_the_first_version_is_replayed_and_compared() {
    const RECORD: &str = r#"{
        "id": {"S": "orders#1ad98cfc6e0ed6f94ecdf9ff7b9652b76716d9336d00e679c205d2db624520b4"},
        "status": {"S": "COMPLETED"}, "owner": {"S": "e2b36e57bcdc253150dc46653ccfa044"}, "sequence": {"N": "0"},
        "fence": {"N": "1795939157946089"}, "released": {"N": "1795939157946089"}, "holder": {"S": "h"},
        "acquired_at": {"N": "1795939157944"}, "in_progress_expiration": {"N": "1795939188944"},
        "expiration": {"N": "253402300799"},
        "validation": {"S": "2:d689e60205756873016100079a50e513ffe87ded23b770f1da4376513656751a"},
        "data": {"S": "{\"body\":\"{\\\"run\\\":7}\",\"headers\":[[\"content-type\",\"application/json\"]],\"status\":201}"}
    }"#;
    let (world, host, locks) = environment().await;
    world.put_row(from_json(&serde_json::from_str(RECORD).unwrap())).await;
    let (layer, runs) = (layer(&locks), Counter::default());
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 7, true));
    let changed = order_of(&host, "a", &json!({ "item": "coffee" }));
    assert_eq!(send(&layer, &counting(&runs), changed).await.problem(), (422, "key-reused".to_owned()));
    assert_eq!(runs.get(), 0);
}
