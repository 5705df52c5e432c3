//! Results that cannot be stored, or cannot be read.

use std::collections::HashMap;
use std::fmt::Debug;

use lambda_lock::ErrorKind;
use lambda_lock::idempotency::OnUnstorableResult;
use lambda_lock_tests::invocation::Counter;
use tokio::time::sleep;

use crate::{
    AFTER_THE_LEASE, Deep, FORMATS, MOST, Orders, environment, large, later, ms, order, orders, place, refused,
    string_in,
};

#[tokio::test]
async fn the_largest_storable_result_is_replayed() {
    let (_world, _host, locks) = environment().await;
    let exports: Orders<String> = orders(&locks);
    // With the longest valid key.
    let order = order(&"k".repeat(2048));
    assert_eq!(exports.run(&order, async |_| Ok(large(MOST))).await.unwrap().len(), MOST - 2);
    let replayed = exports.run(&order, async |_| panic!("it runs again")).await.unwrap();
    assert!(replayed == large(MOST));
}

#[tokio::test]
async fn an_oversized_result_is_an_error_and_keeps_the_record_for_its_lease() {
    let (world, host, locks) = environment().await;
    let (exports, runs) = (orders::<String>(&locks), Counter::default());
    let error = refused(
        exports
            .run(&order("a"), async |_| {
                runs.count();
                Ok(large(MOST + 1))
            })
            .await,
    );
    assert_eq!(error.kind(), ErrorKind::UnusableResult, "{error}");
    assert!(error.to_string().contains("399361") && !error.to_string().contains("xxx"), "{error}");
    sleep(ms(50)).await;
    assert_eq!(host.requests(), 1);
    assert_eq!(refused(exports.run(&order("a"), async |_| Ok(String::new())).await).kind(), ErrorKind::InProgress);
    let after = orders::<String>(&later(&world, AFTER_THE_LEASE));
    assert_eq!(after.run(&order("a"), async |_| Ok("small".to_owned())).await.unwrap(), "small");
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn a_result_that_json_cannot_represent_is_an_error() {
    let (_world, host, locks) = environment().await;
    let orders: Orders<HashMap<(u8, u8), u8>> = orders(&locks);
    let error = refused(orders.run(&order("a"), async |_| Ok(HashMap::from([((1, 2), 3)]))).await);
    assert!(error.kind() == ErrorKind::UnusableResult && error.to_string().contains("JSON"), "{error}");
    assert_eq!(host.requests(), 1);
}

#[tokio::test]
async fn an_oversized_result_can_be_left_out_and_is_replayed_as_none() {
    for cache in [0, 10] {
        let (world, host, locks) = environment().await;
        let exports: Orders<Option<String>> =
            orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult).cache(cache);
        let first = exports.run(&order("a"), async |_| Ok(Some(large(MOST)))).await.unwrap();
        assert_eq!(first.map(|export| export.len()), Some(MOST - 2));
        assert_eq!(
            exports.run(&order("b"), async |_| Ok(Some(large(MOST + 1)))).await.unwrap().unwrap().len(),
            MOST - 1
        );
        assert_eq!(host.requests(), 4);
        assert_eq!(exports.run(&order("b"), async |_| panic!("it runs again")).await.unwrap(), None);
        assert!(exports.run(&order("a"), async |_| panic!("it runs again")).await.unwrap().is_some());
        let row = world.row("b").await.unwrap();
        assert_eq!(string_in(&row, "status"), "COMPLETED");
        assert!(!row.contains_key("data"));
    }
}

#[tokio::test]
async fn a_duplicate_of_a_run_without_its_result_is_an_error() {
    for cache in [0, 10] {
        let (_world, _host, locks) = environment().await;
        let exports: Orders<String> =
            orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult).cache(cache);
        exports.run(&order("a"), async |_| Ok(large(MOST + 1))).await.unwrap();
        let error = refused(exports.run(&order("a"), async |_| panic!("it runs again")).await);
        assert!(
            error.kind() == ErrorKind::UnusableResult && error.to_string().contains("without its result"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_stored_result_of_another_type_fails_without_showing_its_content() {
    let (world, _host, locks) = environment().await;
    let before: Orders<String> = orders(&locks);
    before.run(&order("a"), async |_| Ok("4111 1111".to_owned())).await.unwrap();
    let row = world.row("a").await;
    let error = refused(place(&orders(&locks), &order("a"), &Counter::default()).await);
    assert_eq!(error.kind(), ErrorKind::UnusableResult, "{error}");
    for remedy in ["has probably changed", "serde(default)", "Idempotency::prefix"] {
        assert!(error.to_string().contains(remedy), "`{remedy}` is not in: {error}");
    }
    assert!(!format!("{error} {error:?}").contains("4111"), "{error:?}");
    assert_eq!(world.row("a").await, row);
}

/// A result with a float in each place that serde knows.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
enum Measured {
    Single(f32),
    Pair(f64, f64),
    Named { value: Option<f64> },
    List(Vec<Option<f64>>),
    Map(HashMap<String, f64>),
    Nested(Box<Measured>),
    Tuple((u8, [f32; 2])),
    Nothing,
}

fn measurements(float: f64) -> Vec<Measured> {
    #[expect(clippy::cast_possible_truncation, reason = "each value is exact as `f32`")]
    let single = float as f32;
    let map = |float| HashMap::from([("a".to_owned(), 1.0), ("b".to_owned(), float)]);
    vec![
        Measured::Single(single),
        Measured::Pair(1.0, float),
        Measured::Named { value: Some(float) },
        Measured::List(vec![None, Some(float)]),
        Measured::Map(map(float)),
        Measured::Nested(Box::new(Measured::Nested(Box::new(Measured::Pair(float, 0.0))))),
        Measured::Tuple((1, [0.0, single])),
    ]
}

#[tokio::test]
async fn rejects_a_result_with_a_float_that_is_not_finite() {
    for format in FORMATS {
        let (_world, _host, locks) = environment().await;
        let measure: Orders<Measured> = orders(&locks).format(format);
        let mut number = 0;
        for float in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for result in measurements(float) {
                number += 1;
                let outcome = measure.run(&order(&number.to_string()), async |_| Ok(result.clone())).await;
                let error = refused(outcome);
                assert!(
                    error.kind() == ErrorKind::UnusableResult && error.to_string().contains("finite"),
                    "{format:?} {result:?}: {error}"
                );
            }
        }
        // Finite floats and empty values are stored.
        for result in measurements(0.5).into_iter().chain([Measured::Named { value: None }, Measured::Nothing]) {
            number += 1;
            let first = measure.run(&order(&number.to_string()), async |_| Ok(result)).await.unwrap();
            let again = measure.run(&order(&number.to_string()), async |_| panic!("it runs again")).await.unwrap();
            assert_eq!(first, again);
        }
    }
}

#[tokio::test]
async fn rejects_a_float_that_is_not_finite_as_a_map_key() {
    #[derive(Debug, serde::Deserialize)]
    struct ByFloat;
    impl serde::Serialize for ByFloat {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serde::Serializer::serialize_map(serializer, None)?;
            serde::ser::SerializeMap::serialize_entry(&mut map, &f64::NAN, &1)?;
            serde::ser::SerializeMap::end(map)
        }
    }
    let (_world, _host, locks) = environment().await;
    let measure: Orders<ByFloat> = orders(&locks);
    assert_eq!(refused(measure.run(&order("a"), async |_| Ok(ByFloat)).await).kind(), ErrorKind::UnusableResult);
}

#[tokio::test]
async fn a_result_with_a_float_that_is_not_finite_can_be_left_out() {
    let (world, _host, locks) = environment().await;
    let measure: Orders<Option<f64>> = orders(&locks).on_unstorable_result(OnUnstorableResult::CompleteWithoutResult);
    assert!(measure.run(&order("a"), async |_| Ok(Some(f64::NAN))).await.unwrap().unwrap().is_nan());
    let row = world.row("a").await.unwrap();
    assert_eq!((string_in(&row, "status"), row.contains_key("data")), ("COMPLETED", false));
}

#[tokio::test]
async fn rejects_a_result_nested_too_deep_to_be_read() {
    for (format, most) in FORMATS.into_iter().zip([127, 127, 127, 31]) {
        let (_world, _host, locks) = environment().await;
        let trees: Orders<Deep> = orders(&locks).format(format);
        trees.run(&order("a"), async |_| Ok(Deep::of(most))).await.unwrap();
        let replayed = trees.run(&order("a"), async |_| panic!("it runs again")).await.unwrap();
        assert_eq!(replayed.levels(), most);
        let error = refused(trees.run(&order("b"), async |_| Ok(Deep::of(most + 1))).await);
        assert!(
            error.kind() == ErrorKind::UnusableResult && error.to_string().contains(&format!("{most} levels")),
            "{error}"
        );
    }
}
