//! `template.yaml` as a user deploys it: built and deployed by the SAM CLI, to a local AWS (`MiniStack`) that runs the
//! functions' binaries as Lambda does, behind a function URL, queues and a schedule. The time is real.
//!
//! Needs `sam`, `cargo-lambda` and `ministack` on the `PATH`, as `.ci/run` puts them there. Without them it is skipped,
//! or with `LOCK_TEST_DEPLOYED=required` fails.

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
const PAYMENT_TIMEOUT: u64 = 6;
/// Until a message that failed comes back: much longer than until the end of a lease, to tell them apart.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(16);
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
    tokio::join!(
        a_killed_invocation_blocks_its_report_until_its_lease_ends(&stack),
        the_schedule_writes_its_report(&stack),
        payments_are_made_once_and_poison_becomes_a_dead_letter(&stack),
        payments_of_a_group_stay_in_order_when_one_fails(&stack),
    );
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
    let dead = ["payment-dead-letters", "ordered-payment-dead-letters.fifo"].map(|queue| Metric {
        namespace: "AWS/SQS".to_owned(),
        name: "ApproximateNumberOfMessagesVisible".to_owned(),
        dimensions: [("QueueName".to_owned(), in_stack(queue))].into(),
    });
    assert_eq!(alarms.collect::<BTreeSet<_>>(), refused.into_iter().chain(lost).chain(dead).collect());

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

// behaviours 71, 73
async fn payments_are_made_once_and_poison_becomes_a_dead_letter(stack: &Stack) {
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
    assert_eq!(stack.row("payment-queue", "payment#poison").await, None);
    let mut dead = dead_letters.receive_all().await;
    dead.sort_by_key(ToString::to_string);
    assert_eq!(dead, [json!("not a payment"), poison]);
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
    /// Kept until the end.
    _local: LocalAws,
    table: String,
    dynamodb: aws_sdk_dynamodb::Client,
    lambda: aws_sdk_lambda::Client,
    sqs: aws_sdk_sqs::Client,
    endpoint: String,
}

impl Stack {
    async fn deploy() -> Self {
        let local = LocalAws::start().await;
        let architecture = if env::consts::ARCH == "aarch64" { "arm64" } else { env::consts::ARCH };
        let architecture = format!("Architecture={architecture}");
        let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../template.yaml");
        local
            .run(
                local
                    .command("sam")
                    // A release build takes minutes longer.
                    .env("SAM_BUILD_MODE", "debug")
                    .args(["build", "--beta-features", "--build-dir", "build", "--template"])
                    .arg(template)
                    .args(["--parameter-overrides", &architecture]),
            )
            .await;
        local
            .run(
                local
                    .command("sam")
                    .args(["deploy", "--template-file", "build/template.yaml", "--stack-name", STACK])
                    .args(["--resolve-s3", "--capabilities", "CAPABILITY_IAM", "--parameter-overrides", &architecture])
                    .arg(format!("FunctionTimeout={FUNCTION_TIMEOUT}"))
                    .arg(format!("PaymentTimeout={PAYMENT_TIMEOUT}"))
                    .arg(format!("PaymentVisibilityTimeout={}", VISIBILITY_TIMEOUT.as_secs()))
                    .args(["Schedule='rate(1 minute)'", "DeletionProtection=false"])
                    .args(["Dashboard=true", "Alarms=true", &format!("AlarmTopicArn={TOPIC}")]),
            )
            .await;

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
            _local: local,
        }
    }

    /// Invokes `nightly-report` and waits for its answer, or for its error as Lambda reports it.
    async fn invoke(&self, report: &str, gathering: Duration) -> Result<Outcome, String> {
        let gathering_ms = u64::try_from(gathering.as_millis()).unwrap();
        let request = ReportRequest { report: report.to_owned(), gathering_ms };
        let request = Blob::new(serde_json::to_vec(&request).unwrap());
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

    /// The metrics that `CloudWatch` makes of this function's log.
    async fn exported(&self, function: &str) -> BTreeSet<Metric> {
        let group = format!("/aws/lambda/{}", in_stack(function));
        let log = self.call("logs", "Logs_20140328.FilterLogEvents", &json!({ "logGroupName": group })).await;
        let lines = log["events"].as_array().unwrap().iter().map(|event| event["message"].as_str().unwrap());
        let mut exported = BTreeSet::new();
        for line in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
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
        number(&self.row("payment-queue", &format!("payment#{id}")).await.unwrap(), "times")
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
        let entries = payments.map(|(group, payment)| {
            SendMessageBatchRequestEntry::builder()
                .id(&payment.id)
                .message_group_id(group)
                .message_deduplication_id(&payment.id)
                .message_body(json!(payment).to_string())
                .build()
                .unwrap()
        });
        let batch = self.sqs.send_message_batch().queue_url(&self.url).set_entries(Some(entries.collect()));
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
    Payment { id: id.to_owned(), account: "DE02".to_owned(), amount: 100, paying_ms: 0, failing_deliveries }
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
