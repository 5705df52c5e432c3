//! The key of an item, and how long the consumer remembers it.

use std::time::Duration;

use lambda_lock::Idempotency;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{by_tenant, invocation};
use lambda_lock_tests::till::{Paid, Till};
use serde_json::json;

use crate::{PER_REFUSAL, PER_RUN, Plain, Tested, by_payment, deliver, deliver_texts, environment, payment, row_of};

/// Delivers one payment with the id 1 from each of these queues, streams or topics.
async fn deliver_from<S: Tested>(consumer: &Plain<S>, host: &Host, till: &Till, names: &[&str]) {
    for name in names {
        let event = invocation(host, S::event_from(name, &[("a", "Done")]));
        assert!(S::deliver(consumer, event, till, |_| ()).await.is_empty(), "{name}");
    }
}

pub(crate) async fn equal_keys_of_two_sources_are_different_work<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    deliver_from::<S>(&consumer, &host, &till, &["orders", "refunds", "orders", "refunds"]).await;
    assert_eq!(till.ran(), ["1", "1"]);
    for name in ["orders", "refunds"] {
        assert!(world.row(&format!("orders#{}#1", S::id_of(name))).await.is_some(), "{name}");
    }
}

pub(crate) async fn a_prefix_of_its_own_spans_the_sources<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    for prefix in ["shop", ""] {
        let once = by_payment(&world.locks(&host).build().unwrap()).prefix(prefix);
        deliver_from::<S>(&Plain::<S>::new(once), &host, &till, &["orders", "refunds"]).await;
    }
    assert_eq!(till.ran(), ["1", "1"]);
    assert!(world.row("shop#1").await.is_some() && world.row("1").await.is_some());
}

pub(crate) async fn tenants_share_no_record_unless_it_spans_them<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let once = by_payment(&world.locks(&host).key_prefix("shared#").build().unwrap()).across_tenants();
    for (consumer, runs) in [(consumer, 3), (Plain::<S>::new(once), 4)] {
        for tenant in [Some("blue"), Some("green"), None, Some("blue"), None] {
            let event = invocation(&host, S::event(&[("a", "Done")]));
            let event = if let Some(tenant) = tenant { by_tenant(tenant, event) } else { event };
            assert!(S::deliver(&consumer, event, &till, |_| ()).await.is_empty());
        }
        assert_eq!(till.ran(), vec!["1"; runs]);
    }
    assert!(world.row(&format!("orders#green#{}#1", S::id_of("payments"))).await.is_some());
}

pub(crate) async fn equal_keys_of_one_source_are_the_same_work<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    let copy = |lane| (lane, payment("17", "Done"));
    for copies in [&[copy("a")][..], &[copy("b"), copy("c")]] {
        assert!(deliver_texts(&consumer, &host, &till, copies).await.is_empty());
    }
    assert_eq!(till.ran(), ["1"]);
    assert!(world.row(&row_of::<S>("17")).await.is_some());
}

pub(crate) async fn an_item_without_a_key_is_not_done_or_runs_unprotected<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let locks = world.locks(&host).build().unwrap();
    let keyed = |on_missing_key| {
        let key = |item: &S::Item| Some(item.payment().id.clone()).filter(|id| id != "none");
        Plain::<S>::new(Idempotency::new(locks.clone(), on_missing_key, key))
    };
    let items = [("a", payment("none", "Done")), ("b", payment("2", "Done")), ("c", payment("none", "Done"))];
    let not_done = deliver_texts(&keyed(OnMissingKey::Reject), &host, &till, &items).await;
    assert_eq!(not_done, S::named(["1", "3"]));
    assert_eq!(till.ran(), ["2"]);
    assert!(deliver_texts(&keyed(OnMissingKey::RunUnprotected), &host, &till, &items).await.is_empty());
    assert_eq!(till.ran_in_any_order(), ["1", "2", "3"]);
    assert_eq!(host.requests(), PER_RUN + PER_REFUSAL);
}

pub(crate) async fn an_item_with_a_used_key_and_different_fields_is_not_done<S: Tested>() {
    let (world, host, _, till) = environment::<S>().await;
    let once = by_payment(&world.locks(&host).build().unwrap()).validate(|item: &S::Item| item.payment().amount);
    let consumer = Plain::<S>::new(once);
    let paying = |lane, amount| (lane, json!({ "id": "17", "amount": amount }).to_string());
    assert!(deliver_texts(&consumer, &host, &till, &[paying("a", 5)]).await.is_empty());
    let items = [paying("a", 5), paying("b", 6), ("c", payment("3", "Done"))];
    assert_eq!(deliver_texts(&consumer, &host, &till, &items).await, S::named(["2"]));
    assert_eq!(till.ran(), ["1", "3"]);
}

/// Asserts that the consumer remembers a payment with this id for this time after its start.
async fn assert_remembers<S: Tested>(world: &World, host: &Host, consumer: &Plain<S>, id: &str, window: Duration) {
    assert!(deliver_texts(consumer, host, &Till::default(), &[("a", payment(id, "Done"))]).await.is_empty());
    let row = world.row(&row_of::<S>(id)).await.unwrap();
    let of = |attribute: &str| row[attribute].as_n().unwrap().parse::<u64>().unwrap();
    let remembered = of("expiration") - of("acquired_at") / 1000;
    assert!((window.as_secs()..window.as_secs() + 10).contains(&remembered), "{id}: {remembered}");
}

pub(crate) async fn an_item_is_remembered_for_longer_than_it_can_be_delivered<S: Tested>() {
    let (world, host, consumer, _) = environment::<S>().await;
    let window = Duration::from_hours(24 * S::DAYS);
    assert_remembers(&world, &host, &consumer, "JSON", window).await;
    let once = by_payment(&world.locks(&host).build().unwrap());
    let consumer = S::with_parser(once, |text| serde_json::from_str(text));
    assert_remembers(&world, &host, &consumer, "by a parser of its own", window).await;
}

pub(crate) async fn a_window_of_the_settings_or_of_the_consumer_replaces_the_default<S: Tested>() {
    let (world, host, consumer, _) = environment::<S>().await;
    for (window, name) in [(Duration::from_mins(10), "minutes"), (Duration::from_hours(365 * 24), "a year")] {
        let of_consumer = consumer.clone().window(window);
        assert_remembers(&world, &host, &of_consumer, &format!("{name} of the consumer"), window).await;
        let of_settings = Plain::<S>::new(by_payment(&world.locks(&host).build().unwrap()).window(window));
        assert_remembers(&world, &host, &of_settings, &format!("{name} of the settings"), window).await;
    }
}

pub(crate) async fn a_window_outside_its_bounds_fails_each_item_without_a_request<S: Tested>() {
    let (world, host, consumer, till) = environment::<S>().await;
    for window in [Duration::ZERO, Duration::from_hours(367 * 24)] {
        let of_settings = Plain::<S>::new(by_payment(&world.locks(&host).build().unwrap()).window(window));
        for consumer in [consumer.clone().window(window), of_settings] {
            assert_eq!(deliver(&consumer, &host, &till, &[("a", "Done")]).await, S::named(["1"]));
        }
    }
    assert!(till.ran().is_empty());
    assert_eq!(host.requests(), 0);
}
