//! Requests that are dropped: their client has disconnected, or a timeout outside of the layer has ended.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use lambda_http::{Body, Request, Response};
use lambda_lock::embedded::{DynamoDb, Host, HostBuilder};
use lambda_lock::http::HttpIdempotencyLayer;
use lambda_lock::{Backoff, Locks, OnUnfinished, Wait};
use lambda_lock_tests::invocation::{Cause, Counter, Prevents};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tower::{Service, service_fn};

use crate::{TOO_LONG, counting, created, environment, layer, order, send};

/// The runs of a handler that the test ends.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    pub(crate) runs: Counter,
    pub(crate) started: Arc<Notify>,
    pub(crate) end: Arc<Notify>,
}

impl Gate {
    pub(crate) async fn run(self) -> Response<Body> {
        let run = self.runs.count();
        self.started.notify_one();
        self.end.notified().await;
        created(run)
    }

    fn handler(
        &self,
    ) -> impl Service<Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static
    {
        let gate = self.clone();
        service_fn(move |_: Request| {
            let run = gate.clone().run();
            async { Ok(run.await) }
        })
    }
}

pub(crate) fn eagerly() -> Wait {
    Wait::backoff(Backoff::new().base(Duration::from_millis(2)).cap(Duration::from_millis(50))).up_to(TOO_LONG)
}

/// Sends an order, and drops the request after `time`.
async fn drop_order<S>(host: &Host, layer: &HttpIdempotencyLayer, handler: &S, time: impl Future<Output = ()>)
where
    S: Service<Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    tokio::select! {
        reply = send(layer, handler, order(host)) => panic!("{reply:?}"),
        () = time => {}
    }
}

#[tokio::test]
async fn the_handler_of_a_dropped_request_runs_to_its_end() {
    let (_world, host, locks) = environment().await;
    let (layer, gate) = (layer(&locks), Gate::default());
    drop_order(&host, &layer, &gate.handler(), gate.started.notified()).await;
    for _ in 0..4 {
        let retry = send(&layer, &gate.handler(), order(&host)).await;
        assert_eq!(retry.problem(), (409, "in-progress".to_owned()));
    }
    gate.end.notify_one();
    let retry = send(&layer.wait(eagerly()), &gate.handler(), order(&host)).await;
    assert_eq!((retry.made_by(), gate.runs.get()), ((201, 1, true), 1));
}

#[tokio::test]
async fn a_run_whose_request_was_dropped_is_not_unfinished() {
    let (_world, host, locks) = environment().await;
    let (layer, gate) = (layer(&locks).on_unfinished(OnUnfinished::Reject), Gate::default());
    drop_order(&host, &layer, &gate.handler(), gate.started.notified()).await;
    gate.end.notify_one();
    assert_eq!(send(&layer.wait(eagerly()), &gate.handler(), order(&host)).await.made_by(), (201, 1, true));
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_waits_does_not_run() {
    let (_world, host, locks) = environment().await;
    let (layer, gate) = (layer(&locks), Gate::default());
    let first = tokio::spawn({
        let (layer, handler, order) = (layer.clone(), gate.handler(), order(&host));
        async move { send(&layer, &handler, order).await }
    });
    gate.started.notified().await;
    let requests = host.requests();
    let waits = async {
        while host.requests() < requests + 2 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    drop_order(&host, &layer.clone().wait(eagerly()), &gate.handler(), waits).await;
    first.abort();
    gate.end.notify_one();
    assert_eq!(send(&layer.wait(eagerly()), &gate.handler(), order(&host)).await.made_by(), (201, 1, true));
    assert_eq!(gate.runs.get(), 1);
}

#[tokio::test]
async fn a_dropped_request_whose_handler_panics_releases_the_record() {
    let (_world, host, locks) = environment().await;
    let (started, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let panicking = service_fn({
        let (started, end) = (Arc::clone(&started), Arc::clone(&end));
        move |_: Request| -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
            let (started, end) = (Arc::clone(&started), Arc::clone(&end));
            Box::pin(async move {
                started.notify_one();
                end.notified().await;
                panic!("the handler's own")
            })
        }
    });
    drop_order(&host, &layer(&locks), &panicking, started.notified()).await;
    end.notify_one();
    let retry = send(&layer(&locks).wait(eagerly()), &counting(&Counter::default()), order(&host)).await;
    assert_eq!(retry.made_by(), (201, 1, false));
}

/// Locks on an embedded engine in tokio's time.
async fn in_virtual_time(host: impl FnOnce(HostBuilder) -> HostBuilder) -> (Host, Locks) {
    let engine = DynamoDb::starting_at(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)).unwrap();
    let locks = Locks::builder(engine.client(), "locks").build().unwrap();
    locks.create_table().await.unwrap();
    let host = host(engine.host()).build();
    let locks = Locks::builder(host.client(), "locks").build().unwrap();
    (host, locks)
}

fn taking(
    runs: &Counter,
    time: Duration,
) -> impl Service<Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static {
    let runs = runs.clone();
    service_fn(move |_: Request| {
        let run = runs.count();
        async move {
            sleep(time).await;
            Ok(created(run))
        }
    })
}

#[tokio::test(start_paused = true)]
async fn the_run_of_a_dropped_request_ends_with_its_lease() {
    let (host, locks) = in_virtual_time(|host| host).await;
    let (layer, runs) = (layer(&locks).lease(Duration::from_secs(3)), Counter::default());
    let handler = taking(&runs, Duration::from_secs(5));
    timeout(Duration::from_secs(1), send(&layer, &handler, order(&host))).await.unwrap_err();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 2, false));
}

#[tokio::test(start_paused = true)]
async fn the_response_to_a_dropped_request_is_stored_although_that_takes_several_attempts() {
    let (host, locks) = in_virtual_time(|host| host.intercept(Prevents::writes(Cause::Conflict, 2..=20))).await;
    let (layer, runs) = (layer(&locks), Counter::default());
    // The handler returns at once, and its response is not stored in time.
    timeout(Duration::from_millis(100), send(&layer, &counting(&runs), order(&host))).await.unwrap_err();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(send(&layer, &counting(&runs), order(&host)).await.made_by(), (201, 1, true));
    assert_eq!(runs.get(), 1);
}
