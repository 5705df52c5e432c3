//! The example functions `order-api`, `payment-queue` and `order-totals`, the templates, and what the README and the guides
//! show. The tests of `LockLayer` have `nightly-report`, and those of identities have `deployment` and `durable-deployment`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::lambda_function_urls::LambdaFunctionUrlResponse;
use aws_lambda_events::sqs::{SqsEvent, SqsMessage as SqsRecord};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use lambda_example::{
    Order, Orders, Payment, Payments, Simulation, Totals, order_api, order_totals, payment_queue, telemetry,
};
use lambda_lock::embedded::{Answer, Host, Intercept};
use lambda_lock::http::Caller;
use lambda_lock::idempotency::OnMissingKey;
use lambda_lock::lambda::SqsMessage;
use lambda_lock::streams::{KinesisRecord, StreamConsumer};
use lambda_lock::{Idempotency, IdempotencyLayer, LockLayer, SqsConsumer};
use lambda_lock_tests::invocation::{LoseAnswers, invocation, invocation_without_deadline, over_http};
use lambda_lock_tests::{Row, World};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};

// The templates of `cargo lambda new`, with their tests. A placeholder is valid in a string. `.ci/run templates` renders them.
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/http/template/src/main.rs"]
mod http;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/idempotent/template/src/main.rs"]
mod idempotent;
#[allow(clippy::unnecessary_wraps, reason = "a parser returns a result")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/kafka/template/src/main.rs"]
mod kafka;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/limit/template/src/main.rs"]
mod limit;
#[allow(clippy::disallowed_methods, reason = "a function of a user has no clock of its own")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/objects/template/src/main.rs"]
mod objects;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/queue/template/src/main.rs"]
mod queue;
#[allow(clippy::unnecessary_wraps, reason = "a parser returns a result")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/queue-fifo/template/src/main.rs"]
mod queue_fifo;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/rebuild/template/src/main.rs"]
mod rebuild;
#[allow(dead_code, reason = "the runtime calls `main`")]
#[path = "../../templates/singleton/template/src/main.rs"]
mod singleton;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/stream/template/src/main.rs"]
mod stream;
#[allow(clippy::disallowed_methods, reason = "a function of a user has no clock of its own")]
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/webhook/template/src/main.rs"]
mod webhook;
#[allow(dead_code, clippy::unused_async, reason = "the runtime calls `main`, and users put their work in its place")]
#[path = "../../templates/workflow/template/src/main.rs"]
mod workflow;

const README: &str = include_str!("../../README.md");
/// The guide with the table of all problems.
const WHICH: &str = include_str!("../../lock/docs/learn/which.md");

/// The blocks of code in the README, in their order.
fn blocks() -> Vec<&'static str> {
    let blocks = README.split("```").skip(1).step_by(2);
    blocks.map(|block| block.split_once('\n').unwrap().1).collect()
}

/// A file of the template for singletons, as `cargo lambda new nightly-report` renders it.
fn rendered(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates/singleton/template").join(file);
    let text = fs::read_to_string(path).unwrap();
    let text = text.replace("{{ project_name }}", "nightly-report").replace("{{ table }}", "locks");
    text.replace(
        "{% if lambda_lock == \"\" %}version = \"0.1\"{% else %}path = \"{{ lambda_lock }}\"{% endif %}",
        "version = \"0.1\"",
    )
}

#[test]
fn the_quick_start_makes_and_deploys_the_template_as_its_own_readme_says() {
    let [function, create, deploy, ..] = blocks()[..] else { panic!("{README}") };
    assert!(function.contains("LockLayer::new(locks)") && rendered("src/main.rs").contains("LockLayer::new(locks)"));
    let template = include_str!("../../templates/singleton/CargoLambda.toml");
    let variable = create.split("--render-var ").nth(1).unwrap().split('=').next().unwrap();
    assert!(create.contains("/templates/singleton ") && template.contains(&format!("\n{variable} = ")), "{create}");
    assert!(rendered("README.md").contains(deploy), "{deploy}");
}

#[test]
fn a_function_that_adds_a_lock_needs_lines_of_the_template() {
    let [_, _, _, add, ..] = blocks()[..] else { panic!("{README}") };
    assert!(add.contains("lambda-lock = { path = \"CLONE/lock\""), "{add}");
    let manifest = rendered("Cargo.toml").replace("version = \"0.1\", features", "path = \"CLONE/lock\", features");
    for line in add.lines().map(str::trim) {
        assert!(manifest.lines().any(|own| own == line), "{line}");
    }
}

/// The names of the templates.
fn templates() -> BTreeSet<String> {
    let folders = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates")).unwrap();
    folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect()
}

/// A file of a template, before it is rendered.
fn file_of(template: &str, file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates").join(template).join("template").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sentences above the tests of a file.
fn sentences_above_tests(source: &str) -> Vec<&str> {
    let (mut sentences, mut above) = (Vec::new(), Vec::new());
    for line in source.lines().map(str::trim) {
        if let Some(sentence) = line.strip_prefix("/// ") {
            above.push(sentence);
        } else if !line.starts_with("//") {
            if line == "#[test]" || line.starts_with("#[tokio::test") {
                sentences.append(&mut above);
            }
            above.clear();
        }
    }
    sentences
}

/// The cells of a row of a table.
fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The header and the rows of a page's table of problems.
fn problems(page: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let table = page.lines().skip_while(|line| !line.starts_with("| your problem |"));
    let mut rows = table.take_while(|line| line.starts_with('|')).map(cells);
    (rows.next().unwrap(), rows.skip(1).collect())
}

#[test]
fn each_cell_of_the_recipes_is_shown_by_a_test() {
    // Where the tests of a recipe without a template are.
    let elsewhere = [
        ("[recipes/keys]", concat!(include_str!("several/acquire.rs"), include_str!("several/waiting.rs"))),
        ("[recipes/workflows#durable-functions]", include_str!("../../lock/durable/tests/durable/turns.rs")),
        ("[reference/program]", include_str!("../../program/tests/program/run.rs")),
    ];
    let (headers, rows) = problems(WHICH);
    assert_eq!(
        headers[2..],
        ["while the first one runs, another one", "after the first one has finished, another one"]
    );
    let (mut left, mut found) = (templates(), 0);
    for row in rows {
        let named = row[1].split('`').skip(1).step_by(2).filter(|name| templates().contains(*name));
        let named: Vec<_> = named.map(|template| (template, file_of(template, "src/main.rs"))).collect();
        let linked = elsewhere.iter().filter(|(label, _)| row[1].contains(label));
        let linked = linked.map(|(label, source)| (*label, (*source).to_owned()));
        for (name, source) in named.into_iter().chain(linked) {
            left.remove(name);
            let shown = sentences_above_tests(&source);
            for (header, cell) in headers[2..].iter().zip(&row[2..]) {
                let sentence = format!("{}{} {cell}.", header[..1].to_uppercase(), &header[1..]);
                assert!(shown.contains(&sentence.as_str()), "no test of {name} shows: {sentence}");
                found += 1;
            }
        }
    }
    assert_eq!((left, found), (BTreeSet::new(), 32), "a template has no row, or a row no test");
}

#[test]
fn a_row_of_the_readme_is_a_short_row_of_the_guide() {
    let (_, all) = problems(WHICH);
    let (_, short) = problems(README);
    assert_eq!(short.len(), 8);
    for row in short {
        let (problem, link) = row[0].strip_prefix('[').unwrap().split_once("](lock/docs/").unwrap();
        let in_full = all.iter().find(|row| row[0].starts_with(problem)).unwrap_or_else(|| panic!("{problem}"));
        assert!(
            in_full[1].contains(&format!("[{}]", link.trim_end_matches(')').replace(".md", ""))),
            "{problem}: {link}"
        );
        for (cell, in_full) in row[1..].iter().zip(&in_full[2..]) {
            assert!(in_full.starts_with(cell), "{problem}: {cell}");
        }
    }
}

#[test]
fn a_second_template_finds_the_table_of_the_first_one() {
    for template in templates() {
        assert_eq!(file_of(&template, "table.yaml"), file_of("singleton", "table.yaml"), "{template}");
        let role = file_of(&template, "function.yaml");
        assert!(role.contains(":table/{{ table }}") && !role.contains("AWS::DynamoDB::Table"), "{template}: {role}");
        // A stack of the table's own: of the same table it is the same stack, and of another table another one.
        let readme = file_of(&template, "README.md");
        assert!(readme.contains("--stack-name {{ table }} --template-file table.yaml\n"), "{template}: {readme}");
    }
}

#[test]
fn records_that_lambda_gives_up_have_a_destination() {
    let is_given_up = |readme: &str| readme.contains("--starting-position");
    let streams: Vec<_> = templates().into_iter().filter(|name| is_given_up(&file_of(name, "README.md"))).collect();
    assert_eq!(streams, ["kafka", "stream"]);
    for template in streams {
        let readme = file_of(&template, "README.md");
        assert!(readme.contains("--destination-config \"{ \\\"OnFailure\\\""), "{template}: {readme}");
        assert!(file_of(&template, "function.yaml").contains("sqs:SendMessage"), "{template}");
    }
}

// API Gateway ends a request to a REST API after 29 s.
#[test]
fn dead_letters_of_each_template_are_kept_for_two_weeks() {
    for template in templates() {
        let files = ["README.md", "function.yaml"].map(|file| file_of(&template, file)).concat();
        assert!(!files.contains("dead-letter queue") || files.contains("1209600"), "{template}");
    }
}

#[test]
fn the_http_template_answers_before_api_gateway_gives_up() {
    let number = |text: &str, before: &str| {
        let (_, rest) = text.split_once(before)?;
        rest.split(|character: char| !character.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let timeout = number(&file_of("http", "README.md"), "--timeout ");
    let lease = number(&file_of("http", "src/main.rs"), "const LEASE: Duration = Duration::from_secs(");
    assert_eq!((timeout, lease), (Some(29), Some(28)));
}

#[test]
fn the_template_of_a_cron_job_has_a_schedule() {
    assert!(file_of("singleton", "function.yaml").contains("Type: AWS::Scheduler::Schedule"));
}

// An earlier one gives a function URL one of the two permissions that it needs.
#[test]
fn the_template_with_a_url_names_the_cargo_lambda_that_it_needs() {
    for template in templates() {
        let readme = file_of(&template, "README.md");
        let is_needed = readme.contains("--enable-function-url");
        assert_eq!(readme.contains("cargo-lambda 1.9.2 or later"), is_needed, "{template}");
    }
}

// Version 1 has no `logs tail`, and `deploy` of a table that another template has created ends with 255.
#[test]
fn the_version_of_the_aws_cli_is_named_before_the_commands() {
    assert!(templates().iter().any(|template| file_of(template, "README.md").contains("\naws logs tail ")));
    let deploying = include_str!("../../lock/docs/operate/deploying.md");
    for (page, first) in [(README, "aws cloudformation deploy"), (deploying, "## The table and the policy")] {
        let (before, _) = page.split_once(first).unwrap();
        assert!(before.contains("version 2 of the AWS CLI"), "{before}");
    }
}

#[test]
fn each_template_says_how_to_export_metrics() {
    for template in templates() {
        let readme = file_of(&template, "README.md");
        assert!(readme.contains("reference/metrics/index.html#metrics-of-a-function-in-cloudwatch"), "{template}");
    }
}

#[test]
fn the_links_of_the_templates_lead_to_headings_of_the_guides() {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/docs");
    for template in templates() {
        let readme = file_of(&template, "README.md");
        let links = readme.split("https://docs.rs/lambda-lock/latest/lambda_lock/docs/").skip(1);
        let links: Vec<_> = links.map(|rest| rest.split_whitespace().next().unwrap()).collect();
        assert!(links.iter().any(|link| link.starts_with("recipes/")), "{template} has no recipe: {links:?}");
        for link in links {
            let (page, heading) = link.split_once("/index.html").unwrap_or_else(|| panic!("{template}: {link}"));
            let guide = fs::read_to_string(guides.join(page).with_extension("md")).unwrap();
            // As rustdoc makes an anchor of a heading.
            let mut anchors = guide.lines().filter_map(|line| line.strip_prefix("## ")).map(|heading| {
                let is_kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
                heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-")
            });
            let is_found = heading.is_empty() || anchors.any(|anchor| heading == format!("#{anchor}"));
            assert!(is_found, "{template}: {link}");
        }
    }
}

/// A recipe of the guides that makes a project from a template.
struct Recipe {
    page: String,
    /// The name of the project.
    name: String,
    template: String,
    /// The commands that add dependencies.
    adds: Vec<String>,
    /// The blocks of Rust: first that of the function.
    code: Vec<String>,
}

fn recipes() -> Vec<Recipe> {
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/docs/recipes")).unwrap();
    let recipe = |text: String, page: String| {
        let (_, new) = text.split_once("cargo lambda new --no-interactive --template CLONE/templates/")?;
        let (template, rest) = new.split_once(' ').unwrap();
        let name = rest.split_once("lambda_lock=CLONE/lock ").unwrap().1.lines().next().unwrap();
        let blocks = text.split("```").skip(1).step_by(2).filter(|block| block.starts_with("rust"));
        Some(Recipe {
            name: name.to_owned(),
            template: template.to_owned(),
            adds: text.lines().filter(|line| line.starts_with("cargo add ")).map(str::to_owned).collect(),
            code: blocks.map(|block| block.split_once('\n').unwrap().1.to_owned()).collect(),
            page,
        })
    };
    let pages = folder.map(|page| page.unwrap().path());
    let recipes = pages.filter_map(|page| recipe(fs::read_to_string(&page).unwrap(), page.display().to_string()));
    recipes.collect()
}

#[test]
fn each_recipe_uses_only_the_dependencies_of_its_project() {
    let manifests = templates().into_iter().map(|template| file_of(&template, "Cargo.toml"));
    let all: String = manifests.chain([include_str!("../../Cargo.toml").to_owned()]).collect();
    let names = all.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.replace('-', "_"));
    let names: BTreeSet<_> =
        names.filter(|name| name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')).collect();
    assert!(names.contains("serde") && names.contains("aws_sdk_dynamodb"), "{names:?}");
    let recipes = recipes();
    assert_eq!(recipes.len(), 13);
    for Recipe { page, template, adds, code, .. } in recipes {
        let manifest = file_of(&template, "Cargo.toml");
        let (_, has) = manifest.split_once("[dependencies]\n").unwrap();
        let has = has.split("\n\n").next().unwrap().lines().map(|line| line.split(" = ").next().unwrap());
        let has: BTreeSet<_> = has
            .chain(adds.iter().map(|add| add.split(' ').nth(2).unwrap()))
            .map(|name| name.replace('-', "_"))
            .collect();
        for name in names.intersection(&crates_of(&code[0])) {
            assert!(has.contains(name), "{page}: no `{name}` in the project of `{template}`");
        }
    }
}

/// The first names of the paths in this code.
fn crates_of(code: &str) -> BTreeSet<String> {
    let name =
        |text: &str| text.chars().take_while(|&letter| letter.is_alphanumeric() || letter == '_').collect::<String>();
    let (mut used, mut imported, mut rest) = (BTreeSet::new(), BTreeSet::new(), String::new());
    for statement in code.split_inclusive(';') {
        if let Some(path) = statement.trim_start().strip_prefix("use ") {
            used.insert(name(path));
            imported.extend(path.split(['{', '}', ',', ':', ' ', ';']).map(name));
        } else {
            rest.push_str(statement);
        }
    }
    for (end, _) in rest.match_indices("::") {
        let start = rest[..end].rfind(|letter: char| !letter.is_alphanumeric() && letter != '_').map_or(0, |at| at + 1);
        if !rest[..start].ends_with("::") && !imported.contains(&rest[start..end]) {
            used.insert(rest[start..end].to_owned());
        }
    }
    used
}

/// Writes a test of a page as the page says.
fn as_test(page: &str, code: &str) -> String {
    let test = code.replace("#[tokio::main(flavor = \"current_thread\")]", "#[tokio::test]");
    let test = test.replace(
        "#[tokio::main(flavor = \"current_thread\", start_paused = true)]",
        "#[tokio::test(start_paused = true)]",
    );
    assert_ne!(test, code, "{page}");
    let test = if page.ends_with("rates.md") {
        let (test, _) = test.split_once("\nasync fn balance").unwrap();
        format!("use super::*;\n{}", test.replacen("LockLayer, ", "", 1))
    } else {
        test
    };
    format!("\n#[cfg(test)]\nmod tests {{\n{test}}}\n")
}

#[test]
#[ignore = "needs the projects of the templates: .ci/run templates"]
fn each_recipe_compiles_as_typed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let folder = root.join("target/ci-tools/recipes");
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    let workspace = "[workspace]\nmembers = [\"*\"]\nresolver = \"3\"\n\n[profile.dev]\ndebug = false\n";
    fs::write(folder.join("Cargo.toml"), workspace).unwrap();
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let run = |command: &str, folder: &Path| {
        let mut shell = Command::new("sh");
        // The dependencies are those of the templates.
        shell.env("CARGO_TARGET_DIR", root.join("target/ci-tools/templates-target"));
        assert!(shell.args(["-c", command]).current_dir(folder).status().unwrap().success(), "{command}");
    };
    for Recipe { page, name, template, adds, mut code } in recipes() {
        let project = folder.join(&name);
        fs::create_dir_all(project.join("src")).unwrap();
        let manifest = file_of(&template, "Cargo.toml").replace("{{ project_name }}", &name);
        let version = "{% if lambda_lock == \"\" %}version = \"0.1\"{% else %}path = \"{{ lambda_lock }}\"{% endif %}";
        let path = format!("path = \"{}\"", root.join("lock").display());
        fs::write(project.join("Cargo.toml"), manifest.replace(version, &path)).unwrap();
        let test = if adds.is_empty() && !page.ends_with("rates.md") {
            String::new()
        } else {
            as_test(&page, &code.pop().unwrap())
        };
        fs::write(project.join("src/main.rs"), format!("#![deny(warnings)]\n{}{test}", code[0])).unwrap();
        for add in adds {
            run(&add, &project);
        }
    }
    run("cargo test --workspace", &folder);
}

#[test]
fn the_template_of_a_workflow_has_the_state_machine_of_the_guide() {
    let guide = include_str!("../../lock/docs/state_machine.asl.json");
    assert_eq!(include_str!("../../templates/workflow/template/machine.asl.json"), guide);
}

#[test]
fn the_template_of_the_quick_start_has_the_versions_of_the_workspace() {
    let workspace = include_str!("../../Cargo.toml");
    let mut found = 0;
    let manifest = rendered("Cargo.toml");
    for line in manifest.lines().skip_while(|line| *line != "[dependencies]") {
        let Some((name, value)) = line.split_once(" = ") else { continue };
        if name == "panic" {
            continue;
        }
        let version = |text: &str| {
            let text = text.split_once("version = ").map_or(text, |(_, rest)| rest);
            text.split('"').nth(1).unwrap().to_owned()
        };
        let (_, wanted) = workspace.split_once(&format!("\n{name} = ")).unwrap();
        let (wanted, shown) = (version(wanted.lines().next().unwrap()), version(value));
        assert!(wanted.starts_with(&shown), "{name} {shown}, but the workspace has {wanted}");
        found += 1;
    }
    assert_eq!(found, 5);
}

#[tokio::test]
async fn only_what_is_not_routine_is_logged_as_an_error() {
    static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    struct Log;
    impl Write for Log {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            LOG.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let function = service_fn(async |event: &str| match event {
        "panic" => panic!("out of paper"),
        "ok" => Ok(()),
        other => Err(Diagnostic { error_type: other.to_owned(), error_message: "why".to_owned() }),
    });
    let function = telemetry::log_failures(function, |failure: &Diagnostic| failure.error_type == "LockHeld");
    let mut outcomes = Vec::new();
    for event in ["ok", "LockHeld", "NotDeployed", "panic"] {
        let failure = function.clone().oneshot(event).await.err();
        let lines = String::from_utf8(std::mem::take(&mut *LOG.lock().unwrap())).unwrap();
        let levels: Vec<_> = lines.split_whitespace().filter(|word| ["INFO", "ERROR"].contains(word)).collect();
        outcomes.push((failure.map(|failure| (failure.error_type, failure.error_message)), levels.join(" ")));
    }
    let failure = |name: &str, message: &str| Some((name.to_owned(), message.to_owned()));
    let expected = [
        (None, ""),
        (failure("LockHeld", "why"), "INFO"),
        (failure("NotDeployed", "why"), "ERROR"),
        // The hook has logged it.
        (failure("Panic", "panicked: out of paper"), ""),
    ];
    assert_eq!(outcomes, expected.map(|(failure, levels)| (failure, levels.to_owned())));
}

const PREFIX: &str = "shop#";

/// The fields of the event that a function URL sends for a posted order.
fn posted(key: Option<&str>, body: &Value) -> Value {
    let mut headers = json!({ "content-type": "application/json", "host": "shop.example" });
    if let Some(key) = key {
        headers["idempotency-key"] = key.into();
    }
    json!({
        "version": "2.0",
        "rawPath": "/orders",
        "headers": headers,
        "requestContext": { "http": { "method": "POST", "path": "/orders" }, "timeEpoch": 0 },
        "body": body.to_string(),
        "isBase64Encoded": false,
    })
}

fn tea(quantity: u32) -> Value {
    json!({ "item": "tea", "quantity": quantity })
}

async fn send(world: &World, host: &Host, request: Value) -> LambdaFunctionUrlResponse {
    send_as(Caller::shared(), world, host, request).await
}

async fn send_as(caller: Caller, world: &World, host: &Host, request: Value) -> LambdaFunctionUrlResponse {
    send_with(Simulation::On, caller, world, host, request).await
}

async fn send_with(
    simulation: Simulation,
    caller: Caller,
    world: &World,
    host: &Host,
    request: Value,
) -> LambdaFunctionUrlResponse {
    let locks = world.locks_with_quick_retries(host).key_prefix(PREFIX).build().unwrap();
    let retries = RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
    let client = Client::from_conf(host.client().config().to_builder().retry_config(retries).build());
    let function = order_api(locks, Orders::new(client, &world.table, PREFIX), caller, simulation);
    serde_json::from_value(over_http(host, function, &request).await).unwrap()
}

fn header<'a>(response: &'a LambdaFunctionUrlResponse, name: &str) -> Option<&'a str> {
    response.headers.get(name).map(|value| value.to_str().unwrap())
}

async fn orders(world: &World) -> Vec<Row> {
    rows(world, "order#").await
}

/// The rows whose keys begin so.
async fn rows(world: &World, start: &str) -> Vec<Row> {
    let scan = world.client().scan().table_name(&world.table).consistent_read(true);
    let scan = scan.filter_expression("begins_with(id, :start)");
    let start = AttributeValue::S(format!("{PREFIX}{start}"));
    scan.expression_attribute_values(":start", start).send().await.unwrap().items.unwrap()
}

const PROBLEM: &str = "application/problem+json";

/// The detail of an answer without an order.
fn message(response: &LambdaFunctionUrlResponse) -> String {
    let body: Value = serde_json::from_str(response.body.as_deref().unwrap()).unwrap();
    assert_eq!((header(response, "content-type"), &body["status"]), (Some(PROBLEM), &json!(response.status_code)));
    body["detail"].as_str().unwrap().to_owned()
}

/// Rejects the transaction that writes an order, with this answer of DynamoDB.
#[derive(Debug)]
struct NoOrders(Value);

impl NoOrders {
    /// An answer with this error, and a message that clients must not see.
    fn with(error: &str) -> Self {
        Self(json!({ "__type": error, "message": "secret" }))
    }
}

impl Intercept for NoOrders {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "TransactWriteItems" {
            request["TransactItems"] = json!([]);
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "TransactWriteItems" {
            answer.status = 400;
            answer.body = self.0.clone();
        }
    }
}

#[tokio::test]
async fn an_order_sent_again_gets_the_same_answer_marked_as_replayed() {
    let world = World::new().await;
    let host = world.host().build();
    let first = send(&world, &host, posted(Some("key-1"), &tea(2))).await;
    assert_eq!((first.status_code, header(&first, "idempotency-replayed")), (201, None));
    let order: Order = serde_json::from_str(first.body.as_deref().unwrap()).unwrap();
    assert_eq!((order.item.as_str(), order.quantity.get()), ("tea", 2));

    let again = send(&world, &host, posted(Some("key-1"), &tea(2))).await;
    assert_eq!((again.status_code, header(&again, "idempotency-replayed")), (201, Some("true")));
    assert_eq!((&again.body, header(&again, "content-type")), (&first.body, Some("application/json")));
    let rows = orders(&world).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["id"], AttributeValue::S(format!("{PREFIX}order#{}", order.id)));
}

#[tokio::test]
async fn two_keys_are_two_orders() {
    let world = World::new().await;
    let host = world.host().build();
    // The second is longer than a key of the table can be.
    for key in ["key-1".to_owned(), "key".repeat(1000)] {
        assert_eq!(send(&world, &host, posted(Some(&key), &tea(2))).await.status_code, 201);
    }
    assert_eq!(orders(&world).await.len(), 2);
}

/// The request of this IAM user.
fn signed_by(user: &str, mut request: Value) -> Value {
    request["requestContext"]["authorizer"] = json!({ "iam": { "userId": user } });
    request
}

#[tokio::test]
async fn two_callers_can_use_one_key() {
    let world = World::new().await;
    let host = world.host().build();
    let send = |request| send_as(Caller::iam_principal(), &world, &host, request);
    for (user, replayed) in [("AIDA1", None), ("AIDA2", None), ("AIDA1", Some("true"))] {
        let answer = send(signed_by(user, posted(Some("key-1"), &tea(2)))).await;
        assert_eq!((answer.status_code, header(&answer, "idempotency-replayed")), (201, replayed), "{user}");
    }
    assert_eq!(send(posted(Some("key-1"), &tea(2))).await.status_code, 403);
    assert_eq!(orders(&world).await.len(), 2);
}

#[tokio::test]
async fn an_order_in_progress_is_a_conflict_with_retry_after() {
    let world = World::new().await;
    let host = world.host().build();
    let mut slow = tea(2);
    slow["checking_ms"] = 500.into();
    let request = || send(&world, &host, posted(Some("key-1"), &slow));
    let (first, second) = tokio::join!(request(), request());
    let (placed, refused) = if first.status_code == 201 { (first, second) } else { (second, first) };
    assert_eq!((placed.status_code, refused.status_code), (201, 409));
    // The first request has just begun.
    assert_eq!(header(&refused, "retry-after"), Some("1"));
    assert_eq!(orders(&world).await.len(), 1);
}

#[tokio::test]
async fn a_key_of_another_order_is_unprocessable() {
    let world = World::new().await;
    let host = world.host().build();
    send(&world, &host, posted(Some("key-1"), &tea(2))).await;
    assert_eq!(send(&world, &host, posted(Some("key-1"), &tea(3))).await.status_code, 422);
    assert_eq!(orders(&world).await.len(), 1);
}

#[tokio::test]
async fn an_order_without_a_key_is_a_bad_request() {
    let world = World::new().await;
    let host = world.host().build();
    for key in [None, Some("")] {
        assert_eq!(send(&world, &host, posted(key, &tea(2))).await.status_code, 400);
    }
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn a_key_that_is_not_ascii_is_a_bad_request() {
    let world = World::new().await;
    let host = world.host().build();
    let refused = send(&world, &host, posted(Some("Schlüssel"), &tea(2))).await;
    assert_eq!(refused.status_code, 400);
    let expected =
        "Send one header Idempotency-Key with a string in double quotes, of visible ASCII characters and spaces.";
    assert_eq!(message(&refused), expected);
    assert_eq!(host.requests(), 0);
}

#[tokio::test]
async fn rejects_an_oversized_order_before_its_key_is_used() {
    const LARGEST: usize = 4096;
    let world = World::new().await;
    let host = world.host().build();
    let of_bytes = |bytes: usize| {
        let rest = json!({ "item": "tea", "note": "", "quantity": 2 }).to_string().len();
        json!({ "item": "tea", "note": "n".repeat(bytes - rest), "quantity": 2 })
    };
    for bytes in [LARGEST + 1, 1_000_000] {
        let refused = send(&world, &host, posted(Some("key-1"), &of_bytes(bytes))).await;
        assert_eq!(refused.status_code, 413);
        assert_eq!(message(&refused), "the order has more than 4096 bytes");
    }
    assert_eq!(host.requests(), 0);
    assert_eq!(send(&world, &host, posted(Some("key-1"), &of_bytes(LARGEST))).await.status_code, 201);
    assert_eq!(orders(&world).await.len(), 1);
}

#[tokio::test]
async fn rejects_an_item_that_is_too_long_before_its_key_is_used() {
    let world = World::new().await;
    let host = world.host().build();
    // Each character is twelve bytes of JSON if it is escaped.
    let of_characters = |characters: usize| {
        let mut request = posted(Some("key-1"), &Value::Null);
        request["body"] = format!(r#"{{"item": "{}", "quantity": 2}}"#, r"\ud83c\udf75".repeat(characters)).into();
        request
    };
    for characters in [201, 300] {
        let refused = send(&world, &host, of_characters(characters)).await;
        assert_eq!(refused.status_code, 400);
        let expected = format!("the item has {characters} characters: send one with 1 to 200");
        assert_eq!(message(&refused), expected);
    }
    assert_eq!(host.requests(), 0);
    assert_eq!(send(&world, &host, of_characters(200)).await.status_code, 201);
}

#[tokio::test]
async fn a_caller_cannot_choose_how_long_an_order_takes() {
    let world = World::new().await;
    let host = world.host().build();
    let mut slow = tea(2);
    slow["checking_ms"] = u64::MAX.into();
    let request = posted(Some("key-1"), &slow);
    let placed = send_with(Simulation::Off, Caller::shared(), &world, &host, request).await;
    assert_eq!(placed.status_code, 201);
}

#[tokio::test]
async fn rejects_what_is_no_posted_order_before_its_key_is_used() {
    let world = World::new().await;
    let host = world.host().build();
    let mut elsewhere = posted(Some("key-1"), &tea(2));
    elsewhere["rawPath"] = "/".into();
    let mut read = posted(Some("key-1"), &tea(2));
    read["requestContext"]["http"]["method"] = "GET".into();
    let mut encoded = posted(Some("key-1"), &tea(2));
    encoded["isBase64Encoded"] = true.into();
    encoded["body"] = "eyJpdGVtIjoidGVhIiwicXVhbnRpdHkiOjJ9".into();
    let mut plain = posted(Some("key-1"), &tea(2));
    plain["headers"]["content-type"] = "text/plain".into();
    let nothing = json!({ "item": "", "quantity": 2 });
    let bodies =
        [json!({ "item": "tea" }), tea(0), json!("tea"), nothing].map(|body| (posted(Some("key-1"), &body), 400));
    for (request, status) in [(elsewhere, 404), (read, 405), (encoded, 415), (plain, 415)].into_iter().chain(bodies) {
        assert_eq!(send(&world, &host, request.clone()).await.status_code, status, "{request}");
    }
    assert_eq!(host.requests(), 0);
    assert_eq!(send(&world, &host, posted(Some("key-1"), &tea(2))).await.status_code, 201);
}

#[tokio::test]
async fn an_order_with_a_lost_answer_of_the_table_is_placed() {
    let world = World::new().await;
    // All answers to the three tries of the SDK.
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=3)).build();
    let placed = send(&world, &host, posted(Some("key-1"), &tea(2))).await;
    assert_eq!(placed.status_code, 201);
    let order: Order = serde_json::from_str(placed.body.as_deref().unwrap()).unwrap();
    let rows = orders(&world).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["id"], AttributeValue::S(format!("{PREFIX}order#{}", order.id)));
}

#[tokio::test]
async fn a_failed_order_does_not_show_its_cause_and_can_be_sent_again() {
    let world = World::new().await;
    let failing = world.host().intercept(NoOrders::with("AccessDeniedException")).build();
    let failed = send(&world, &failing, posted(Some("key-1"), &tea(2))).await;
    assert_eq!((failed.status_code, header(&failed, "retry-after")), (500, None));
    assert_eq!(message(&failed), "the order failed");

    let host = world.host().build();
    let again = send(&world, &host, posted(Some("key-1"), &tea(2))).await;
    assert_eq!((again.status_code, header(&again, "idempotency-replayed")), (201, None));
}

#[tokio::test]
async fn an_order_that_the_table_throttles_can_be_sent_again() {
    let world = World::new().await;
    let cancelled = |reason: &str| {
        let reasons = json!([{ "Code": "None" }, { "Code": reason }]);
        NoOrders(json!({ "__type": "TransactionCanceledException", "CancellationReasons": reasons }))
    };
    for refusal in [
        NoOrders::with("ThrottlingException"),
        NoOrders::with("TransactionInProgressException"),
        cancelled("TransactionConflict"),
        cancelled("ThrottlingError"),
    ] {
        let printed = format!("{refusal:?}");
        let refused = send(&world, &world.host().intercept(refusal).build(), posted(Some("key-1"), &tea(2))).await;
        assert_eq!((refused.status_code, header(&refused, "retry-after")), (503, Some("1")), "{printed}");
        assert_eq!(message(&refused), "try again with the same key");
    }
    let larger = world.host().intercept(cancelled("ValidationError")).build();
    assert_eq!(send(&world, &larger, posted(Some("key-1"), &tea(2))).await.status_code, 500);
    assert_eq!(send(&world, &world.host().build(), posted(Some("key-1"), &tea(2))).await.status_code, 201);
}

#[tokio::test]
async fn an_order_is_unavailable_when_the_table_does_not_answer() {
    let world = World::new().await;
    let host = world.host().intercept(LoseAnswers::to("UpdateItem", 1..=99)).build();
    let unavailable = send(&world, &host, posted(Some("key-1"), &tea(2))).await;
    assert_eq!((unavailable.status_code, header(&unavailable, "retry-after")), (503, Some("1")));
    assert_eq!(message(&unavailable), "Send the same request again, with the same key.");
}

fn payment(id: &str, failing_deliveries: u64) -> Value {
    let account = "DE02".to_owned();
    json!(Payment { id: id.to_owned(), account, amount: 100, paying_ms: 0, failing_deliveries, panics: false })
}

/// Delivers the bodies as one batch for the nth time, and returns the positions of the messages that go back. Each
/// delivery has new message ids, as after a redrive.
async fn deliver(world: &World, nth: u32, bodies: &[Value]) -> Vec<usize> {
    deliver_to(world, &world.host().build(), nth, bodies).await
}

async fn deliver_to(world: &World, host: &Host, nth: u32, bodies: &[Value]) -> Vec<usize> {
    deliver_with(Simulation::On, world, host, nth, bodies).await
}

async fn deliver_with(simulation: Simulation, world: &World, host: &Host, nth: u32, bodies: &[Value]) -> Vec<usize> {
    let locks = world.locks(host).key_prefix(PREFIX).build().unwrap();
    // No message is in progress elsewhere, so nothing is sent to SQS.
    let queues = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"));
    let queues = aws_sdk_sqs::Client::from_conf(queues.build());
    let function = payment_queue(locks, Payments::new(host.client(), &world.table, PREFIX), queues, simulation);
    let records = bodies.iter().enumerate().map(|(position, body)| {
        let mut record = SqsRecord::default();
        record.message_id = Some(format!("{:08x}#{position}", fastrand::u32(..)));
        record.event_source_arn = Some("arn:aws:sqs:us-east-1:123456789012:payments".to_owned());
        record.attributes.insert("ApproximateReceiveCount".to_owned(), nth.to_string());
        record.body = Some(body.to_string());
        record
    });
    let mut event = SqsEvent::default();
    event.records = records.collect();
    // Lambda takes a failed invocation as the failure of each message.
    let Ok(response) = function.oneshot(invocation(host, event)).await else { return (0..bodies.len()).collect() };
    let position = |id: &str| id.split_once('#').unwrap().1.parse().unwrap();
    response.batch_item_failures.iter().map(|failure| position(&failure.item_identifier)).collect()
}

async fn times_paid(world: &World, id: &str) -> u32 {
    let row = world.row(&format!("{PREFIX}payment#{id}")).await;
    row.map_or(0, |row| row["times"].as_n().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_payment_in_several_messages_is_made_once() {
    let world = World::new().await;
    assert_eq!(deliver(&world, 1, &[payment("rent", 0), payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(deliver(&world, 1, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn a_payment_that_was_made_is_not_made_again_after_a_redrive() {
    let world = World::new().await;
    deliver(&world, 1, &[payment("rent", 0)]).await;
    // The longest retention of the queue, of the dead-letter queue, and of the queue again.
    let later = world.host().later(Duration::from_hours(42 * 24)).build();
    assert_eq!(deliver_to(&world, &later, 1, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn a_payment_with_a_used_id_and_another_amount_goes_back() {
    let world = World::new().await;
    let mut other = payment("rent", 0);
    other["amount"] = 101.into();
    deliver(&world, 1, &[payment("rent", 0)]).await;
    assert_eq!(deliver(&world, 1, &[other]).await, [0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn only_a_failed_payment_goes_back_and_is_made_later() {
    let world = World::new().await;
    let bodies = [payment("rent", 0), payment("power", 1), json!("not a payment"), payment("water", 0)];
    assert_eq!(deliver(&world, 1, &bodies).await, [1, 2]);
    assert_eq!(times_paid(&world, "power").await, 0);
    assert_eq!(deliver(&world, 2, &bodies[1..2]).await, [0_usize; 0]);
    for id in ["rent", "power", "water"] {
        assert_eq!(times_paid(&world, id).await, 1, "{id}");
    }
}

#[tokio::test]
async fn a_payment_with_a_lost_answer_of_the_table_is_made_once() {
    let world = World::new().await;
    // All answers to the three tries of the SDK.
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=3)).build();
    assert_eq!(deliver_to(&world, &host, 1, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(deliver(&world, 2, &[payment("rent", 0)]).await, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

#[tokio::test]
async fn only_a_payment_that_panics_goes_back() {
    let world = World::new().await;
    let mut panicking = payment("power", 0);
    panicking["panics"] = true.into();
    assert_eq!(deliver(&world, 1, &[payment("rent", 0), panicking, payment("water", 0)]).await, [1]);
    for (id, times) in [("rent", 1), ("power", 0), ("water", 1)] {
        assert_eq!(times_paid(&world, id).await, times, "{id}");
    }
}

#[tokio::test]
async fn a_sender_cannot_choose_that_a_payment_takes_long_fails_or_panics() {
    let world = World::new().await;
    let payment = Payment {
        id: "rent".to_owned(),
        account: "DE02".to_owned(),
        amount: 100,
        paying_ms: u64::MAX,
        failing_deliveries: u64::MAX,
        panics: true,
    };
    let failed = deliver_with(Simulation::Off, &world, &world.host().build(), 1, &[json!(payment)]).await;
    assert_eq!(failed, [0_usize; 0]);
    assert_eq!(times_paid(&world, "rent").await, 1);
}

/// The record of an order as Lambda sends it. Without a quantity, it cannot be read.
fn placed(number: u32, name: &str, quantity: Option<u32>) -> Value {
    placed_of("tea", number, name, quantity)
}

fn placed_of(item: &str, number: u32, name: &str, quantity: Option<u32>) -> Value {
    let id = json!({ "S": format!("{PREFIX}order#{number}") });
    let mut image = json!({ "id": id, "item": { "S": item } });
    if let Some(quantity) = quantity {
        image["quantity"] = json!({ "N": quantity.to_string() });
    }
    json!({
        "awsRegion": "us-east-1",
        "dynamodb": { "Keys": { "id": id }, "NewImage": image, "SequenceNumber": number.to_string(), "SizeBytes": 64 },
        "eventID": format!("event-{number}"),
        "eventName": name,
        "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/1",
    })
}

/// Delivers the records as one batch, and returns the number that the answer names.
async fn count(world: &World, host: &Host, records: &[Value]) -> Option<String> {
    let locks = world.locks_with_quick_retries(host).key_prefix(PREFIX).build().unwrap();
    let function = order_totals(locks, Totals::new(host.client(), &world.table, PREFIX));
    let first = records[0]["dynamodb"]["SequenceNumber"].as_str().unwrap().to_owned();
    let event = serde_json::from_value(json!({ "Records": records })).unwrap();
    // Lambda delivers the whole batch of a failed invocation again.
    let Ok(mut answer) = function.oneshot(invocation(host, event)).await else { return Some(first) };
    assert!(answer.batch_item_failures.len() <= 1);
    answer.batch_item_failures.pop().map(|failure| failure.item_identifier.unwrap())
}

/// The number and the quantity of the orders.
async fn total(world: &World) -> [u32; 2] {
    counts(&world.row(&format!("{PREFIX}total#tea")).await.unwrap_or_default())
}

fn counts(row: &Row) -> [u32; 2] {
    ["orders", "quantity"].map(|count| row.get(count).map_or(0, |count| count.as_n().unwrap().parse().unwrap()))
}

#[tokio::test]
async fn an_order_is_counted_once_and_an_unreadable_one_is_named() {
    let world = World::new().await;
    let host = world.host().build();
    let batch = [placed(1, "INSERT", Some(2)), placed(2, "INSERT", None), placed(3, "INSERT", Some(4))];
    assert_eq!(count(&world, &host, &batch).await.as_deref(), Some("2"));
    assert_eq!(count(&world, &host, &batch[1..]).await.as_deref(), Some("2"));
    assert_eq!(count(&world, &host, &[placed(4, "MODIFY", Some(8)), placed(5, "INSERT", Some(1))]).await, None);
    assert_eq!(total(&world).await, [3, 7]);
}

#[tokio::test]
async fn orders_of_items_longer_than_a_key_are_counted_by_item() {
    let world = World::new().await;
    let host = world.host().build();
    let [cup, pot] = ["cup", "pot"].map(|end| format!("{}{end}", "é".repeat(64 * 1024)));
    let orders = [(&cup, 1), (&pot, 2), (&cup, 4)];
    let batch: Vec<_> =
        (1..).zip(orders).map(|(number, (item, quantity))| placed_of(item, number, "INSERT", Some(quantity))).collect();
    assert_eq!(count(&world, &host, &batch).await, None);
    let mut totals: Vec<_> = rows(&world, "hashed-total#").await.iter().map(counts).collect();
    totals.sort_unstable();
    assert_eq!(totals, [[1, 2], [2, 5]]);
}

#[tokio::test]
async fn an_order_with_a_lost_answer_of_the_table_is_counted_once() {
    let world = World::new().await;
    // All answers to the three tries of the SDK.
    let host = world.host().intercept(LoseAnswers::to("TransactWriteItems", 1..=3)).build();
    for _ in 0..2 {
        assert_eq!(count(&world, &host, &[placed(1, "INSERT", Some(2))]).await, None);
    }
    assert_eq!(total(&world).await, [1, 2]);
}

/// Cancels the first transactions because of others on the same row.
#[derive(Debug)]
struct Conflicts(AtomicUsize);

impl Intercept for Conflicts {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "TransactWriteItems" && self.0.load(Ordering::Relaxed) > 0 {
            request["TransactItems"] = json!([]);
        }
    }

    fn answer(&self, operation: &str, _: &Value, answer: &mut Answer) {
        if operation == "TransactWriteItems" && self.0.load(Ordering::Relaxed) > 0 {
            self.0.fetch_sub(1, Ordering::Relaxed);
            let reasons = json!([{ "Code": "TransactionConflict" }, { "Code": "None" }]);
            answer.status = 400;
            answer.body = json!({ "__type": "TransactionCanceledException", "CancellationReasons": reasons });
        }
    }
}

#[tokio::test]
async fn an_order_is_counted_after_two_conflicts_and_named_after_three() {
    for (conflicts, again, counted) in [(2, None, [1, 2]), (3, Some("1"), [0, 0])] {
        let world = World::new().await;
        let host = world.host().intercept(Conflicts(AtomicUsize::new(conflicts))).build();
        assert_eq!(count(&world, &host, &[placed(1, "INSERT", Some(2))]).await.as_deref(), again);
        assert_eq!(total(&world).await, counted);
    }
}

/// The keys of the updates that a host sends.
#[derive(Clone, Debug, Default)]
struct Keys(Arc<Mutex<BTreeSet<String>>>);

impl Intercept for Keys {
    fn request(&self, operation: &str, request: &mut Value) {
        if operation == "UpdateItem" {
            self.0.lock().unwrap().insert(request["Key"]["id"]["S"].as_str().unwrap().to_owned());
        }
    }
}

/// The guide's patterns for `dynamodb:LeadingKeys`.
fn patterns_of_the_guide() -> Vec<&'static str> {
    let (_, patterns) =
        include_str!("../../lock/docs/operate/deploying.md").split_once("dynamodb:LeadingKeys:\n").unwrap();
    let patterns = patterns.lines().map_while(|line| line.trim().strip_prefix("- "));
    patterns.map(|pattern| pattern.split_once(" # ").map_or(pattern, |(pattern, _)| pattern)).collect()
}

/// Whether a key matches a pattern of IAM's `StringLike` that has no star but a last one.
fn is_like(key: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').map_or(key == pattern, |start| key.starts_with(start))
}

#[tokio::test]
async fn the_policy_of_the_guide_allows_exactly_the_keys_of_the_layers() {
    const FUNCTION: &str = "nightly-report";
    let (world, keys) = (World::new().await, Keys::default());
    let locks = world.locks(&world.host().intercept(keys.clone()).build()).build().unwrap();
    locks.warm_up().await;
    locks.check().await;

    let singleton = LockLayer::new(locks.clone()).layer(service_fn(async |_: LambdaEvent<()>| Ok::<_, Infallible>(())));
    singleton.oneshot(invocation_without_deadline(FUNCTION, ())).await.unwrap();

    let key = |event: &LambdaEvent<String>| Some(event.payload.clone());
    let once = IdempotencyLayer::new(Idempotency::new(locks.clone(), OnMissingKey::Reject, key))
        .layer(service_fn(async |_: LambdaEvent<String>| Ok::<_, Infallible>(())));
    once.oneshot(invocation_without_deadline(FUNCTION, "order-1".to_owned())).await.unwrap();

    let mut batch = SqsEvent::default();
    let mut record = SqsRecord::default();
    record.message_id = Some("message-1".to_owned());
    record.body = Some("1".to_owned());
    batch.records.push(record);
    let consumer = SqsConsumer::by_message_id(locks.clone());
    let consumer = consumer.layer(service_fn(async |_: SqsMessage<u32>| Ok::<_, Infallible>(())));
    consumer.oneshot(invocation_without_deadline(FUNCTION, batch)).await.unwrap();

    let mut batch = KinesisEvent::default();
    let mut record = KinesisEventRecord::default();
    record.event_id = Some("shardId-000000000000:1".to_owned());
    record.kinesis.sequence_number = "1".to_owned();
    record.kinesis.data.0 = b"1".to_vec();
    batch.records.push(record);
    let consumer = StreamConsumer::by_event_id(locks);
    let consumer = consumer.layer(service_fn(async |_: KinesisRecord<u32>| Ok::<_, Infallible>(())));
    consumer.oneshot(invocation_without_deadline(FUNCTION, batch)).await.unwrap();

    let (keys, patterns) = (keys.0.lock().unwrap(), patterns_of_the_guide());
    let role = rendered("function.yaml");
    let (_, role) = role.split_once("dynamodb:LeadingKeys: [").unwrap();
    let role = role.split(']').next().unwrap().split(", ").map(|pattern| pattern.trim_matches('"'));
    assert_eq!(role.collect::<Vec<_>>(), patterns);
    for key in keys.iter() {
        assert!(patterns.iter().any(|pattern| is_like(key, pattern)), "{patterns:?} deny {key}");
    }
    for pattern in patterns {
        assert!(keys.iter().any(|key| is_like(key, pattern)), "{pattern} is for none of {keys:?}");
    }
}
