//! The trace context of a span, for a process or an invocation that continues its work: as a text by the W3C
//! recommendation "Trace Context" (`traceparent`), in tickets and rows.
//!
//! With the feature `opentelemetry`, a span that OpenTelemetry records has a context. Without it, no span has one.

use tracing::Span;

/// Returns the context of a span.
pub(crate) fn context(span: &Span) -> Option<String> {
    #[cfg(feature = "opentelemetry")]
    return recorded::context(span);
    #[cfg(not(feature = "opentelemetry"))]
    {
        let _ = span;
        None
    }
}

/// Links a span to the span of a context. A text that is none is ignored: another program may have written it.
pub(crate) fn link(span: &Span, context: Option<&str>) {
    #[cfg(feature = "opentelemetry")]
    recorded::link(span, context);
    #[cfg(not(feature = "opentelemetry"))]
    let _ = (span, context);
}

#[cfg(feature = "opentelemetry")]
mod recorded {
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    pub(super) fn context(span: &Span) -> Option<String> {
        let context = span.context();
        let of_span = context.span();
        let of_span = of_span.span_context();
        let flags = of_span.trace_flags() & TraceFlags::SAMPLED;
        of_span.is_valid().then(|| format!("00-{}-{}-{:02x}", of_span.trace_id(), of_span.span_id(), flags.to_u8()))
    }

    pub(super) fn link(span: &Span, context: Option<&str>) {
        if let Some(context) = context.and_then(read) {
            span.add_link(context);
        }
    }

    /// Reads a context. Later versions may have more fields.
    fn read(text: &str) -> Option<SpanContext> {
        let mut fields = text.split('-').map(|field| {
            let is_hexadecimal = field.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            is_hexadecimal.then_some(field)
        });
        let mut field = |digits: usize| fields.next().flatten().filter(|field| field.len() == digits);
        let (_version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
        let context = SpanContext::new(
            TraceId::from_hex(trace).ok()?,
            SpanId::from_hex(span).ok()?,
            flags,
            true,
            TraceState::default(),
        );
        context.is_valid().then_some(context)
    }
}
