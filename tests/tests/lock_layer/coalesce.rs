//! `LockLayer::coalesce`: invocations that are skipped are followed by one more run.

use std::sync::Arc;
use std::time::Duration;

use lambda_lock::lambda::OnUnavailable;
use lambda_lock::{LockLayer, Locks};
use lambda_lock_tests::invocation::{Counter, LoseAnswers, reported};
use lambda_runtime::{Error, LambdaEvent};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{FUNCTION, environment, invocation, invocation_with, is_free, quick_backoff, with_request_id};

type Event = LambdaEvent<u32>;

const NEEDS: Duration = Duration::from_secs(5);
/// The payload with which the first run of a handler fails. With 0, each run fails.
const FAILS_ONCE: u32 = 100;

fn layer(locks: Locks) -> LockLayer<Event, String> {
    LockLayer::new(locks).on_held(|_| "skipped".to_owned()).coalesce(NEEDS)
}

/// A handler whose first run waits until it is told to end.
#[derive(Clone, Default)]
struct Runs {
    count: Counter,
    begun: Arc<Notify>,
    end: Arc<Notify>,
}

impl Runs {
    async fn run(self, event: Event) -> Result<String, Error> {
        let is_first = self.count.count() == 1;
        if is_first {
            self.begun.notify_one();
            self.end.notified().await;
        }
        if event.payload == 0 || (event.payload == FAILS_ONCE && is_first) {
            return Err("the event is wrong".into());
        }
        Ok(format!("ran {}", event.payload))
    }

    fn handler(&self) -> impl Service<Event, Response = String, Error = Error, Future: Send> + Clone + Send + 'static {
        let runs = self.clone();
        service_fn(move |event| runs.clone().run(event))
    }

    /// Invokes the function, and meanwhile so many others, which are skipped.
    async fn invoked(
        &self,
        (layer, others): (LockLayer<Event, String>, LockLayer<Event, String>),
        event: Event,
        meanwhile: u32,
    ) -> Result<String, (String, String)> {
        let other =
            |other: u32| with_request_id(&format!("other-{other}"), LambdaEvent::new(other, event.context.clone()));
        let other_events: Vec<_> = (0..meanwhile).map(other).collect();
        let skipped = async {
            self.begun.notified().await;
            for event in other_events {
                assert_eq!(others.clone().layer(self.handler()).oneshot(event).await.unwrap(), "skipped");
            }
            self.end.notify_one();
        };
        let (answer, ()) = tokio::join!(layer.layer(self.handler()).oneshot(event), skipped);
        answer.map_err(reported)
    }
}

fn twice<T: Clone>(value: T) -> (T, T) {
    (value.clone(), value)
}

#[tokio::test]
async fn one_more_run_follows_however_many_were_skipped() {
    let (world, host, locks) = environment().await;
    let runs = Runs::default();
    let answer = runs.invoked(twice(layer(locks)), invocation(&host, 7), 3).await;
    assert_eq!((answer.unwrap().as_str(), runs.count.get()), ("ran 7", 2));
    // Two acquires and two releases, and for each that was skipped a refusal and its request to the holder.
    assert_eq!(host.requests(), 4 + 3 * 2);
    assert!(is_free(&world, FUNCTION).await);
}

#[tokio::test]
async fn without_skipped_invocations_nothing_is_sent_in_addition() {
    let (_world, host, locks) = environment().await;
    let runs = Runs::default();
    runs.invoked(twice(layer(locks)), invocation(&host, 7), 0).await.unwrap();
    assert_eq!((runs.count.get(), host.requests()), (1, 2));
}

#[tokio::test]
async fn a_lost_answer_of_the_release_loses_no_run() {
    let (world, _, _) = environment().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 2..=2)).build();
    let locks = world.locks_with_quick_retries(&host).build().unwrap();
    let runs = Runs::default();
    let layers = (layer(locks), layer(world.default_locks()));
    runs.invoked(layers, invocation(&host, 7), 1).await.unwrap();
    assert_eq!(runs.count.get(), 2);
}

#[tokio::test]
async fn with_too_little_time_the_invocation_fails_after_it_has_freed_the_key() {
    let (world, host, locks) = environment().await;
    let event = invocation_with(&host, 7, NEEDS);
    let (kind, message) = Runs::default().invoked(twice(layer(locks)), event, 1).await.unwrap_err();
    assert_eq!(kind, "LockRunAgain");
    assert!(message.contains("was to run once more, and too little time is left: retry the invocation"), "{message}");
    assert!(is_free(&world, FUNCTION).await);
}

#[tokio::test]
async fn with_too_little_time_the_run_can_be_sent_elsewhere() {
    let (_world, host, locks) = environment().await;
    let sent = Counter::default();
    let layer = layer(locks).on_too_little_time({
        let sent = sent.clone();
        move || {
            let is_first = sent.count() == 1;
            async move { if is_first { Ok(()) } else { Err("the queue is gone".into()) } }
        }
    });
    let event = || invocation_with(&host, 7, NEEDS);
    assert_eq!(Runs::default().invoked(twice(layer.clone()), event(), 1).await.unwrap(), "ran 7");
    let (kind, message) = Runs::default().invoked(twice(layer), event(), 1).await.unwrap_err();
    assert_eq!((kind.as_str(), sent.get()), ("LockRunAgain", 2));
    assert!(message.contains("the queue is gone"), "{message}");
}

#[tokio::test]
async fn a_handler_that_fails_runs_once_more_for_skipped_invocations() {
    let (world, host, locks) = environment().await;
    for (payload, expected) in [(0, Err(())), (FAILS_ONCE, Ok("ran 100".to_owned()))] {
        let runs = Runs::default();
        let answer = runs.invoked(twice(layer(locks.clone())), invocation(&host, payload), 2).await;
        let answer = answer.map_err(|(_, message)| assert!(message.contains("the event is wrong"), "{message}"));
        assert_eq!((answer, runs.count.get()), (expected, 2));
        assert!(is_free(&world, FUNCTION).await);
    }
}

#[tokio::test]
async fn a_handler_that_fails_runs_no_second_time_for_nobody() {
    let (_world, host, locks) = environment().await;
    let runs = Runs::default();
    runs.invoked(twice(layer(locks)), invocation(&host, 0), 0).await.unwrap_err();
    assert_eq!((runs.count.get(), host.requests()), (1, 2));
}

/// The caller may not retry the error.
#[tokio::test]
async fn after_a_failed_run_with_too_little_time_the_next_run_is_sent_elsewhere() {
    let (_world, host, locks) = environment().await;
    let sent = Counter::default();
    let layer = layer(locks).on_too_little_time({
        let sent = sent.clone();
        move || {
            sent.count();
            async { Ok(()) }
        }
    });
    let event = invocation_with(&host, 0, NEEDS);
    let (_, message) = Runs::default().invoked(twice(layer), event, 1).await.unwrap_err();
    assert!(message.contains("the event is wrong"), "{message}");
    assert_eq!(sent.get(), 1);
}

/// A closure that counts or logs tells the truth.
#[tokio::test]
async fn on_held_is_called_only_for_invocations_that_it_answers() {
    let (world, host, locks) = environment().await;
    let answered = Counter::default();
    let layer = |locks| {
        let answered = answered.clone();
        LockLayer::new(locks).on_held(move |_| format!("skipped {}", answered.count())).coalesce(NEEDS)
    };
    world.default_locks().acquire(FUNCTION).min_hold(NEEDS).await.unwrap().release().await.unwrap();
    let service = layer(locks.clone()).layer(service_fn(async |_: Event| Ok::<_, Error>("ran".to_owned())));
    assert_eq!(reported(service.clone().oneshot(invocation(&host, 1)).await.unwrap_err()).0, "LockHeld");
    assert_eq!(answered.get(), 0, "nobody was there to run once more");
    host.advance_clock(2 * NEEDS);
    let lock = locks.acquire(FUNCTION).await.unwrap();
    let event = with_request_id("another", invocation(&host, 1));
    assert_eq!(service.oneshot(event).await.unwrap(), "skipped 1");
    assert!(lock.release_coalescing().await.unwrap());
}

/// Nobody is there to run once more, so the invocation looks three times.
#[tokio::test]
async fn an_invocation_that_looks_again_does_not_wait_again() {
    let (world, host, locks) = environment().await;
    world.default_locks().acquire(FUNCTION).min_hold(NEEDS).await.unwrap().release().await.unwrap();
    let waiting = layer(locks).wait(quick_backoff().max_attempts(3));
    let service = waiting.layer(service_fn(async |_: Event| Ok::<_, Error>(String::new())));
    assert_eq!(reported(service.oneshot(invocation(&host, 1)).await.unwrap_err()).0, "LockHeld");
    assert_eq!(host.requests(), 3 + 1 + 1);
}

#[tokio::test]
async fn an_invocation_runs_itself_if_it_finds_nobody_to_leave_its_work_to() {
    let (world, host, locks) = environment().await;
    let lock = world.default_locks().acquire(FUNCTION).min_hold(Duration::from_hours(1)).await.unwrap();
    lock.release().await.unwrap();
    let service = layer(locks).layer(service_fn(async |_: Event| Ok::<_, Error>("ran".to_owned())));
    // The key is only kept by the minimum hold of another function.
    assert_eq!(reported(service.clone().oneshot(invocation(&host, 1)).await.unwrap_err()).0, "LockHeld");
    host.advance_clock(Duration::from_hours(2));
    assert_eq!(service.oneshot(invocation(&host, 1)).await.unwrap(), "ran");
}

/// An operator frees the key while the handler runs. Nobody knows then whether others were skipped.
#[tokio::test]
async fn a_lost_lock_is_acquired_again() {
    let (world, host, locks) = environment().await;
    let runs = Runs::default();
    let freed = async {
        runs.begun.notified().await;
        let operator = world.default_locks();
        let seen = operator.get(FUNCTION).await.unwrap().unwrap();
        assert!(operator.force_release(FUNCTION, &seen).await.unwrap());
        runs.end.notify_one();
    };
    let service = layer(locks).layer(runs.handler());
    let (answer, ()) = tokio::join!(service.oneshot(invocation(&host, 7)), freed);
    assert_eq!((answer.unwrap().as_str(), runs.count.get()), ("ran 7", 2));
}

/// The same, and another client acquires the key before this invocation does so again. The release says nothing about it, so this
/// is as if it had come between the two runs.
#[tokio::test]
async fn the_further_run_is_left_to_a_holder_that_came_between() {
    let (world, host, locks) = environment().await;
    let runs = Runs::default();
    let other = async {
        runs.begun.notified().await;
        let other = world.default_locks();
        let seen = other.get(FUNCTION).await.unwrap().unwrap();
        assert!(other.force_release(FUNCTION, &seen).await.unwrap());
        let lock = other.acquire(FUNCTION).await.unwrap();
        runs.end.notify_one();
        lock
    };
    let service = layer(locks).layer(runs.handler());
    let (answer, lock) = tokio::join!(service.oneshot(invocation(&host, 7)), other);
    assert_eq!((answer.unwrap().as_str(), runs.count.get()), ("ran 7", 1));
    assert!(lock.release_coalescing().await.unwrap());
}

#[tokio::test]
async fn settings_that_contradict_it_are_refused() {
    let (_world, host, locks) = environment().await;
    let minute = Duration::from_mins(1);
    for layer in [
        layer(locks.clone()).min_hold(minute),
        layer(locks.clone()).at_most(2),
        layer(locks.clone()).at_rate(1, minute),
        layer(locks).on_unavailable(OnUnavailable::RunUnlocked),
    ] {
        let service = layer.layer(service_fn(async |_: Event| Ok::<_, Error>(String::new())));
        let (kind, message) = reported(service.oneshot(invocation(&host, 1)).await.unwrap_err());
        assert_eq!(kind, "LockInvalid");
        assert!(message.contains("`coalesce` does not go together with"), "{message}");
    }
    assert_eq!(host.requests(), 0);
}
