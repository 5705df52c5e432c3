//! The middleware for HTTP requests: a retry with the same key gets the first response.

use std::fmt;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body::Body;
use lambda_runtime::Context;
use serde_json::{Value, json};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use super::caller::Caller;
use super::fingerprint::FingerprintRule;
use super::problem::Problem;
use super::response::{HttpIdempotencyBody, ResultRule, StoredResponse};
use super::run::HttpRun;
use super::{request, response};
use crate::error::Error;
use crate::idempotency::{
    HandlerError, Idempotency, Identity, Invocation, NextStep, OnMissingKey, OnUnfinished, OnUnstorableResult,
    RecordFormat, Run,
};
use crate::lambda::{Layered, invocation_of};
use crate::lock::{Locks, Wait};
use crate::{metrics, panics};

/// Lambda's own limit for the payload of an invocation.
const MAX_BODY_BYTES: usize = 6 << 20;
const MAX_KEY_LENGTH: usize = 255;

/// A tower layer that makes HTTP requests idempotent by their header `Idempotency-Key`: a retry gets the first response.
///
/// ```no_run
/// use lambda_http::{Body, Error, Request, Response, service_fn};
/// use lambda_lock::http::{Caller, HttpIdempotencyLayer};
/// use lambda_lock::Locks;
/// use tower::Layer;
///
/// async fn place(request: Request) -> Result<Response<Body>, Error> {
///     Ok(Response::builder().status(201).body(Body::from("placed"))?)
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     let once = HttpIdempotencyLayer::new(Locks::from_env().await?, Caller::iam_principal());
///     lambda_http::run(once.layer(service_fn(place))).await
/// }
/// ```
///
/// It follows the IETF draft "The Idempotency-Key HTTP Header Field"
/// (draft-ietf-httpapi-idempotency-key-header-07). [`docs::reference::http`](crate::docs::reference::http) has the table of all
/// statuses.
///
/// Put it around a `lambda_http` handler or an axum router: API Gateway's REST and HTTP APIs, function URLs and load
/// balancers. Requests with other methods than [these](Self::methods) pass through. The key of a record is the
/// hash of the [`Caller`] and of the client's key, behind the invocation's tenant, if it has one.
///
/// | the first request with this key | what a retry gets |
/// | --- | --- |
/// | was answered with a [result](Self::results) | that response: status, headers and body, with `Idempotency-Replayed: true` |
/// | was answered with something else, or failed | a new run |
/// | is in progress | 409 with `Retry-After`, or a [wait](Self::wait) |
/// | was killed, and its lease has ended | a new run, or [409](Self::on_unfinished) |
/// | is done, but its response was [too large to store](Self::on_unstorable_result) | 409 |
/// | had another method, path, query, [body](Self::fingerprint_body) or [chosen header](Self::fingerprint_headers) | 422 |
///
/// The handler finds an [`HttpRun`] in the request's extensions, to complete the record in its own transaction. Without
/// that, the response is stored after the handler returned. [`Idempotency`] describes what happens after a crash.
///
/// A handler that borrows a client of `main` does not compile under this layer: [clone the
/// client](crate::LockLayer#a-handler-that-uses-a-client).
///
/// The lease ends at the invocation's deadline, which the layer reads from the `lambda_runtime::Context` in the request's
/// extensions. Elsewhere it is the lease of the [`Locks`], or [`lease`](Self::lease). The handler is cancelled when the
/// lease ends; work that it spawned is not.
///
/// # Errors
///
/// The service fails only with the handler's own error. Everything else is a response of type `application/problem+json`.
/// Errors with a status of 500 or more are logged; the client does not see their cause.
///
/// If the handler panics, the panic goes on. The record is released, but with [`OnUnfinished::Reject`] the run counts as
/// [unfinished](Self::on_unfinished). A result whose body breaks off counts as an error of the handler: the record is
/// released, also with [`OnUnfinished::Reject`].
///
/// # Dropped requests
///
/// A server such as hyper drops a request when its client disconnects, and a timeout outside of this layer drops it when
/// its time is over. The handler goes on, on a task of its own, until it returns or its lease ends. Its response is stored,
/// and until then a retry gets 409 or waits. A request that is dropped before its handler runs is
/// [withdrawn](crate::Acquire#withdrawal).
///
/// Put limits of time, concurrency and load inside of this layer, because a layer outside does not count a handler that goes
/// on. A server that ends its process stops such a handler: await [`Locks::release_all`] before `main` returns, so that no
/// key stays held.
///
/// In Lambda, also set [`lease`](Self::lease): Lambda freezes an environment that has answered, and a handler that goes on.
/// Task-locals of outer layers do not reach the handler; extensions of the request do.
///
/// # Cost
///
/// A request that runs the handler costs two `UpdateItem`s; one that does not costs one, or none with a
/// [cache](Self::cache). Requests that are refused because of their key, caller or size cost none. IAM action
/// `dynamodb:UpdateItem`.
///
/// # Bodies
///
/// The request's body is read before the handler runs, up to a [limit](Self::max_body_bytes), and handed on with the
/// same bytes. A client that sends a request again may build its body anew, so a retry may differ in the following:
///
/// - **JSON**, if the content type says that it is JSON (`application/json`, `…+json`): spaces and the order of an object's
///   names do not count, and numbers are compared as they are written. JSON with a name twice in an object, with more than
///   127 levels or of more than 1 MiB is compared byte by byte.
/// - **Forms** of a content type `multipart/…`: the boundary does not count. The parts do, in their order, each with its
///   headers and byte by byte. A body with text before or behind its parts is compared byte by byte.
/// - **gzip**, if the header `Content-Encoding` is `gzip`: the time in the header of the compressed data does not count.
///
/// Everything else is compared byte by byte, unless a closure says [what of a body counts](Self::fingerprint_body).
///
/// A result's body is read before it is sent, up to 390 KiB. The body of a response that is not a result is not read.
/// Trailers of a request with a key and of a stored response are dropped.
///
/// A body that is refused before it is read, or that is too large, is read and dropped for up to 30 s, so that a client
/// which is still sending gets the answer.
///
/// A record holds up to 390 KiB of JSON text with the status, the headers and the body. The body counts as JSON text or as
/// Base64, whichever is shorter: any body of 290 KiB can be stored, with 3 KiB of headers. A response with more than 10,000
/// headers cannot.
///
/// The same layer around an axum router:
///
/// ```
/// # use axum::{Router, routing::post};
/// # use lambda_lock::http::{Caller, HttpIdempotencyLayer};
/// # use lambda_lock::Locks;
/// # fn example(locks: Locks) -> Router {
/// Router::new()
///     .route("/orders", post(async || "placed"))
///     .layer(HttpIdempotencyLayer::new(locks, Caller::jwt_subject()))
/// # }
/// ```
#[derive(Clone)]
pub struct HttpIdempotencyLayer {
    settings: Arc<RequestSettings>,
}

#[derive(Clone)]
struct RequestSettings {
    idempotency: Idempotency<Keyed, StoredResponse, GivenUp>,
    caller: Caller,
    methods: Vec<Method>,
    max_key_length: usize,
    max_body_bytes: usize,
    fingerprint: FingerprintRule,
    results: ResultRule,
    documentation: Option<String>,
    /// Whether a missing prefix was logged. Clones share it.
    has_warned: Arc<AtomicBool>,
}

/// A request as its record knows it.
#[derive(Default)]
struct Keyed {
    key: Option<Value>,
    fingerprint: String,
}

/// The handler's answer is no result, so that its record is released. It failed, unless it refused the request.
struct GivenUp {
    has_failed: bool,
}

impl HttpIdempotencyLayer {
    /// Creates a layer with records in the table of these locks.
    #[must_use]
    pub fn new(locks: Locks, caller: Caller) -> Self {
        panics::warn_if_they_abort();
        let idempotency = Idempotency::new(locks, OnMissingKey::Reject, |keyed: &Keyed| keyed.key.clone())
            .format(RecordFormat::Hashed)
            .window(Duration::from_hours(24))
            // The client has an answer then, and the operation is done once.
            .on_unstorable_result(OnUnstorableResult::CompleteWithoutResult)
            .digest_by(|keyed, _| Ok(keyed.fingerprint.clone()))
            .failures(|GivenUp { has_failed }| *has_failed);
        let settings = RequestSettings {
            idempotency,
            caller,
            methods: vec![Method::POST, Method::PATCH],
            max_key_length: MAX_KEY_LENGTH,
            max_body_bytes: MAX_BODY_BYTES,
            fingerprint: FingerprintRule::default(),
            results: ResultRule::default(),
            documentation: None,
            has_warned: Arc::default(),
        };
        Self { settings: Arc::new(settings) }
    }

    /// Sets the prefix of record keys, as [`Idempotency::prefix`] does; the function's name by default. APIs with the same
    /// prefix in one table share their keys. Set one outside of Lambda, where there is none by default: without one, and
    /// without a prefix of the [`Locks`], a warning is logged once.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.with_records(|records| records.prefix(prefix))
    }

    /// Sets the methods whose requests are idempotent by their key; `POST` and `PATCH` by default. Requests with other
    /// methods pass through.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|settings| settings.methods = methods.into_iter().collect())
    }

    /// Lets requests without the header run without protection. By default they are answered with 400. An empty header
    /// is answered with 400 in both cases.
    #[must_use]
    pub fn optional_key(self) -> Self {
        self.with_records(|records| records.on_missing_key(OnMissingKey::RunUnprotected))
    }

    /// Sets the largest number of characters of a key; 255 by default. A longer key is answered with 400.
    #[must_use]
    pub fn max_key_length(self, characters: usize) -> Self {
        self.with(|settings| settings.max_key_length = characters)
    }

    /// Sets for how long a response is replayed; 24 hours by default. [`Idempotency::window`] has the bounds. Clients need
    /// to know this time: after it, a retry runs again.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.with_records(|records| records.window(window))
    }

    /// Sets a lease shorter than the time until the invocation's deadline, as [`Idempotency::lease`] does.
    ///
    /// After a crash, the key stays in progress until this lease ends. The `Retry-After` of a request in progress is half of
    /// the time for which the first one has run, at least 1 s, and not beyond the end of its lease.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with_records(|records| records.lease(lease))
    }

    /// Lets a request whose key is in progress wait for the response, as [`Idempotency::wait`] does. Off by default. If
    /// the wait ends first, the answer is 409.
    #[must_use]
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        self.with_records(|records| records.wait(wait))
    }

    /// Sets the largest body of a request with a key, in bytes; 6 MiB by default. A larger one is answered with 413.
    #[must_use]
    pub fn max_body_bytes(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_body_bytes = bytes)
    }

    /// Sets the headers that must be equal in a retry, such as `Content-Type` or a version; none by default. Method,
    /// path, query and body must always be equal. The order of different query parameters does not count, that of the
    /// values of one parameter does. The host counts only if `host` is named. A record that was made with other headers set
    /// here is compared without headers.
    #[must_use]
    pub fn fingerprint_headers(self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        let mut headers: Vec<_> = headers.into_iter().collect();
        headers.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        headers.dedup();
        self.with(|settings| settings.fingerprint.headers = headers)
    }

    /// Sets what of a request's body must be equal in a retry, instead of [all of it](Self#bodies). For example, a client
    /// that sends an order again may write the time of sending into it. Without this setting, the second order gets 422.
    ///
    /// ```
    /// # use lambda_lock::http::{Caller, HttpIdempotencyLayer};
    /// # use lambda_lock::Locks;
    /// # use serde_json::Value;
    /// # fn example(locks: Locks) -> HttpIdempotencyLayer {
    /// HttpIdempotencyLayer::new(locks, Caller::api_key()).fingerprint_body(|_head, body| {
    ///     let mut order: Value = serde_json::from_slice(body).ok()?;
    ///     order.as_object_mut()?.remove("sent_at");
    ///     Some(order)
    /// })
    /// # }
    /// ```
    ///
    /// The closure gets the head and the body of a request, up to [`max_body_bytes`](Self::max_body_bytes), and returns the
    /// part that counts, as a JSON value. The names of objects have no order. If it returns `None`, all of the body counts:
    /// return that for a body that the closure cannot read. With `Some(Value::Null)`, nothing of the body counts. Two requests
    /// with one key and an equal part are one operation, so the second gets the response to the first: leave out only what
    /// changes nothing about the operation. The part is stored only as a digest.
    ///
    /// A deployment that changes the part changes the digest: a retry of a request from before it gets 422 until the window
    /// has passed.
    #[must_use]
    pub fn fingerprint_body<V: Into<Value>>(
        self,
        part: impl Fn(&Parts, &[u8]) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        let part = move |head: &Parts, body: &[u8]| part(head, body).map(Into::into);
        self.with(|settings| settings.fingerprint.body = Some(Arc::new(part)))
    }

    /// Sets the headers of a response that are stored and replayed, instead of all but the default exceptions.
    ///
    /// By default, all are stored but `Set-Cookie`, `Date`, `Content-Length` and the headers of one connection, such as
    /// `Transfer-Encoding`. Those that `Connection` names are never stored. The first response has all its headers.
    #[must_use]
    pub fn store_headers(self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| settings.results.stored_headers = Some(headers.into_iter().collect()))
    }

    /// Sets which responses are results, by their status and headers. A result is stored and replayed. After another
    /// response, the record is released and a retry runs.
    ///
    /// By default, [`is_result`](Self::is_result) decides. Build on it if your API differs in some statuses:
    ///
    /// ```
    /// # use http::StatusCode;
    /// # use http::header::RETRY_AFTER;
    /// # use lambda_lock::http::{Caller, HttpIdempotencyLayer};
    /// # use lambda_lock::Locks;
    /// # fn example(locks: Locks) -> HttpIdempotencyLayer {
    /// HttpIdempotencyLayer::new(locks, Caller::api_key()).results(|status, headers| match status {
    ///     // The fraud check has refused the order, and remembers it.
    ///     StatusCode::FORBIDDEN => true,
    ///     _ => HttpIdempotencyLayer::is_result(status, headers) && !headers.contains_key(RETRY_AFTER),
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn results(self, is_result: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.results.is_result = Arc::new(is_result))
    }

    /// Returns whether a response is a result by default: one with a status from 200 to 499 that does not say that nothing
    /// was done. The guide has the [table of statuses](crate::docs::reference::http#what-is-stored). For example, 401 is no result,
    /// because the client renews its token and sends the same request again. Sends no request.
    ///
    /// A response of the type `text/event-stream` is no result either: it is not read, and the record is released when the
    /// handler has returned it.
    #[must_use]
    pub fn is_result(status: StatusCode, headers: &HeaderMap) -> bool {
        response::is_result(status, headers)
    }

    /// Sets what happens after a run that did not finish, as [`Idempotency::on_unfinished`] does. With
    /// [`OnUnfinished::Reject`], the answer is 409, also to a request whose own lease ends.
    #[must_use]
    pub fn on_unfinished(self, policy: OnUnfinished) -> Self {
        self.with_records(|records| records.on_unfinished(policy))
    }

    /// Sets what happens to a result that a record cannot hold, usually because its JSON text has more than 390 KiB.
    /// The headers are part of that text, and the [body](Self#bodies) can be longer in it than when it is sent.
    ///
    /// With [`OnUnstorableResult::CompleteWithoutResult`], the default, the client gets the response, and a retry gets 409
    /// with the problem `result-not-stored`: the operation is done once. With [`OnUnstorableResult::Fail`], the answer is 500
    /// although the handler has done its work, and the run counts as [unfinished](Self::on_unfinished): a retry runs again
    /// after the lease, or gets 409 for the window.
    #[must_use]
    pub fn on_unstorable_result(self, policy: OnUnstorableResult) -> Self {
        self.with_records(|records| records.on_unstorable_result(policy))
    }

    /// Sets the URL of the API's documentation, which every problem response names: in the member `documentation`, and in
    /// a header `Link` with the relation `describedby` if the URL is ASCII. None by default.
    #[must_use]
    pub fn documentation(self, url: impl Into<String>) -> Self {
        self.with(|settings| settings.documentation = Some(url.into()))
    }

    /// Keeps up to this many responses in memory, as [`Idempotency::cache`] does. Off by default.
    #[must_use]
    pub fn cache(self, records: usize) -> Self {
        self.with_records(|idempotency| idempotency.cache(records))
    }

    fn with(mut self, set: impl FnOnce(&mut RequestSettings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    fn with_records(
        self,
        set: impl FnOnce(Idempotency<Keyed, StoredResponse, GivenUp>) -> Idempotency<Keyed, StoredResponse, GivenUp>,
    ) -> Self {
        self.with(|settings| settings.idempotency = set(settings.idempotency.clone()))
    }
}

impl<S> Layer<S> for HttpIdempotencyLayer {
    type Service = HttpIdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

/// The service that [`HttpIdempotencyLayer`] makes from a handler.
///
/// The handler is cloned for each request, because the record is acquired after the handler is ready and before it is
/// called. The body of a request is any that is made from a `Vec<u8>`, such as `lambda_http::Body` and
/// `axum::body::Body`.
pub type HttpIdempotencyService<S> = Layered<S, HttpIdempotencyLayer>;

impl<S, B, R> Service<Request<B>> for HttpIdempotencyService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Vec<u8>> + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    R: Body + Send + 'static,
    R::Data: Send,
    R::Error: Send,
{
    type Response = Response<HttpIdempotencyBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The instance that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        if !self.layer.settings.methods.contains(request.method()) {
            let response = inner.call(request);
            return Box::pin(async move { Ok(response.await?.map(HttpIdempotencyBody::from)) });
        }
        let settings = Arc::clone(&self.layer.settings);
        Box::pin(settings.answer(inner, request))
    }
}

impl RequestSettings {
    async fn answer<S, B, R>(
        self: Arc<Self>,
        mut inner: S,
        request: Request<B>,
    ) -> Result<Response<HttpIdempotencyBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Body + From<Vec<u8>> + Send + 'static,
        R: Body + Send + 'static,
        R::Data: Send,
        R::Error: Send,
    {
        let refused = |problem| Ok(self.refused(problem));
        let (mut parts, body) = request.into_parts();
        let invocation = self.invocation(&parts);
        let (identity, body) = match self.identify(&parts, body, &invocation).await {
            Ok(identified) => identified,
            Err(problem) => return refused(problem),
        };
        let run = match self.idempotency.begin(identity, &invocation).await {
            Ok(NextStep::Run(run)) => run,
            Ok(NextStep::Replay { key, record }) => {
                return match self.idempotency.replay(&record, &key) {
                    Ok(stored) => stored.replay().map_or_else(|| refused(logged(Problem::ResultNotStored)), Ok),
                    Err(error) => refused(self.problem(&error)),
                };
            }
            Err(error) => return refused(self.problem(&error)),
        };
        parts.extensions.insert(HttpRun { run: run.clone(), results: self.results.clone() });
        let request = Request::from_parts(parts, body);
        if !run.lock().is_enforced() {
            return Ok(inner.call(request).await?.map(HttpIdempotencyBody::from));
        }
        // On a task of its own, because this future is dropped when the client disconnects or a timeout outside ends:
        // the retry would then repeat half-done work. A request that is dropped before has not reached the handler.
        let settings = Arc::clone(&self);
        let executed = async move { settings.execute(&run, async { inner.call(request).await }).await };
        match tokio::spawn(executed.in_current_span()).await {
            Ok(answer) => answer,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime shuts down.
                Err(_) => refused(logged(self.interrupted())),
            },
        }
    }

    /// Runs the handler under the record's lock, and returns its answer when it is stored.
    async fn execute<R: Body, E>(
        &self,
        run: &Run,
        handler: impl Future<Output = Result<Response<R>, E>>,
    ) -> Result<Response<HttpIdempotencyBody<R>>, E> {
        let mut first = None;
        let work = self.work(&mut first, handler);
        match (self.idempotency.execute(run, work).await, first) {
            (Ok(stored), first) => match first {
                Some(first) if !stored.is_replay => first,
                // The handler's transaction was committed with this response.
                _ => Ok(stored.replay().unwrap_or_else(|| self.refused(logged(Problem::ResultNotStored)))),
            },
            (Err(HandlerError::Handler(GivenUp { .. })), Some(first)) => first,
            (Err(error), _) => Ok(self.refused(self.problem(&error))),
        }
    }

    fn refused<R: Body>(&self, problem: Problem) -> Response<HttpIdempotencyBody<R>> {
        metrics::count_by(metrics::HTTP_PROBLEMS, metrics::PROBLEM, problem.name());
        problem.response(self.documentation.as_deref())
    }

    /// Runs the handler. Leaves its answer in `first`, and returns what to store of it.
    async fn work<R: Body, E>(
        &self,
        first: &mut Option<Result<Response<HttpIdempotencyBody<R>>, E>>,
        handler: impl Future<Output = Result<Response<R>, E>>,
    ) -> Result<StoredResponse, GivenUp> {
        let response = match handler.await {
            Ok(response) if (self.results.is_result)(response.status(), response.headers()) => response,
            other => {
                let has_failed = other.as_ref().map_or(true, |response| response.status().is_server_error());
                *first = Some(other.map(|response| response.map(HttpIdempotencyBody::from)));
                return Err(GivenUp { has_failed });
            }
        };
        let (parts, body) = response.into_parts();
        let (body, bytes) = HttpIdempotencyBody::read(body).await;
        let stored = match body.failure {
            None => Ok(self.results.stored(parts.status, &parts.headers, bytes)),
            Some(_) => Err(GivenUp { has_failed: true }),
        };
        *first = Some(Ok(Response::from_parts(parts, body)));
        stored
    }

    fn invocation(&self, parts: &Parts) -> Invocation {
        match parts.extensions.get::<Context>() {
            Some(context) => invocation_of(context, self.idempotency.locks()),
            None => Invocation { function: self.idempotency.locks().0.function.clone(), ..Invocation::default() },
        }
    }

    /// Returns the record of the request, or `None` if it runs unprotected; and its body.
    async fn identify<B>(
        &self,
        parts: &Parts,
        body: B,
        invocation: &Invocation,
    ) -> Result<(Option<Identity>, B), Problem>
    where
        B: Body + From<Vec<u8>> + 'static,
    {
        let records = &self.idempotency;
        if !records.locks().0.enabled {
            return Ok((None, body));
        }
        let record_of = |keyed| records.identify(&keyed, None, invocation).map_err(|error| self.problem_of(&error));
        let problem = match self.key(parts) {
            Ok(Some(key)) => {
                self.warn_without_prefix(invocation);
                let read = request::read(parts, body, self.max_body_bytes, &self.fingerprint).await;
                let (fingerprint, body) = read.map_err(logged)?;
                return Ok((record_of(Keyed { key: Some(key), fingerprint })?, body));
            }
            Ok(None) => match record_of(Keyed::default()) {
                Ok(identity) => return Ok((identity, body)),
                Err(problem) => problem,
            },
            Err(problem) => logged(problem),
        };
        request::discard(&parts.headers, pin!(body)).await;
        Err(problem)
    }

    fn warn_without_prefix(&self, invocation: &Invocation) {
        // No error: a prefix changes the keys, so that a retry of a request before it would run again.
        if self.idempotency.lacks_prefix(invocation) && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                table = self.idempotency.locks().table_name(),
                "records have no prefix outside of Lambda: other services without one in this table share their keys: \
                 set `prefix`, or set it to \"\" if there are none"
            );
        }
    }

    /// Returns the key of the request and its caller, if it has one.
    fn key(&self, parts: &Parts) -> Result<Option<Value>, Problem> {
        let Some(key) = request::key(&parts.headers, self.max_key_length)? else { return Ok(None) };
        let caller = self.caller.of(parts).ok_or(Problem::CallerUnknown)?;
        Ok(Some(json!([caller, key])))
    }

    fn problem(&self, error: &HandlerError<GivenUp>) -> Problem {
        match error {
            HandlerError::Lock(error) => self.problem_of(error),
            // This layer stores no errors.
            HandlerError::Handler(GivenUp { .. }) | HandlerError::Replayed(_) => {
                tracing::error!(
                    "the record has an error instead of a response: another idempotent operation has the same prefix"
                );
                Problem::ResultUnusable
            }
        }
    }

    /// Returns the problem of a request whose handler did not end.
    fn interrupted(&self) -> Problem {
        if self.idempotency.rejects_unfinished() { Problem::Unfinished } else { Problem::Interrupted }
    }

    /// Returns the problem of this error. The log has what the client must not see.
    fn problem_of(&self, error: &Error) -> Problem {
        let problem = match Problem::of(error, self.idempotency.locks().0.clock.now().millis()) {
            Problem::Interrupted => self.interrupted(),
            problem => problem,
        };
        let reason = error.kind().as_str();
        if problem.status().is_server_error() {
            tracing::error!(reason, ?error, problem = problem.name(), "the request failed");
        } else {
            tracing::debug!(reason, ?error, problem = problem.name(), "the request was refused");
        }
        problem
    }
}

/// Logs a request that is refused for another reason than an error.
fn logged(problem: Problem) -> Problem {
    let name = problem.name();
    if problem == Problem::CallerUnknown {
        // The setting may not fit the API, and then refuses every request.
        tracing::warn!(problem = name, "the request was refused");
    } else {
        tracing::debug!(problem = name, "the request was refused");
    }
    problem
}

impl fmt::Debug for HttpIdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpIdempotencyLayer").field("records", &self.settings.idempotency).finish_non_exhaustive()
    }
}
