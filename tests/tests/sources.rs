//! What the sources keep. The folders of the crate form layers, and no files import from each other in a circle. A comment in
//! the tests names what exists. An ignored test is run by a step of `.ci/run`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use lambda_lock_tests::request::ATTRIBUTES;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The folders of `lock/src`, from the lowest layer up. Files beside them may be of any layer.
const FOLDERS: [&str; 7] = ["row", "lock", "idempotency", "lambda", "http", "operate", "embedded"];

#[test]
fn the_crate_imports_only_from_lower_layers() {
    assert_layered("lock/src");
}

#[test]
fn the_program_imports_without_circles() {
    assert_layered("program/src");
}

/// `Display` leaves out the message of DynamoDB or of the network. `Debug` has it, on the same line.
#[test]
fn the_log_has_each_error_with_its_cause() {
    let mut files = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/src"), "", &mut files);
    let without: Vec<_> = files.iter().filter(|(_, source)| source.contains("%error")).map(|(name, _)| name).collect();
    assert!(!files.is_empty() && without.is_empty(), "log `?error` instead of `%error`: {without:?}");
}

/// Whoever writes a role asks the documentation. Each async method sends requests, or says that it sends none.
#[test]
fn each_async_method_names_its_iam_actions_or_the_method_whose_requests_are_its_own() {
    let mut files = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/src"), "", &mut files);
    let without: Vec<_> = files.values().flat_map(|source| without_iam_actions(source)).collect();
    assert!(!files.is_empty() && without.is_empty(), "{without:?}");
}

/// The public async methods whose documentation says nothing of IAM actions.
fn without_iam_actions(source: &str) -> Vec<&str> {
    let (mut documentation, mut without) = (String::new(), Vec::new());
    for line in source.lines().map(str::trim) {
        match line.strip_prefix("///") {
            Some(text) => documentation.push_str(text),
            None if line.starts_with("#[") => {}
            None => {
                let says = [
                    "`dynamodb:",
                    "ends no request",
                    "requests are those of",
                    "requests and the IAM action are those of",
                    "requests for each key are those of",
                ]
                .iter()
                .any(|way| documentation.contains(way));
                without.extend(line.strip_prefix("pub async fn ").filter(|_| !says));
                documentation.clear();
            }
        }
    }
    without
}

#[test]
fn a_method_without_iam_actions_is_found() {
    const SILENT: &str = "/// Reads it.\npub async fn read() {}\n/// Sends no request.\npub async fn wait() {}\n";
    assert_eq!(without_iam_actions(SILENT), ["read() {}"]);
}

/// A comment misleads if it names what was renamed or removed.
#[test]
fn comments_in_the_tests_name_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut known, mut comments) = (BTreeSet::new(), BTreeMap::new());
    for folder in [".ci", "infrastructure", "lambda-example", "lock", "program", "templates", "tests"] {
        read_names(&root.join(folder), folder, &mut known, &mut comments);
    }
    assert!(comments.len() > 100, "{comments:?}");
    let unknown = unknown(&known, &comments);
    assert!(unknown.is_empty(), "no code has these names:\n{}", unknown.join("\n"));
}

/// Reads the names in a folder: of its files, in its code, and in the guides. Reads the comments of the tests, too, by file.
fn read_names(folder: &Path, name: &str, known: &mut BTreeSet<String>, comments: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        let name = format!("{name}/{file}");
        if ["target", "node_modules"].contains(&file) {
            continue;
        }
        known.extend(words(file));
        if path.is_dir() {
            read_names(&path, &name, known, comments);
            continue;
        }
        // A document of contributors tells about the past, and other files are no texts.
        let is = |extension| path.extension().is_some_and(|own| own == extension);
        let is_document = is("md") && !name.starts_with("lock/docs/");
        let Some(source) = fs::read_to_string(&path).ok().filter(|_| !is_document) else { continue };
        if !is("rs") {
            known.extend(words(&source));
            continue;
        }
        let lines = || source.lines().map(|line| line.split_once("//").unwrap_or((line, "")));
        known.extend(lines().flat_map(|(code, _)| words(code)));
        if name.starts_with("tests/") || name.starts_with("program/tests/") {
            comments.insert(name, lines().flat_map(|(_, comment)| [comment, "\n"]).collect());
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    words.filter(|word| word.starts_with(|c: char| c == '_' || c.is_alphabetic())).map(str::to_owned)
}

/// Returns the names in back ticks that are not known, each with its file.
fn unknown(known: &BTreeSet<String>, comments: &BTreeMap<String, String>) -> Vec<String> {
    let mut unknown = Vec::new();
    for (file, comments) in comments {
        for comment in comments.lines() {
            let quoted = comment.split('`').skip(1).step_by(2).flat_map(words);
            unknown.extend(quoted.filter(|word| !known.contains(word)).map(|word| format!("{file}: {word}")));
        }
    }
    unknown
}

#[test]
fn a_name_that_no_code_has_is_found() {
    let known = ["acquire", "Lock"].map(str::to_owned).into();
    let comment = " `Lock::acquire` calls `claim_permit(1)`, a function\n".to_owned();
    assert_eq!(unknown(&known, &[("a.rs".to_owned(), comment)].into()), ["a.rs: claim_permit"]);
}

/// `cargo test` shows the reason.
#[test]
fn an_ignored_test_says_what_it_needs_and_which_step_runs_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (steps, mut files) = (fs::read_to_string(root.join(".ci/run")).unwrap(), BTreeMap::new());
    for folder in ["lambda-example", "lock", "program", "tests"] {
        read(&root.join(folder), &format!("{folder}/"), &mut files);
    }
    assert!(files.values().any(|source| source.contains(" = \"needs ")), "{files:?}");
    let without: Vec<_> = files.iter().flat_map(|(file, source)| ignored_for_ever(&steps, file, source)).collect();
    assert!(without.is_empty(), "no step runs these tests for the reason that they say:\n{}", without.join("\n"));
}

/// Returns the attributes that ignore a test without a reason, or whose step does not run the ignored tests of the file.
fn ignored_for_ever(steps: &str, file: &str, source: &str) -> Vec<String> {
    // All tests of a folder in `tests` are one program.
    let program = file.split_once("/tests/").map(|(_, path)| path.split('/').next().unwrap());
    let is_run = |attribute: &str| {
        let reason = attribute.split_once("ignore = \"needs ").and_then(|(_, reason)| reason.split_once(": .ci/run "));
        let step = reason.and_then(|(_, step)| steps.split_once(&format!("\n{}() {{", step.split('"').next()?)));
        let Some((step, _)) = step.and_then(|(_, step)| step.split_once("\n}\n")) else { return false };
        // Elsewhere, it is run with all others.
        attribute.contains("cfg_attr") && step.ends_with("cargo test --workspace")
            || step.contains("ignored") && program.is_some_and(|program| step.contains(&format!("--test {program} ")))
    };
    let is_ignored = |line: &&str| line.starts_with("#[ignore") || line.starts_with("#[") && line.contains(", ignore");
    let attributes = source.lines().map(str::trim).filter(is_ignored);
    attributes.filter(|line| !is_run(line)).map(|line| format!("{file}: {line}")).collect()
}

#[test]
fn a_test_that_no_step_runs_is_found() {
    let steps = "\nall() {\n    cargo test --workspace\n}\nsome() {\n    cargo test --test a -- --ignored\n}\n";
    let found = |file, attribute: &str| ignored_for_ever(steps, file, attribute).len();
    assert_eq!(found("tests/tests/a/b", "#[ignore = \"needs Java: .ci/run some\"]"), 0);
    assert_eq!(found("tests/tests/b", "#[cfg_attr(not(unix), ignore = \"needs Unix: .ci/run all\")]"), 0);
    for attribute in ["", " = \"needs Java\"", " = \"it fails: .ci/run some\"", " = \"needs Java: .ci/run all\""] {
        assert_eq!(found("tests/tests/a/b", &format!("#[ignore{attribute}]")), 1, "{attribute}");
    }
    assert_eq!(found("tests/tests/b", "#[ignore = \"needs Java: .ci/run some\"]"), 1);
}

/// A list that lacks a name leaves it out of a search, and the page out of an explanation.
#[test]
fn a_new_attribute_stands_in_each_list_of_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = fs::read_to_string(root.join("lock/src/row/names.rs")).unwrap();
    let fuzz = fs::read_to_string(root.join("tests/tests/fuzz/rows.rs")).unwrap();
    let page = fs::read_to_string(root.join("lock/docs/trust/protocol.md")).unwrap();
    let (attributes, permit) = source.split_once("mod permit {").unwrap();
    let (permit, rest) = permit.split_once("\n}\n").unwrap();
    // The values of attributes are in capital letters.
    let is_name = |name: &&str| !name.contains(char::is_uppercase);
    let attributes = || names(attributes).chain(names(rest)).filter(is_name).filter(|name| *name != "id");
    let is_prefix = |name: &&str| ["permit:", "fence:"].contains(name);
    assert_eq!(attributes().filter(|name| !is_prefix(name)).collect::<BTreeSet<_>>(), ATTRIBUTES.into());
    let quoted = |name: &&str| fuzz.contains(&format!("\"{name}\""));
    let missing: Vec<_> = names(permit).filter(|name| !quoted(name)).collect();
    assert_eq!(missing, [""; 0], "the fuzzing sets them in no permit");
    let is_explained =
        |name: &&str| page.lines().any(|line| line.starts_with('|') && cell(line).contains(&format!("`{name}`")));
    let missing: Vec<_> = attributes().chain(names(permit)).filter(|name| !is_explained(name)).collect();
    assert_eq!(missing, [""; 0], "no table of `trust/protocol` has them");
}

/// The texts of the constants in a source.
fn names(source: &str) -> impl Iterator<Item = &str> {
    let constants = source.lines().filter(|line| line.contains("const ") && line.contains(": &str = \""));
    constants.map(|line| line.split('"').nth(1).unwrap())
}

/// The first cell of a table's row.
fn cell(row: &str) -> &str {
    row.split('|').nth(1).unwrap_or_default()
}

#[track_caller]
fn assert_layered(folder: &str) {
    let mut files = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    read(&root, "", &mut files);
    assert!(!files.is_empty(), "{folder} has no files");
    let complaints = complaints(&files);
    assert!(complaints.is_empty(), "{folder}:\n{}", complaints.join("\n"));
}

/// Reads the sources in `folder` and its subfolders, by their paths without `.rs`.
fn read(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_stem().unwrap().to_str().unwrap());
        if path.is_dir() {
            read(&path, &format!("{name}/"), files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns one line for each import from a folder of a higher layer, and one for a circle of files.
fn complaints(files: &BTreeMap<String, String>) -> Vec<String> {
    let height = |file: &str| FOLDERS.iter().position(|folder| file.split('/').next() == Some(*folder));
    let modules: BTreeMap<_, _> = files.keys().map(|file| (module(file), file.as_str())).collect();
    let (mut complaints, mut imported) = (Vec::new(), BTreeMap::new());
    for (file, source) in files {
        let from_others: &mut BTreeSet<&str> = imported.entry(file.as_str()).or_default();
        for path in imports(source, &module(file)) {
            let mut prefixes = (0..=path.len()).rev().filter_map(|length| modules.get(&path[..length]));
            let Some(&from) = prefixes.next().filter(|from| *from != file) else { continue };
            from_others.insert(from);
            if height(file).is_some_and(|own| height(from) > Some(own)) {
                let path = path.join("::");
                complaints.push(format!("`{file}` imports `crate::{path}` from `{from}`, which is a higher layer"));
            }
        }
    }
    complaints.extend(circle(imported).map(|files| format!("a circle of imports: {}", files.join(", "))));
    complaints
}

/// Returns a circle of files, each of which imports from the next, if there is one.
fn circle(mut imported: BTreeMap<&str, BTreeSet<&str>>) -> Option<Vec<String>> {
    // A file that imports from none of those that are left is in no circle.
    while let Some((&file, _)) = imported.iter().find(|(_, from)| from.is_empty()) {
        imported.remove(file);
        for from in imported.values_mut() {
            from.remove(file);
        }
    }
    let mut files = vec![*imported.first_key_value()?.0];
    loop {
        let next = *imported[files[files.len() - 1]].first()?;
        if let Some(begin) = files.iter().position(|file| *file == next) {
            return Some(files[begin..].iter().map(|file| (*file).to_owned()).collect());
        }
        files.push(next);
    }
}

/// Returns the module of a file: `["a", "b"]` for `a/b` and `a/b/mod`, and `[]` for the root of the crate.
fn module(file: &str) -> Vec<String> {
    let file = file.strip_suffix("/mod").unwrap_or(file);
    if ["lib", "main"].contains(&file) { Vec::new() } else { file.split('/').map(str::to_owned).collect() }
}

/// Returns what a file imports from its own crate, by `use` and by paths in its code. The paths begin at the root of the
/// crate. Modules for tests do not count.
fn imports(source: &str, module: &[String]) -> BTreeSet<Vec<String>> {
    let tokens = tokens(source.parse().unwrap());
    let mut imports = BTreeSet::new();
    Scope::of(&tokens, module.to_vec()).collect(&tokens, &mut imports);
    imports
}

/// A token of Rust that matters to imports: no literal, and no comment.
#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    Punctuation(char),
    /// The kind of the brackets, and the tokens between them.
    Group(Delimiter, Vec<Token>),
}

fn tokens(source: TokenStream) -> Vec<Token> {
    let tokens = source.into_iter().filter_map(|tree| match tree {
        TokenTree::Ident(word) => Some(Token::Word(word.to_string())),
        TokenTree::Punct(punctuation) => Some(Token::Punctuation(punctuation.as_char())),
        TokenTree::Group(group) => Some(Token::Group(group.delimiter(), tokens(group.stream()))),
        TokenTree::Literal(_) => None,
    });
    tokens.collect()
}

/// A module: its path, and the modules that it declares.
struct Scope {
    path: Vec<String>,
    children: BTreeSet<String>,
}

impl Scope {
    fn of(tokens: &[Token], path: Vec<String>) -> Self {
        let declared = tokens.windows(2).filter_map(|pair| match pair {
            [Token::Word(word), Token::Word(name)] if word == "mod" => Some(name.clone()),
            _ => None,
        });
        Self { path, children: declared.collect() }
    }

    fn collect(&self, tokens: &[Token], imports: &mut BTreeSet<Vec<String>>) {
        let mut at = 0;
        while at < tokens.len() {
            let rest = &tokens[at..];
            at += match rest {
                [Token::Punctuation('#'), Token::Group(Delimiter::Bracket, attribute), ..]
                    if is_for_tests(attribute) =>
                {
                    item_length(rest)
                }
                // `pub(super)` is no import.
                [Token::Word(word), Token::Group(Delimiter::Parenthesis, _), ..] if word == "pub" => 2,
                [Token::Word(word), Token::Word(name), Token::Group(Delimiter::Brace, body), ..] if word == "mod" => {
                    let path = [&self.path[..], std::slice::from_ref(name)].concat();
                    Self::of(body, path).collect(body, imports);
                    3
                }
                [Token::Word(word), next, ..] if word == "use" && *next != Token::Punctuation('<') => {
                    let length = item_length(rest);
                    self.collect_tree(&rest[1..length], &[], imports);
                    length
                }
                // `::std::io`, and what follows a qualified type.
                [Token::Punctuation(':'), Token::Punctuation(':'), ..] => 2 + path(&rest[2..]).1,
                [Token::Word(_), ..] => {
                    let (path, length) = path(rest);
                    if path.len() > 1 {
                        imports.extend(self.resolve(&path));
                    }
                    length
                }
                [Token::Group(_, group), ..] => {
                    self.collect(group, imports);
                    1
                }
                _ => 1,
            };
        }
    }

    /// Collects the paths of a tree after `use`, or of a subtree.
    fn collect_tree(&self, tree: &[Token], prefix: &[String], imports: &mut BTreeSet<Vec<String>>) {
        let (path, length) = path(tree);
        let path = [prefix, &path].concat();
        match tree.get(length) {
            Some(Token::Group(_, trees)) => {
                for tree in trees.split(|token| *token == Token::Punctuation(',')) {
                    self.collect_tree(tree, &path, imports);
                }
            }
            _ => imports.extend(self.resolve(&path)),
        }
    }

    /// Returns the path from the root of the crate, or `None` for a path into another crate.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let (first, mut rest) = path.split_first()?;
        let mut path_from_root = match first.as_str() {
            "crate" => Vec::new(),
            "self" => self.path.clone(),
            "super" => self.path[..self.path.len() - 1].to_vec(),
            child if self.children.contains(child) => [&self.path[..], &[child.to_owned()]].concat(),
            _ => return None,
        };
        while rest.first().is_some_and(|segment| segment == "super") {
            path_from_root.pop();
            rest = &rest[1..];
        }
        // As in `use crate::a::{self, B}`.
        path_from_root.extend(rest.iter().filter(|segment| *segment != "self").cloned());
        Some(path_from_root)
    }
}

/// Returns the path at the beginning of the tokens, and its length in tokens with a trailing `::`.
fn path(tokens: &[Token]) -> (Vec<String>, usize) {
    let (mut path, mut length) = (Vec::new(), 0);
    while let Some(Token::Word(segment)) = tokens.get(length) {
        path.push(segment.clone());
        length += 1;
        match &tokens[length..] {
            [Token::Punctuation(':'), Token::Punctuation(':'), ..] => length += 2,
            _ => break,
        }
    }
    (path, length)
}

/// Returns the length of an item in tokens. It ends with a semicolon or a body in braces. The braces in a `use` are no
/// body.
fn item_length(item: &[Token]) -> usize {
    let is_use = item[0] == Token::Word("use".to_owned());
    let is_end = |token: &Token| match token {
        Token::Group(Delimiter::Brace, _) => !is_use,
        token => *token == Token::Punctuation(';'),
    };
    item.iter().position(is_end).map_or(item.len(), |end| end + 1)
}

/// Returns whether this attribute is `cfg(test)`.
fn is_for_tests(attribute: &[Token]) -> bool {
    let word = |word: &str| Token::Word(word.to_owned());
    attribute == [word("cfg"), Token::Group(Delimiter::Parenthesis, vec![word("test")])]
}

fn files<const N: usize>(files: [(&str, &str); N]) -> BTreeMap<String, String> {
    files.map(|(file, source)| (file.to_owned(), source.to_owned())).into()
}

/// Returns the imports of a file `a/b` with this source, in alphabetical order.
fn imported(source: &str) -> Vec<String> {
    imports(source, &module("a/b")).iter().map(|path| path.join("::")).collect()
}

#[test]
fn an_import_from_a_lower_layer_is_accepted() {
    let sources = [("row/a", "pub struct A;"), ("lock/b", "use crate::row::a::A;"), ("lib", "pub use row::a::A;")];
    assert_eq!(complaints(&files(sources)), [""; 0]);
}

#[test]
fn an_import_from_a_higher_layer_is_found() {
    let sources = [("row/a", "use crate::lock::b::B;"), ("lock/b", "pub struct B;"), ("lib", "")];
    let expected = "`row/a` imports `crate::lock::b::B` from `lock/b`, which is a higher layer";
    assert_eq!(complaints(&files(sources)), [expected]);
}

#[test]
fn a_circle_is_found() {
    let sources = [("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "use crate::b::B;"), ("d", "")];
    assert_eq!(complaints(&files(sources)), ["a circle of imports: b, c"]);
}

#[test]
fn a_path_belongs_to_the_deepest_file_on_it() {
    let sources = [
        ("a/b", "use crate::a::A;"),
        ("a/mod", "mod b; pub use b::B; struct A;"),
        ("c", "use crate::a::b::B;"),
        ("lib", "mod a; mod c;"),
    ];
    assert_eq!(complaints(&files(sources)), ["a circle of imports: a/b, a/mod"]);
}

#[test]
fn an_import_through_the_root_is_found() {
    let sources = [("a", "pub struct A;"), ("b", "use crate::A;"), ("lib", "mod a; mod b; pub use b::B;")];
    assert_eq!(complaints(&files(sources)), ["a circle of imports: b, lib"]);
}

#[test]
fn nested_use_trees_are_resolved() {
    let source = "use std::{fmt, io::{self, Read}}; pub(crate) use crate::{a::B, c::{d, e as f, g::*, h::{self, I}}};";
    assert_eq!(imported(source), ["a::B", "c::d", "c::e", "c::g", "c::h", "c::h::I"]);
}

#[test]
fn relative_imports_are_resolved() {
    let source = "mod d; use d::D; use self::d::E; use super::F; use super::super::g::G; mod h { use super::I; }";
    assert_eq!(imported(source), ["a::F", "a::b::I", "a::b::d::D", "a::b::d::E", "g::G"]);
}

#[test]
fn paths_in_code_and_in_macros_are_imports() {
    let source = r##"
        mod k;
        impl crate::C for D {
            fn e(f: &super::G) -> std::io::Result<()> { h!(k, crate::i::J); self.l::<M>() }
        }
        fn m<'k>() { let n = '"'; k::o::<'_, ::k::P>(b"\"", r#""crate::q"#, '\'', '\u{7f}', 'r') }
    "##;
    assert_eq!(imported(source), ["C", "a::G", "a::b::k::o", "i::J"]);
}

#[test]
fn comments_strings_visibilities_and_tests_are_no_imports() {
    let source = r#"
        //! [`crate::c`]
        // use crate::d::D; /* crate::d */
        pub(in crate::e) struct E(pub(super) u8);
        const F: &str = "use crate::f::F;";
        #[cfg(test)]
        use crate::g::G;
        #[cfg(test)]
        #[expect(missing_docs)]
        mod tests { use super::*; use crate::h::H; }
        use crate::i::I;
    "#;
    assert_eq!(imported(source), ["i::I"]);
}
