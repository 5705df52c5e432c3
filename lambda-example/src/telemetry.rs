//! Logs and metrics of the functions, as lines of JSON on standard output. The metrics are in the embedded metric
//! format, which `CloudWatch` reads from the function's log group.

use std::env;
use std::io::{self, Write};
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use lambda_runtime::{Diagnostic, Error};
use metrics_cloudwatch_embedded::Builder;
pub use metrics_cloudwatch_embedded::Collector;
use tower::{Service, ServiceExt};
use tracing_subscriber::EnvFilter;

/// The namespace of the metrics in `CloudWatch`.
pub const NAMESPACE: &str = "LambdaLock";
/// The dimension of every metric. The metric's labels are further dimensions.
pub const FUNCTION_NAME: &str = "FunctionName";

/// Starts the logs and the metrics. Call it before you create locks, so that their metrics are counted.
///
/// # Errors
///
/// Returns an error outside of Lambda, where the function has no name.
pub fn start() -> Result<&'static Collector, Error> {
    // The level comes from RUST_LOG. The line of `lambda_runtime` about a failure is left out: it is an error even if the
    // failure is routine, and says that a panic is `Any { .. }`. [`log_failures`] and the hook log both.
    let filter = EnvFilter::from_default_env().add_directive("lambda_runtime::layers::panic=off".parse()?);
    tracing_subscriber::fmt()
        .json()
        // The list of spans includes the current span.
        .with_current_span(false)
        .with_env_filter(filter)
        .without_time()
        .init();
    log_panics();
    exporter(env::var("AWS_LAMBDA_FUNCTION_NAME")?)
}

/// Installs the exporter for the function of this name, in the whole process. It keeps a hundred measurements of each
/// histogram until it is flushed: enough for a batch of that many messages.
///
/// # Errors
///
/// Returns an error if an exporter is already installed.
pub fn exporter(function_name: String) -> Result<&'static Collector, Error> {
    Builder::new().cloudwatch_namespace(NAMESPACE).with_dimension(FUNCTION_NAME, function_name).init()
}

/// Logs each panic of this process once, as an event with its text and its place, instead of lines of text on standard error.
/// The event is in the spans of the panic, so it has the key, the owner and the fence of the lock.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("a panic without a text");
        tracing::error!(panic = text, place = panic.location().map(tracing::field::display), "panicked");
    }));
}

/// Wraps a function so that each failure is logged once: at level info if it is routine, such as a key that is held for a
/// caller that tries again, and otherwise as an error. A panic, which is logged where it happens, is reported to Lambda as
/// `Panic`.
pub fn log_failures<Event, S>(
    function: S,
    is_routine: impl Fn(&S::Error) -> bool + Clone + Send,
) -> impl Service<
    Event,
    Response = S::Response,
    Error = Diagnostic,
    Future: Future<Output = Result<S::Response, Diagnostic>> + Send,
> + Clone
+ Send
where
    S: Service<Event, Future: Send> + Clone + Send,
    S::Response: Send,
    S::Error: Send,
    Diagnostic: From<S::Error>,
{
    function.map_future(move |work| {
        let is_routine = is_routine.clone();
        async move {
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(Ok(response)) => Ok(response),
                Ok(Err(error)) => {
                    let is_routine = is_routine(&error);
                    let failure: Diagnostic = error.into();
                    let Diagnostic { error_type, error_message: error } = &failure;
                    if is_routine {
                        tracing::info!(error_type, error, "refused");
                    } else {
                        tracing::error!(error_type, error, "failed");
                    }
                    Err(failure)
                }
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
                    Err(Diagnostic { error_type: "Panic".to_owned(), error_message: format!("panicked: {text}") })
                }
            }
        }
    })
}

/// Wraps a function so that each invocation writes its metrics before it answers, because Lambda may freeze the process
/// after the answer. An invocation that fails or panics writes them too. An invocation that is killed writes none. Work
/// that ends in the background, such as a release after a panic, is in the metrics of the next invocation.
pub fn flush_after<Event, S, W>(
    function: S,
    metrics: &'static Collector,
    output: impl Fn() -> W + Clone + Send,
) -> impl Service<
    Event,
    Response = S::Response,
    Error = S::Error,
    Future: Future<Output = Result<S::Response, S::Error>> + Send,
> + Clone
+ Send
where
    S: Service<Event, Future: Send> + Clone + Send,
    W: Write,
{
    function.map_future(move |work| {
        let flush = Flush { metrics, output: output.clone() };
        async move {
            let _flush = flush;
            work.await
        }
    })
}

struct Flush<W: Write, F: Fn() -> W> {
    metrics: &'static Collector,
    output: F,
}

impl<W: Write, F: Fn() -> W> Flush<W, F> {
    /// Writes in one piece, so that no line of the log comes in between.
    fn write(&self) -> io::Result<()> {
        let mut lines = Vec::new();
        self.metrics.flush(&mut lines)?;
        (self.output)().write_all(&lines)
    }
}

impl<W: Write, F: Fn() -> W> Drop for Flush<W, F> {
    fn drop(&mut self) {
        if let Err(error) = self.write() {
            tracing::error!(%error, "failed to write the metrics");
        }
    }
}
