//! The log of a consumer.

use std::time::Duration;

use lambda_lock::Idempotency;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::Consumer;
use lambda_lock_tests::World;
use lambda_lock_tests::invocation::{invocation, invocation_with, keep_log, logged};
use lambda_lock_tests::till::{Paid, Till};
use serde_json::json;
use tower::service_fn;

use crate::{Plain, Tested, answer, by_payment, environment, ms, payment};

pub(crate) async fn the_log_names_a_failed_item_and_does_not_show_its_content<S: Tested>() {
    keep_log();
    let (world, host, _, till) = environment::<S>().await;
    // Its key is in the log.
    let by_name = |item: &S::Item| Some(item.name());
    let once = Idempotency::new(world.locks(&host).build().unwrap(), OnMissingKey::Reject, by_name);
    let name = format!("payments-of-{}", world.table);
    let secret = format!("secret-of-{}", world.table);
    let items = [
        ("unreadable", format!("{{\"id\": \"{secret}")),
        ("mistyped", json!({ "id": "2", "amount": secret }).to_string()),
        ("unknown", payment("3", &secret)),
        ("panicking", payment(&secret, "Panic")),
        ("declined", payment(&secret, "Declined")),
        (&*secret, payment(&secret, "Done")),
    ];
    let event = invocation(&host, S::event_of(&name, &items));
    let not_done = S::deliver(&Plain::<S>::new(once), event, &till, |_| ()).await;
    assert_eq!(not_done, S::named(["1", "2", "3", "4", "5"]));
    for item in ["1", "2", "3", "4", "5"] {
        let line = the_line::<S>(&name, item);
        assert!(line.contains("ERROR"), "{line}");
        assert_eq!(line.contains("by the bank"), item == "5", "{line}");
    }
    assert_eq!(logged(&secret), Vec::<String>::new());
}

/// Returns the only line that says that this item from `name` is not done.
pub(crate) fn the_line<S: Tested>(name: &str, item: &str) -> String {
    let field = S::field(name, item);
    let lines = logged(name).into_iter().filter(|line| line.contains(&field) && line.contains(S::NOT_DONE));
    let lines: Vec<_> = lines.collect();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    line.clone()
}

pub(crate) async fn an_item_in_progress_elsewhere_is_logged_once_at_info<S: Tested>() {
    World::skip_waits();
    keep_log();
    let (world, host, consumer, till) = environment::<S>().await;
    let name = format!("payments-in-{}", world.table);
    let key = format!("orders#{}#1", S::id_of(&name));
    let _other = world.default_locks().acquire(key).lease(Duration::from_secs(30)).await.unwrap();
    // A stream and a topic wait for the other one until shortly before the deadline.
    let soon_over = invocation_with(&host, S::event_from(&name, &[("a", "Done")]), ms(3_000));
    assert_eq!(S::deliver(&consumer, soon_over, &till, |_| ()).await, S::named(["1"]));
    let line = the_line::<S>(&name, "1");
    assert!(line.contains("INFO") && line.contains("is in progress: "), "{line}");
    let is_news = |line: &&String| ["ERROR", "WARN", "INFO"].iter().any(|level| line.contains(level));
    assert_eq!(logged(&name).iter().filter(is_news).count(), 1);
}

pub(crate) async fn the_log_shows_the_type_of_an_error_if_it_has_a_name<S: Tested>() {
    keep_log();
    let (world, host, consumer, till) = environment::<S>().await;
    let locks = world.locks(&host).build().unwrap();
    let [named, boxed] = ["named", "boxed"].map(|what| format!("{what}-in-{}", world.table));
    let consumer = consumer.fail_if_all_failed(false);
    S::deliver(&consumer, invocation(&host, S::event_from(&named, &[("a", "Declined")])), &till, |_| ()).await;
    let consumer = Consumer::<S, S::Item, (), lambda_runtime::Error>::new(by_payment(&locks)).fail_if_all_failed(false);
    let handler = service_fn(async |_: S::Item| Err("out of reach".into()));
    answer(&consumer, handler, invocation(&host, S::event_from(&boxed, &[("a", "Declined")]))).await.unwrap();
    let [named, boxed] = [named, boxed].map(|name| the_line::<S>(&name, "1"));
    assert!(named.contains("error_type=\"Declined\""), "{named}");
    assert!(boxed.contains("out of reach") && !boxed.contains("error_type"), "{boxed}");
}

pub(crate) async fn items_without_time_are_one_line<S: Tested>() {
    keep_log();
    for lanes in [1, 10_000] {
        let (world, host, consumer, till) = environment::<S>().await;
        let name = format!("{lanes}-lanes-in-{}", world.table);
        let items: Vec<_> = (0..10_000).map(|number| (number % lanes).to_string()).collect();
        let items: Vec<_> = items.iter().map(|lane| (lane.as_str(), "Done")).collect();
        let event = invocation(&host, S::event_from(&name, &items));
        host.advance_clock(Duration::from_secs(31));
        assert!(!S::deliver(&consumer, event, &till, |_| ()).await.is_empty());
        let lines = logged(&name);
        let [line] = &lines[..] else { panic!("{} lines, first {}", lines.len(), lines[0]) };
        for part in ["WARN", "count=10000", "no time left", "1, ", "100\""] {
            assert!(line.contains(part), "`{part}` is not in {line}");
        }
        assert!(line.len() < 20_000, "{}", line.len());
    }
}

pub(crate) async fn an_item_behind_a_failure_does_not_count_as_without_time<S: Tested>() {
    keep_log();
    let world = World::in_virtual_time().await;
    tokio::time::pause();
    let host = world.host().build();
    // Not enforced, so that the endless one is cut off when the answer is due.
    let consumer = Plain::<S>::new(by_payment(&world.locks(&host).enabled(false).build().unwrap()));
    let name = format!("payments-behind-in-{}", world.table);
    let payments = [("a", "Declined"), ("a", "Done"), ("b", "Endless"), ("b", "Done")];
    let event = invocation(&host, S::event_from(&name, &payments));
    assert_eq!(S::deliver(&consumer, event, &Till::default(), |_| ()).await, S::named(["1", "2", "3", "4"]));
    let lines: Vec<_> = logged(&name).into_iter().filter(|line| line.contains("no time left")).collect();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("count=2") && line.contains("3, ") && !line.contains("2, "), "{line}");
}
