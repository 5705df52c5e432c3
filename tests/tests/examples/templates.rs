//! The templates, the README, and the recipes of the guides.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const README: &str = include_str!("../../../README.md");
/// The guide with the table of all problems.
const WHICH: &str = include_str!("../../../lock/docs/learn/which.md");

/// The blocks of code in the README, in their order.
fn blocks() -> Vec<&'static str> {
    let blocks = README.split("```").skip(1).step_by(2);
    blocks.map(|block| block.split_once('\n').unwrap().1).collect()
}

/// A file of the template for singletons, as `cargo lambda new nightly-report` renders it.
pub(crate) fn rendered(file: &str) -> String {
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
    let template = include_str!("../../../templates/singleton/CargoLambda.toml");
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

/// A template for operators. It takes no lock, so it solves no problem of the tables, and it needs neither a table of its own nor
/// metrics.
const OF_OPERATORS: &str = "holders";

/// The names of the templates that take locks.
fn templates_with_locks() -> BTreeSet<String> {
    let mut templates = templates();
    assert!(templates.remove(OF_OPERATORS));
    templates
}

/// The names of all templates.
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
        ("[recipes/keys]", concat!(include_str!("../several/acquire.rs"), include_str!("../several/waiting.rs"))),
        ("[recipes/workflows#durable-functions]", include_str!("../../../lock/durable/tests/durable/turns.rs")),
        ("[reference/program]", include_str!("../../../program/tests/program/run.rs")),
    ];
    let (headers, rows) = problems(WHICH);
    assert_eq!(
        headers[2..],
        ["while the first one runs, another one", "after the first one has finished, another one"]
    );
    let (mut left, mut found) = (templates_with_locks(), 0);
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
fn each_template_builds_without_the_randomness_of_jitter() {
    const LINES: &str = "[env]\nAWS_LC_SYS_NO_JITTER_ENTROPY = \"1\"\n";
    assert!(include_str!("../../../lock/docs/trust/performance.md").contains(LINES));
    assert!(include_str!("../../../.cargo/config.toml").contains(LINES));
    for template in templates() {
        let config = file_of(&template, ".cargo/config.toml");
        assert!(config.ends_with(LINES), "{template}: {config}");
    }
}

#[test]
fn a_second_template_finds_the_table_of_the_first_one() {
    for template in templates_with_locks() {
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

#[test]
fn dead_letters_of_each_template_are_kept_for_two_weeks() {
    for template in templates() {
        let files = ["README.md", "function.yaml"].map(|file| file_of(&template, file)).concat();
        assert!(!files.contains("dead-letter queue") || files.contains("1209600"), "{template}");
    }
}

// API Gateway ends a request to a REST API after 29 s.
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

// Without `UpdateItem`, the widget shows the holders and frees no key.
#[test]
fn the_role_of_the_widget_reads_the_table_and_updates_rows_in_a_statement_of_its_own() {
    let role = file_of(OF_OPERATORS, "function.yaml");
    let actions: Vec<_> = role.lines().filter_map(|line| line.trim().strip_prefix("Action: ")).collect();
    assert_eq!(actions, ["[dynamodb:Scan, dynamodb:GetItem]", "dynamodb:UpdateItem"], "{role}");
    assert_eq!(role.matches(":table/{{ table }}\n").count(), 2, "{role}");
}

#[test]
fn the_dashboard_of_the_widget_is_json() {
    let readme = file_of(OF_OPERATORS, "README.md");
    let (_, body) = readme.split_once("--dashboard-body \"").unwrap();
    let (body, _) = body.split_once("\"\n```").unwrap();
    // As a shell reads the text between the quotes.
    let body: serde_json::Value = serde_json::from_str(&body.replace("\\\"", "\"")).unwrap();
    let widget = &body["widgets"][0];
    assert_eq!((&widget["type"], &widget["properties"]["endpoint"]), (&"custom".into(), &"$ARN".into()));
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
    let deploying = include_str!("../../../lock/docs/operate/deploying.md");
    for (page, first) in [(README, "aws cloudformation deploy"), (deploying, "## The table and the policy")] {
        let (before, _) = page.split_once(first).unwrap();
        assert!(before.contains("version 2 of the AWS CLI"), "{before}");
    }
}

#[test]
fn each_template_says_how_to_export_metrics() {
    for template in templates_with_locks() {
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
        let start = if template == OF_OPERATORS { "operate/runbook/" } else { "recipes/" };
        assert!(links.iter().any(|link| link.starts_with(start)), "{template} has no link to {start}: {links:?}");
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
    let all: String = manifests.chain([include_str!("../../../Cargo.toml").to_owned()]).collect();
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
    let guide = include_str!("../../../lock/docs/state_machine.asl.json");
    assert_eq!(include_str!("../../../templates/workflow/template/machine.asl.json"), guide);
}

#[test]
fn the_template_of_the_quick_start_has_the_versions_of_the_workspace() {
    let workspace = include_str!("../../../Cargo.toml");
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
