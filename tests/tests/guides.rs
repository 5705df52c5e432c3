//! What the README and the guides keep, so that they read the same on a Git host and in rustdoc.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const README: &str = include_str!("../../README.md");
/// The order of the pages.
const INDEX: &str = include_str!("../../lock/docs/README.md");
/// The definitions of labels for rustdoc.
const LINKS: &str = include_str!("../../lock/docs/links.txt");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The guides, by name, such as `recipes/sqs`, and their index.
fn guides() -> BTreeMap<String, String> {
    let docs = root().join("lock/docs");
    let read = |name: &str| fs::read_to_string(docs.join(name).with_extension("md")).unwrap();
    let mut guides = BTreeMap::from([("README".to_owned(), read("README"))]);
    for group in fs::read_dir(&docs).unwrap().map(|group| group.unwrap().path()).filter(|group| group.is_dir()) {
        for page in fs::read_dir(&group).unwrap().map(|page| page.unwrap().path()) {
            if page.extension().is_some_and(|extension| extension == "md") {
                let name = page.strip_prefix(&docs).unwrap().with_extension("").display().to_string();
                let text = read(&name);
                guides.insert(name, text);
            }
        }
    }
    assert!(guides.len() > 30, "{:?}", guides.keys());
    guides
}

/// The README and the guides.
fn pages() -> impl Iterator<Item = (String, String)> {
    guides().into_iter().chain([("README.md".to_owned(), README.to_owned())])
}

/// The blocks of code in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}");
    let blocks = page.split("```").collect::<Vec<_>>();
    blocks.into_iter().skip(1).step_by(2).filter(|block| format!("```{block}").starts_with(&fence)).collect()
}

/// A page without its code.
fn prose(page: &str) -> String {
    let text: String = page.split("```").step_by(2).collect();
    // Code can be the text of a link, also over two lines. So only its content goes.
    text.split("\n\n").map(|paragraph| paragraph.split('`').step_by(2).collect::<String>() + "\n\n").collect()
}

/// The labels of a page's links, and what they lead to at the end of the page.
fn labels(page: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let prose = prose(page);
    let used = prose.split("][").skip(1).filter_map(|rest| Some(rest.split_once(']')?.0.to_owned())).collect();
    let defined = page.lines().filter_map(|line| {
        let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
        (!label.contains(']')).then(|| (label.to_owned(), target.to_owned()))
    });
    (used, defined.collect())
}

#[test]
fn each_link_of_a_guide_leads_somewhere_on_a_git_host() {
    for (name, page) in guides() {
        assert!(!prose(&page).contains("crate::"), "{name} links to an item of Rust, which only rustdoc knows");
        let (used, defined) = labels(&page);
        let folder = root().join("lock/docs").join(&name);
        for label in used {
            let target = defined.get(&label).unwrap_or_else(|| panic!("{name} does not define [{label}]"));
            let file = target.split('#').next().unwrap();
            assert!(
                target.starts_with("https://") || folder.parent().unwrap().join(file).exists(),
                "{name}: {target} does not exist"
            );
        }
    }
}

#[test]
fn each_link_of_a_guide_within_the_documentation_is_defined_for_rustdoc() {
    let (_, in_rustdoc) = labels(LINKS);
    for (name, page) in guides() {
        for (label, target) in labels(&page).1 {
            let is_of_the_web = target.starts_with("https://") && !target.starts_with("https://docs.rs/lambda-lock/");
            assert!(is_of_the_web || in_rustdoc.contains_key(&label), "{name}: [{label}] leads out of rustdoc");
        }
    }
}

/// A hidden line is visible on a Git host, and in rustdoc it is missing in the code that a reader copies.
#[test]
fn the_code_of_the_guides_has_no_hidden_lines() {
    for (name, page) in guides() {
        for block in blocks(&page, "rust") {
            let hidden: Vec<_> = block.lines().filter(|line| *line == "#" || line.starts_with("# ")).collect();
            assert!(hidden.is_empty(), "{name}: {hidden:?}");
        }
    }
}

#[test]
fn the_index_and_rustdoc_have_each_guide_in_one_order() {
    let label = |line: &'static str| line.strip_prefix("- [")?.split_once("][")?.1.split(']').next();
    let in_the_index: Vec<_> = INDEX.lines().filter_map(label).map(str::to_owned).collect();
    let mut in_rustdoc = Vec::new();
    for group in include_str!("../../lock/src/docs.rs").split("\nguides! {\n").skip(1) {
        let lines = group.split('}').next().unwrap().lines().filter(|line| !line.trim().starts_with("///"));
        let text = lines.collect::<Vec<_>>().join(" ");
        let (group, pages) = text.split_once(':').unwrap();
        in_rustdoc.extend(pages.split_whitespace().map(|page| format!("{}/{page}", group.trim())));
    }
    assert_eq!(in_the_index, in_rustdoc);
    let files: BTreeSet<_> = guides().into_keys().filter(|name| name != "README").collect();
    assert_eq!(in_the_index.into_iter().collect::<BTreeSet<_>>(), files);
}

#[test]
fn each_recipe_has_the_same_form() {
    for (name, page) in guides().into_iter().filter(|(name, _)| name.starts_with("recipes/")) {
        let mut rest = page.as_str();
        for heading in ["The code", "A sample event", "What happens when", "Settings you may need", "Deploy and test"] {
            let heading = format!("\n## {heading}\n");
            rest = rest.split_once(&heading).unwrap_or_else(|| panic!("{name} lacks {heading}, or has it elsewhere")).1;
        }
        let (_, table) = page.split_once("\n## What happens when\n").unwrap();
        let cases: Vec<_> =
            table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).collect();
        let cases: Vec<_> = cases[2..].iter().map(|row| row.split('|').nth(1).unwrap().trim()).collect();
        let expected = ["it comes twice at once", "it comes again later", "the invocation crashes", "it times out"];
        assert_eq!(cases, expected, "{name}");
    }
}

#[test]
fn the_readme_is_short_and_begins_with_code() {
    assert!(README.lines().count() <= 200, "the README has {} lines", README.lines().count());
    assert!(README.lines().take(30).any(|line| line.starts_with("```rust")), "the README begins without code");
}

// zsh, the shell of macOS, takes what follows a command for its arguments, and opens the quotes of a comment.
#[test]
fn the_commands_can_be_pasted_into_any_shell() {
    let templates = fs::read_dir(root().join("templates")).unwrap().map(|template| template.unwrap().path());
    let readme = |template: PathBuf| {
        (template.display().to_string(), fs::read_to_string(template.join("template/README.md")).unwrap())
    };
    for (name, page) in pages().chain(templates.map(readme)) {
        for block in blocks(&page, "sh\n") {
            for line in block.lines().skip(1) {
                let comment = line.split_once("# ").map_or("", |(_, comment)| comment);
                let is_harmless = line.starts_with("# ") && !comment.contains(['`', '\'', '"', '$', ';', '*', '(']);
                assert!(comment.is_empty() || is_harmless, "{name}: {line}");
            }
        }
    }
}

#[test]
fn the_runbook_has_each_alarm_and_each_kind_of_error() {
    let runbook = include_str!("../../lock/docs/operate/runbook.md");
    let template = include_str!("../../template.yaml");
    let resources = template.split("\n\n").filter_map(|resource| {
        let mut lines = resource.lines().skip_while(|line| line.trim_start().starts_with('#'));
        let name = lines.next()?.trim().strip_suffix(':')?;
        let is_alarm = resource.contains("Alarm\n") && resource.contains("AlarmActions:");
        is_alarm.then_some(name)
    });
    let alarms: Vec<_> = resources.collect();
    assert!(alarms.len() > 25, "{alarms:?}");
    let (_, facts) = include_str!("../../lock/src/error.rs").split_once("const fn facts").unwrap();
    let facts = facts.split_once("\n    }\n").unwrap().0;
    let kinds: Vec<_> = facts.split("=> (\"").skip(1).filter_map(|fact| fact.split('"').next()).collect();
    assert!(kinds.len() > 15, "{kinds:?}");
    for name in alarms.into_iter().chain(kinds) {
        assert!(runbook.contains(&format!("`{name}`")), "the runbook does not have {name}");
    }
}

// docs.rs cuts off wider lines in a window of 1,200 pixels.
#[test]
fn the_code_of_the_guides_fits_the_page() {
    for (name, page) in pages() {
        for block in blocks(&page, "rust") {
            for line in block.lines() {
                let most = if name == "README.md" { 100 } else { 88 };
                assert!(line.chars().count() <= most, "{name}: {line}");
            }
        }
    }
}

#[test]
fn every_transaction_to_copy_draws_its_own_token() {
    fn check(path: &Path, found: &mut usize) {
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                check(&entry.unwrap().path(), found);
            }
        } else if let Ok(text) = fs::read_to_string(path) {
            let count = |what: &str| text.matches(what).count();
            let transactions = count(".transact_write_items()");
            assert_eq!(count("client_request_token("), transactions, "{}", path.display());
            *found += transactions;
        }
    }
    let mut found = 0;
    for shown in ["README.md", "SECURITY.md", "lambda-example/src", "lock/docs", "lock/examples", "lock/src"] {
        check(&root().join(shown), &mut found);
    }
    assert!(found >= 8, "{found}");
}
