//! What the functions tell of themselves on standard output, as lines of JSON: logs, and metrics in the embedded metric
//! format, which `CloudWatch` finds in the function's log group.

use std::env;
use std::io::{self, Write};

use lambda_runtime::Error;
use metrics_cloudwatch_embedded::Builder;
pub use metrics_cloudwatch_embedded::Collector;
use tower::{Service, ServiceExt};
use tracing_subscriber::EnvFilter;

/// The namespace of the metrics in `CloudWatch`.
pub const NAMESPACE: &str = "LambdaLock";
/// The dimension of every metric, to which its labels are added.
pub const FUNCTION_NAME: &str = "FunctionName";

/// Starts the logs and, before there are locks to be counted, the metrics.
///
/// # Errors
///
/// Outside of Lambda, where the function has no name.
pub fn start() -> Result<&'static Collector, Error> {
    // The level comes from RUST_LOG.
    tracing_subscriber::fmt()
        .json()
        // The list of spans has the current one too.
        .with_current_span(false)
        .with_env_filter(EnvFilter::from_default_env())
        .without_time()
        .init();
    exporter(env::var("AWS_LAMBDA_FUNCTION_NAME")?)
}

/// Counts and measures for the function of this name, in the whole process, until it is flushed. Of each time it keeps a
/// hundred measurements until then: enough for a batch of that many messages.
///
/// # Errors
///
/// If there is an exporter already.
pub fn exporter(function_name: String) -> Result<&'static Collector, Error> {
    Builder::new().cloudwatch_namespace(NAMESPACE).with_dimension(FUNCTION_NAME, function_name).init()
}

/// The function, which then writes what was counted: before its answer, because Lambda may freeze the process after that,
/// and also when it fails or panics. Of an invocation that is killed nothing is written, and what ends in the background,
/// such as a release after a panic, is written by the next one.
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
    /// In one piece, or a line of the log could come in between.
    fn write(&self) -> io::Result<()> {
        let mut lines = Vec::new();
        self.metrics.flush(&mut lines)?;
        (self.output)().write_all(&lines)
    }
}

impl<W: Write, F: Fn() -> W> Drop for Flush<W, F> {
    fn drop(&mut self) {
        if let Err(error) = self.write() {
            tracing::error!(%error, "the metrics were not written");
        }
    }
}
