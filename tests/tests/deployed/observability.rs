//! The metrics and logs that the functions export.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use lambda_lock::metrics;
use serde_json::{Value, json};

use crate::deployments::machine;
use crate::stack::{Metric, Stack, in_stack};
use crate::{FUNCTIONS, STACK, TOPIC, loop_until};

/// Needs a refused report, a refused order, a replayed order, a payment, a counted order and a deployment.
pub(crate) async fn alarms_and_dashboard_show_the_exported_metrics(stack: &Stack) {
    let mut exported = BTreeSet::new();
    let latest = [metrics::REFUSED, metrics::REPLAYS, metrics::BATCH_ITEMS, metrics::BATCH_ITEMS, metrics::RELEASED];
    for (function, last) in FUNCTIONS.into_iter().zip(latest) {
        // The log has its lines a moment after the answer.
        let of_function = loop_until(Duration::from_secs(10), async || {
            let exported = stack.exported(function).await;
            exported.iter().any(|metric| metric.name == last).then_some(exported)
        })
        .await;
        assert!(of_function.contains(&Metric::of(function, metrics::ACQUIRED, &[])), "{of_function:?}");
        exported.extend(of_function);
    }

    let alarms = alarms(stack).await;
    let alarms = alarms.iter().map(|alarm| {
        // Only work that should happen is missed.
        let missing = if alarm["ComparisonOperator"] == "LessThanThreshold" { "breaching" } else { "notBreaching" };
        // Two alarms say nothing alone.
        let is_part =
            [in_stack("orders-placed"), in_stack("orders-not-counted")].iter().any(|part| alarm["AlarmName"] == **part);
        let actions = if is_part { json!([]) } else { json!([TOPIC]) };
        assert_eq!((&alarm["TreatMissingData"], &alarm["AlarmActions"]), (&json!(missing), &actions), "{alarm}");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let dimensions = alarm["Dimensions"].as_array().unwrap().iter();
        let dimensions = dimensions.map(|dimension| (text(&dimension["Name"]), text(&dimension["Value"]))).collect();
        Metric { namespace: text(&alarm["Namespace"]), name: text(&alarm["MetricName"]), dimensions }
    });
    // Nothing has been lost or taken over so far, and no order failed. These metrics have the dimensions of every counter
    // without a label.
    let refused = [
        Metric::of("nightly-report", metrics::REFUSED, &[("reason", "held")]),
        Metric::of("order-api", metrics::IN_PROGRESS_REFUSALS, &[]),
    ];
    assert!(refused.iter().all(|metric| exported.contains(metric)), "{exported:?}");
    let done =
        ["nightly-report", "order-api", "order-totals"].map(|function| Metric::of(function, metrics::RELEASED, &[]));
    assert!(done.iter().all(|metric| exported.contains(metric)), "{exported:?}");
    let mut queues = BTreeMap::new();
    for (queue, _) in QUEUES {
        queues.insert(queue, stack.queue_named(queue).await.name().to_owned());
    }
    let api = stack.http_api(STACK).await;
    let expected = of_alarms(|queue| queues[queue].clone(), machine(), api.split('.').next().unwrap(), &stack.table);
    assert_eq!(alarms.collect::<BTreeSet<_>>(), expected);

    let searches = searches(stack).await;
    let functions = FUNCTIONS.into_iter().chain(["durable-deployment"]);
    let functions: Vec<_> = functions.map(|function| format!("\"{}\"", in_stack(function))).collect();
    let functions = functions.join(" OR ");
    for Metric { namespace, name, dimensions } in exported {
        let schema = dimensions.into_keys().fold(namespace, |schema, dimension| format!("{schema},{dimension}"));
        let search = format!("{{{schema}}} FunctionName=({functions}) MetricName=\"{name}\"");
        assert!(searches.contains(&search), "{search} is not among {searches:#?}");
    }
}

/// The queues that have an alarm, by the beginnings of their names, and its metric.
const QUEUES: [(&str, &str); 6] = [
    ("PaymentDeadLetters-", "ApproximateNumberOfMessagesVisible"),
    ("OrderedPaymentDeadLetters-", "ApproximateNumberOfMessagesVisible"),
    ("order-totals-dead-letters", "ApproximateNumberOfMessagesVisible"),
    ("nightly-report-failures", "ApproximateNumberOfMessagesVisible"),
    ("Payments-", "ApproximateAgeOfOldestMessage"),
    ("OrderedPayments-", "ApproximateAgeOfOldestMessage"),
];

/// The metrics of all alarms, apart from those on queries.
fn of_alarms(queue_named: impl Fn(&str) -> String, machine: String, api: &str, table: &str) -> BTreeSet<Metric> {
    // The work of a deployment is never longer than its lease.
    let [others @ .., deployment] = FUNCTIONS;
    let of = |function, names: &[&str]| names.iter().map(|name| Metric::of(function, name, &[])).collect::<Vec<_>>();
    let mut all: BTreeSet<_> =
        others.into_iter().flat_map(|function| of(function, &[metrics::LOST, metrics::TAKEN_OVER])).collect();
    all.extend(of(deployment, &[metrics::TAKEN_OVER]));
    all.extend(of("order-api", &[metrics::WORK_FAILED, metrics::IN_PROGRESS_REFUSALS]));
    all.insert(Metric::of("nightly-report", metrics::REFUSED, &[("reason", "held")]));
    all.extend(["nightly-report", "order-api", "order-totals"].map(|name| Metric::of(name, metrics::RELEASED, &[])));
    let of_lambda = others.map(|function| (function, "Errors")).into_iter().chain([
        ("deployment", "AsyncEventsDropped"),
        ("durable-deployment", "DurableExecutionFailed"),
        ("durable-deployment", "DurableExecutionTimedOut"),
        ("order-api", "Url5xxCount"),
        ("order-totals", "IteratorAge"),
    ]);
    all.extend(of_lambda.map(|(name, of)| Metric { namespace: "AWS/Lambda".to_owned(), ..Metric::of(name, of, &[]) }));
    let of_aws = |namespace: &str, name: &str, dimension: &str, value| Metric {
        namespace: format!("AWS/{namespace}"),
        name: name.to_owned(),
        dimensions: [(dimension.to_owned(), value)].into(),
    };
    all.extend(QUEUES.map(|(queue, name)| of_aws("SQS", name, "QueueName", queue_named(queue))));
    all.insert(of_aws("States", "ExecutionsFailed", "StateMachineArn", machine));
    all.insert(of_aws("ApiGateway", "5xx", "ApiId", api.to_owned()));
    all.insert(of_aws("DynamoDB", "WriteThrottleEvents", "TableName", table.to_owned()));
    all
}

/// So a new alarm is missing here before it is deployed. `.ci/run infrastructure` compares the file with the template.
#[test]
fn each_alarm_of_the_template_is_expected_of_a_deployment() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../infrastructure/alarms.json");
    let alarms: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    // `NightlyReport` is `nightly-report`, as a queue and a function are called.
    let kebab = |name: &str| {
        let words = name.trim_end_matches('-').chars().enumerate().flat_map(|(at, letter)| {
            let dash = (at > 0 && letter.is_uppercase()).then_some('-');
            dash.into_iter().chain(letter.to_lowercase())
        });
        words.collect::<String>()
    };
    let alarms = alarms["template"].as_object().unwrap().values().filter(|alarm| alarm["MetricName"].is_string());
    let metrics = alarms.map(|alarm| {
        let dimensions = alarm["Dimensions"].as_object().unwrap().iter().map(|(name, value)| {
            let value = value.as_str().unwrap();
            let value = match &**name {
                "FunctionName" => in_stack(&kebab(value)),
                "QueueName" => kebab(value.strip_suffix(".QueueName").unwrap()),
                _ => value.to_owned(),
            };
            (name.clone(), value)
        });
        let text = |name: &str| alarm[name].as_str().unwrap().to_owned();
        Metric { namespace: text("Namespace"), name: text("MetricName"), dimensions: dimensions.collect() }
    });
    assert_eq!(
        metrics.collect::<BTreeSet<_>>(),
        of_alarms(kebab, "DeploymentMachine".to_owned(), "OrderHttpApi", "LockTable")
    );
}

/// Needs everything that these metrics count.
pub(crate) async fn each_alarm_and_widget_has_data(stack: &Stack) {
    let exported = join_all(FUNCTIONS.map(|function| stack.exported(function))).await;
    let exported: BTreeSet<_> = exported.into_iter().flatten().collect();
    for search in searches(stack).await {
        let is_found = |metric: &Metric| {
            let schema = metric
                .dimensions
                .keys()
                .fold(metric.namespace.clone(), |schema, dimension| format!("{schema},{dimension}"));
            search.starts_with(&format!("{{{schema}}} "))
                && search.ends_with(&format!(" MetricName=\"{}\"", metric.name))
        };
        assert!(exported.iter().any(is_found), "no data for {search}: {exported:#?}");
    }
    let names: BTreeSet<_> = exported.iter().map(|metric| metric.name.as_str()).collect();
    for alarm in alarms(stack).await {
        let name = alarm["MetricName"].as_str().unwrap();
        assert!(alarm["Namespace"] != "LambdaLock" || names.contains(name), "no data for {alarm}");
    }
}

async fn alarms(stack: &Stack) -> Vec<Value> {
    let mut alarms = stack.call("monitoring", "GraniteServiceVersion20100801.DescribeAlarms", &json!({})).await;
    serde_json::from_value(alarms["MetricAlarms"].take()).unwrap()
}

/// The searches of the dashboard's widgets, each without its statistic.
async fn searches(stack: &Stack) -> BTreeSet<String> {
    let dashboard = json!({ "DashboardName": STACK });
    let dashboard = stack.call("monitoring", "GraniteServiceVersion20100801.GetDashboard", &dashboard).await;
    let dashboard: Value = serde_json::from_str(dashboard["DashboardBody"].as_str().unwrap()).unwrap();
    let widgets = dashboard["widgets"].as_array().unwrap().iter();
    let graphs = widgets.flat_map(|widget| widget["properties"]["metrics"].as_array().unwrap());
    let searches = graphs.filter_map(|graph| graph[0]["expression"].as_str());
    searches.map(|search| search.strip_prefix("SEARCH('").unwrap().split('\'').next().unwrap().to_owned()).collect()
}

/// Needs a written report, a placed order, a payment, a counted order and a released version.
pub(crate) async fn each_log_line_has_the_id_of_its_request_once(stack: &Stack) {
    for (function, last) in FUNCTIONS.into_iter().zip(["written", "placed", "paid", "counted", "released"]) {
        let lines = stack.log(function).await;
        // The init phase has no request: there, the example says that MiniStack does not register extensions.
        // The runtime panics about that in a task of its own.
        let is_own = |of: &str| of.starts_with("lambda_") && of != "lambda_example::shutdown";
        let is_init = |line: &Value| line["fields"]["panic"].as_str().is_some_and(|text| text.contains("extension"));
        let mut own = lines.iter().filter(|line| line["target"].as_str().is_some_and(is_own) && !is_init(line));
        assert!(own.clone().any(|line| line["fields"]["message"] == last), "{lines:?}");
        assert!(own.all(|line| line["spans"][0]["requestId"].is_string() && line["span"].is_null()), "{lines:?}");
    }
}
