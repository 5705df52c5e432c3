//! The row of a semaphore: its size, and rows that this crate did not write.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_lock::ErrorKind;
use lambda_lock::embedded::Intercept;
use lambda_lock_tests::{Row, World};
use serde_json::Value;

use crate::{DAY, KEY, LEASE, acquire_all, after_the_lease, digits, owners, permits, row, text};

/// The size that DynamoDB counts for an item.
fn size(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len() / 2 + 2,
        AttributeValue::Bool(_) => 1,
        AttributeValue::M(map) => size_of_all(map) + map.len() + 3,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn size_of_all(values: &HashMap<String, AttributeValue>) -> usize {
    values.iter().map(|(name, value)| name.len() + size(value)).sum()
}

/// Asserts DynamoDB's limits for expressions: 4 KB, and 300 operators and functions.
#[derive(Debug)]
struct WithinLimits;

impl Intercept for WithinLimits {
    fn request(&self, _: &str, request: &mut Value) {
        for name in ["ConditionExpression", "UpdateExpression"] {
            let expression = request[name].as_str().unwrap_or_default();
            assert!(expression.len() <= 4096, "{name} has {} bytes", expression.len());
            let operators =
                [" AND ", " OR ", "NOT ", " <= ", " >= ", " < ", " > ", " = ", " + ", " - ", " BETWEEN ", "("];
            let operators = operators.iter().map(|operator| expression.matches(operator).count()).sum::<usize>();
            assert!(operators <= 300, "{name} has {operators} operators");
        }
    }
}

#[tokio::test]
async fn a_hundred_permits_with_the_longest_names_fit_into_a_row() {
    let world = World::new().await;
    let bank = world.default_locks().semaphore(KEY, 100);
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(bank.acquire().holder("n".repeat(1024)).lease(LEASE * 2).await.unwrap());
    }
    let full = row(&world).await;
    assert_eq!(permits(&full), owners(&held));
    let bytes = size_of_all(&full);
    assert!((102_400..130_000).contains(&bytes), "{bytes} bytes, of DynamoDB's 409600");
    let error = bank.acquire().await.unwrap_err();
    assert_eq!(error.holder().unwrap().permits().len(), 100);
    assert!(error.to_string().contains(" and 95 more; "));

    let host = world.host().later(LEASE * 3).intercept(WithinLimits).build();
    let later = world.locks(&host).build().unwrap();
    let next = later.semaphore(KEY, 100).acquire().await.unwrap();
    assert_eq!(host.requests(), 2);
    assert_eq!(permits(&row(&world).await), owners([&next]));
    drop(held);
}

#[tokio::test]
async fn a_hundred_permits_of_identities_are_replaced_at_once_and_released_by_force() {
    let world = World::new().await;
    let locks = world.locks(&world.host().intercept(WithinLimits).build()).build().unwrap();
    let bank = locks.semaphore(KEY, 100);
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(bank.acquire().identity(format!("{number:0>256}")).lease(LEASE).await.unwrap());
    }
    let host = world.host().later(LEASE * 3).intercept(WithinLimits).build();
    let later = world.locks(&host).build().unwrap();
    let next = later.semaphore(KEY, 100).acquire().await.unwrap();
    assert_eq!(permits(&row(&world).await), owners([&next]));
    next.release().await.unwrap();

    for number in 100..200 {
        held.push(bank.acquire().identity(format!("{number:0>256}")).lease(LEASE).await.unwrap());
    }
    let holder = locks.get(KEY).await.unwrap().unwrap();
    assert_eq!(holder.permits().len(), 100);
    assert!(locks.force_release(KEY, &holder).await.unwrap());
    assert!(permits(&row(&world).await).is_empty());
}

fn map(values: &[(&str, AttributeValue)]) -> AttributeValue {
    AttributeValue::M(values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

/// Another value of an attribute, or none.
type Change<'a> = (&'a str, Option<AttributeValue>);

/// A full semaphore with one permit, with other values of these attributes.
fn with(values: &[Change]) -> Row {
    let permit = map(&[("no", digits(7)), ("by", text("one")), ("end", digits(4_102_444_800_000))]);
    let mut row = Row::from(
        [
            ("id", text(KEY)),
            ("status", text("SEMAPHORE")),
            ("permits", digits(1)),
            ("fence", digits(7)),
            ("permit:one", permit),
            ("fence:one", digits(7)),
            ("expiration", digits(4_102_444_800)),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    for (name, value) in values {
        row.remove(*name);
        row.extend(value.clone().map(|value| ((*name).to_owned(), value)));
    }
    row
}

#[tokio::test]
async fn a_malformed_row_is_an_error_and_stays_unmodified() {
    let world = World::new().await;
    let locks = world.default_locks();
    world.put_row(with(&[])).await;
    assert!(locks.semaphore(KEY, 1).acquire().await.unwrap_err().is_held());
    let end = ("end", digits(4_102_444_800_000));
    let long_name = format!("permit:{}", "é".repeat(100));
    let of_identity = format!("permit:3#run{}", "0".repeat(32));
    let permit = || map(&[end.clone(), ("no", digits(7)), ("nonce", text("short"))]);
    let wrong: [(&str, &[Change]); 17] = [
        ("`permits` is missing", &[("permits", None)]),
        ("`permits` is not a number", &[("permits", Some(text("1")))]),
        ("`permits` is -1", &[("permits", Some(AttributeValue::N("-1".to_owned())))]),
        ("`permits` is 2, but the row has 1 of them", &[("permits", Some(digits(2)))]),
        ("`permits` is 1, but the row has 0 of them", &[("permit:one", None)]),
        ("`permit:one` is not a map", &[("permit:one", Some(text("one")))]),
        ("is not a map", &[(&long_name, Some(text("one")))]),
        ("`end` is missing in `permit:one`", &[("permit:one", Some(map(&[("no", digits(7))])))]),
        ("`end` is not a number", &[("permit:one", Some(map(&[("end", text("x"))])))]),
        ("`no` is missing", &[("permit:one", Some(map(std::slice::from_ref(&end))))]),
        ("`no` is not a number", &[("permit:one", Some(map(&[end.clone(), ("no", text("7"))])))]),
        (
            "`sequence` is not a number",
            &[("permit:one", Some(map(&[end.clone(), ("no", digits(7)), ("sequence", text("0"))])))],
        ),
        ("`by` is not a string", &[("permit:one", Some(map(&[end.clone(), ("no", digits(7)), ("by", digits(1))])))]),
        ("`nonce` does not belong to the name", &[("permit:one", None), (&of_identity, Some(permit()))]),
        ("`nonce` does not belong to the name", &[("permit:one", Some(permit()))]),
        ("`fence:one` is not a number", &[("fence:one", Some(text("7")))]),
        ("`fence` is not a number", &[("fence", Some(text("7")))]),
    ];
    for (why, values) in wrong {
        let row = with(values);
        world.put_row(row.clone()).await;
        for error in [
            locks.semaphore(KEY, 1).acquire().await.unwrap_err(),
            locks.acquire(KEY).await.unwrap_err(),
            locks.get(KEY).await.unwrap_err(),
            locks.list().next_page().await.unwrap().unwrap().pop().unwrap().holder.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error}");
            assert!(error.to_string().contains(why), "`{error}` lacks `{why}`");
            assert!(error.to_string().len() < 400, "{error}");
        }
        assert_eq!(world.row(KEY).await.unwrap(), row);
    }
}

/// Its release would count below zero.
#[tokio::test]
async fn a_takeover_from_a_row_that_counts_no_permit_is_an_error() {
    let world = World::new().await;
    let earlier = world.default_locks().semaphore(KEY, 1).acquire().identity("run").await.unwrap();
    let host = world.host().clock_ahead(Duration::from_millis(100)).build();
    let later = world.locks(&host).build().unwrap();
    let valid = row(&world).await;
    for count in [None, Some(digits(0)), Some(AttributeValue::N("0.5".to_owned())), Some(text("1"))] {
        let mut malformed = valid.clone();
        malformed.remove("permits");
        malformed.extend(count.map(|count| ("permits".to_owned(), count)));
        world.put_row(malformed.clone()).await;
        let error = later.semaphore(KEY, 1).acquire().identity("run").take_over().await.unwrap_err();
        assert!(error.kind() == ErrorKind::MalformedRow && error.to_string().contains("`permits`"), "{error}");
        assert_eq!(row(&world).await, malformed);
    }
    world.put_row(valid).await;
    later.semaphore(KEY, 1).acquire().identity("run").take_over().await.unwrap().release().await.unwrap();
    drop(earlier);
}

#[tokio::test]
async fn a_fence_that_cannot_grow_is_an_error() {
    let world = World::new().await;
    let locks = world.default_locks();
    for (fence, is_free) in [(u64::MAX.to_string(), false), (i64::MAX.to_string(), true), ("9".repeat(38), false)] {
        world.put_row(with(&[("fence", Some(AttributeValue::N(fence.clone())))])).await;
        match locks.semaphore(KEY, 2).acquire().await {
            Ok(permit) => {
                assert!(is_free && permit.fence() == 1 << 63);
                assert!(locks.get(KEY).await.unwrap().unwrap().is_current());
            }
            Err(error) => {
                assert!(
                    !is_free && error.kind() == ErrorKind::MalformedRow && error.to_string().contains("`fence`"),
                    "{fence}: {error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_permit_that_has_ended_is_replaced_if_the_fence_can_grow_once_more() {
    let world = World::new().await;
    let ended = world.default_locks().semaphore(KEY, 1).acquire().await.unwrap();
    let mut row = row(&world).await;
    row.insert("fence".to_owned(), AttributeValue::N(i64::MAX.to_string()));
    world.put_row(row).await;
    let (_, locks) = after_the_lease(&world);
    let permit = locks.semaphore(KEY, 1).acquire().await.unwrap();
    assert_eq!(permit.fence(), 1 << 63);
    assert!(ended.release().await.unwrap_err().is_lost());
    permit.release().await.unwrap();
    assert_eq!(locks.semaphore(KEY, 1).acquire().await.unwrap_err().kind(), ErrorKind::MalformedRow);
}

#[tokio::test]
async fn a_permit_whose_map_was_edited_is_lost_or_malformed_for_its_holder() {
    let world = World::new().await;
    let locks = world.default_locks();
    for edit in [None, Some(text("x")), Some(map(&[("end", text("x"))]))] {
        let held = acquire_all(&locks, 1).await;
        let mut row = row(&world).await;
        let name = format!("permit:{}", held[0].owner());
        row.remove(&name);
        row.extend(edit.map(|value| (name, value)));
        world.put_row(row).await;
        for error in [held[0].renew(DAY).await.unwrap_err(), held[0].release().await.unwrap_err()] {
            assert!(error.kind() == ErrorKind::MalformedRow || error.is_lost(), "{error}");
        }
        drop(held);
        if let Err(error) = locks.flush(Duration::from_mins(1)).await {
            assert_eq!(error.kind(), ErrorKind::MalformedRow, "{error}");
        }
        world.delete_row(KEY).await;
    }
    let (_, later) = after_the_lease(&world);
    later.semaphore(KEY, 1).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn permits_that_end_at_the_same_time_are_in_the_order_of_their_fences() {
    let world = World::new().await;
    let permit = || {
        let values = [("no", digits(7)), ("by", text("one")), ("end", digits(4_102_444_800_000))];
        Some(map(&values))
    };
    let fences = [("a", 9), ("b", 7), ("c", 8)].map(|(owner, fence)| (format!("fence:{owner}"), digits(fence)));
    let mut row =
        with(&[("permits", Some(digits(4))), ("permit:a", permit()), ("permit:b", permit()), ("permit:c", permit())]);
    row.extend(fences);
    row.insert("fence:one".to_owned(), digits(10));
    world.put_row(row).await;
    let holder = world.default_locks().get(KEY).await.unwrap().unwrap();
    let fences: Vec<_> = holder.permits().iter().map(|permit| permit.fence().unwrap()).collect();
    assert_eq!(fences, [7, 8, 9, 10]);
}
