//! What the middleware reads of a request: the key, and the body.

use std::any::Any;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::BufMut;
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use http_body::Body;
use sfv::{BareItem, Item, Parser};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::fingerprint::FingerprintRule;
use super::problem::Problem;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Returns the key, if the header is there: a string of RFC 9651, with or without its quotes.
pub(super) fn key(headers: &HeaderMap, most: usize) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::KeyMalformed);
    }
    let text = value.to_str().map_err(|_| Problem::KeyMalformed)?.trim_matches([' ', '\t']);
    let key = if text.starts_with('"') {
        // Parameters have no meaning here.
        match Parser::new(text).parse::<Item>() {
            Ok(Item { bare_item: BareItem::String(key), .. }) => key.into(),
            _ => return Err(Problem::KeyMalformed),
        }
    } else if text.contains(['"', '\\', ',', ';', '\t']) {
        // Several headers may have been joined with commas.
        return Err(Problem::KeyMalformed);
    } else {
        text.to_owned()
    };
    match key.len() {
        0 => Err(Problem::KeyMissing),
        characters if characters > most => Err(Problem::KeyTooLong { characters, most }),
        _ => Ok(Some(key)),
    }
}

/// For how long a body is read and dropped, as nginx does by default (`lingering_time`).
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the next piece of it may take (`lingering_timeout`).
const PIECE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads a body of which nothing was read, and drops it.
pub(super) async fn discard<B: Body>(headers: &HeaderMap, body: Pin<&mut B>) {
    // This client sends the body only after `100 Continue`, which the first read would send.
    if headers.get(EXPECT).is_none_or(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        discard_rest(body).await;
    }
}

/// Reads the rest of a body and drops it. A server that answers before, and then closes the connection, resets it while
/// the client sends: the client may then not get the answer.
async fn discard_rest<B: Body>(mut body: Pin<&mut B>) {
    let read = async {
        while let Ok(Some(Ok(_))) = timeout(PIECE_TIMEOUT, poll_fn(|context| body.as_mut().poll_frame(context))).await {
            // A body that is always ready would not let the time run out.
            consume_budget().await;
        }
    };
    // If the time runs out, the answer may be lost.
    let _ = timeout(DISCARD_TIMEOUT, read).await;
}

/// Reads the body, up to this many bytes. Returns the fingerprint of the request, and the body again.
pub(super) async fn read<B>(parts: &Parts, body: B, most: usize, rule: &FingerprintRule) -> Result<(String, B), Problem>
where
    B: Body + From<Vec<u8>> + 'static,
{
    let in_memory: &dyn Any = &body;
    if let Some(bytes) = in_memory.downcast_ref::<lambda_http::Body>() {
        // This body stays as it is, text or binary.
        return match bytes.len() {
            length if length > most => Err(Problem::BodyTooLarge(most)),
            _ => Ok((rule.fingerprint(parts, bytes), body)),
        };
    }
    let mut body = pin!(body);
    if body.size_hint().lower() > most as u64 {
        discard(&parts.headers, body).await;
        return Err(Problem::BodyTooLarge(most));
    }
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let Ok(data) = frame.map_err(|_| Problem::BodyUnreadable)?.into_data() else { continue };
        bytes.put(data);
        if bytes.len() > most {
            drop(bytes);
            discard_rest(body).await;
            return Err(Problem::BodyTooLarge(most));
        }
    }
    Ok((rule.fingerprint(parts, &bytes), B::from(bytes)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read_key(values: &[&[u8]]) -> Result<Option<String>, Problem> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY, HeaderValue::from_bytes(value).unwrap());
        }
        key(&headers, 10)
    }

    #[test]
    fn a_key_is_a_string_with_or_without_quotes() {
        for (value, expected) in [
            (r#""key-1""#, "key-1"),
            ("key-1", "key-1"),
            (r#"  "key-1"	"#, "key-1"),
            (r#""a \"b\\""#, r#"a "b\"#),
            (r#""key-1";a"#, "key-1"),
            (r#""key-1"; a=1;*b-c.d="x\";y";e=:aGk=:;f=?1"#, "key-1"),
            (r#""a,b;c""#, "a,b;c"),
            ("a:b/c=d", "a:b/c=d"),
            ("0123456789", "0123456789"),
        ] {
            assert_eq!(read_key(&[value.as_bytes()]), Ok(Some(expected.to_owned())), "{value}");
        }
    }

    #[test]
    fn an_empty_key_is_missing() {
        assert_eq!(read_key(&[]), Ok(None));
        for value in [&b""[..], b"  ", b"\"\""] {
            assert_eq!(read_key(&[value]), Err(Problem::KeyMissing));
        }
    }

    #[test]
    fn rejects_keys_that_are_no_strings() {
        for value in [
            "\"",
            "\"key",
            "key\"",
            "\"a\" b",
            "\"a\"b",
            "\"a\", \"b\"",
            "a,b",
            "a;b",
            "a\\b",
            r#""a\b""#,
            "\"a\tb\"",
            "a\tb",
            "\"a\";",
            "\"a\"; =1",
            "\"a\";A",
            "\"a\";b=",
            "\"a\";b=\"",
            "\"a\";b=1,2",
            "\"a\" ;b",
        ] {
            assert_eq!(read_key(&[value.as_bytes()]), Err(Problem::KeyMalformed), "{value}");
        }
        assert_eq!(read_key(&["Schlüssel".as_bytes()]), Err(Problem::KeyMalformed));
        assert_eq!(read_key(&[b"a", b"a"]), Err(Problem::KeyMalformed));
        assert_eq!(read_key(&[b"0123456789a"]), Err(Problem::KeyTooLong { characters: 11, most: 10 }));
    }
}
