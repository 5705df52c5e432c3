//! Requests with the header `Idempotency-Key`: the key, and when two requests are the same.

use std::convert::Infallible;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use lambda_http::{Body, Request, Response};
use lambda_lock::embedded::Host;
use lambda_lock::http::{Caller, HttpIdempotencyLayer};
use lambda_lock_tests::invocation::invocation;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde::de::IgnoredAny;
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};

use crate::in_virtual_time;
use crate::search::for_all;

const REPLAYED: (StatusCode, bool) = (StatusCode::CREATED, true);
const RAN: (StatusCode, bool) = (StatusCode::CREATED, false);

/// The status, and whether the answer is a replay.
async fn sent(layer: &HttpIdempotencyLayer, host: &Host, key: HeaderValue, body: Vec<u8>) -> (StatusCode, bool) {
    let request = http::Request::post("https://api.example/orders").extension(invocation(host, ()).context);
    let request = request.header("idempotency-key", key).header(CONTENT_TYPE, "application/json");
    let handler = service_fn(async |_: Request| {
        Ok::<_, Infallible>(Response::builder().status(StatusCode::CREATED).body(Body::Empty).unwrap())
    });
    let answer = layer.layer(handler).oneshot(request.body(Body::Binary(body)).unwrap()).await.unwrap();
    let (head, body) = answer.into_parts();
    body.collect().await.unwrap();
    (head.status, head.headers.contains_key("idempotency-replayed"))
}

/// Sends two requests, and returns what both get.
fn both(first: (&HeaderValue, &[u8]), second: (&HeaderValue, &[u8])) -> [(StatusCode, bool); 2] {
    in_virtual_time(async |world| {
        let host = world.host().build();
        let layer = HttpIdempotencyLayer::new(world.locks(&host).build().unwrap(), Caller::shared());
        let first = sent(&layer, &host, first.0.clone(), first.1.to_vec()).await;
        [first, sent(&layer, &host, second.0.clone(), second.1.to_vec()).await]
    })
}

/// A string of structured fields, between spaces and with parameters.
fn quoted(text: &str, spaces: &str, parameters: &str) -> HeaderValue {
    let escaped: String =
        text.chars().flat_map(|c| ['\\'].into_iter().filter(move |_| "\\\"".contains(c)).chain([c])).collect();
    HeaderValue::from_str(&format!("{spaces}\"{escaped}\"{parameters}{spaces}")).unwrap()
}

#[test]
fn a_header_of_any_bytes_is_a_key_or_a_bad_request() {
    let near = "[ \t]{0,2}\"?([ -~]|\\\\\"){0,9}\"?(; ?[a-z*]{0,3}=?[ -~]{0,4}){0,2}";
    let bytes = prop_oneof![
        3 => near.prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..20),
        1 => (200..9000_usize).prop_map(|length| vec![b'k'; length]),
    ];
    for_all("header", 100, &bytes, |bytes| {
        let Ok(value) = HeaderValue::from_bytes(&bytes) else { return };
        let [first, again] = both((&value, b"1"), (&value, b"1"));
        match first {
            RAN => assert_eq!(again, REPLAYED),
            other => assert_eq!((other, again), ((StatusCode::BAD_REQUEST, false), first)),
        }
    });
}

#[test]
fn a_key_in_quotes_is_its_text_and_no_other() {
    let texts = || "[ -~]{1,5}|[ab\\\\\"]{1,3}";
    let around = (select(vec!["", " ", "\t "]), select(vec!["", ";a", "; v=1;w=\"\\\"\"", ";b=?0"]));
    for_all("quoted", 60, &(texts(), texts(), around), |(one, other, (spaces, parameters))| {
        let answers = both((&quoted(&one, "", ""), b"1"), (&quoted(&one, spaces, parameters), b"1"));
        assert_eq!(answers, [RAN, REPLAYED], "{one}");
        let answers = both((&quoted(&one, "", ""), b"1"), (&quoted(&other, spaces, parameters), b"1"));
        assert_eq!(answers[1] == REPLAYED, one == other, "{one} {other}");
        // Without what needs quotes, they can be left out.
        if !one.contains(['"', '\\', ',', ';']) && one.trim() == one {
            let bare = HeaderValue::from_str(&one).unwrap();
            assert_eq!(both((&quoted(&one, "", ""), b"1"), (&bare, b"1")), [RAN, REPLAYED], "{one}");
        }
    });
}

/// JSON as it is written: numbers have their digits.
#[derive(Clone, Debug, PartialEq)]
enum Json {
    Word(&'static str),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

const WORDS: [&str; 10] =
    ["null", "true", "0", "-0", "1", "1.0", "1e0", "10", "18446744073709551616", "18446744073709551617"];

const TEXTS: [&str; 9] = ["", "a", "A", "é", "e\u{301}", "\"\\/\n", "🔒", "null", "1"];

/// The names of members.
const NAMES: [&str; 4] = ["", "a", "A", "é"];

fn any_document() -> impl Strategy<Value = Json> + Clone {
    let texts = select(TEXTS.to_vec()).prop_map(str::to_owned);
    let flat = prop_oneof![select(WORDS.to_vec()).prop_map(Json::Word), texts.prop_map(Json::Text)];
    flat.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::List),
            btree_map(select(NAMES.to_vec()).prop_map(str::to_owned), inner, 0..4)
                .prop_map(|fields| Json::Object(fields.into_iter().collect())),
        ]
    })
}

/// The choices of a writer that do not change what is written.
#[derive(Clone, Copy, Debug)]
struct Style {
    spaces: &'static str,
    is_reversed: bool,
    escapes: bool,
}

fn any_style() -> impl Strategy<Value = Style> + Clone {
    (select(vec!["", " ", "\n\t\r "]), any::<bool>(), any::<bool>()).prop_map(|(spaces, is_reversed, escapes)| Style {
        spaces,
        is_reversed,
        escapes,
    })
}

impl Json {
    fn write(&self, style: Style) -> String {
        let Style { spaces, is_reversed, escapes } = style;
        let text = |text: &String| {
            if escapes {
                let units: Vec<_> = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
                return format!("\"{}\"", units.concat());
            }
            Value::from(text.as_str()).to_string()
        };
        let between = format!("{spaces},{spaces}");
        match self {
            Self::Word(word) => format!("{spaces}{word}{spaces}"),
            Self::Text(value) => text(value),
            Self::List(list) => {
                let list: Vec<_> = list.iter().map(|value| value.write(style)).collect();
                format!("[{spaces}{}{spaces}]", list.join(&between))
            }
            Self::Object(fields) => {
                let mut fields: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| format!("{}{spaces}:{}", text(name), value.write(style)))
                    .collect();
                if is_reversed {
                    fields.reverse();
                }
                format!("{{{spaces}{}{spaces}}}", fields.join(&between))
            }
        }
    }
}

/// Another document, which differs from this one in one place.
fn changed(document: &Json, mut at: usize, word: &'static str, name: &str) -> Json {
    fn change(document: &mut Json, at: &mut usize, word: &'static str, name: &str) {
        let is_here = *at == 0;
        *at = at.wrapping_sub(1);
        match document {
            Json::Word(old) if is_here => *old = word,
            Json::Text(old) if is_here => name.clone_into(old),
            Json::List(list) if is_here => list.push(Json::Word(word)),
            Json::Object(fields) if is_here => {
                if fields.iter().all(|(other, _)| other != name)
                    && let Some((first, _)) = fields.first_mut()
                {
                    name.clone_into(first);
                    fields.sort_by(|one, other| one.0.cmp(&other.0));
                }
            }
            Json::List(list) => list.iter_mut().for_each(|value| change(value, at, word, name)),
            Json::Object(fields) => fields.iter_mut().for_each(|(_, value)| change(value, at, word, name)),
            _ => {}
        }
    }
    let mut document = document.clone();
    change(&mut document, &mut at, word, name);
    document
}

#[test]
fn bodies_are_the_same_if_they_differ_in_spaces_order_and_escapes_only() {
    let key = HeaderValue::from_static("a");
    let change = (0..4_usize, select(WORDS.to_vec()), select(NAMES.to_vec()));
    let cases = (any_document(), any_style(), change, any_style());
    for_all("bodies", 150, &cases, |(one, style, (at, word, name), other_style)| {
        let other = changed(&one, at, word, name);
        let first = one.write(style);
        let second = one.write(other_style);
        assert_eq!(both((&key, first.as_bytes()), (&key, second.as_bytes())), [RAN, REPLAYED], "{first} {second}");
        let second = other.write(other_style);
        let [_, answer] = both((&key, first.as_bytes()), (&key, second.as_bytes()));
        let expected = if one == other { REPLAYED } else { (StatusCode::UNPROCESSABLE_ENTITY, false) };
        assert_eq!(answer, expected, "{first} {second}");
    });
}

#[test]
fn bodies_of_any_bytes_are_the_same_only_if_they_are_equal() {
    let key = HeaderValue::from_static("a");
    let bytes = || prop_oneof!["[\\[\\]{}:,\"\\\\ a1.e-]{0,8}".prop_map(String::into_bytes), vec(any::<u8>(), 0..8)];
    for_all("bytes", 100, &(bytes(), bytes()), |(one, other)| {
        assert_eq!(both((&key, &one), (&key, &one)), [RAN, REPLAYED]);
        let is_valid = |bytes: &[u8]| serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
        if one != other && !(is_valid(&one) && is_valid(&other)) {
            assert_eq!(both((&key, &one), (&key, &other))[1], (StatusCode::UNPROCESSABLE_ENTITY, false));
        }
    });
}
