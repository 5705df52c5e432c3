//! The rules of `Consumer` that are the same for every source. Each test runs for a queue, a stream and a topic.

mod answers;
mod deadline;
mod in_progress;
mod keys;
mod lanes;
mod log;
mod panics;
mod results;

use std::fmt::Display;
use std::str::from_utf8;
use std::time::Duration;

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage as SqsRecord};
use aws_lambda_events::streams::KinesisEventResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lambda_lock::embedded::Host;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::kafka::{KafkaEvent, KafkaEventResponse, KafkaSource};
use lambda_lock::lambda::{Consumer, Source, SqsSource};
use lambda_lock::streams::{KinesisRecord, StreamSource};
use lambda_lock::{Idempotency, Lock, Locks};
use lambda_lock_tests::invocation::invocation;
use lambda_lock_tests::till::{Declined, Paid, Payment, Then, Till};
use lambda_lock_tests::{World, ms};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::json;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

/// Runs each rule for a queue, a stream and a topic, but the last ones for a queue only, or not for a queue.
macro_rules! rules {
    (
        every consumer [$($file:ident { $($rule:ident)* })*]
        $reason:literal
        only a queue [$($of_queue:ident { $($queued:ident)* })*]
        not a queue [$($partly:ident { $($partial:ident)* })*]
    ) => {
        rules! { @mod queue super::Queue: $($($file $rule)*)* $($($of_queue $queued)*)* }
        rules! { @mod stream super::Stream: $($($file $rule)*)* $($($partly $partial)*)* }
        rules! { @mod topic super::Topic: $($($file $rule)*)* $($($partly $partial)*)* }
    };
    (@mod $consumer:ident $source:ty: $($file:ident $rule:ident)*) => {
        mod $consumer {
            $(
                #[tokio::test]
                async fn $rule() {
                    crate::$file::$rule::<$source>().await;
                }
            )*
        }
    };
}

rules! {
    every consumer [
        answers {
            an_empty_batch_sends_nothing
            the_answer_names_what_is_not_done
            an_item_that_is_done_does_not_run_again_and_sends_one_request
            an_unreadable_item_is_not_done_and_sends_nothing
            an_invocation_fails_if_every_item_failed
            an_invocation_without_its_table_fails_with_the_message_of_dynamodb
            an_invocation_answers_if_an_item_is_done_or_in_progress_or_none_started
        }
        deadline {
            an_item_that_outlives_its_lease_is_cancelled_before_the_deadline
            an_item_that_outlives_a_lease_of_its_own_is_cancelled
            an_item_that_returns_after_its_lease_is_not_done_and_not_repeated
            items_not_started_near_the_deadline_are_not_done_and_send_nothing
            nothing_runs_past_the_deadline
            a_silent_table_does_not_delay_the_answer_past_the_deadline
            leases_end_a_second_or_a_quarter_of_the_time_before_the_deadline
            items_without_a_deadline_have_the_default_lease
            min_remaining_time_sets_when_no_item_is_started
            a_timeout_below_min_remaining_time_still_runs_items
            work_that_released_its_record_outlives_the_lease
            a_batch_that_is_cut_off_names_the_answer_as_the_reason
            items_wait_within_their_leases_for_the_times_of_a_rate
        }
        in_progress {
            an_item_in_progress_elsewhere_stops_its_lane_until_it_can_run
            a_consumer_can_wait_for_an_item_in_progress_elsewhere
            an_item_in_progress_at_a_crash_runs_when_its_lease_has_ended
            an_unfinished_item_that_is_rejected_is_never_done
        }
        keys {
            equal_keys_of_two_sources_are_different_work
            equal_keys_of_one_source_are_the_same_work
            a_prefix_of_its_own_spans_the_sources
            tenants_share_no_record_unless_it_spans_them
            an_item_without_a_key_is_not_done_or_runs_unprotected
            an_item_with_a_used_key_and_different_fields_is_not_done
            an_item_is_remembered_for_longer_than_it_can_be_delivered
            a_window_of_the_settings_or_of_the_consumer_replaces_the_default
            a_window_outside_its_bounds_fails_each_item_without_a_request
        }
        lanes {
            the_items_of_a_lane_run_in_order
            a_lane_stops_at_its_first_item_that_is_not_done
            an_unreadable_item_stops_its_lane
            no_item_starts_after_a_failure_if_the_consumer_stops_there
            items_that_are_running_at_a_failure_finish
            an_item_that_was_done_before_stops_nothing
            twins_in_a_lane_run_once_at_the_place_of_the_first
            concurrency_limits_lanes_to_ten_by_default_and_to_one_at_least
        }
        log {
            the_log_names_a_failed_item_and_does_not_show_its_content
            an_item_in_progress_elsewhere_is_logged_once_at_info
            the_log_shows_the_type_of_an_error_if_it_has_a_name
            items_without_time_are_one_line
            an_item_behind_a_failure_does_not_count_as_without_time
        }
        panics {
            a_panic_in_the_parser_or_the_key_fails_one_item
            a_panic_in_the_call_of_the_handler_or_in_on_error_fails_one_item
            a_panic_in_the_conversion_of_an_error_fails_one_item
            an_item_whose_handler_panics_in_its_clone_is_logged
            a_panic_in_the_clone_of_the_handler_keeps_the_items_that_are_done
            a_panic_in_the_clone_of_the_handler_fails_its_lane
        }
        results {
            an_item_with_a_stored_error_is_not_done_and_does_not_run_again
            disabled_locks_run_every_item_without_a_request
            an_item_that_is_done_with_an_unreadable_result_is_done
            an_item_is_done_whatever_its_result
            a_parser_of_its_own_reads_what_is_not_json
            a_handler_of_with_run_gets_the_fence
            an_item_of_a_handler_that_is_not_ready_can_run_again_at_once
            a_handler_need_not_be_sync
        }
    ]
    "SQS delivers a message again by itself, so its consumer does not wait for one in progress unless it is told to"
    only a queue [
        in_progress {
            by_default_an_item_in_progress_elsewhere_goes_back_at_once
        }
    ]
    not a queue [
        in_progress {
            by_default_the_consumer_waits_for_an_item_in_progress_elsewhere
            by_default_the_consumer_waits_no_longer_than_the_leases_of_its_batch
            an_item_that_waited_does_not_start_after_a_failure
            an_item_without_time_after_its_wait_does_not_start
            lanes_that_wait_hold_up_no_other_lane
            no_more_lanes_wait_at_once_than_run
            a_lane_that_waited_starts_with_its_whole_lease
        }
    ]
}

/// A timeout that no test reaches unless it hangs.
const TOO_LONG: Duration = Duration::from_mins(1);

/// When every clock shows that the lease of a crashed invocation has ended.
const AFTER_THE_LEASE: Duration = Duration::from_secs(32);

/// An item that runs sends one request to acquire its row, and one to complete or release it.
const PER_RUN: u64 = 2;
/// An item that is done, or in progress elsewhere, sends only the first of them.
const PER_REFUSAL: u64 = 1;

/// A FIFO queue, whose lanes are its groups.
type Queue = SqsSource<Payment>;
/// A Kinesis stream, whose lanes are its partition keys.
type Stream = StreamSource<KinesisRecord<Payment>>;
/// A topic of Kafka, whose lanes are the keys of a partition.
type Topic = KafkaSource<Payment>;

/// A consumer whose handler takes plain items.
type Plain<S> = Consumer<S, <S as Source>::Item, (), Declined>;

/// A source, and how Lambda delivers from it.
trait Tested: Source<Event: Default + Send, Item: Paid + Send + Sync> + Default + Send + Sync + 'static {
    /// The days for which the consumer remembers an item by default.
    const DAYS: u64;
    /// The log's message about an item that is not done.
    const NOT_DONE: &'static str;

    /// A consumer of payments that this parser reads.
    fn with_parser<P: Display>(
        once: Idempotency<Self::Item, (), Declined>,
        parse: impl Fn(&str) -> Result<Payment, P> + Send + Sync + 'static,
    ) -> Plain<Self>;

    /// Returns the part of a key that tells the queue, the stream or the topic with this name from all others.
    fn id_of(name: &str) -> String;

    /// An event from the queue, stream or topic with this name, with items of these lanes and texts. Their names are the
    /// numbers from 1.
    fn event_of(name: &str, items: &[(&str, String)]) -> Self::Event;

    /// Returns the same item for payments, each with its lane and with what the handler does. Their ids are their names.
    fn event_from(name: &str, payments: &[(&str, &str)]) -> Self::Event {
        let items = payments.iter().zip(1..).map(|((lane, then), number)| (*lane, payment(&number.to_string(), then)));
        Self::event_of(name, &items.collect::<Vec<_>>())
    }

    /// Returns the same item from the queue, stream or topic `payments`.
    fn event(payments: &[(&str, &str)]) -> Self::Event {
        Self::event_from("payments", payments)
    }

    /// Delivers an event to a handler that calls `begin` before each payment, and returns the names in the answer.
    async fn invoke(
        consumer: &Plain<Self>,
        event: LambdaEvent<Self::Event>,
        till: &Till,
        begin: impl Fn(Then) + Clone + Send + 'static,
    ) -> Result<Vec<String>, Diagnostic> {
        let till = till.clone();
        let handler = service_fn(move |item: Self::Item| {
            begin(item.payment().then);
            till.clone().pay(item)
        });
        answer(consumer, handler, event).await
    }

    /// Delivers as `invoke` does, for a consumer that always answers.
    async fn deliver(
        consumer: &Plain<Self>,
        event: LambdaEvent<Self::Event>,
        till: &Till,
        begin: impl Fn(Then) + Clone + Send + 'static,
    ) -> Vec<String> {
        Self::invoke(&consumer.clone().fail_if_all_failed(false), event, till, begin).await.unwrap()
    }

    /// Returns the names in an answer.
    fn names_in(answer: Self::Answer) -> Vec<String>;

    /// Returns the names in the answer when these payments are not done.
    fn named<'a>(not_done: impl IntoIterator<Item = &'a str>) -> Vec<String>;

    /// Returns the field of the log with the name of an item from the queue, stream or topic with this name.
    fn field(name: &str, item: &str) -> String;
}

/// Returns what a payment says.
fn payment(id: &str, then: &str) -> String {
    json!({ "id": id, "then": then }).to_string()
}

impl Tested for Queue {
    const DAYS: u64 = 15;
    const NOT_DONE: &'static str = "message returned to the queue";

    fn with_parser<P: Display>(
        once: Idempotency<Self::Item, (), Declined>,
        parse: impl Fn(&str) -> Result<Payment, P> + Send + Sync + 'static,
    ) -> Plain<Self> {
        Plain::<Self>::with_parser(once, parse)
    }

    fn id_of(name: &str) -> String {
        format!("arn:aws:sqs:eu-west-1:123456789012:{name}.fifo")
    }

    fn event_of(name: &str, items: &[(&str, String)]) -> SqsEvent {
        let mut event = SqsEvent::default();
        event.records.extend(items.iter().zip(1..).map(|((lane, text), number)| {
            let mut message = SqsRecord::default();
            message.message_id = Some(number.to_string());
            message.body = Some(text.clone());
            message.event_source_arn = Some(Self::id_of(name));
            message.attributes.insert("MessageGroupId".to_owned(), (*lane).to_owned());
            message
        }));
        event
    }

    fn names_in(answer: SqsBatchResponse) -> Vec<String> {
        answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect()
    }

    /// All of them, which return to the queue.
    fn named<'a>(not_done: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        not_done.into_iter().map(str::to_owned).collect()
    }

    fn field(_: &str, item: &str) -> String {
        format!("message_id=\"{item}\"")
    }
}

impl Tested for Stream {
    const DAYS: u64 = 2;
    const NOT_DONE: &'static str = "record not done";

    fn with_parser<P: Display>(
        once: Idempotency<Self::Item, (), Declined>,
        parse: impl Fn(&str) -> Result<Payment, P> + Send + Sync + 'static,
    ) -> Plain<Self> {
        Plain::<Self>::with_parser(once, move |data| parse(from_utf8(&data).unwrap()))
    }

    fn id_of(name: &str) -> String {
        format!("arn:aws:kinesis:eu-west-1:123456789012:stream/{name}")
    }

    fn event_of(name: &str, items: &[(&str, String)]) -> KinesisEvent {
        let mut event = KinesisEvent::default();
        event.records.extend(items.iter().zip(1..).map(|((lane, text), number)| {
            let mut record = KinesisEventRecord::default();
            record.event_source_arn = Some(Self::id_of(name));
            record.kinesis.sequence_number = number.to_string();
            record.kinesis.partition_key = (*lane).into();
            record.kinesis.data.0 = text.clone().into_bytes();
            record
        }));
        event
    }

    fn names_in(answer: KinesisEventResponse) -> Vec<String> {
        answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier.unwrap()).collect()
    }

    /// The first of them, from which Lambda delivers again.
    fn named<'a>(not_done: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        not_done.into_iter().take(1).map(str::to_owned).collect()
    }

    fn field(_: &str, item: &str) -> String {
        format!("sequence_number=\"{item}\"")
    }
}

const CLUSTER: &str = "arn:aws:kafka:eu-west-1:123456789012:cluster/shop/1";

impl Tested for Topic {
    const DAYS: u64 = 8;
    const NOT_DONE: &'static str = "record not done";

    fn with_parser<P: Display>(
        once: Idempotency<Self::Item, (), Declined>,
        parse: impl Fn(&str) -> Result<Payment, P> + Send + Sync + 'static,
    ) -> Plain<Self> {
        Plain::<Self>::with_parser(once, move |value| parse(from_utf8(&value.unwrap()).unwrap()))
    }

    fn id_of(name: &str) -> String {
        format!("{CLUSTER}#{name}")
    }

    fn event_of(name: &str, items: &[(&str, String)]) -> KafkaEvent {
        let records = items.iter().zip(1_u64..).map(|((lane, text), offset)| {
            let (key, value) = (STANDARD.encode(lane), STANDARD.encode(text));
            json!({ "topic": name, "partition": 0, "offset": offset, "key": key, "value": value })
        });
        let records = json!({ format!("{name}-0"): records.collect::<Vec<_>>() });
        serde_json::from_value(json!({ "eventSourceArn": CLUSTER, "records": records })).unwrap()
    }

    fn names_in(answer: KafkaEventResponse) -> Vec<String> {
        let failures = answer.batch_item_failures.into_iter();
        failures.map(|failure| failure.item_identifier.offset.to_string()).collect()
    }

    /// The first of them in the partition, from which Lambda delivers again.
    fn named<'a>(not_done: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        not_done.into_iter().take(1).map(str::to_owned).collect()
    }

    fn field(name: &str, item: &str) -> String {
        format!("offset=\"{name}-0:{item}\"")
    }
}

/// Delivers an event to a handler, and returns the names in the answer.
async fn answer<S: Tested, H, T, E, I>(
    consumer: &Consumer<S, H, T, E>,
    handler: I,
    event: LambdaEvent<S::Event>,
) -> Result<Vec<String>, Diagnostic>
where
    Consumer<S, H, T, E>: Layer<I>,
    <Consumer<S, H, T, E> as Layer<I>>::Service:
        Service<LambdaEvent<S::Event>, Response = S::Answer, Error = Diagnostic>,
{
    let answer = timeout(TOO_LONG, consumer.layer(handler).oneshot(event)).await.expect("there is an answer")?;
    Ok(S::names_in(answer))
}

/// A key that is the id of the payment.
fn by_payment<I: Paid, T, E>(locks: &Locks) -> Idempotency<I, T, E> {
    Idempotency::new(locks.clone(), OnMissingKey::Reject, |item: &I| Some(item.payment().id.clone()))
}

/// The key of the row of a payment from `payments`.
fn row_of<S: Tested>(id: &str) -> String {
    format!("orders#{}#{id}", S::id_of("payments"))
}

/// Makes a payment from `payments` in progress in another environment.
async fn work_elsewhere<S: Tested>(world: &World, id: &str) -> Lock {
    world.default_locks().acquire(row_of::<S>(id)).lease(Duration::from_secs(30)).await.unwrap()
}

/// A table, and a consumer on its own host.
async fn environment<S: Tested>() -> (World, Host, Plain<S>, Till) {
    let world = World::new().await;
    let host = world.host().build();
    let consumer = Plain::<S>::new(by_payment(&world.locks(&host).build().unwrap()));
    (world, host, consumer, Till::default())
}

/// Invokes the function 30 seconds before the deadline.
async fn invoke<S: Tested>(
    consumer: &Plain<S>,
    host: &Host,
    till: &Till,
    payments: &[(&str, &str)],
) -> Result<Vec<String>, Diagnostic> {
    S::invoke(consumer, invocation(host, S::event(payments)), till, |_| ()).await
}

/// Delivers payments 30 seconds before the deadline.
async fn deliver<S: Tested>(consumer: &Plain<S>, host: &Host, till: &Till, payments: &[(&str, &str)]) -> Vec<String> {
    S::deliver(consumer, invocation(host, S::event(payments)), till, |_| ()).await
}

/// Delivers items with these lanes and texts 30 seconds before the deadline.
async fn deliver_texts<S: Tested>(
    consumer: &Plain<S>,
    host: &Host,
    till: &Till,
    items: &[(&str, String)],
) -> Vec<String> {
    S::deliver(consumer, invocation(host, S::event_of("payments", items)), till, |_| ()).await
}
