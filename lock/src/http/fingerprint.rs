//! What makes two requests the same: the digest of a body, JSON in canonical form, and the parts of a form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::str::from_utf8;
use std::sync::Arc;

use http::HeaderName;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use lambda_http::RequestExt;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::response::latin1;
use crate::idempotency::hex;

/// Levels of nested lists and objects in a canonical form. `serde_json` reads as many.
const LEVELS: usize = 127;

/// The largest body with a canonical form, because that takes many times its size in memory.
const MAX_CANONICAL_BYTES: usize = 1 << 20;

/// The version of the digests: those of two versions are not compared.
const VERSION: u32 = 2;

type ChosenPart = dyn Fn(&Parts, &[u8]) -> Option<Value> + Send + Sync;

/// What of a request must be equal in a retry, besides its method, path and query.
#[derive(Clone, Default)]
pub(super) struct FingerprintRule {
    pub(super) headers: Vec<HeaderName>,
    /// What of the body counts, instead of all of it.
    pub(super) body: Option<Arc<ChosenPart>>,
}

impl FingerprintRule {
    /// Returns the digests of what must be equal in a duplicate, in the form of a record: one of method, path, query and
    /// body, and one for each of the headers. A deployment with other headers compares those that it knows.
    pub(super) fn fingerprint(&self, parts: &Parts, body: &[u8]) -> String {
        // A nested router shortens the path, and API Gateway's stage is only in the path of the request.
        let paths = [parts.extensions.raw_http_path(), parts.uri.path()];
        let query = query(parts.uri.query().unwrap_or_default());
        let request = hash(&json!([parts.method.as_str(), paths, query, self.digest(parts, body)]));
        let mut fingerprint = format!("{VERSION}:{request}");
        for name in &self.headers {
            let values = parts.headers.get_all(name).iter().map(|value| latin1(value.as_bytes()));
            // A form that is built anew has another boundary, which counts with the body if it counts at all.
            let is_type = *name == CONTENT_TYPE;
            let values: Vec<_> = values.map(|value| if is_type { without_boundary(&value) } else { value }).collect();
            // With the request, so that a value that can be guessed cannot be found.
            let digest = hash(&json!([request, name.as_str(), values]));
            let _infallible = write!(fingerprint, " {VERSION}-{name}:{digest}");
        }
        fingerprint
    }

    fn digest(&self, parts: &Parts, body: &[u8]) -> String {
        let chosen = self.body.as_ref().and_then(|chosen| chosen(parts, body));
        let Some(chosen) = chosen else { return digest(parts, body) };
        let text = chosen.to_string();
        let mut digest = Sha256::new();
        digest.update("chosen:");
        digest.update(canonical(&text).unwrap_or(text));
        hex(&digest.finalize())
    }
}

fn hash(value: &Value) -> String {
    hex(&Sha256::digest(value.to_string()))
}

/// Returns the parameters in the order of their names, because a REST API and a load balancer do not keep their order.
/// The values of one name keep theirs.
fn query(text: &str) -> Vec<&str> {
    let mut parameters: Vec<_> = text.split('&').collect();
    parameters.sort_by_key(|parameter| parameter.split('=').next());
    parameters
}

/// Returns the digest of a whole body: of JSON in canonical form, of the parts of a form, or of the bytes.
fn digest(parts: &Parts, body: &[u8]) -> String {
    let is_canonical = is_json(parts) && body.len() <= MAX_CANONICAL_BYTES;
    let canonical = from_utf8(body).ok().filter(|_| is_canonical).and_then(canonical);
    let mut digest = Sha256::new();
    if let Some(json) = &canonical {
        digest.update("json:");
        digest.update(json);
    } else if let Some(parts) = boundary(content_type(parts)).and_then(|boundary| multipart(body, boundary)) {
        digest.update("parts:");
        for part in parts {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
    } else {
        digest.update("bytes:");
        match is_gzip(parts).then(|| body.split_at_checked(GZIP_TIME.end)).flatten() {
            // When the client compressed the body says nothing about what is in it.
            Some((start, rest)) if start.starts_with(&GZIP_START) => {
                digest.update(&start[..GZIP_TIME.start]);
                digest.update([0; GZIP_TIME.end - GZIP_TIME.start]);
                digest.update(rest);
            }
            _ => digest.update(body),
        }
    }
    hex(&digest.finalize())
}

/// The start of a body that is compressed with gzip, and the position of the time in it (RFC 1952).
const GZIP_START: [u8; 3] = [0x1f, 0x8b, 8];
const GZIP_TIME: Range<usize> = 4..8;

fn is_gzip(parts: &Parts) -> bool {
    let coding = parts.headers.get(CONTENT_ENCODING).map(|coding| coding.as_bytes().trim_ascii());
    coding.is_some_and(|coding| [&b"gzip"[..], b"x-gzip"].iter().any(|gzip| coding.eq_ignore_ascii_case(gzip)))
}

fn content_type(parts: &Parts) -> &str {
    parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns the boundary that the content type of a form names.
fn boundary(content_type: &str) -> Option<&str> {
    let (media_type, parameters) = content_type.split_once(';')?;
    let is_multipart = media_type.trim().get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/"));
    let mut boundaries = parameters.split(';').filter_map(boundary_in);
    let boundary = boundaries.next().filter(|boundary| is_multipart && !boundary.is_empty())?;
    boundaries.next().is_none().then_some(boundary)
}

fn boundary_in(parameter: &str) -> Option<&str> {
    let (name, value) = parameter.split_once('=')?;
    name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
}

fn without_boundary(content_type: &str) -> String {
    let others: Vec<_> = content_type.split(';').filter(|parameter| boundary_in(parameter).is_none()).collect();
    others.join(";")
}

/// Returns the parts of a multipart body (RFC 2046), each with its headers. Returns `None` for one with anything else before,
/// between or behind its parts: it is compared byte by byte.
fn multipart<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<&'a [u8]>> {
    let delimiter = format!("\r\n--{boundary}");
    let mut rest = body.strip_prefix(&delimiter.as_bytes()[2..])?;
    let mut parts = Vec::new();
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            return matches!(end, b"" | b"\r\n").then_some(parts);
        }
        rest = rest.strip_prefix(b"\r\n")?;
        let part = find(rest, delimiter.as_bytes())?;
        parts.push(&rest[..part]);
        rest = &rest[part + delimiter.len()..];
    }
}

/// Returns the position of a delimiter, which begins with CR.
fn find(bytes: &[u8], delimiter: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        from += bytes[from..].iter().position(|byte| *byte == b'\r')?;
        if bytes[from..].starts_with(delimiter) {
            return Some(from);
        }
        from += 1;
    }
}

fn is_json(parts: &Parts) -> bool {
    let media_type = content_type(parts).split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type == "application/json" || media_type.ends_with("+json")
}

/// Returns JSON without insignificant spaces, with sorted names and with strings escaped in one way. Numbers stay as they
/// are written: two spellings of a number may be two numbers to a handler.
///
/// Returns `None` for what is not JSON, for names that occur twice in an object, and for more than [`LEVELS`] levels.
fn canonical(text: &str) -> Option<String> {
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let mut canonical = String::with_capacity(text.len());
    Scanner { rest: text }.value(&mut canonical, LEVELS)?;
    Some(canonical)
}

/// Reads text that is known to be JSON.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn value(&mut self, out: &mut String, levels: usize) -> Option<()> {
        match self.peek()? {
            '{' => self.object(out, levels.checked_sub(1)?),
            '[' => self.array(out, levels.checked_sub(1)?),
            '"' => {
                out.push_str(&self.string()?);
                Some(())
            }
            _ => {
                let end = self.rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(self.rest.len());
                out.push_str(self.take(end)?);
                Some(())
            }
        }
    }

    fn array(&mut self, out: &mut String, levels: usize) -> Option<()> {
        self.punctuation(out)?;
        while self.peek()? != ']' {
            if self.peek()? == ',' {
                self.punctuation(out)?;
            }
            self.value(out, levels)?;
        }
        self.punctuation(out)
    }

    fn object(&mut self, out: &mut String, levels: usize) -> Option<()> {
        self.punctuation(out)?;
        let mut members = BTreeMap::new();
        while self.peek()? != '}' {
            if self.peek()? == ',' {
                self.take(1)?;
                self.peek()?;
            }
            let (name, mut value) = (self.string()?, String::new());
            self.peek()?;
            self.take(1)?; // the colon
            self.value(&mut value, levels)?;
            if members.insert(name, value).is_some() {
                return None;
            }
        }
        for (index, (name, value)) in members.iter().enumerate() {
            out.push_str(if index == 0 { "" } else { "," });
            out.push_str(name);
            out.push(':');
            out.push_str(value);
        }
        self.punctuation(out)
    }

    /// Reads a string with its quotes, and returns it with the usual escapes.
    fn string(&mut self) -> Option<String> {
        let mut escaped = true; // the opening quote
        let end = self.rest.find(|character| {
            let is_end = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            is_end
        })?;
        let text: String = serde_json::from_str(self.take(end + 1)?).ok()?;
        Some(Value::from(text).to_string())
    }

    /// Skips spaces, and returns the next character.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.rest.chars().next()
    }

    /// Moves one character of ASCII.
    fn punctuation(&mut self, out: &mut String) -> Option<()> {
        out.push_str(self.take(1)?);
        Some(())
    }

    fn take(&mut self, end: usize) -> Option<&'a str> {
        let (taken, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(uri: &str, content_type: &str) -> Parts {
        Request::post(uri).header(CONTENT_TYPE, content_type).body(()).unwrap().into_parts().0
    }

    #[test]
    fn json_has_one_canonical_form() {
        for (text, expected) in [
            (r#" { "b" : [ 1 , 2.50 , { } ] , "a" : "é\u00e9\/\n" } "#, r#"{"a":"éé/\n","b":[1,2.50,{}]}"#),
            ("[[],[ ],{},\t\"]\",\"\\\"}\"]", r#"[[],[],{},"]","\"}"]"#),
            (r#"{"a":{"d":1,"c":true},"B":null}"#, r#"{"B":null,"a":{"c":true,"d":1}}"#),
            (r#"{"a!":1,"a":2}"#, r#"{"a!":1,"a":2}"#),
            ("123456789012345678901234567890.10", "123456789012345678901234567890.10"),
            (r#""""#, r#""""#),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
            assert_eq!(canonical(expected).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn json_that_would_lose_something_has_no_canonical_form() {
        let deep = "[".repeat(128) + &"]".repeat(128);
        for text in ["", "{", "1 2", "nul", r#"{"a":1,"a":1}"#, r#"[{"a":1,"\u0061":2}]"#, r#""\ud800""#, &deep] {
            assert_eq!(canonical(text), None, "{text}");
        }
        assert!(canonical(&("[".repeat(127) + &"]".repeat(127))).is_some());
        // As deep as a request can be.
        assert_eq!(canonical(&("[".repeat(3 << 20) + &"]".repeat(3 << 20))), None);
    }

    #[test]
    fn numbers_that_a_float_cannot_tell_apart_are_different() {
        let digests: Vec<_> = ["1", "1.0", "1e0", "18446744073709551616", "18446744073709551617", "0.1", "0.10"]
            .map(|number| digest(&parts("/", "application/json"), number.as_bytes()))
            .into();
        for (index, one) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(one), "{index}");
        }
    }

    #[test]
    fn only_a_json_type_makes_a_body_json() {
        let (a, b) = (br#"{"a":1,"b":2}"#, br#"{ "b": 2, "a": 1 }"#);
        for (content_type, is_equal) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/merge-patch+json", true),
            ("text/plain", false),
            ("application/jsonl", false),
            ("", false),
        ] {
            let parts = parts("/", content_type);
            assert_eq!(digest(&parts, a) == digest(&parts, b), is_equal, "{content_type}");
            assert_eq!(digest(&parts, a), digest(&parts, a));
        }
    }

    #[test]
    fn a_large_body_has_no_canonical_form() {
        let digest_of = |body: String| digest(&parts("/", "application/json"), body.as_bytes());
        let text = |length| format!("\"{}\"", "x".repeat(length - 2));
        for (length, is_equal) in [(MAX_CANONICAL_BYTES - 1, true), (MAX_CANONICAL_BYTES, false)] {
            assert_eq!(digest_of(text(length)) == digest_of(format!(" {}", text(length))), is_equal, "{length}");
        }
    }

    #[test]
    fn the_order_of_parameters_counts_only_within_a_name() {
        for (one, other, is_equal) in [
            ("a=1&b=2", "b=2&a=1", true),
            ("a=1&b=2", "a=1&b=3", false),
            ("a=1&a=2", "a=2&a=1", false),
            ("a=1&a=2&b", "b&a=1&a=2", true),
            ("", "a", false),
        ] {
            assert_eq!(query(one) == query(other), is_equal, "{one} {other}");
        }
        // More than a sort would keep in order by chance.
        let twice = |name: u8| format!("{name}=1&{name}=2");
        let (up, down): (Vec<_>, Vec<_>) = ((0..40).map(twice).collect(), (0..40).rev().map(twice).collect());
        assert_eq!(query(&up.join("&")), query(&down.join("&")));
    }

    #[test]
    fn a_form_has_the_parts_between_its_boundaries() {
        for (body, expected) in [
            ("--b\r\nh: 1\r\n\r\nx\r\n--b\r\n\r\n\r\n--\r\n--b--\r\n", Some(&["h: 1\r\n\r\nx", "\r\n\r\n--"][..])),
            ("--b--", Some(&[])),
            ("--b\r\n\r\n--b--", Some(&[""])),
            // Something before, between or behind the parts, a longer boundary, and no end.
            ("x\r\n--b\r\n1\r\n--b--", None),
            ("--b\r\nname: a\r\n\r\n1\r\n--b  x\r\n--b--", None),
            ("--b\r\n1\r\n--b--\r\nx", None),
            ("--b\r\n1\r\n--b", None),
            ("--b\r\n1", None),
            ("--bb\r\n1\r\n--bb--", None),
            ("", None),
        ] {
            let parts = multipart(body.as_bytes(), "b");
            let expected = expected.map(|parts| parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>());
            assert_eq!(parts, expected, "{body:?}");
        }
    }

    #[test]
    fn only_a_multipart_type_with_one_boundary_has_it() {
        for (content_type, expected) in [
            ("multipart/form-data; boundary=a=b", Some("a=b")),
            ("Multipart/Related; charset=utf-8;BOUNDARY=\"a b\"", Some("a b")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=a; boundary=b", None),
            ("text/plain; boundary=a", None),
        ] {
            assert_eq!(boundary(content_type), expected, "{content_type}");
        }
        assert_eq!(without_boundary("multipart/mixed; boundary=a;charset=utf-8"), "multipart/mixed;charset=utf-8");
    }
}
