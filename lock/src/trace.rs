//! The trace context of a span, for a process or an invocation that continues its work: as a text by the W3C
//! recommendation "Trace Context" (`traceparent`), in tickets and rows.
//!
//! With the feature `opentelemetry`, a span that OpenTelemetry exports has a context. Without it, no span has one.

/// Returns `true` if a text that anybody may have written is a context.
pub(crate) fn is_context(text: &str) -> bool {
    read(text).is_some()
}

/// Reads the trace id, the span id and the flags of a context of version 00, the only one.
fn read(text: &str) -> Option<(u128, u64, u8)> {
    let mut fields = text.split('-');
    let mut hexadecimal = |digits: usize| {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        fields.next().filter(|field| field.len() == digits && field.bytes().all(is_digit))
    };
    hexadecimal(2).filter(|version| *version == "00")?;
    let trace = u128::from_str_radix(hexadecimal(32)?, 16).ok().filter(|id| *id != 0)?;
    let span = u64::from_str_radix(hexadecimal(16)?, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(hexadecimal(2)?, 16).ok()?;
    fields.next().is_none().then_some((trace, span, flags))
}

#[cfg(feature = "opentelemetry")]
mod recorded {
    use opentelemetry::trace::{SpanContext, TraceContextExt as _, TraceFlags, TraceState};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    /// Returns the context of a span that is sampled. Nobody can look up another one.
    pub(crate) fn context(span: &Span) -> Option<String> {
        let context = span.context();
        let of_span = context.span();
        let of_span = of_span.span_context();
        let is_exported = of_span.is_valid() && of_span.is_sampled();
        is_exported.then(|| format!("00-{}-{}-01", of_span.trace_id(), of_span.span_id()))
    }

    /// Links a span to the span of a context. Any other text is ignored.
    pub(crate) fn link(span: &Span, context: Option<&str>) {
        if let Some((trace, of_span, flags)) = context.and_then(super::read) {
            let flags = TraceFlags::new(flags);
            span.add_link(SpanContext::new(trace.into(), of_span.into(), flags, true, TraceState::NONE));
        }
    }
}

#[cfg(not(feature = "opentelemetry"))]
mod recorded {
    use tracing::Span;

    pub(crate) fn context(_: &Span) -> Option<String> {
        None
    }

    pub(crate) fn link(_: &Span, _: Option<&str>) {}
}

pub(crate) use recorded::{context, link};

#[cfg(test)]
mod tests {
    use super::read;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-53995c3f42cd8ad8-01";

    #[test]
    fn a_context_is_read() {
        assert_eq!(read(TEXT), Some((0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x5399_5c3f_42cd_8ad8, 1)));
    }

    #[test]
    fn any_other_text_is_no_context() {
        for text in [
            "",
            "-",
            "00",
            "--------",
            &TEXT[..54],
            &format!("{TEXT}-00"),
            &format!("{TEXT}\n"),
            &TEXT.to_uppercase(),
            &TEXT.replacen("00", "01", 1),
            &TEXT.replacen("00", "ff", 1),
            &TEXT.replace("4bf9", "+bf9"),
            &TEXT.replace("d8-01", "d8-+1"),
            &TEXT.replace("4bf9", "ﬀf"),
            &TEXT.replace("4bf9", ""),
            &TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &TEXT.replace("53995c3f42cd8ad8", &"0".repeat(16)),
            &"00-".repeat(100_000),
        ] {
            assert_eq!(read(text), None, "{}", text.chars().take(80).collect::<String>());
        }
    }
}
