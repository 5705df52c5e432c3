//! The caller is part of the key.

use http::Extensions;
use lambda_http::RequestExt;
use lambda_http::request::{RequestContext, from_str};
use lambda_http::{Request, Response};
use lambda_lock::embedded::Host;
use lambda_lock::http::{Caller, HttpIdempotencyLayer};
use lambda_lock_tests::invocation::Counter;
use serde_json::{Value, json};

use crate::{counting, environment, order, send};

/// The request context that `lambda_http` reads from an event of a REST API.
fn rest(identity: &Value, authorizer: &Value) -> RequestContext {
    context(&json!({
        "resource": "/orders",
        "path": "/orders",
        "httpMethod": "POST",
        "requestContext": { "httpMethod": "POST", "identity": identity, "authorizer": authorizer },
    }))
}

/// The request context that `lambda_http` reads from an event of an HTTP API or a function URL.
fn http_api(authorizer: &Value) -> RequestContext {
    context(&json!({
        "version": "2.0",
        "rawPath": "/orders",
        "requestContext": { "http": { "method": "POST" }, "timeEpoch": 0, "authorizer": authorizer },
    }))
}

fn load_balancer() -> RequestContext {
    context(&json!({
        "httpMethod": "POST",
        "path": "/orders",
        "requestContext": { "elb": { "targetGroupArn": "arn" } },
    }))
}

fn context(event: &Value) -> RequestContext {
    let context = from_str(&event.to_string()).unwrap().request_context();
    let is_rest = event["resource"].is_string();
    let is_http_api = event["version"].is_string();
    match &context {
        RequestContext::ApiGatewayV1(_) => assert!(is_rest),
        RequestContext::ApiGatewayV2(_) => assert!(is_http_api),
        _ => assert!(!is_rest && !is_http_api),
    }
    context
}

fn with(host: &Host, extension: impl FnOnce(&mut Extensions)) -> Request {
    let mut request = order(host);
    extension(request.extensions_mut());
    request
}

/// Sends an order with the same key from each of these contexts. Returns the number of each one's run, or 0 for an
/// unknown caller.
async fn runs_of(caller: Caller, contexts: Vec<RequestContext>) -> Vec<u64> {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (HttpIdempotencyLayer::new(locks, caller), Counter::default());
    let mut made_by = Vec::new();
    for context in contexts {
        let request = with(&host, |extensions| {
            extensions.insert(context);
        });
        let reply = send(&layer, &counting(&runs), request).await;
        made_by.push(if reply.status == 403 { 0 } else { reply.made_by().1 });
    }
    made_by
}

#[tokio::test]
async fn an_iam_principal_is_a_caller() {
    let iam = |user: &Value| http_api(&json!({ "iam": { "userId": user, "accessKey": "AKIA" } }));
    let of_rest = |user: &Value| rest(&json!({ "user": user, "accessKey": "AKIA" }), &json!(null));
    let contexts = vec![
        iam(&json!("AIDA1")),
        iam(&json!("AROA1:session")),
        iam(&json!("AIDA1")),
        of_rest(&json!("AIDA1")),
        of_rest(&json!("AIDA2")),
        iam(&json!("")),
        iam(&json!(null)),
        of_rest(&json!(null)),
        http_api(&json!({ "jwt": { "claims": { "sub": "AIDA1" }, "scopes": null } })),
        http_api(&json!(null)),
        load_balancer(),
    ];
    assert_eq!(runs_of(Caller::iam_principal(), contexts).await, [1, 2, 1, 1, 3, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn identities_of_a_cognito_pool_are_callers_of_their_own() {
    const SESSION: &str = "AROA1:CognitoIdentityCredentials";
    let of_http_api = |identity: &Value| {
        let cognito = json!({ "amr": [], "identityId": identity, "identityPoolId": "pool" });
        http_api(&json!({ "iam": { "userId": SESSION, "cognitoIdentity": cognito } }))
    };
    let of_rest = |identity: &Value| rest(&json!({ "user": SESSION, "cognitoIdentityId": identity }), &json!(null));
    let contexts = vec![
        of_http_api(&json!("eu-1:one")),
        of_http_api(&json!("eu-1:two")),
        of_rest(&json!("eu-1:one")),
        of_rest(&json!("eu-1:three")),
        // As a function URL sends it.
        http_api(&json!({ "iam": { "userId": SESSION, "cognitoIdentity": null } })),
        of_rest(&json!(null)),
        of_http_api(&json!("")),
        of_rest(&json!("")),
    ];
    assert_eq!(runs_of(Caller::iam_principal(), contexts).await, [1, 2, 1, 3, 0, 0, 0, 0]);
}

#[tokio::test]
async fn the_subject_of_a_token_is_a_caller_with_its_issuer() {
    let jwt = |claims: &Value| http_api(&json!({ "jwt": { "claims": claims, "scopes": null } }));
    let of_rest = |claims: &Value| rest(&json!({}), &json!({ "claims": claims }));
    let contexts = vec![
        jwt(&json!({ "iss": "https://a", "sub": "1" })),
        jwt(&json!({ "iss": "https://b", "sub": "1" })),
        jwt(&json!({ "iss": "https://a", "sub": "2" })),
        of_rest(&json!({ "iss": "https://a", "sub": "1" })),
        jwt(&json!({ "sub": "1" })),
        jwt(&json!({ "iss": "https://a" })),
        jwt(&json!({ "iss": "https://a", "sub": "" })),
        of_rest(&json!({ "sub": "1" })),
        // What a Lambda authorizer returns is no verified token.
        http_api(&json!({ "lambda": { "claims": { "iss": "https://a", "sub": "1" } } })),
        load_balancer(),
    ];
    assert_eq!(runs_of(Caller::jwt_subject(), contexts).await, [1, 2, 3, 1, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn the_id_of_an_api_key_is_a_caller() {
    let key = |id: &Value, value: &str| rest(&json!({ "apiKeyId": id, "apiKey": value }), &json!(null));
    let contexts = vec![
        key(&json!("one"), "secret"),
        key(&json!("two"), "secret"),
        key(&json!("one"), "another"),
        key(&json!(null), "secret"),
        key(&json!(""), "secret"),
        http_api(&json!(null)),
    ];
    assert_eq!(runs_of(Caller::api_key(), contexts).await, [1, 2, 1, 0, 0, 0]);
}

/// Sends an order with the same key from each of these tenants. Returns the number of each one's run, or 0 for an
/// unknown caller.
async fn runs_of_tenants(caller: Caller, tenants: &[Option<&str>]) -> Vec<u64> {
    let (_world, host, locks) = environment().await;
    let (layer, runs) = (HttpIdempotencyLayer::new(locks, caller), Counter::default());
    let mut made_by = Vec::new();
    for tenant in tenants {
        let request = with(&host, |extensions| {
            let context: &mut lambda_runtime::Context = extensions.get_mut().unwrap();
            context.tenant_id = tenant.map(str::to_owned);
        });
        let reply = send(&layer, &counting(&runs), request).await;
        made_by.push(if reply.status == 403 { 0 } else { reply.made_by().1 });
    }
    made_by
}

#[tokio::test]
async fn a_tenant_is_a_caller() {
    let tenants = [Some("blue"), Some("green"), Some("blue"), None, Some("")];
    assert_eq!(runs_of_tenants(Caller::tenant(), &tenants).await, [1, 2, 1, 0, 0]);
}

#[tokio::test]
async fn each_tenant_has_its_own_keys_with_any_caller() {
    let tenants = [Some("blue"), Some("green"), Some("blue"), None, Some("")];
    let one_principal = Caller::by(|_| Some("AIDA1"));
    for caller in [Caller::shared(), one_principal] {
        assert_eq!(runs_of_tenants(caller, &tenants).await, [1, 2, 1, 3, 3]);
    }
}

#[tokio::test]
async fn a_closure_names_the_caller() {
    let (_world, host, locks) = environment().await;
    let from_header = Caller::by(|parts| Some(parts.headers.get("x-account")?.to_str().ok()?.to_owned()));
    let (layer, runs) = (HttpIdempotencyLayer::new(locks, from_header), Counter::default());
    for (account, key, expected) in [
        (Some("a"), "bc", (201, 1)),
        (Some("ab"), "c", (201, 2)),
        (Some("a"), "bc", (201, 1)),
        (Some("a\",\"b"), "c", (201, 3)),
        (Some(""), "bc", (403, 0)),
        (None, "bc", (403, 0)),
    ] {
        let mut request = crate::order_of(&host, key, &json!({}));
        if let Some(account) = account {
            request.headers_mut().insert("x-account", account.parse().unwrap());
        }
        let reply = send(&layer, &counting(&runs), request).await;
        let run = if reply.status == 403 { 0 } else { reply.made_by().1 };
        assert_eq!((reply.status.as_u16(), run), expected, "{account:?} {key}");
    }
}

#[tokio::test]
async fn all_callers_can_be_one() {
    let iam = |user| http_api(&json!({ "iam": { "userId": user } }));
    let contexts = vec![iam("AIDA1"), iam("AIDA2"), load_balancer()];
    assert_eq!(runs_of(Caller::shared(), contexts).await, [1, 1, 1]);
}

#[tokio::test]
async fn no_row_contains_a_caller_a_key_or_a_request() {
    let (world, host, locks) = environment().await;
    let layer = HttpIdempotencyLayer::new(locks, Caller::by(|_| Some("secret-caller")));
    let handler = crate::answering(&Counter::default(), |_| Response::new("the answer".into()));
    let request = crate::order_of(&host, "secret-key", &json!({ "item": "secret-item" }));
    assert_eq!(send(&layer, &handler, request).await.status, 200);
    let rows = world.client().scan().table_name(&world.table).send().await.unwrap().items.unwrap();
    let printed = format!("{rows:?}");
    assert!(rows.len() == 1 && printed.contains("the answer") && !printed.contains("secret"), "{printed}");
}
