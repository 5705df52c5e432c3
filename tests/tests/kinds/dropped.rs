//! Futures that are dropped before they end, as with a timeout or a client that has gone.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lambda_lock::Locks;
use lambda_lock::embedded::{Faults, HostBuilder};
use lambda_lock_tests::World;

use crate::subject::Subject;
use crate::{LEASE, acquired, assert_free};

/// Polls a future at most so many times, then drops it.
async fn polled<T>(times: u32, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 1 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// More awaits than a request has.
const MOST: u32 = 1000;
const LIMIT: Duration = Duration::from_mins(1);

/// Builds the locks of a host on whose network requests and answers are under way for a while, so that each is awaited.
fn slow_locks(world: &World, network: impl Fn(HostBuilder) -> HostBuilder) -> Locks {
    let slow = Faults::seeded(1).latency(Duration::from_millis(1)..Duration::from_millis(1));
    let host = network(world.host().faults(slow)).build();
    world.locks_with_quick_retries(&host).build().unwrap()
}

/// Drops an acquire after its first poll, the next one after its second, and so on until one ends.
async fn drop_acquires<S: Subject>(network: impl Fn(HostBuilder) -> HostBuilder) {
    for times in 1..MOST {
        let world = World::new().await;
        let locks = slow_locks(&world, &network);
        if let Some(held) = polled(times, S::acquire(&locks, LEASE)).await {
            assert!(times > 2, "the acquire did not wait for a request and its answer");
            held.unwrap_or_else(|error| panic!("{error}")).release().await.unwrap();
            return assert_free::<S>(&world).await;
        }
        locks.flush(LIMIT).await.unwrap();
        assert_free::<S>(&world).await;
    }
    panic!("the acquire never ends");
}

pub(crate) async fn an_acquire_that_is_dropped_at_any_await_leaves_the_key_free<S: Subject>() {
    drop_acquires::<S>(|host| host).await;
}

pub(crate) async fn an_acquire_without_an_answer_that_is_dropped_at_any_await_leaves_the_key_free<S: Subject>() {
    drop_acquires::<S>(|host| host.intercept(S::lose_answers(1..=2))).await;
}

pub(crate) async fn a_lock_whose_renewal_is_dropped_at_any_await_can_be_released<S: Subject>() {
    for times in 1..MOST {
        let world = World::new().await;
        let mut held: S = acquired(&slow_locks(&world, |host| host)).await;
        let renewed = polled(times, held.renew(2 * LEASE)).await;
        held.release().await.unwrap();
        assert_free::<S>(&world).await;
        if let Some(renewed) = renewed {
            assert!(times > 2, "the renewal did not wait for a request and its answer");
            return renewed.unwrap();
        }
    }
    panic!("the renewal never ends");
}

pub(crate) async fn a_release_that_is_dropped_at_any_await_frees_the_key_with_the_lock<S: Subject>() {
    for times in 1..MOST {
        let world = World::new().await;
        let locks = slow_locks(&world, |host| host);
        let mut held: S = acquired(&locks).await;
        let released = polled(times, held.release()).await;
        drop(held);
        locks.flush(LIMIT).await.unwrap();
        assert_free::<S>(&world).await;
        if let Some(released) = released {
            assert!(times > 2, "the release did not wait for a request and its answer");
            return released.unwrap();
        }
    }
    panic!("the release never ends");
}

pub(crate) async fn a_lock_that_is_dropped_frees_the_key<S: Subject>() {
    let world = World::new().await;
    let locks = world.default_locks();
    drop(acquired::<S>(&locks).await);
    locks.flush(LIMIT).await.unwrap();
    assert_free::<S>(&world).await;
}
