//! Logs and metrics of the functions, as lines of JSON on standard output. The metrics are in the embedded metric
//! format, which `CloudWatch` reads from the function's log group.

use std::env;
use std::io::{self, Write};

use lambda_runtime::Error;
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
    // The level comes from RUST_LOG.
    tracing_subscriber::fmt()
        .json()
        // The list of spans includes the current span.
        .with_current_span(false)
        .with_env_filter(EnvFilter::from_default_env())
        .without_time()
        .init();
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
