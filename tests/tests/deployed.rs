//! `template.yaml` as a user deploys it: built and deployed by the SAM CLI, to a local AWS (`MiniStack`) that runs the
//! functions' binaries as Lambda does, behind a function URL, queues and a schedule. The time is real.
//!
//! Needs `sam`, `cargo-lambda` and `ministack` on the `PATH`, as `.ci/run` puts them there. Without them it is skipped,
//! or with `LOCK_TEST_DEPLOYED=required` fails.

use std::array;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_lambda::primitives::Blob;
use aws_sdk_sqs::types::builders::SendMessageBatchRequestEntryBuilder;
use aws_sdk_sqs::types::{QueueAttributeName, SendMessageBatchRequestEntry};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use lambda_example::{Order, Outcome, Payment, ReportRequest};
use lambda_lock::metrics;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

const TOOLS: [&str; 3] = ["sam", "cargo-lambda", "ministack"];
const REGION: &str = "us-east-1";
const STACK: &str = "example";
const FUNCTIONS: [&str; 3] = ["nightly-report", "order-api", "payment-queue"];
/// Nothing is sent to it here.
const TOPIC: &str = "arn:aws:sns:us-east-1:000000000000:alarms";

/// The timeout of `nightly-report`, in seconds.
const FUNCTION_TIMEOUT: u64 = 8;
/// Less than the timeout, and longer than a few cold starts at once take on a busy machine.
const GATHERING: Duration = Duration::from_secs(4);
/// The timeout of `payment-queue`, in seconds.
const PAYMENT_TIMEOUT: u64 = 5;
/// Until a message that failed comes back, by the template: much longer than until the end of a lease.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(6 * PAYMENT_TIMEOUT);
/// The default of `LocksBuilder::clock_skew`, in milliseconds.
const CLOCK_SKEW: u64 = 1000;

#[tokio::test]
async fn the_deployed_functions_do_each_piece_of_work_once() {
    let missing: Vec<_> = TOOLS.into_iter().filter(|tool| !is_on_path(tool)).collect();
    if !missing.is_empty() {
        assert!(env::var_os("LOCK_TEST_DEPLOYED").is_none_or(|v| v != "required"), "not on the PATH: {missing:?}");
        eprintln!("skipped: not on the PATH: {missing:?}");
        return;
    }
    // One stack for all, because it takes a while to deploy; each has a report, an order or payments of its own.
    let stack = Stack::deploy().await;
    of_concurrent_invocations_one_writes_and_the_next_has_a_larger_fence(&stack).await;
    an_order_that_is_sent_three_times_is_placed_once(&stack).await;
    a_payment_that_is_being_made_is_hidden_until_that_lease_ends(&stack).await;
    what_they_export_is_what_the_alarms_and_the_dashboard_show(&stack).await;
    each_line_of_their_logs_has_the_id_of_its_request_once(&stack).await;
    a_report_that_panics_frees_its_lock_at_once(&stack).await;
    let panicking = of_ten_payments_the_one_that_panics_goes_back_alone(&stack).await;
    tokio::join!(
        a_killed_invocation_blocks_its_report_until_its_lease_ends(&stack),
        the_schedule_writes_its_report(&stack),
        payments_are_made_once_and_poison_becomes_a_dead_letter(&stack, panicking),
        payments_of_a_group_stay_in_order_when_one_fails(&stack),
        a_protected_table_stays_when_its_stack_is_deleted(&stack),
    );
    stack.delete(STACK).await;
    assert_eq!(stack.tables_of(STACK).await, [""; 0]);
}

async fn of_concurrent_invocations_one_writes_and_the_next_has_a_larger_fence(stack: &Stack) {
    let outcomes = join_all((0..5).map(|_| stack.invoke("concurrent", GATHERING))).await;
    let (written, skipped): (Vec<_>, Vec<_>) =
        outcomes.into_iter().map(Result::unwrap).partition(|outcome| matches!(outcome, Outcome::Written { .. }));
    let [Outcome::Written { fence: first, times: 1, .. }] = written[..] else { panic!("written: {written:?}") };
    assert_eq!(number(&stack.row("nightly-report", "report#concurrent").await.unwrap(), "times"), 1);
    assert_eq!(skipped.len(), 4);
    let lock = stack.row("nightly-report", "lock#concurrent").await.unwrap();
    for outcome in skipped {
        let Outcome::Skipped { reason } = outcome else { unreachable!() };
        assert!(reason.contains(&format!("held by {} until ", lock["holder"].as_s().unwrap())), "{reason}");
        assert!(held_until(&reason) > number(&lock, "acquired_at"), "{reason}");
    }

    let next = stack.invoke("concurrent", Duration::ZERO).await;
    let Ok(Outcome::Written { fence, times: 2, .. }) = next else { panic!("next: {next:?}") };
    assert!(fence > first, "{fence} is not larger than {first}");
}

async fn a_killed_invocation_blocks_its_report_until_its_lease_ends(stack: &Stack) {
    let (killed, until) = loop_until(Duration::from_mins(1), async || {
        let failure = stack.invoke("killed", Duration::from_mins(1)).await.unwrap_err();
        let row = stack.row("nightly-report", "lock#killed").await.unwrap();
        // The kill and the middleware's own cancellation, which releases, are due at the same time. This is about the
        // kill: if it came second, try again.
        match stack.invoke("killed", Duration::ZERO).await.unwrap() {
            Outcome::Skipped { reason } => {
                assert!(failure.contains(&format!("timed out after {FUNCTION_TIMEOUT}")), "{failure}");
                Some((row, held_until(&reason)))
            }
            Outcome::Written { .. } => None,
        }
    })
    .await;
    assert_eq!(until, number(&killed, "in_progress_expiration"));
    assert!(until <= number(&killed, "acquired_at") + FUNCTION_TIMEOUT * 1000 + CLOCK_SKEW);

    let fence = loop_until(Duration::from_secs(5), async || match stack.invoke("killed", Duration::ZERO).await {
        Ok(Outcome::Written { fence, .. }) => Some(fence),
        Ok(Outcome::Skipped { .. }) => None,
        Err(error) => panic!("{error}"),
    })
    .await;
    assert!(fence > number(&killed, "fence"));
    assert!(number(&stack.row("nightly-report", "lock#killed").await.unwrap(), "acquired_at") >= until);
}

async fn the_schedule_writes_its_report(stack: &Stack) {
    // The schedule is for once a minute, and the local one is looked at every ten seconds.
    let report = loop_until(Duration::from_secs(90), async || stack.row("nightly-report", "report#sales").await).await;
    assert!(number(&report, "times") >= 1);
    let lock = stack.row("nightly-report", "lock#sales").await.unwrap();
    assert_eq!(number(&lock, "fence"), number(&report, "fence"));
}

// behaviours 60, 63, 66, 69
async fn an_order_that_is_sent_three_times_is_placed_once(stack: &Stack) {
    let body = json!({ "item": "tea", "quantity": 2, "checking_ms": GATHERING.as_millis() });
    let (first, second) = tokio::join!(stack.order(Some("key-1"), &body), stack.order(Some("key-1"), &body));
    let (placed, refused) = if first.status == StatusCode::CREATED { (first, second) } else { (second, first) };
    assert_eq!((placed.status, refused.status), (StatusCode::CREATED, StatusCode::CONFLICT));
    assert_eq!(placed.headers.get("idempotency-replayed"), None);
    assert_eq!(refused.headers["retry-after"], "1");

    let replayed = stack.order(Some("key-1"), &body).await;
    assert_eq!((replayed.status, &replayed.body), (StatusCode::CREATED, &placed.body));
    assert_eq!(replayed.headers["idempotency-replayed"], "true");

    let other = stack.order(Some("key-1"), &json!({ "item": "tea", "quantity": 3 })).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(stack.order(None, &body).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(stack.unsigned_order(&body).await.status, StatusCode::FORBIDDEN);

    let order: Order = serde_json::from_slice(&placed.body).unwrap();
    assert_eq!(stack.ids_of_orders().await, [format!("{STACK}-order-api#order#{}", order.id)]);
}

/// After a report and an order were refused, an order was replayed, and a payment was made.
async fn what_they_export_is_what_the_alarms_and_the_dashboard_show(stack: &Stack) {
    let mut exported = BTreeSet::new();
    for (function, last) in FUNCTIONS.into_iter().zip([metrics::REFUSED, metrics::REPLAYS, metrics::BATCH_ITEMS]) {
        // Lines come into the log a moment after the answer.
        let of_function = loop_until(Duration::from_secs(10), async || {
            let exported = stack.exported(function).await;
            exported.iter().any(|metric| metric.name == last).then_some(exported)
        })
        .await;
        assert!(of_function.contains(&Metric::of(function, metrics::ACQUIRED, &[])), "{of_function:?}");
        exported.extend(of_function);
    }

    let alarms = stack.call("monitoring", "GraniteServiceVersion20100801.DescribeAlarms", &json!({})).await;
    let alarms = alarms["MetricAlarms"].as_array().unwrap().iter().map(|alarm| {
        assert_eq!((&alarm["TreatMissingData"], &alarm["AlarmActions"]), (&json!("notBreaching"), &json!([TOPIC])));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let dimensions = alarm["Dimensions"].as_array().unwrap().iter();
        let dimensions = dimensions.map(|dimension| (text(&dimension["Name"]), text(&dimension["Value"]))).collect();
        Metric { namespace: text(&alarm["Namespace"]), name: text(&alarm["MetricName"]), dimensions }
    });
    let refused = [
        Metric::of("nightly-report", metrics::REFUSED, &[("reason", "held")]),
        Metric::of("order-api", metrics::IN_PROGRESS_REFUSALS, &[]),
    ];
    assert!(refused.iter().all(|metric| exported.contains(metric)), "{exported:?}");
    // Nothing has been lost or taken over so far: the dimensions are those of every counter without a label.
    let lost = FUNCTIONS
        .into_iter()
        .flat_map(|function| [metrics::LOST, metrics::TAKEN_OVER].map(|name| Metric::of(function, name, &[])));
    let errors = FUNCTIONS.map(|function| (function, "Errors"));
    let errors = errors
        .into_iter()
        .chain([("order-api", "Url5xxCount")])
        .map(|(function, name)| Metric { namespace: "AWS/Lambda".to_owned(), ..Metric::of(function, name, &[]) });
    let dead = ["payment-dead-letters", "ordered-payment-dead-letters.fifo"].map(|queue| Metric {
        namespace: "AWS/SQS".to_owned(),
        name: "ApproximateNumberOfMessagesVisible".to_owned(),
        dimensions: [("QueueName".to_owned(), in_stack(queue))].into(),
    });
    assert_eq!(alarms.collect::<BTreeSet<_>>(), refused.into_iter().chain(lost).chain(errors).chain(dead).collect());

    let dashboard = json!({ "DashboardName": STACK });
    let dashboard = stack.call("monitoring", "GraniteServiceVersion20100801.GetDashboard", &dashboard).await;
    let dashboard: Value = serde_json::from_str(dashboard["DashboardBody"].as_str().unwrap()).unwrap();
    let widgets = dashboard["widgets"].as_array().unwrap().iter();
    let graphs = widgets.flat_map(|widget| widget["properties"]["metrics"].as_array().unwrap());
    let searches: Vec<_> = graphs.filter_map(|graph| graph[0]["expression"].as_str()).collect();
    let functions = FUNCTIONS.map(|function| format!("\"{}\"", in_stack(function))).join(" OR ");
    for Metric { namespace, name, dimensions } in exported {
        let schema = dimensions.into_keys().fold(namespace, |schema, dimension| format!("{schema},{dimension}"));
        let search = format!("SEARCH('{{{schema}}} FunctionName=({functions}) MetricName=\"{name}\"', '");
        assert!(searches.iter().any(|shown| shown.starts_with(&search)), "{search} is not among {searches:#?}");
    }
}

/// After a report was written, an order placed and a payment made.
async fn each_line_of_their_logs_has_the_id_of_its_request_once(stack: &Stack) {
    for (function, last) in FUNCTIONS.into_iter().zip(["written", "placed", "paid"]) {
        let lines = stack.log(function).await;
        let mut own = lines.iter().filter(|line| line["target"].as_str().is_some_and(|of| of.starts_with("lambda_")));
        assert!(own.clone().any(|line| line["fields"]["message"] == last), "{lines:?}");
        assert!(own.all(|line| line["spans"][0]["requestId"].is_string() && line["span"].is_null()), "{lines:?}");
    }
}

async fn a_protected_table_stays_when_its_stack_is_deleted(stack: &Stack) {
    let name = "protected";
    stack.local.deploy(name, &["ScheduleState=DISABLED"]).await;
    let tables = stack.tables_of(name).await;
    assert_eq!(tables.len(), 1);
    stack.delete(name).await;
    assert_eq!(stack.tables_of(name).await, tables);
    let function = stack.lambda.get_function().function_name(format!("{name}-nightly-report")).send().await;
    assert!(function.unwrap_err().into_service_error().is_resource_not_found_exception());
}

// behaviours 73, 84
async fn a_payment_that_is_being_made_is_hidden_until_that_lease_ends(stack: &Stack) {
    let queue = stack.queue("payments").await;
    let payment = Payment { paying_ms: 3000, ..payment("hidden", 0) };
    queue.send(&json!(payment)).await;
    loop_until(Duration::from_secs(5), async || stack.row("payment-queue", "idempotency#hidden").await).await;
    queue.send(&json!(payment)).await;
    loop_until(VISIBILITY_TIMEOUT * 3 / 4, async || queue.is_empty().await.then_some(())).await;
    assert_eq!(stack.times_paid("hidden").await, 1);
}

/// In a build with `panic = "abort"` the environment dies, and the lock stays until the invocation's deadline.
async fn a_report_that_panics_frees_its_lock_at_once(stack: &Stack) {
    let request = ReportRequest { report: "panics".to_owned(), gathering_ms: 0, panics: true };
    let failure = stack.report(&request).await.unwrap_err();
    let next = stack.invoke("panics", Duration::ZERO).await;
    assert!(matches!(next, Ok(Outcome::Written { times: 1, .. })), "after {failure}: {next:?}");
    assert!(failure.contains("a bug in the report"), "{failure}");
}

/// Returns the payment that panics, which becomes a dead letter when it has been delivered often enough. In a build with
/// `panic = "abort"` the whole batch does.
async fn of_ten_payments_the_one_that_panics_goes_back_alone(stack: &Stack) -> Value {
    let queue = stack.queue("payments").await;
    let payments: [_; 10] =
        array::from_fn(|index| Payment { panics: index == 4, ..payment(&format!("ten-{index}"), 0) });
    queue.send_all(payments.iter().map(entry)).await;
    // In the first delivery: whatever goes back is hidden for longer.
    let made = async || {
        let rows = join_all(payments.iter().map(|payment| stack.payment(&payment.id))).await;
        let made: Vec<_> = rows.iter().map(Option::is_some).collect();
        (made == payments.each_ref().map(|payment| !payment.panics)).then_some(())
    };
    loop_until(VISIBILITY_TIMEOUT * 3 / 4, made).await;
    json!(payments[4])
}

// behaviours 71, 73
async fn payments_are_made_once_and_poison_becomes_a_dead_letter(stack: &Stack, panicking: Value) {
    let (queue, dead_letters) = (stack.queue("payments").await, stack.queue("payment-dead-letters").await);
    let poison = json!(payment("poison", u64::MAX));
    for _ in 0..4 {
        queue.send(&json!(payment("duplicate", 0))).await;
    }
    queue.send(&json!(payment("fails-twice", 2))).await;
    queue.send(&poison).await;
    queue.send(&json!("not a payment")).await;

    loop_until(VISIBILITY_TIMEOUT * 8, async || queue.is_empty().await.then_some(())).await;
    assert_eq!(stack.times_paid("duplicate").await, 1);
    assert_eq!(stack.times_paid("fails-twice").await, 1);
    assert_eq!(stack.payment("poison").await, None);
    let dead: BTreeSet<_> = dead_letters.receive_all().await.iter().map(Value::to_string).collect();
    assert_eq!(dead, [json!("not a payment"), poison, panicking].map(|body| body.to_string()).into());
    for index in [0, 1, 2, 3, 5, 6, 7, 8, 9] {
        assert_eq!(stack.times_paid(&format!("ten-{index}")).await, 1);
    }
}

// behaviour 72
async fn payments_of_a_group_stay_in_order_when_one_fails(stack: &Stack) {
    let queue = stack.queue("ordered-payments.fifo").await;
    let first_of_other = payment("b-1", 0);
    queue.send_in_order("a", &[payment("a-1", 0), payment("a-2", 1), payment("a-3", 0)], &first_of_other).await;
    loop_until(VISIBILITY_TIMEOUT * 3, async || queue.is_empty().await.then_some(())).await;

    let mut began = Vec::new();
    for id in ["a-1", "b-1", "a-2", "a-3"] {
        assert_eq!(stack.times_paid(id).await, 1);
        let record = stack.row("payment-queue", &format!("idempotency#{id}")).await.unwrap();
        began.push(number(&record, "acquired_at"));
    }
    let [a1, b1, a2, a3] = began[..] else { unreachable!() };
    // The last run's: what failed was begun again when it had come back, and until then the rest of its group waited.
    assert!(a2 >= a1 + 1000 * (VISIBILITY_TIMEOUT.as_secs() - 1), "began: {began:?}");
    assert!(a3 > a2 && b1 < a2, "began: {began:?}");
}

/// A local AWS with the template deployed. It is stopped when this is dropped.
struct Stack {
    local: LocalAws,
    table: String,
    dynamodb: aws_sdk_dynamodb::Client,
    lambda: aws_sdk_lambda::Client,
    sqs: aws_sdk_sqs::Client,
    endpoint: String,
}

impl Stack {
    async fn deploy() -> Self {
        let local = LocalAws::start().await;
        let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../template.yaml");
        local
            .run(
                local
                    .command("sam")
                    .args(["build", "--beta-features", "--build-dir", "build", "--template"])
                    .arg(template)
                    .args(["--parameter-overrides", &architecture()]),
            )
            .await;
        let parameters = [
            &format!("FunctionTimeout={FUNCTION_TIMEOUT}"),
            &format!("PaymentTimeout={PAYMENT_TIMEOUT}"),
            "Schedule='rate(1 minute)'",
            "DeletionProtection=false",
            "Dashboard=true",
            "Alarms=true",
            &format!("AlarmTopicArn={TOPIC}"),
        ];
        local.deploy(STACK, &parameters).await;

        let config = aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(&local.endpoint)
            .region(Region::new(REGION))
            .credentials_provider(credentials())
            .load()
            .await;
        let dynamodb = aws_sdk_dynamodb::Client::new(&config);
        let tables = dynamodb.list_tables().send().await.unwrap();
        let [table] = tables.table_names() else { panic!("tables: {tables:?}") };
        Self {
            table: table.clone(),
            dynamodb,
            lambda: aws_sdk_lambda::Client::new(&config),
            sqs: aws_sdk_sqs::Client::new(&config),
            endpoint: local.endpoint.clone(),
            local,
        }
    }

    async fn delete(&self, name: &str) {
        self.local.run(self.local.command("sam").args(["delete", "--no-prompts", "--stack-name", name])).await;
    }

    async fn tables_of(&self, name: &str) -> Vec<String> {
        let tables = self.dynamodb.list_tables().send().await.unwrap().table_names.unwrap();
        tables.into_iter().filter(|table| table.starts_with(&format!("{name}-"))).collect()
    }

    /// Invokes `nightly-report` and waits for its answer, or for its error as Lambda reports it.
    async fn invoke(&self, report: &str, gathering: Duration) -> Result<Outcome, String> {
        let gathering_ms = u64::try_from(gathering.as_millis()).unwrap();
        self.report(&ReportRequest { report: report.to_owned(), gathering_ms, panics: false }).await
    }

    async fn report(&self, request: &ReportRequest) -> Result<Outcome, String> {
        let request = Blob::new(serde_json::to_vec(request).unwrap());
        let answer =
            self.lambda.invoke().function_name(in_stack("nightly-report")).payload(request).send().await.unwrap();
        let payload: Value = serde_json::from_slice(answer.payload().unwrap().as_ref()).unwrap();
        match answer.function_error() {
            None => Ok(serde_json::from_value(payload).unwrap()),
            Some(_) => Err(payload.to_string()),
        }
    }

    /// Posts an order with this idempotency key, signed.
    async fn order(&self, key: Option<&str>, body: &Value) -> HttpAnswer {
        let mut request = self.order_request(body).await;
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        sign_for("lambda", &mut request, &body.to_string());
        self.send(request).await
    }

    /// Calls an operation of a service that speaks JSON.
    async fn call(&self, service: &str, operation: &str, body: &Value) -> Value {
        let body = body.to_string();
        let mut request = Request::post(format!("{}/", self.endpoint))
            .header(CONTENT_TYPE, "application/x-amz-json-1.1")
            .header("x-amz-target", operation)
            .body(body.clone().into())
            .unwrap();
        sign_for(service, &mut request, &body);
        let answer = self.send(request).await;
        assert_eq!(answer.status, StatusCode::OK, "{operation}: {:?}", answer.body);
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The lines of this function's log that are JSON.
    async fn log(&self, function: &str) -> Vec<Value> {
        let group = format!("/aws/lambda/{}", in_stack(function));
        let log = self.call("logs", "Logs_20140328.FilterLogEvents", &json!({ "logGroupName": group })).await;
        let lines = log["events"].as_array().unwrap().iter().map(|event| event["message"].as_str().unwrap());
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The metrics that `CloudWatch` makes of this function's log.
    async fn exported(&self, function: &str) -> BTreeSet<Metric> {
        let mut exported = BTreeSet::new();
        for line in self.log(function).await {
            for metrics in line["_aws"]["CloudWatchMetrics"].as_array().into_iter().flatten() {
                let namespace = metrics["Namespace"].as_str().unwrap();
                let names = metrics["Dimensions"][0].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                let dimensions: BTreeMap<_, _> =
                    names.map(|name| (name.to_owned(), line[name].as_str().unwrap().to_owned())).collect();
                exported.extend(metrics["Metrics"].as_array().unwrap().iter().map(|metric| {
                    let name = metric["Name"].as_str().unwrap().to_owned();
                    Metric { namespace: namespace.to_owned(), name, dimensions: dimensions.clone() }
                }));
            }
        }
        exported
    }

    async fn unsigned_order(&self, body: &Value) -> HttpAnswer {
        self.send(self.order_request(body).await).await
    }

    async fn order_request(&self, body: &Value) -> Request<Full<Bytes>> {
        let config = self.lambda.get_function_url_config().function_name(in_stack("order-api")).send().await.unwrap();
        Request::post(format!("{}orders", config.function_url()))
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string().into())
            .unwrap()
    }

    /// Sends it to the local AWS, which tells the functions by their hosts' names.
    async fn send(&self, mut request: Request<Full<Bytes>>) -> HttpAnswer {
        let host = request.uri().host().unwrap().parse().unwrap();
        request.headers_mut().insert(HOST, host);
        *request.uri_mut() = format!("{}{}", self.endpoint, request.uri().path()).parse().unwrap();
        let answer = Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap();
        let (head, body) = answer.into_parts();
        HttpAnswer { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    async fn ids_of_orders(&self) -> Vec<String> {
        let scan = self.dynamodb.scan().table_name(&self.table).filter_expression("begins_with(id, :orders)");
        let orders = AttributeValue::S(format!("{}#order#", in_stack("order-api")));
        let rows = scan.expression_attribute_values(":orders", orders).send().await.unwrap();
        rows.items().iter().map(|row| row["id"].as_s().unwrap().clone()).collect()
    }

    async fn queue(&self, name: &str) -> Queue {
        let url = self.sqs.get_queue_url().queue_name(in_stack(name)).send().await.unwrap().queue_url.unwrap();
        Queue { sqs: self.sqs.clone(), url }
    }

    async fn times_paid(&self, id: &str) -> u64 {
        number(&self.payment(id).await.unwrap(), "times")
    }

    async fn payment(&self, id: &str) -> Option<HashMap<String, AttributeValue>> {
        self.row("payment-queue", &format!("payment#{id}")).await
    }

    /// The row under this key of a function.
    async fn row(&self, of: &str, key: &str) -> Option<HashMap<String, AttributeValue>> {
        let read = self.dynamodb.get_item().table_name(&self.table).consistent_read(true);
        read.key("id", AttributeValue::S(format!("{}#{key}", in_stack(of)))).send().await.unwrap().item
    }
}

/// As `CloudWatch` tells one from another.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    namespace: String,
    name: String,
    dimensions: BTreeMap<String, String>,
}

impl Metric {
    fn of(function: &str, name: &str, labels: &[(&str, &str)]) -> Self {
        let function = in_stack(function);
        let dimensions = [("FunctionName", function.as_str())].into_iter().chain(labels.iter().copied());
        let dimensions = dimensions.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { namespace: "LambdaLock".to_owned(), name: name.to_owned(), dimensions }
    }
}

struct HttpAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

struct Queue {
    sqs: aws_sdk_sqs::Client,
    url: String,
}

impl Queue {
    async fn send(&self, body: &Value) {
        self.sqs.send_message().queue_url(&self.url).message_body(body.to_string()).send().await.unwrap();
    }

    /// Sends the payments of a group, and behind them one of another.
    async fn send_in_order(&self, group: &str, payments: &[Payment], of_another: &Payment) {
        let payments = payments.iter().map(|payment| (group, payment)).chain([("another", of_another)]);
        let in_order = |(group, payment): (&str, &Payment)| {
            entry(payment).message_group_id(group).message_deduplication_id(&payment.id)
        };
        self.send_all(payments.map(in_order)).await;
    }

    /// Sends them in one request.
    async fn send_all(&self, entries: impl Iterator<Item = SendMessageBatchRequestEntryBuilder>) {
        let entries = entries.map(|entry| entry.build().unwrap()).collect();
        let batch = self.sqs.send_message_batch().queue_url(&self.url).set_entries(Some(entries));
        assert_eq!(batch.send().await.unwrap().failed(), []);
    }

    /// Whether there is nothing to be delivered, now or later.
    async fn is_empty(&self) -> bool {
        let read = self.sqs.get_queue_attributes().queue_url(&self.url).attribute_names(QueueAttributeName::All);
        let attributes = read.send().await.unwrap().attributes.unwrap();
        [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ]
        .iter()
        .all(|count| attributes[count] == "0")
    }

    async fn receive_all(&self) -> Vec<Value> {
        let received = self.sqs.receive_message().queue_url(&self.url).max_number_of_messages(10).send().await.unwrap();
        received.messages().iter().map(|message| serde_json::from_str(message.body().unwrap()).unwrap()).collect()
    }
}

fn payment(id: &str, failing_deliveries: u64) -> Payment {
    let account = "DE02".to_owned();
    Payment { id: id.to_owned(), account, amount: 100, paying_ms: 0, failing_deliveries, panics: false }
}

/// A payment as one message of several that are sent in one request.
fn entry(payment: &Payment) -> SendMessageBatchRequestEntryBuilder {
    SendMessageBatchRequestEntry::builder().id(&payment.id).message_body(json!(payment).to_string())
}

/// What a function or a queue is called in this stack.
fn in_stack(name: &str) -> String {
    format!("{STACK}-{name}")
}

fn sign_for(service: &str, request: &mut Request<Full<Bytes>>, body: &str) {
    let identity = credentials().into();
    let parameters = SigningParams::builder()
        .identity(&identity)
        .region(REGION)
        .name(service)
        .time(SystemTimeSource::new().now())
        .settings(SigningSettings::default())
        .build()
        .unwrap()
        .into();
    let headers = request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let to_sign =
        SignableRequest::new("POST", request.uri().to_string(), headers, SignableBody::Bytes(body.as_bytes()));
    let (signature, _) = sign(to_sign.unwrap(), &parameters).unwrap().into_parts();
    signature.apply_to_request_http1x(request);
}

fn credentials() -> Credentials {
    Credentials::new("test", "test", None, None, "tests")
}

struct LocalAws {
    endpoint: String,
    directory: TempDir,
    server: Child,
}

impl LocalAws {
    async fn start() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let endpoint = format!("http://127.0.0.1:{port}");
        let directory = TempDir::new().unwrap();
        let log = File::create(directory.path().join("ministack.log")).unwrap();
        let server = aws_command("ministack", &endpoint, directory.path())
            .env("BIND_HOST", "127.0.0.1")
            .env("GATEWAY_PORT", port.to_string())
            // It is held to the policies of the function's role, but for the condition on keys.
            .env("AUTH", "true")
            // A second listener, on a port of its own.
            .env("IOT_MTLS_ENABLED", "0")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let local = Self { endpoint, directory, server };
        loop_until(Duration::from_secs(30), async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()).await;
        local
    }

    fn command(&self, program: &str) -> Command {
        aws_command(program, &self.endpoint, self.directory.path())
    }

    /// Deploys what was built.
    async fn deploy(&self, name: &str, parameters: &[&str]) {
        self.run(
            self.command("sam")
                .args(["deploy", "--template-file", "build/template.yaml", "--stack-name", name, "--resolve-s3"])
                .args(["--capabilities", "CAPABILITY_IAM", "--parameter-overrides", &architecture()])
                .args(parameters),
        )
        .await;
    }

    async fn run(&self, command: &mut Command) {
        let output = timeout(Duration::from_mins(30), command.output()).await.unwrap().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
    }
}

impl Drop for LocalAws {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.directory.path().join("ministack.log")).unwrap_or_default());
        }
        // The functions' processes end by themselves when they cannot reach it.
        drop(self.server.start_kill());
    }
}

/// A command that knows of this AWS and no other, and leaves its files in `directory`.
fn aws_command(program: &str, endpoint: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"AWS_")) {
        command.env_remove(name);
    }
    command
        .current_dir(directory)
        .env("TMPDIR", directory)
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_DEFAULT_REGION", REGION)
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("SAM_CLI_TELEMETRY", "0")
        .stdin(Stdio::null());
    command
}

/// The template's parameter: that of this machine, which runs the functions.
fn architecture() -> String {
    let architecture = if env::consts::ARCH == "aarch64" { "arm64" } else { env::consts::ARCH };
    format!("Architecture={architecture}")
}

fn is_on_path(tool: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

/// Tries until there is something, for `limit` at the most.
async fn loop_until<T>(limit: Duration, attempt: impl AsyncFn() -> Option<T>) -> T {
    let found = timeout(limit, async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            sleep(Duration::from_millis(100)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("nothing after {limit:?}"))
}

fn number(row: &HashMap<String, AttributeValue>, attribute: &str) -> u64 {
    row[attribute].as_n().unwrap().parse().unwrap()
}

/// The time at the end of a reason for skipping, in milliseconds since the epoch.
fn held_until(reason: &str) -> u64 {
    let (_, until) = reason.rsplit_once(" until ").unwrap();
    let until = DateTime::from_str(until, DateTimeFormat::DateTime).unwrap();
    until.to_millis().unwrap().try_into().unwrap()
}
