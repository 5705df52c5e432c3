//! A subscriber that keeps the spans and events of one thread.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Level, span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer as Recording, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) is_closed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) level: Level,
    pub(crate) message: String,
    pub(crate) fields: BTreeMap<String, String>,
    /// The index of the innermost span `lock` around it.
    pub(crate) lock: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The spans `lock`, in the order in which they began.
    pub(crate) locks: Vec<Span>,
    pub(crate) events: Vec<Event>,
    /// All fields of all spans and events.
    pub(crate) words: Vec<String>,
}

/// Keeps the spans and events of the crate and of these tests on this thread until it is dropped.
pub(crate) struct Traces {
    pub(crate) record: Arc<Mutex<Record>>,
    pub(crate) _guard: DefaultGuard,
}

impl Traces {
    /// Keeps all levels.
    pub(crate) fn begin() -> Self {
        Self::filtered(Targets::new().with_target("lambda_lock", Level::TRACE).with_target("telemetry", Level::TRACE))
    }

    pub(crate) fn filtered(filter: Targets) -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        let subscriber = Registry::default().with(Recorder(Arc::clone(&record)).with_filter(filter));
        Self { record, _guard: set_default(subscriber) }
    }

    pub(crate) fn locks(&self) -> Vec<Span> {
        self.record.lock().unwrap().locks.clone()
    }

    /// Each span as one line, with `…` as owner and as fence.
    pub(crate) fn lock_lines(&self) -> Vec<String> {
        let line = |span: &Span| {
            let fields = span.fields.iter().map(|(name, value)| match name.as_str() {
                "owner" | "fence" => format!("{name}=…"),
                _ => format!("{name}={value}"),
            });
            let end = if span.is_closed { "closed" } else { "open" };
            format!("{} {end}", fields.collect::<Vec<_>>().join(" "))
        };
        self.locks().iter().map(line).collect()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.record.lock().unwrap().events.clone()
    }

    /// The events whose message begins with `message`.
    pub(crate) fn logged(&self, message: &str) -> Vec<Event> {
        self.events().into_iter().filter(|event| event.message.starts_with(message)).collect()
    }

    /// The level and the beginning of the message of each event at INFO or above.
    pub(crate) fn logged_at_info(&self) -> Vec<String> {
        let events = self.events().into_iter().filter(|event| event.level <= Level::INFO);
        events.map(|event| format!("{} {}", event.level, event.message.split(':').next().unwrap())).collect()
    }

    pub(crate) fn assert_not_logged(&self, secret: &str) {
        let record = self.record.lock().unwrap();
        for words in &record.words {
            assert!(!words.contains(secret), "`{secret}` was logged: {words}");
        }
    }
}

struct Recorder(Arc<Mutex<Record>>);

/// The index of a span `lock`.
struct Place(usize);

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name().to_owned(), format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name().to_owned(), value.to_owned()));
    }
}

impl Record {
    fn keep(&mut self, Fields(fields): Fields) -> BTreeMap<String, String> {
        self.words.extend(fields.iter().map(|(name, value)| format!("{name}={value}")));
        fields.into_iter().collect()
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Recording<S> for Recorder {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let (mut fields, mut record) = (Fields::default(), self.0.lock().unwrap());
        attributes.record(&mut fields);
        let fields = record.keep(fields);
        let metadata = attributes.metadata();
        if (metadata.target().split("::").next(), metadata.name()) == (Some("lambda_lock"), "lock") {
            context.span(id).unwrap().extensions_mut().insert(Place(record.locks.len()));
            record.locks.push(Span { fields, is_closed: false });
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let (mut fields, mut record) = (Fields::default(), self.0.lock().unwrap());
        values.record(&mut fields);
        let fields = record.keep(fields);
        if let Some(&Place(place)) = context.span(id).unwrap().extensions().get() {
            for (name, value) in fields {
                // A subscriber that writes fields as they are recorded would write it twice.
                let before = record.locks[place].fields.insert(name, value.clone());
                assert_eq!(before, None, "recorded again, as {value}");
            }
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let (mut fields, mut record) = (Fields::default(), self.0.lock().unwrap());
        event.record(&mut fields);
        let mut fields = record.keep(fields);
        let is_exported_only = |name: &str| ["replay", "identity", "wait"].contains(&name);
        let mut around = context.event_scope(event).into_iter().flatten();
        assert!(
            !around.any(|span| is_exported_only(span.name())),
            "an event in a span that logs would show: {fields:?}"
        );
        let mut spans = context.event_scope(event).into_iter().flatten();
        let lock = spans.find_map(|span| span.extensions().get().map(|&Place(place)| place));
        let message = fields.remove("message").unwrap_or_default();
        record.events.push(Event { level: *event.metadata().level(), message, fields, lock });
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        if let Some(&Place(place)) = context.span(&id).unwrap().extensions().get() {
            self.0.lock().unwrap().locks[place].is_closed = true;
        }
    }
}
