//! Futures that are dropped before they end, as with a timeout or a client that has gone.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lambda_lock::embedded::{Faults, HostBuilder};
use lambda_lock_tests::World;

use crate::subject::Subject;
use crate::{LEASE, assert_free};

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

/// Drops an acquire after its first poll, the next one after its second, and so on until one ends.
async fn drop_at_every_await<S: Subject>(network: impl Fn(HostBuilder) -> HostBuilder) {
    /// More awaits than an acquire has.
    const MOST: u32 = 1000;
    for times in 1..MOST {
        let world = World::new().await;
        // Requests and answers are under way for a while, so the acquire waits for each.
        let slow = Faults::seeded(1).latency(Duration::from_millis(1)..Duration::from_millis(1));
        let host = network(world.host().faults(slow)).build();
        let locks = world.locks_with_quick_retries(&host).build().unwrap();
        let ended = polled(times, S::acquire(&locks, LEASE)).await;
        if let Some(held) = ended {
            assert!(times > 2, "the acquire did not wait for a request and its answer");
            held.unwrap_or_else(|error| panic!("{error}")).release().await.unwrap();
            return assert_free::<S>(&world).await;
        }
        assert!(locks.flush(Duration::from_mins(1)).await);
        assert_free::<S>(&world).await;
    }
    panic!("the acquire never ends");
}

pub(crate) async fn an_acquire_that_is_dropped_at_any_await_leaves_the_key_free<S: Subject>() {
    drop_at_every_await::<S>(|host| host).await;
}

pub(crate) async fn an_acquire_without_an_answer_that_is_dropped_at_any_await_leaves_the_key_free<S: Subject>() {
    drop_at_every_await::<S>(|host| host.intercept(S::lose_answers(1..=2))).await;
}
