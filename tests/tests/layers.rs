//! The files of the crate form layers: each file imports only from lower layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The files of `lock/src` without `.rs`, from the lowest layer up. A `mod.rs` is a higher layer than its children. They
/// do not import from it.
const CRATE: &[&str] = &[
    "clock",
    "random",
    "text",
    "trace",
    "queue",
    "holder",
    "error",
    "limits",
    "metrics",
    "panics",
    "connections",
    "client",
    "sdk",
    "row/names",
    "row/owner",
    "row/expression",
    "row/table",
    "row/attribute",
    "row/semaphore",
    "row/read",
    "row/write",
    "row/script",
    "row/repeat",
    "row/claim",
    "row/place",
    "row/record_claim",
    "row/kind",
    "row/record",
    "row/acquire",
    "row/hold",
    "row/ticket",
    "row/join",
    "row/reserve",
    "row/free",
    "row/expired",
    "row/probe",
    "row/mod",
    "lock/backoff",
    "lock/wait",
    "lock/turn",
    "lock/turn/predictions",
    "lock/turns",
    "lock/telemetry",
    "lock/register",
    "lock/locks",
    "lock/held",
    "lock/attempt",
    "lock/ticket",
    "lock/identity",
    "lock/complete",
    "lock/acquire",
    "lock/asking",
    "lock/running",
    "lock/semaphore",
    "lock/set",
    "lock/mod",
    "model",
    "idempotency/format/testing",
    "idempotency/format/json",
    "idempotency/format/attribute",
    "idempotency/format/finite",
    "idempotency/format/record_format",
    "idempotency/format/mod",
    "idempotency/cache",
    "idempotency/policy",
    "idempotency/error",
    "idempotency/run",
    "idempotency/settings",
    "idempotency/execution",
    "idempotency/mod",
    "lambda/invocation",
    "lambda/event_id",
    "lambda/diagnostic",
    "lambda/handler_input",
    "lambda/snap_start",
    "lambda/lock_layer",
    "lambda/idempotency_layer",
    "lambda/batch/source",
    "lambda/batch/outcome",
    "lambda/batch/consumer",
    "lambda/batch/lane",
    "lambda/batch/slots",
    "lambda/batch/run",
    "lambda/batch/service",
    "lambda/batch/mod",
    "lambda/sqs/message",
    "lambda/sqs/requests",
    "lambda/sqs/source",
    "lambda/sqs/consumer",
    "lambda/sqs/mod",
    "lambda/streams/source",
    "lambda/streams/kinesis",
    "lambda/streams/image",
    "lambda/streams/dynamodb",
    "lambda/streams/consumer",
    "lambda/streams/mod",
    "lambda/kafka/answer",
    "lambda/kafka/event",
    "lambda/kafka/record",
    "lambda/kafka/source",
    "lambda/kafka/consumer",
    "lambda/kafka/mod",
    "lambda/mod",
    "http/response",
    "http/problem",
    "http/caller",
    "http/fingerprint",
    "http/request",
    "http/run",
    "http/layer",
    "http/mod",
    "operate/create_table",
    "operate/list",
    "operate/expired",
    "operate/check",
    "operate/mod",
    "embedded/time",
    "embedded/partitions",
    "embedded/dynamodb",
    "embedded/faults",
    "embedded/network",
    "embedded/host",
    "embedded/mod",
    "docs",
    "lib",
];

/// The files of `lock/src/bin/lambda-lock`, in the same order.
const PROGRAM: &[&str] = &[
    "failure",
    "output",
    "help",
    "arguments",
    "manual",
    "identity",
    "connect",
    "process",
    "signals",
    "guard",
    "command",
    "supervise",
    "run",
    "ticket",
    "entry",
    "show",
    "mapping",
    "function",
    "operate",
    "main",
];

#[test]
fn the_crate_imports_only_from_lower_layers() {
    assert_layered("lock/src", CRATE);
}

#[test]
fn the_program_imports_only_from_lower_layers() {
    assert_layered("lock/src/bin/lambda-lock", PROGRAM);
}

/// `Display` leaves out the message of DynamoDB or of the network. `Debug` has it, on the same line.
#[test]
fn the_log_has_each_error_with_its_cause() {
    let mut files = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/src"), "", &mut files);
    let without: Vec<_> = files.iter().filter(|(_, source)| source.contains("%error")).map(|(name, _)| name).collect();
    assert!(!files.is_empty() && without.is_empty(), "log `?error` instead of `%error`: {without:?}");
}

#[track_caller]
fn assert_layered(folder: &str, layers: &[&str]) {
    let mut files = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    read(&root, "", &mut files);
    let complaints = complaints(&files, layers);
    assert!(complaints.is_empty(), "{folder}:\n{}", complaints.join("\n"));
}

/// Reads the sources in `folder` and its subfolders, by their paths without `.rs`. The folder `bin` belongs to another
/// crate.
fn read(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_stem().unwrap().to_str().unwrap());
        if path.is_dir() && name != "bin" {
            read(&path, &format!("{name}/"), files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns one line for each import from a higher layer, and for each difference between the files and the list of
/// layers.
fn complaints(files: &BTreeMap<String, String>, layers: &[&str]) -> Vec<String> {
    let height = |file: &str| layers.iter().position(|layer| *layer == file);
    let modules: BTreeMap<_, _> = files.keys().map(|file| (module(file), file)).collect();
    let mut complaints = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        if !files.contains_key(*layer) {
            complaints.push(format!("`{layer}` is in the list, but there is no such file"));
        }
        if height(layer) != Some(index) {
            complaints.push(format!("`{layer}` is in the list twice"));
        }
    }
    for (file, source) in files {
        let Some(own) = height(file) else {
            complaints.push(format!("`{file}` is not in the list: insert it after the files that it imports from"));
            continue;
        };
        for path in imports(source, &module(file)) {
            let prefixes = (0..=path.len()).rev().filter_map(|length| modules.get(&path[..length]));
            let Some(&from) = prefixes.into_iter().next() else { continue };
            if from != file && height(from).is_some_and(|height| height > own) {
                complaints.push(format!(
                    "`{file}` imports `crate::{}` from `{from}`, which is a higher layer",
                    path.join("::")
                ));
            }
        }
    }
    complaints
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
                // `::std::io`, and what follows `<T as U>`.
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
    let files = files([("a", "pub struct A;"), ("b", "use crate::a::A;"), ("lib", "mod a; mod b; pub use a::A;")]);
    assert_eq!(complaints(&files, &["a", "b", "lib"]), [""; 0]);
}

#[test]
fn a_circle_is_found() {
    let files = files([("a", "use crate::b::B;"), ("b", "use crate::a::A;"), ("lib", "mod a; mod b;")]);
    assert_eq!(complaints(&files, &["a", "b", "lib"]), ["`a` imports `crate::b::B` from `b`, which is a higher layer"]);
    assert_eq!(complaints(&files, &["b", "a", "lib"]), ["`b` imports `crate::a::A` from `a`, which is a higher layer"]);
}

#[test]
fn a_missing_a_vanished_and_a_repeated_file_are_found() {
    let files = files([("a", ""), ("b", ""), ("lib", "")]);
    let expected = [
        "`gone` is in the list, but there is no such file",
        "`a` is in the list twice",
        "`b` is not in the list: insert it after the files that it imports from",
    ];
    assert_eq!(complaints(&files, &["a", "gone", "a", "lib"]), expected);
}

#[test]
fn a_path_belongs_to_the_deepest_file_on_it() {
    let files = files([
        ("a/b", "use crate::a::A;"),
        ("a/mod", "mod b; pub use b::B; pub(super) use self::b::C; struct A;"),
        ("c", "use crate::a::{A, b::B};"),
        ("lib", "mod a; mod c;"),
    ]);
    let expected = [
        "`a/mod` imports `crate::a::b::B` from `a/b`, which is a higher layer",
        "`a/mod` imports `crate::a::b::C` from `a/b`, which is a higher layer",
        "`c` imports `crate::a::b::B` from `a/b`, which is a higher layer",
    ];
    assert_eq!(complaints(&files, &["a/mod", "c", "a/b", "lib"]), expected);
    let expected = ["`a/b` imports `crate::a::A` from `a/mod`, which is a higher layer"];
    assert_eq!(complaints(&files, &["a/b", "a/mod", "c", "lib"]), expected);
}

#[test]
fn an_import_through_the_root_is_found() {
    let files = files([("a", "pub struct A;"), ("b", "use crate::A;"), ("lib", "mod a; mod b; pub use a::A;")]);
    assert_eq!(complaints(&files, &["a", "b", "lib"]), ["`b` imports `crate::A` from `lib`, which is a higher layer"]);
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
