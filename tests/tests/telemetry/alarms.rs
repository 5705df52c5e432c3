//! Which alarms are raised in each broken state: the functions of the example run in it, and the definitions of the alarms
//! are evaluated with what they count.
//!
//! `infrastructure/alarms.json` has the definitions of all three kinds of infrastructure. The check `infrastructure`
//! compares it with the CDK construct, with the Terraform module and with `template.yaml`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::time::Duration;

use aws_lambda_events::sqs::SqsEvent;
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use futures_util::future::join_all;
use lambda_example::{
    Orders, Payment, Payments, ReportRequest, Reports, Simulation, nightly_report, order_api, payment_queue,
};
use lambda_lock::embedded::{Answer, Faults, Host, Intercept};
use lambda_lock::http::Caller;
use lambda_lock::{LockLayer, Locks, SqsConsumer};
use lambda_lock_tests::invocation::{invocation, over_http};
use lambda_runtime::LambdaEvent;
use metrics_util::debugging::DebugValue;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use crate::{Consumer, Failure, Stage, TABLE, deliver, locks_on, message, without_retries};

const HOUR: u64 = 3600;
/// More hours than an alarm looks back.
const HOURS: u64 = 26;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Healthy,
    NoTable,
    NoPermission,
    Throttled,
    /// The table of the handler's own data is missing, so that the handler fails.
    HandlerFails,
    /// The handler fails once, in the last hour, and works when it is invoked again.
    HandlerFailedOnce,
    /// A message or a request that the function cannot read.
    BadInput,
    /// Nothing invokes the function.
    NotInvoked,
}

/// Answers each request as DynamoDB does to a caller without permission.
#[derive(Debug)]
struct Denies;

impl Intercept for Denies {
    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        answer.status = 400;
        answer.body =
            json!({ "__type": "com.amazon.coral.service#AccessDeniedException", "Message": "not authorized" });
    }
}

impl State {
    fn host(self, stage: &Stage) -> Host {
        let host = stage.engine.host();
        match self {
            Self::NoPermission => host.intercept(Denies),
            Self::Throttled => host.faults(Faults::seeded(1).throttle(1.0)),
            _ => host,
        }
        .build()
    }
}

/// A metric as `CloudWatch` has it, and its value at a time in seconds.
#[derive(Debug)]
struct Datum {
    at: u64,
    namespace: &'static str,
    name: String,
    dimensions: BTreeMap<String, String>,
    value: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Alarm {
    comparison_operator: String,
    #[serde(rename = "DatapointsToAlarm")]
    datapoints: Option<u64>,
    dimensions: Option<BTreeMap<String, String>>,
    evaluation_periods: u64,
    expression: Option<String>,
    metric_name: Option<String>,
    namespace: Option<String>,
    period: u64,
    statistic: Option<String>,
    threshold: f64,
    treat_missing_data: String,
}

#[derive(Deserialize)]
struct Definitions {
    construct: BTreeMap<String, Alarm>,
    template: BTreeMap<String, Alarm>,
}

fn definitions() -> Definitions {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../infrastructure/alarms.json");
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

impl Alarm {
    /// Whether the alarm is of this metric of this function. The construct's alarms are of a function called FUNCTION.
    fn watches(&self, datum: &Datum, function: &str) -> bool {
        let Some(query) = self.expression.as_deref() else {
            let of_function = |value: &String| if value == "FUNCTION" { function.to_owned() } else { value.clone() };
            let dimensions = self.dimensions.iter().flatten().map(|(name, value)| (name.clone(), of_function(value)));
            return self.namespace.as_deref() == Some(datum.namespace)
                && self.metric_name.as_ref() == Some(&datum.name)
                && dimensions.collect::<BTreeMap<_, _>>() == datum.dimensions;
        };
        let query = query.replace("FUNCTION", function);
        let (metric, query) = query.strip_prefix("SELECT SUM(").unwrap().split_once(") FROM SCHEMA(").unwrap();
        let (schema, conditions) = query.split_once(") WHERE ").unwrap();
        let (namespace, dimensions) = schema.split_once(", ").unwrap();
        let value_of = |name: &str| datum.dimensions.get(name).map_or("", String::as_str);
        namespace == datum.namespace
            && metric == datum.name
            // Of a metric with other dimensions, the query finds nothing.
            && dimensions.split(", ").eq(datum.dimensions.keys().map(String::as_str))
            && conditions.split(" AND ").all(|condition| {
                let (is_equal, operator) = if condition.contains(" != ") { (false, " != ") } else { (true, " = ") };
                let (name, value) = condition.split_once(operator).unwrap();
                (value_of(name) == value.trim_matches('\'')) == is_equal
            })
    }

    /// Whether the alarm is raised at this time.
    fn is_raised(&self, data: &[Datum], function: &str, now: u64) -> bool {
        assert!(self.expression.is_some() || matches!(self.statistic.as_deref(), Some("Sum" | "Maximum")), "{self:?}");
        let breaches = (0..self.evaluation_periods).filter(|period| {
            let end = now - period * self.period;
            let within = data.iter().filter(|datum| datum.at <= end && datum.at + self.period > end);
            let values: Vec<_> =
                within.filter(|datum| self.watches(datum, function)).map(|datum| datum.value).collect();
            if values.is_empty() {
                return self.treat_missing_data == "breaching";
            }
            let value = match self.statistic.as_deref() {
                Some("Maximum") => values.into_iter().fold(0.0, f64::max),
                _ => values.iter().sum::<f64>(),
            };
            match &*self.comparison_operator {
                "GreaterThanThreshold" => value > self.threshold,
                "LessThanThreshold" => value < self.threshold,
                other => panic!("{other}"),
            }
        });
        breaches.count() as u64 >= self.datapoints.unwrap_or(self.evaluation_periods)
    }
}

/// The names of the alarms of these that are raised.
fn raised(alarms: &BTreeMap<String, Alarm>, data: &[Datum], function: &str, now: u64) -> Vec<String> {
    let raised = alarms.iter().filter(|(_, alarm)| alarm.is_raised(data, function, now));
    raised.map(|(name, _)| name.clone()).collect()
}

/// What a function has counted, and what its service has.
struct Watched {
    stage: Stage,
    function: &'static str,
    data: Vec<Datum>,
    hours: u64,
}

impl Watched {
    async fn new(function: &'static str) -> Self {
        Self { stage: Stage::set().await, function, data: Vec::new(), hours: 0 }
    }

    fn now(&self) -> u64 {
        (self.hours + HOURS) * HOUR
    }

    fn add(&mut self, namespace: &'static str, name: &str, labels: &[(&str, &str)], value: f64) {
        let dimensions = [("FunctionName", self.function)].into_iter().chain(labels.iter().copied());
        let dimensions = dimensions.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        self.data.push(Datum { at: self.now(), namespace, name: name.to_owned(), dimensions, value });
    }

    /// Adds the metrics of an invocation that Lambda itself counts, and those that it has exported.
    fn invoked(&mut self, has_failed: bool) {
        self.add("AWS/Lambda", "Errors", &[], f64::from(u8::from(has_failed)));
        for (key, _, _, value) in self.stage.metrics.snapshotter.snapshot().into_vec() {
            let DebugValue::Counter(count) = value else { continue };
            let (_, key) = key.into_parts();
            let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
            if count > 0 {
                self.add("LambdaLock", key.name(), &labels, f64::from(u32::try_from(count).unwrap()));
            }
        }
    }

    async fn an_hour_passes(&mut self) {
        sleep(Duration::from_secs(HOUR)).await;
        self.hours += 1;
    }
}

/// The locks of this state, and the name of the table of the handler's data.
fn tables(host: &Host, state: State, hour: u64) -> (Locks, &'static str) {
    let table = if state == State::NoTable { "no-table" } else { TABLE };
    let fails = state == State::HandlerFails || (state == State::HandlerFailedOnce && hour + 1 == HOURS);
    let locks = Locks::builder(without_retries(host), table).build().unwrap();
    (locks, if fails { "no-data" } else { TABLE })
}

/// A report in each hour.
async fn reports(state: State) -> Watched {
    let mut watched = Watched::new("NightlyReport").await;
    let host = state.host(&watched.stage);
    for hour in 0..HOURS {
        watched.an_hour_passes().await;
        if state == State::NotInvoked {
            continue;
        }
        let (locks, data) = tables(&host, state, hour);
        let function = nightly_report(locks, Reports::new(without_retries(&host), data, "report#"), Simulation::Off);
        let request = ReportRequest { report: format!("sales-{hour}"), gathering_ms: 0, panics: false };
        let answer = function.oneshot(invocation(&host, request)).await;
        watched.invoked(answer.is_err());
    }
    watched
}

/// Two orders in each hour, the second with a problem of its client. It has no alarm.
async fn orders(state: State) -> Watched {
    let mut watched = Watched::new("OrderApi").await;
    let host = state.host(&watched.stage);
    for hour in 0..HOURS {
        watched.an_hour_passes().await;
        let (locks, data) = tables(&host, state, hour);
        let caller = if state == State::BadInput { Caller::api_key() } else { Caller::shared() };
        let orders = Orders::new(without_retries(&host), data, "order#");
        let function = order_api(locks, orders, caller, Simulation::Off);
        for key in [format!("\"key-{hour}\""), "\"malformed".to_owned()] {
            let request = json!({
                "rawPath": "/orders",
                "headers": { "content-type": "application/json", "idempotency-key": key },
                "requestContext": { "http": { "method": "POST" }, "timeEpoch": 0 },
                "body": json!({ "item": "tea", "quantity": 2 }).to_string(),
                "isBase64Encoded": false,
            });
            let answer = over_http(&host, function.clone(), &request).await;
            let is_server_error = answer["statusCode"].as_i64().unwrap() >= 500;
            watched.add("AWS/Lambda", "Url5xxCount", &[], f64::from(u8::from(is_server_error)));
            watched.invoked(false);
        }
    }
    watched
}

/// Two payments in each hour.
async fn payments(state: State) -> Watched {
    let mut watched = Watched::new("PaymentQueue").await;
    let host = state.host(&watched.stage);
    // No message is in progress elsewhere, so nothing is sent to SQS.
    let queues = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"));
    let queues = aws_sdk_sqs::Client::from_conf(queues.build());
    for hour in 0..HOURS {
        watched.an_hour_passes().await;
        let (locks, data) = tables(&host, state, hour);
        let payments = Payments::new(without_retries(&host), data, "payment#");
        let function = payment_queue(locks, payments, queues.clone(), Simulation::Off);
        let mut event = SqsEvent::default();
        for number in 0..2 {
            let id = format!("{hour}-{number}");
            let account = "DE02".to_owned();
            let payment =
                Payment { id: id.clone(), account, amount: 100, paying_ms: 0, failing_deliveries: 0, panics: false };
            let body = if state == State::BadInput { "{".to_owned() } else { json!(payment).to_string() };
            let mut record = message(&id, &body);
            record.event_source_arn = Some("arn:aws:sqs:us-east-1:123456789012:payments".to_owned());
            event.records.push(record);
        }
        let has_failed = function.oneshot(invocation(&host, event)).await.is_err();
        watched.invoked(has_failed);
    }
    watched
}

/// Asserts which alarms are raised at the end: of the construct and of the Terraform module, and of the template.
fn assert_raised(watched: &Watched, state: impl Debug, construct: &[&str], template: &[&str]) {
    let definitions = definitions();
    let (function, data, now) = (watched.function, &watched.data, watched.now());
    let of_construct = raised(&definitions.construct, data, function, now);
    let mut of_template = raised(&definitions.template, data, function, now);
    of_template.retain(|name| name.starts_with(function));
    let names = template.iter().map(|name| format!("{function}{name}")).collect();
    let construct: Vec<_> = construct.iter().map(|&name| name.to_owned()).collect();
    assert_eq!((of_construct, of_template), (construct, names), "{function}, {state:?}");
}

#[tokio::test(start_paused = true)]
async fn a_broken_singleton_raises_the_alarms_that_say_why() {
    let locks = ["errors", "lock-errors", "missing"];
    for (state, construct, template) in [
        (State::Healthy, &[][..], &[][..]),
        (State::NoTable, &locks[..], &["Errors", "LockErrors", "Missing"][..]),
        (State::NoPermission, &locks, &["Errors", "LockErrors", "Missing"]),
        (State::Throttled, &locks, &["Errors", "LockErrors", "Missing"]),
        (State::HandlerFails, &["errors", "missing", "work-errors"], &["Errors", "Missing"]),
        (State::HandlerFailedOnce, &["errors"], &["Errors"]),
        (State::NotInvoked, &["missing"], &["Missing"]),
    ] {
        let watched = reports(state).await;
        assert_raised(&watched, state, construct, template);
    }
}

// The alarm on missing work is for a function on a schedule. Here it shows that failed work is not counted as done.
#[tokio::test(start_paused = true)]
async fn a_broken_api_raises_the_alarms_that_say_why() {
    let locks = ["http-problems", "lock-errors", "missing"];
    for (state, construct, template) in [
        (State::Healthy, &[][..], &[][..]),
        (State::NoTable, &locks[..], &["HttpProblems", "LockErrors", "ServerErrors"][..]),
        (State::NoPermission, &locks, &["HttpProblems", "LockErrors", "ServerErrors"]),
        (State::Throttled, &locks, &["HttpProblems", "LockErrors", "ServerErrors"]),
        (State::HandlerFails, &["missing", "work-errors"], &["ServerErrors", "WorkErrors"]),
        (State::HandlerFailedOnce, &[], &["ServerErrors"]),
        (State::BadInput, &["http-problems", "missing"], &["HttpProblems"]),
    ] {
        let watched = orders(state).await;
        assert_raised(&watched, state, construct, template);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_consumer_raises_the_alarms_that_say_why() {
    let locks = ["errors", "item-errors", "lock-errors", "missing"];
    for (state, construct, template) in [
        (State::Healthy, &[][..], &[][..]),
        (State::NoTable, &locks[..], &["Errors", "ItemErrors", "LockErrors"][..]),
        (State::NoPermission, &locks, &["Errors", "ItemErrors", "LockErrors"]),
        (State::Throttled, &locks, &["Errors", "ItemErrors", "LockErrors"]),
        (State::HandlerFails, &["errors", "item-errors", "missing", "work-errors"], &["Errors", "ItemErrors"]),
        (State::HandlerFailedOnce, &["errors"], &[]),
        (State::BadInput, &["errors", "item-errors", "missing"], &["Errors", "ItemErrors"]),
    ] {
        let watched = payments(state).await;
        assert_raised(&watched, state, construct, template);
    }
}

#[tokio::test(start_paused = true)]
async fn one_order_an_hour_raises_the_alarm_if_none_is_counted() {
    let alarms = definitions().template;
    let (placed, not_counted) = (&alarms["OrdersPlaced"], &alarms["OrdersNotCounted"]);
    let mut watched = orders(State::Healthy).await;
    let (function, now) = (watched.function, watched.now());
    let is_raised = |alarm: &Alarm, data: &[Datum]| alarm.is_raised(data, function, now);
    assert!(is_raised(placed, &watched.data) && is_raised(not_counted, &watched.data));
    // One order is counted in the last hours.
    watched.function = "OrderTotals";
    watched.add("LambdaLock", "lambda_lock_released", &[], 1.0);
    assert!(!is_raised(not_counted, &watched.data));
    // No order is placed.
    assert!(!is_raised(placed, &[]));
}

#[tokio::test(start_paused = true)]
async fn a_rate_used_up_for_days_raises_only_missing_work() {
    let mut watched = Watched::new("PaymentQueue").await;
    let (host, locks) = locks_on(watched.stage.engine.host());
    let day = Duration::from_hours(24);
    for _ in 0..2 {
        locks.rate("bank", 1, day).burst(2).pass().await.unwrap();
    }
    watched.stage.metrics.take();
    let bank = locks.rate("bank", 10, Duration::from_secs(1));
    let consumer: Consumer = SqsConsumer::by_message_id(locks).concurrency(1).at_rate(bank);
    let payment = json!("payment").to_string();
    for hour in 0..HOURS {
        watched.an_hour_passes().await;
        let ids: Vec<_> = (0..20).map(|number| format!("{hour}-{number}")).collect();
        let messages: Vec<_> = ids.iter().map(|id| (&**id, &*payment)).collect();
        assert_eq!(deliver(&consumer, &host, &messages, Duration::from_secs(30)).await, 20);
        watched.invoked(false);
    }
    assert_raised(&watched, "a rate that is used up", &["missing"], &[]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_dies_within_a_period_raises_one_alarm() {
    let mut watched = Watched::new("PaymentQueue").await;
    let (host, locks) = locks_on(watched.stage.engine.host());
    let consumer: Consumer = SqsConsumer::by_message_id(locks);
    let [poison, work] = ["fail", "work"].map(|body| json!(body).to_string());
    for _ in 0..HOURS {
        watched.an_hour_passes().await;
    }
    for delivery in 0..5 {
        let other = format!("other-{delivery}");
        let messages = [("poison", &*poison), (&*other, &work)];
        assert_eq!(deliver(&consumer, &host, &messages, Duration::from_secs(30)).await, 1);
        watched.invoked(false);
    }
    assert_raised(&watched, "its deliveries are used up", &[], &[]);
    watched.data.push(Datum {
        at: watched.now(),
        namespace: "AWS/SQS",
        name: "ApproximateNumberOfMessagesVisible".to_owned(),
        dimensions: [("QueueName".to_owned(), "DEAD_LETTERS".to_owned())].into(),
        value: 1.0,
    });
    assert_raised(&watched, "it is a dead letter", &["dead"], &[]);
}

#[test]
fn a_table_that_throttles_writes_in_two_periods_raises_its_alarm() {
    let definitions = definitions();
    for (alarm, table) in
        [(&definitions.construct["throttled"], "TABLE"), (&definitions.template["LockTableThrottled"], "LockTable")]
    {
        let throttled_at = |at: u64| Datum {
            at,
            namespace: "AWS/DynamoDB",
            name: "WriteThrottleEvents".to_owned(),
            dimensions: [("TableName".to_owned(), table.to_owned())].into(),
            value: 1.0,
        };
        for (minutes, expected) in [(&[][..], false), (&[119], false), (&[61, 119], true), (&[1, 119], false)] {
            let data: Vec<_> = minutes.iter().map(|minute| throttled_at(HOUR + minute * 60)).collect();
            // Periods of the last two hours.
            assert_eq!(alarm.is_raised(&data, "any function", 3 * HOUR + 60), expected, "{minutes:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_left_to_the_holder_raise_nothing() {
    let mut watched = Watched::new("NightlyReport").await;
    let (host, locks) = locks_on(watched.stage.engine.host());
    let second = Duration::from_secs(1);
    let layer = LockLayer::new(locks).on_held(|_| "skipped").coalesce(second);
    let rebuild = service_fn(|_: LambdaEvent<()>| async {
        sleep(Duration::from_secs(1)).await;
        Ok::<_, Failure>("rebuilt")
    });
    for _ in 0..HOURS {
        watched.an_hour_passes().await;
        let answers = (0..21).map(|number| {
            let mut event = invocation(&host, ());
            event.context.request_id = format!("request {number}");
            layer.layer(rebuild).oneshot(event)
        });
        let answers: Vec<_> = join_all(answers).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers.iter().filter(|answer| **answer == "skipped").count(), 20, "{answers:?}");
        watched.invoked(false);
    }
    assert_raised(&watched, "events that are skipped", &[], &[]);
}

// The tests above run three of the functions.
#[test]
fn a_query_of_the_template_is_the_query_of_the_construct_for_its_function() {
    let definitions = definitions();
    let mut found = 0;
    for (name, alarm) in &definitions.template {
        let Some(query) = &alarm.expression else { continue };
        let kinds = [("LockErrors", "lock-errors"), ("ItemErrors", "item-errors"), ("HttpProblems", "http-problems")];
        let kind = kinds.into_iter().find_map(|(end, kind)| Some((name.strip_suffix(end)?, kind)));
        let (function, kind) = kind.unwrap_or_else(|| panic!("{name}"));
        let of_construct = definitions.construct[kind].expression.as_ref().unwrap();
        assert_eq!(*query, of_construct.replace("FUNCTION", function), "{name}");
        found += 1;
    }
    assert_eq!(found, 9);
}

#[test]
fn the_alarm_on_problems_leaves_out_mistakes_of_clients() {
    let rows = include_str!("../../../lock/docs/reference/http.md").lines().filter_map(|line| {
        let (problem, rest) = line.strip_prefix("| <a id=\"")?.split_once("\"></a>")?;
        Some((rest.split(' ').next()?.parse::<u16>().ok()?, problem))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 10, "{rows:?}");
    let alarm = &definitions().construct["http-problems"];
    for (status, problem) in rows {
        // A caller that is not found is usually a setting that does not fit the API.
        let is_routine = status < 500 && problem != "caller-unknown";
        let leaves_out = alarm.expression.as_ref().unwrap().contains(&format!("problem != '{problem}'"));
        assert_eq!(leaves_out, is_routine, "{problem}");
    }
}
