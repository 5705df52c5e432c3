//! The files of the crate form layers: each imports only from files below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files of `lock/src` without `.rs`, from the bottom up. A `mod.rs` stands above its children, which do not import
/// from it.
const CRATE: &[&str] = &[
    "clock",
    "panics",
    "metrics",
    "holder",
    "error",
    "protocol",
    "client",
    "backoff",
    "telemetry",
    "lock",
    "acquire",
    "list",
    "check",
    "locks",
    "idempotency/finite",
    "idempotency/policy",
    "idempotency/refusal",
    "idempotency/format",
    "idempotency/run",
    "idempotency/mod",
    "lambda/lock_layer",
    "lambda/idempotent_layer",
    "lambda/sqs_consumer",
    "lambda/mod",
    "embedded/faults",
    "embedded/engine",
    "embedded/host",
    "embedded/mod",
    "lib",
];

/// The files of `lock/src/bin/lambda-lock`, likewise.
const PROGRAM: &[&str] = &["arguments", "manual", "connect", "command", "run", "operate", "show", "main"];

#[test]
#[ignore = "until the layers are merged"]
fn the_crate_imports_only_from_below() {
    assert_layered("lock/src", CRATE);
}

#[test]
#[ignore = "until the layers are merged"]
fn the_program_imports_only_from_below() {
    assert_layered("lock/src/bin/lambda-lock", PROGRAM);
}

#[track_caller]
fn assert_layered(folder: &str, layers: &[&str]) {
    let mut files = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    read(&root, "", &mut files);
    let complaints = complaints(&files, layers);
    assert!(complaints.is_empty(), "{folder}:\n{}", complaints.join("\n"));
}

/// Reads the sources below `folder`, by their paths without `.rs`. The folder `bin` belongs to another crate.
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

/// Returns one line for each import from a file that is not below, and for each difference between the files and the
/// list of layers.
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
            complaints.push(format!("`{file}` is not in the list: insert it above the files that it imports from"));
            continue;
        };
        for path in imports(source, &module(file)) {
            let prefixes = (0..=path.len()).rev().filter_map(|length| modules.get(&path[..length]));
            let Some(&from) = prefixes.into_iter().next() else { continue };
            if from != file && height(from).is_some_and(|height| height > own) {
                complaints
                    .push(format!("`{file}` imports `crate::{}` from `{from}`, which is above it", path.join("::")));
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
    let tokens = tokens(&mut &*source);
    let mut imports = BTreeSet::new();
    Scope::of(&tokens, module.to_vec()).collect(&tokens, &mut imports);
    imports
}

/// A token of Rust that matters to imports: no literal, and no comment.
#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    Punctuation(char),
    /// The opening bracket, and the tokens between the brackets.
    Group(char, Vec<Token>),
}

/// Takes tokens from the source until its end, or until a closing bracket.
fn tokens(source: &mut &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    while let Some(first) = source.chars().next() {
        let length = literal(source).or_else(|| comment(source)).unwrap_or(0);
        if length > 0 {
            *source = &source[length..];
            continue;
        }
        let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
        let (token, rest) = source.split_at(source.find(|c| !is_in_word(c)).unwrap_or(source.len()));
        if !token.is_empty() {
            tokens.push(Token::Word(token.to_owned()));
            *source = rest;
            continue;
        }
        *source = &source[first.len_utf8()..];
        match first {
            '(' | '[' | '{' => tokens.push(Token::Group(first, self::tokens(source))),
            ')' | ']' | '}' => break,
            _ if first.is_whitespace() => {}
            _ => tokens.push(Token::Punctuation(first)),
        }
    }
    tokens
}

/// Returns the length of the comment at the beginning of the source.
fn comment(source: &str) -> Option<usize> {
    if source.starts_with("//") {
        return Some(source.find('\n').unwrap_or(source.len()));
    }
    let mut depth = 0;
    for (at, _) in source.char_indices() {
        match &source.as_bytes()[at..] {
            [b'/', b'*', ..] => depth += 1,
            [b'*', b'/', ..] if depth == 1 => return Some(at + 2),
            [b'*', b'/', ..] => depth -= 1,
            _ if depth == 0 => break,
            _ => {}
        }
    }
    None
}

/// Returns the length of the string or character at the beginning of the source. The quote of a lifetime counts as one.
fn literal(source: &str) -> Option<usize> {
    let raw = source.trim_start_matches(['b', 'c']);
    if let Some(raw) = raw.strip_prefix('r')
        && let unhashed = raw.trim_start_matches('#')
        && unhashed.starts_with('"')
    {
        let end = format!("\"{}", &raw[..raw.len() - unhashed.len()]);
        let begin = source.len() - unhashed.len() + 1;
        return unhashed[1..].find(&end).map(|length| begin + length + end.len());
    }
    let quote = source.chars().next().filter(|first| ['"', '\''].contains(first))?;
    if quote == '\'' && !source[1..].starts_with('\\') && source.chars().nth(2) != Some(quote) {
        return Some(1);
    }
    let mut characters = source.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => _ = characters.next(),
            _ if character == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
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
                [Token::Punctuation('#'), Token::Group('[', attribute), ..] if is_for_tests(attribute) => {
                    item_length(rest)
                }
                // `pub(super)` is no import.
                [Token::Word(word), Token::Group('(', _), ..] if word == "pub" => 2,
                [Token::Word(word), Token::Word(name), Token::Group('{', body), ..] if word == "mod" => {
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
        Token::Group('{', _) => !is_use,
        token => *token == Token::Punctuation(';'),
    };
    item.iter().position(is_end).map_or(item.len(), |end| end + 1)
}

/// Returns whether this attribute is `cfg(test)`.
fn is_for_tests(attribute: &[Token]) -> bool {
    let word = |word: &str| Token::Word(word.to_owned());
    attribute == [word("cfg"), Token::Group('(', vec![word("test")])]
}

fn files<const N: usize>(files: [(&str, &str); N]) -> BTreeMap<String, String> {
    files.map(|(file, source)| (file.to_owned(), source.to_owned())).into()
}

/// Returns the imports of a file `a/b` with this source, in alphabetical order.
fn imported(source: &str) -> Vec<String> {
    imports(source, &module("a/b")).iter().map(|path| path.join("::")).collect()
}

#[test]
fn an_import_from_below_is_accepted() {
    let files = files([("a", "pub struct A;"), ("b", "use crate::a::A;"), ("lib", "mod a; mod b; pub use a::A;")]);
    assert_eq!(complaints(&files, &["a", "b", "lib"]), [""; 0]);
}

#[test]
fn a_circle_is_found() {
    let files = files([("a", "use crate::b::B;"), ("b", "use crate::a::A;"), ("lib", "mod a; mod b;")]);
    assert_eq!(complaints(&files, &["a", "b", "lib"]), ["`a` imports `crate::b::B` from `b`, which is above it"]);
    assert_eq!(complaints(&files, &["b", "a", "lib"]), ["`b` imports `crate::a::A` from `a`, which is above it"]);
}

#[test]
fn a_missing_a_vanished_and_a_repeated_file_are_found() {
    let files = files([("a", ""), ("b", ""), ("lib", "")]);
    let expected = [
        "`gone` is in the list, but there is no such file",
        "`a` is in the list twice",
        "`b` is not in the list: insert it above the files that it imports from",
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
        "`a/mod` imports `crate::a::b::B` from `a/b`, which is above it",
        "`a/mod` imports `crate::a::b::C` from `a/b`, which is above it",
        "`c` imports `crate::a::b::B` from `a/b`, which is above it",
    ];
    assert_eq!(complaints(&files, &["a/mod", "c", "a/b", "lib"]), expected);
    let expected = ["`a/b` imports `crate::a::A` from `a/mod`, which is above it"];
    assert_eq!(complaints(&files, &["a/b", "a/mod", "c", "lib"]), expected);
}

#[test]
fn an_import_through_the_root_is_found() {
    let files = files([("a", "pub struct A;"), ("b", "use crate::A;"), ("lib", "mod a; mod b; pub use a::A;")]);
    assert_eq!(complaints(&files, &["a", "b", "lib"]), ["`b` imports `crate::A` from `lib`, which is above it"]);
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
