//! The deployed stack, and how a test calls it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env;
use std::path::Path;
use std::time::Duration;

use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_lambda::primitives::Blob;
use aws_sdk_lambda::types::InvocationType;
use aws_sdk_sqs::types::builders::SendMessageBatchRequestEntryBuilder;
use aws_sdk_sqs::types::{QueueAttributeName, SendMessageBatchRequestEntry};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use lambda_example::{Outcome, Payment, ReportRequest};
use serde_json::{Value, json};

use crate::local_aws::{LocalAws, architecture, credentials};
use crate::{FUNCTION_TIMEOUT, PAYMENT_TIMEOUT, REGION, STACK, TOPIC, number};

/// A local AWS with the template deployed. It is stopped when this is dropped.
pub(crate) struct Stack {
    pub(crate) local: LocalAws,
    /// The table of locks and records.
    pub(crate) table: String,
    /// The table of everything else.
    pub(crate) data_table: String,
    pub(crate) dynamodb: aws_sdk_dynamodb::Client,
    pub(crate) lambda: aws_sdk_lambda::Client,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) endpoint: String,
}

impl Stack {
    pub(crate) async fn deploy() -> Self {
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
        local.remove_alarms_that_do_not_deploy();
        let parameters = [
            &format!("FunctionTimeout={FUNCTION_TIMEOUT}"),
            &format!("PaymentTimeout={PAYMENT_TIMEOUT}"),
            "Schedule='rate(1 minute)'",
            // The function URL of the local AWS does not name the caller.
            "OrderCallers=one",
            "DeletionProtection=false",
            "Simulation=true",
            "WithStream=true",
            "Dashboard=true",
            "Alarms=true",
            &format!("AlarmTopicArn={TOPIC}"),
        ];
        local.deploy(STACK, &parameters).await;

        let config = local.config().await;
        let dynamodb = aws_sdk_dynamodb::Client::new(&config);
        let tables = dynamodb.list_tables().send().await.unwrap().table_names.unwrap();
        assert_eq!(tables.len(), 2, "{tables:?}");
        let named = |resource: &str| {
            let prefix = format!("{}-", in_stack(resource));
            tables.iter().find(|table| table.starts_with(&prefix)).unwrap().clone()
        };
        Self {
            table: named("LockTable"),
            data_table: named("DataTable"),
            dynamodb,
            lambda: aws_sdk_lambda::Client::new(&config),
            sqs: aws_sdk_sqs::Client::new(&config),
            endpoint: local.endpoint.clone(),
            local,
        }
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.local.run(self.local.command("sam").args(["delete", "--no-prompts", "--stack-name", name])).await;
    }

    pub(crate) async fn tables_of(&self, name: &str) -> Vec<String> {
        let tables = self.dynamodb.list_tables().send().await.unwrap().table_names.unwrap();
        tables.into_iter().filter(|table| table.starts_with(&format!("{name}-"))).collect()
    }

    /// The URLs of the queues that `CloudFormation` named after this resource, or after one whose name begins so.
    pub(crate) async fn queues_of(&self, resource: &str) -> Vec<String> {
        let found = self.sqs.list_queues().queue_name_prefix(resource).send().await.unwrap();
        found.queue_urls.unwrap_or_default()
    }

    /// Invokes `nightly-report` and waits for its answer, or for its error as Lambda reports it.
    pub(crate) async fn invoke(&self, report: &str, gathering: Duration) -> Result<Outcome, String> {
        let gathering_ms = u64::try_from(gathering.as_millis()).unwrap();
        self.report(&ReportRequest { report: report.to_owned(), gathering_ms, panics: false }).await
    }

    pub(crate) async fn report(&self, request: &ReportRequest) -> Result<Outcome, String> {
        let request = Blob::new(serde_json::to_vec(request).unwrap());
        let answer =
            self.lambda.invoke().function_name(in_stack("nightly-report")).payload(request).send().await.unwrap();
        let payload: Value = serde_json::from_slice(answer.payload().unwrap().as_ref()).unwrap();
        match answer.function_error() {
            None => Ok(serde_json::from_value(payload).unwrap()),
            Some(_) => Err(payload.to_string()),
        }
    }

    /// Invokes `nightly-report` as its schedule does, without waiting for its answer.
    pub(crate) async fn report_later(&self, request: &ReportRequest) {
        let request = Blob::new(serde_json::to_vec(request).unwrap());
        let invoke = self.lambda.invoke().function_name(in_stack("nightly-report")).payload(request);
        invoke.invocation_type(InvocationType::Event).send().await.unwrap();
    }

    /// The number and the quantity of the orders of an item, as `order-totals` counts them.
    pub(crate) async fn total(&self, item: &str) -> Option<[u64; 2]> {
        let row = self.row("order-totals", &format!("total#{item}")).await?;
        Some(["orders", "quantity"].map(|attribute| number(&row, attribute)))
    }

    /// Posts an order with this idempotency key, signed.
    pub(crate) async fn order(&self, key: Option<&str>, body: &Value) -> HttpAnswer {
        let mut request = self.order_request(body).await;
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        sign_for("lambda", &mut request, &body.to_string());
        self.send(request).await
    }

    /// Posts an order to API Gateway's API of this stack, signed with these credentials.
    pub(crate) async fn order_by(&self, signer: &Credentials, api: &str, key: &str, body: &Value) -> HttpAnswer {
        let mut request = Request::post(format!("http://{api}/orders"))
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", key)
            .body(body.to_string().into())
            .unwrap();
        sign_by(signer, "execute-api", &mut request, &body.to_string());
        self.send(request).await
    }

    /// Creates an IAM user who may call API Gateway's APIs, and returns the user's credentials.
    pub(crate) async fn new_user(&self, name: &str) -> Credentials {
        let statement = json!({ "Effect": "Allow", "Action": "execute-api:Invoke", "Resource": "*" });
        let policy = json!({ "Version": "2012-10-17", "Statement": [statement] });
        self.iam(&format!("Action=CreateUser&UserName={name}")).await;
        self.iam(&format!("Action=PutUserPolicy&UserName={name}&PolicyName=call&PolicyDocument={policy}")).await;
        let xml = self.iam(&format!("Action=CreateAccessKey&UserName={name}")).await;
        let element = |name: &str| {
            let (_, rest) = xml.split_once(&format!("<{name}>")).unwrap();
            rest.split('<').next().unwrap()
        };
        Credentials::new(element("AccessKeyId"), element("SecretAccessKey"), None, None, "tests")
    }

    /// Calls an operation of IAM, and returns its answer as XML.
    async fn iam(&self, parameters: &str) -> String {
        let body = format!("{parameters}&Version=2010-05-08");
        let mut request = Request::post(format!("{}/", self.endpoint))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body.clone().into())
            .unwrap();
        sign_for("iam", &mut request, &body);
        let answer = self.send(request).await;
        assert_eq!(answer.status, StatusCode::OK, "{parameters}: {:?}", answer.body);
        String::from_utf8(answer.body.to_vec()).unwrap()
    }

    /// The host name of API Gateway's API of this stack.
    pub(crate) async fn http_api(&self, stack: &str) -> String {
        let apis = self.api_gateway("/v2/apis").await;
        let name = format!("{stack}-order-api");
        let api = apis["items"].as_array().unwrap().iter().find(|api| api["name"] == name).unwrap();
        let endpoint: Uri = api["apiEndpoint"].as_str().unwrap().parse().unwrap();
        endpoint.host().unwrap().to_owned()
    }

    /// Reads this resource of API Gateway.
    pub(crate) async fn api_gateway(&self, path: &str) -> Value {
        let mut request = Request::get(format!("{}{path}", self.endpoint)).body(Full::default()).unwrap();
        sign_for("apigateway", &mut request, "");
        serde_json::from_slice(&self.send(request).await.body).unwrap()
    }

    /// Calls an operation of a service that speaks JSON.
    pub(crate) async fn call(&self, service: &str, operation: &str, body: &Value) -> Value {
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
    pub(crate) async fn log(&self, function: &str) -> Vec<Value> {
        let group = format!("/aws/lambda/{}", in_stack(function));
        let log = self.call("logs", "Logs_20140328.FilterLogEvents", &json!({ "logGroupName": group })).await;
        let lines = log["events"].as_array().unwrap().iter().map(|event| event["message"].as_str().unwrap());
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The metrics that `CloudWatch` makes of this function's log.
    pub(crate) async fn exported(&self, function: &str) -> BTreeSet<Metric> {
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

    pub(crate) async fn unsigned_order(&self, body: &Value) -> HttpAnswer {
        self.send(self.order_request(body).await).await
    }

    pub(crate) async fn order_request(&self, body: &Value) -> Request<Full<Bytes>> {
        let config = self.lambda.get_function_url_config().function_name(in_stack("order-api")).send().await.unwrap();
        Request::post(format!("{}orders", config.function_url()))
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string().into())
            .unwrap()
    }

    /// Sends a request to the local AWS, which finds the function by the host name.
    pub(crate) async fn send(&self, mut request: Request<Full<Bytes>>) -> HttpAnswer {
        let host = request.uri().host().unwrap().parse().unwrap();
        request.headers_mut().insert(HOST, host);
        *request.uri_mut() = format!("{}{}", self.endpoint, request.uri().path()).parse().unwrap();
        let answer = Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap();
        let (head, body) = answer.into_parts();
        HttpAnswer { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    pub(crate) async fn ids_of_orders(&self) -> Vec<String> {
        let scan = self.dynamodb.scan().table_name(&self.data_table).filter_expression("begins_with(id, :orders)");
        let orders = AttributeValue::S(format!("{}#order#", in_stack("order-api")));
        let rows = scan.expression_attribute_values(":orders", orders).send().await.unwrap();
        rows.items().iter().map(|row| row["id"].as_s().unwrap().clone()).collect()
    }

    /// The queue of this resource.
    pub(crate) async fn queue(&self, resource: &str) -> Queue {
        self.queue_named(&format!("{resource}-")).await
    }

    /// The queue whose name in the stack begins so.
    pub(crate) async fn queue_named(&self, prefix: &str) -> Queue {
        let urls = self.queues_of(&in_stack(prefix)).await;
        let [url] = &urls[..] else { panic!("{prefix}: {urls:?}") };
        Queue { sqs: self.sqs.clone(), url: url.clone() }
    }

    pub(crate) async fn times_paid(&self, id: &str) -> u64 {
        number(&self.payment(id).await.unwrap(), "times")
    }

    pub(crate) async fn payment(&self, id: &str) -> Option<HashMap<String, AttributeValue>> {
        self.row("payment-queue", &format!("payment#{id}")).await
    }

    /// The lock or the record under this key of a function.
    pub(crate) async fn lock(&self, of: &str, key: &str) -> Option<HashMap<String, AttributeValue>> {
        self.row_of(&self.table, of, key).await
    }

    /// The row of data under this key of a function.
    pub(crate) async fn row(&self, of: &str, key: &str) -> Option<HashMap<String, AttributeValue>> {
        self.row_of(&self.data_table, of, key).await
    }

    async fn row_of(&self, table: &str, of: &str, key: &str) -> Option<HashMap<String, AttributeValue>> {
        let read = self.dynamodb.get_item().table_name(table).consistent_read(true);
        read.key("id", AttributeValue::S(format!("{}#{key}", in_stack(of)))).send().await.unwrap().item
    }
}

/// The identity of a metric in `CloudWatch`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Metric {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) dimensions: BTreeMap<String, String>,
}

impl Metric {
    pub(crate) fn of(function: &str, name: &str, labels: &[(&str, &str)]) -> Self {
        let function = in_stack(function);
        let dimensions = [("FunctionName", function.as_str())].into_iter().chain(labels.iter().copied());
        let dimensions = dimensions.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { namespace: "LambdaLock".to_owned(), name: name.to_owned(), dimensions }
    }
}

pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) struct Queue {
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) url: String,
}

impl Queue {
    pub(crate) fn name(&self) -> &str {
        self.url.rsplit('/').next().unwrap()
    }

    pub(crate) async fn send(&self, body: &Value) {
        self.sqs.send_message().queue_url(&self.url).message_body(body.to_string()).send().await.unwrap();
    }

    /// Sends the payments of a group, followed by one of another group.
    pub(crate) async fn send_in_order(&self, group: &str, payments: &[Payment], of_another: &Payment) {
        let payments = payments.iter().map(|payment| (group, payment)).chain([("another", of_another)]);
        let in_order = |(group, payment): (&str, &Payment)| {
            entry(payment).message_group_id(group).message_deduplication_id(&payment.id)
        };
        self.send_all(payments.map(in_order)).await;
    }

    /// Sends them in one request.
    pub(crate) async fn send_all(&self, entries: impl Iterator<Item = SendMessageBatchRequestEntryBuilder>) {
        let entries = entries.map(|entry| entry.build().unwrap()).collect();
        let batch = self.sqs.send_message_batch().queue_url(&self.url).set_entries(Some(entries));
        assert_eq!(batch.send().await.unwrap().failed(), []);
    }

    /// Whether the queue has no message, visible or not.
    pub(crate) async fn is_empty(&self) -> bool {
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

    pub(crate) async fn receive_all(&self) -> Vec<Value> {
        let received = self.sqs.receive_message().queue_url(&self.url).max_number_of_messages(10).send().await.unwrap();
        received.messages().iter().map(|message| serde_json::from_str(message.body().unwrap()).unwrap()).collect()
    }
}

pub(crate) fn payment(id: &str, failing_deliveries: u64) -> Payment {
    let account = "DE02".to_owned();
    Payment { id: id.to_owned(), account, amount: 100, paying_ms: 0, failing_deliveries, panics: false }
}

/// A payment as one message of a request with several.
pub(crate) fn entry(payment: &Payment) -> SendMessageBatchRequestEntryBuilder {
    SendMessageBatchRequestEntry::builder().id(&payment.id).message_body(json!(payment).to_string())
}

/// The name of a function or a queue in this stack.
pub(crate) fn in_stack(name: &str) -> String {
    format!("{STACK}-{name}")
}

fn sign_for(service: &str, request: &mut Request<Full<Bytes>>, body: &str) {
    sign_by(&credentials(), service, request, body);
}

fn sign_by(signer: &Credentials, service: &str, request: &mut Request<Full<Bytes>>, body: &str) {
    let identity = signer.clone().into();
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
    let to_sign = SignableRequest::new(
        request.method().as_str(),
        request.uri().to_string(),
        headers,
        SignableBody::Bytes(body.as_bytes()),
    );
    let (signature, _) = sign(to_sign.unwrap(), &parameters).unwrap().into_parts();
    signature.apply_to_request_http1x(request);
}
