//! The widget of the template `holders`, deployed with its role.

use std::fs;
use std::path::Path;

use aws_sdk_lambda::primitives::Blob;
use aws_sdk_lambda::types::{Environment, FunctionCode, Runtime};
use lambda_lock::Locks;
use serde_json::{Value, json};

use crate::REGION;
use crate::local_aws::LocalAws;

const NAME: &str = "holders";
const TABLE: &str = "locks";

#[tokio::test]
#[ignore = "needs a local AWS: .ci/run deployed"]
async fn the_deployed_widget_shows_a_holder_and_frees_its_key() {
    let local = LocalAws::start().await;
    let config = local.config().await;
    let locks = Locks::builder(aws_sdk_dynamodb::Client::new(&config), TABLE).holder("worker 3").build().unwrap();
    locks.create_table().await.unwrap();
    let lambda = aws_sdk_lambda::Client::new(&config);
    deploy(&local, &lambda).await;

    let lock = locks.acquire("<b>report").await.unwrap();
    let _permit = locks.semaphore("bank", 2).acquire().await.unwrap();
    let html = call(&lambda, &json!({ "widgetContext": { "theme": "dark", "params": null } })).await;
    assert!(html.contains("<b>&lt;b&gt;report</b><br>worker 3<br>") && html.contains("<b>bank</b>"), "{html}");

    let endpoint = format!("endpoint=\"arn:aws:lambda:{REGION}:000000000000:function:{NAME}\" confirmation=\"Free ");
    let (_, action) = html.split_once(&endpoint).unwrap_or_else(|| panic!("{html}"));
    let parameters = action.split(['<', '>']).nth(1).unwrap();
    let html = call(&lambda, &serde_json::from_str(parameters).unwrap()).await;
    assert!(html.contains("Freed: &lt;b&gt;report"), "{html}");
    assert!(lock.release().await.unwrap_err().is_lost());
    let html = call(&lambda, &json!({ "describe": true })).await;
    assert!(html.starts_with("## "), "{html}");
}

/// Deploys the function as the README of the template does, but without a build of its own.
async fn deploy(local: &LocalAws, lambda: &aws_sdk_lambda::Client) {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates/holders/template/function.yaml");
    let stack = fs::read_to_string(template).unwrap().replace("{{ project_name }}", NAME).replace("{{ table }}", TABLE);
    fs::write(local.directory.path().join("function.yaml"), stack).unwrap();
    local
        .run(local.command("aws").args(["cloudformation", "deploy", "--stack-name", "holders-function"]).args([
            "--template-file",
            "function.yaml",
            "--capabilities",
            "CAPABILITY_NAMED_IAM",
        ]))
        .await;
    fs::copy(env!("CARGO_BIN_EXE_holders"), local.directory.path().join("bootstrap")).unwrap();
    local.run(local.command("python3").args(["-m", "zipfile", "--create", "function.zip", "bootstrap"])).await;
    let code =
        FunctionCode::builder().zip_file(Blob::new(fs::read(local.directory.path().join("function.zip")).unwrap()));
    let function = lambda
        .create_function()
        .function_name(NAME)
        .role(format!("arn:aws:iam::000000000000:role/{NAME}"))
        .runtime(Runtime::Providedal2023)
        .handler("bootstrap")
        .timeout(60)
        .environment(Environment::builder().variables("LOCK_TABLE_NAME", TABLE).build())
        .code(code.build());
    function.send().await.unwrap();
}

/// Calls the function as a dashboard does.
async fn call(lambda: &aws_sdk_lambda::Client, event: &Value) -> String {
    let answer = lambda.invoke().function_name(NAME).payload(Blob::new(event.to_string())).send().await.unwrap();
    let payload = answer.payload().unwrap().as_ref();
    assert!(answer.function_error().is_none(), "{}", String::from_utf8_lossy(payload));
    serde_json::from_slice(payload).unwrap()
}
