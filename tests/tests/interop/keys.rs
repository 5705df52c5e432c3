//! A key is the same on both sides.

use std::slice;

use lambda_lock::Idempotency;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock_tests::World;
use lambda_lock_tests::powertools::{Language, Powertools};
use serde_json::{Value, json};

use crate::{Orders, again, order, place, place_all, ran, replayed, with_each_language};

fn keys(language: Language) -> Vec<Value> {
    let mut keys = vec![
        json!("abc"),
        json!("é😀 \" \\ / \n \u{7f} \u{2028}"),
        json!("5"),
        json!(5),
        json!(-3),
        json!(0),
        json!(true),
        json!(1.5),
        json!(0.1 + 0.2),
        json!(-1e-7),
        json!(["abc", 5, null, ["é"]]),
        json!({"user": "é", "Amount": 1.25, "b": [1, 2], "10": 1, "9": 2}),
        json!({"\u{ff61}": 1, "😀": 2, "a": 3}),
        json!({"Z": {"b": 1, "A": [{"d": null, "C": 2}]}, "y": false, "é": {}}),
    ];
    if language == Language::Python {
        keys.extend([json!(u64::MAX), json!(1.0), json!(1e16), json!(123_456_789.0e-12), json!({"a": 1, "A": 2})]);
    } else {
        keys.extend([json!(9_007_199_254_740_991_u64), json!(123_456_789.0e-14)]);
    }
    keys
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn each_key_is_the_same_on_both_sides() {
    with_each_language(async |sides| {
        let orders: Vec<_> =
            keys(sides.language).into_iter().map(|key| json!({"id": key, "result": {"of": key}})).collect();
        for (prefix, we_are_first) in [("ours first", true), ("après", false)] {
            let ours = sides.ours().prefix(prefix);
            let theirs = async |orders: &[Value]| sides.theirs(&["--prefix", prefix], orders).await;
            let (first, second) = if we_are_first {
                (place_all(&ours, &orders).await, theirs(&again(&orders)).await)
            } else {
                (theirs(&orders).await, place_all(&ours, &again(&orders)).await)
            };
            let results = || orders.iter().map(|order| &order["result"]);
            assert_eq!(first, results().map(ran).collect::<Vec<_>>());
            assert_eq!(second, results().map(replayed).collect::<Vec<_>>());
        }
        assert_eq!(sides.rows().await.len(), 2 * orders.len());
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn an_event_as_a_whole_is_the_same_key_on_both_sides() {
    with_each_language(async |sides| {
        let ours = sides.ours();
        let locks = sides.world.default_locks();
        let whole: Orders = Idempotency::new(locks, OnMissingKey::Reject, |order: &Value| Some(order.clone()))
            .format(sides.language.format())
            .prefix("orders");
        let (first, second) = (order("é 1", "ours"), order("é 2", "theirs"));
        assert_eq!(place(&whole, &first).await, ran(&json!("ours")));
        assert_eq!(
            sides.theirs(&["--event-key", ""], &[first.clone(), second.clone()]).await,
            [replayed(&json!("ours")), ran(&json!("theirs"))]
        );
        assert_eq!(place(&whole, &second).await, replayed(&json!("theirs")));
        assert_eq!(place(&ours, &first).await, ran(&json!("ours")));
    })
    .await;
}

/// Powertools calls it the composite layout.
#[tokio::test]
#[ignore = "needs Powertools: .ci/run interop"]
async fn a_key_in_the_sort_key_is_the_same_on_both_sides() {
    let powertools = Powertools::find().unwrap_or_else(|missing| panic!("{missing}"));
    for language in Language::ALL {
        let world = World::without_table();
        let locks = world.locks(&world.host().build()).key_in_sort_key("SK", "idempotency#orders").build().unwrap();
        locks.create_table().await.unwrap();
        let ours = Idempotency::new(locks, OnMissingKey::Reject, |order: &Value| Some(order["id"].clone()))
            .format(language.format())
            .prefix("orders");
        let theirs = async |order: &Value| {
            powertools.place(language, &world, &["--sort-key", "SK"], slice::from_ref(order)).await
        };
        let (first, second) = (order("1", "ours"), order("2", "theirs"));
        assert_eq!(place(&ours, &first).await, ran(&json!("ours")));
        assert_eq!(theirs(&again(&[first])[0]).await, [replayed(&json!("ours"))]);
        assert_eq!(theirs(&second).await, [ran(&json!("theirs"))]);
        assert_eq!(place(&ours, &again(&[second])[0]).await, replayed(&json!("theirs")));
    }
}
