//! The stored response, and the body of an answer.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes};
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::limits::MAX_DATA_BYTES;

/// Marks a replayed response.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Headers that belong to one message or one connection, and cookies, which belong to one client.
const NOT_STORED: [HeaderName; 12] = [
    SET_COOKIE,
    DATE,
    CONTENT_LENGTH,
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

type IsResult = dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync;

/// Which responses are results, and what is stored of them.
#[derive(Clone)]
pub(super) struct ResultRule {
    pub(super) is_result: Arc<IsResult>,
    /// The stored headers, or `None` for all but [`NOT_STORED`].
    pub(super) stored_headers: Option<Arc<[HeaderName]>>,
}

/// The statuses below 500 with which a server says that it did nothing, and that the same request may succeed: after other
/// credentials or headers, later, or at another address. The guide `http` has the reasons.
const NOTHING_DONE: [u16; 26] = [
    300, 301, 304, 305, 307, 308, 401, 403, 406, 407, 408, 409, 411, 412, 415, 416, 417, 421, 423, 424, 425, 426, 428,
    429, 431, 451,
];

/// Whether a response is a result by default.
pub(super) fn is_result(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_final = (200..500).contains(&status.as_u16()) && !NOTHING_DONE.contains(&status.as_u16());
    is_final && !is_event_stream(headers)
}

/// A stream of events may have no end, and the client reads each event when it comes.
fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

impl Default for ResultRule {
    fn default() -> Self {
        Self { is_result: Arc::new(is_result), stored_headers: None }
    }
}

impl ResultRule {
    /// Returns what is stored of a response, with `None` for a body that is too large.
    pub(super) fn stored(&self, status: StatusCode, headers: &HeaderMap, body: Option<Bytes>) -> StoredResponse {
        let of_connection = of_connection(headers);
        let is_stored = |name: &HeaderName| match &self.stored_headers {
            _ if of_connection.contains(name) => false,
            Some(names) => names.contains(name),
            None => !NOT_STORED.contains(name),
        };
        let headers = headers.iter().filter(|(name, _)| is_stored(name));
        let headers = headers.map(|(name, value)| (name.clone(), value.clone())).collect();
        StoredResponse { status, headers, body, is_replay: false }
    }
}

/// Returns the headers that `Connection` names: they belong to this connection.
fn of_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let names = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

/// The most headers of a response that is stored, so that its replay can have them: a `HeaderMap` has room for 24,576 names.
const MAX_HEADERS: usize = 10_000;

/// What a record keeps of a response.
#[derive(Deserialize)]
#[serde(try_from = "Option<Wire>")]
pub(super) struct StoredResponse {
    status: StatusCode,
    headers: HeaderMap,
    /// `None` if it is too large to be stored, and in a replay if the record was completed without its result.
    body: Option<Bytes>,
    /// Whether it was read from a record. Such a response has the header of a replay.
    pub(super) is_replay: bool,
}

/// The JSON form. A header's value is Latin-1, so that any bytes are text.
#[derive(Deserialize, Serialize)]
#[serde(expecting = "a stored response")]
struct Wire {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// A body that is not UTF-8, or that is longer as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl Serialize for StoredResponse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let headers = self.headers.len();
        if headers > MAX_HEADERS {
            let why =
                format!("the response has {headers} headers, more than {MAX_HEADERS}: name some in `store_headers`");
            return Err(S::Error::custom(why));
        }
        let Some(body) = &self.body else {
            let why =
                format!("the body of the response has more than {MAX_DATA_BYTES} bytes: see `on_unstorable_result`");
            return Err(S::Error::custom(why));
        };
        let is_shorter = |text: &&str| Some(length_in_json(text)) <= base64::encoded_len(body.len(), true);
        let text = str::from_utf8(body).ok().filter(is_shorter);
        let base64 = text.is_none().then(|| STANDARD.encode(body));
        let headers = self.headers.iter().map(|(name, value)| (name.to_string(), latin1(value.as_bytes()))).collect();
        Wire { status: self.status.as_u16(), headers, body: text.map(str::to_owned), base64 }.serialize(serializer)
    }
}

/// Returns how many bytes a text has between its quotes in JSON.
fn length_in_json(text: &str) -> usize {
    let length = |byte| match byte {
        b'"' | b'\\' | b'\x08' | b'\t' | b'\n' | b'\x0c' | b'\r' => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    text.bytes().map(length).sum()
}

impl TryFrom<Option<Wire>> for StoredResponse {
    type Error = &'static str;

    fn try_from(wire: Option<Wire>) -> Result<Self, Self::Error> {
        let Some(Wire { status, headers, body, base64 }) = wire else {
            return Ok(Self { status: StatusCode::OK, headers: HeaderMap::new(), body: None, is_replay: true });
        };
        let header = |(name, value): (String, String)| {
            let value = value.chars().map(u8::try_from).collect::<Result<Vec<_>, _>>().ok()?;
            Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
        };
        let too_many = |_| "there are too many headers";
        let mut map = HeaderMap::new();
        for written in headers {
            let (name, value) = header(written).ok_or("a header is not valid")?;
            map.try_append(name, value).map_err(too_many)?;
        }
        map.try_insert(REPLAYED, HeaderValue::from_static("true")).map_err(too_many)?;
        let bytes = match base64 {
            Some(base64) => STANDARD.decode(base64).map_err(|_| "the body is not Base64")?,
            None => body.unwrap_or_default().into_bytes(),
        };
        let status = StatusCode::from_u16(status).map_err(|_| "the status is not valid")?;
        Ok(Self { status, headers: map, body: Some(bytes.into()), is_replay: true })
    }
}

pub(super) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

impl StoredResponse {
    /// Returns the replay, or `None` if the record was completed without its result.
    pub(super) fn replay<B: Body>(self) -> Option<Response<HttpIdempotencyBody<B>>> {
        let mut response = Response::new(HttpIdempotencyBody::of(self.body?));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        Some(response)
    }
}

/// The body of an answer of `HttpIdempotencyLayer`: the handler's body, a stored one, or that of a problem.
///
/// ```
/// # use lambda_lock::http::HttpIdempotencyBody;
/// fn into_axum(answer: http::Response<HttpIdempotencyBody<axum::body::Body>>) -> http::Response<axum::body::Body> {
///     answer.map(axum::body::Body::new)
/// }
/// ```
pub struct HttpIdempotencyBody<B: Body> {
    /// What was read of the handler's body, or all of a body that the layer made.
    start: Bytes,
    rest: Option<Pin<Box<B>>>,
    /// The error that ended the reading.
    pub(super) failure: Option<B::Error>,
}

impl<B: Body> HttpIdempotencyBody<B> {
    pub(super) fn of(bytes: Bytes) -> Self {
        Self { start: bytes, rest: None, failure: None }
    }

    /// Reads a body up to the size that a record can store. The returned body has the same bytes, and the same error. If
    /// the body was read to its end, also returns its bytes.
    pub(super) async fn read(body: B) -> (Self, Option<Bytes>) {
        let (body, mut bytes, mut failure) = (Box::pin(body), Vec::new(), None);
        let mut rest = Some(body);
        while let Some(body) = &mut rest {
            match poll_fn(|context| body.as_mut().poll_frame(context)).await {
                Some(Ok(frame)) => {
                    // There are no trailers behind API Gateway, and a record stores none.
                    if let Ok(data) = frame.into_data() {
                        bytes.put(data);
                    }
                    if bytes.len() > MAX_DATA_BYTES {
                        break;
                    }
                }
                Some(Err(error)) => {
                    failure = Some(error);
                    rest = None;
                }
                None => rest = None,
            }
        }
        let start = Bytes::from(bytes);
        let whole = (rest.is_none() && failure.is_none()).then(|| start.clone());
        (Self { start, rest, failure }, whole)
    }
}

impl<B: Body> From<B> for HttpIdempotencyBody<B> {
    /// Returns the same body, for an answer that does not come from the layer.
    fn from(body: B) -> Self {
        Self { start: Bytes::new(), rest: Some(Box::pin(body)), failure: None }
    }
}

// No field is pinned where it is.
impl<B: Body> Unpin for HttpIdempotencyBody<B> {}

impl<B: Body> Body for HttpIdempotencyBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.start.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.start)))));
        }
        if let Some(error) = self.failure.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match &mut self.rest {
            Some(rest) => {
                let whole = |mut data: B::Data| data.copy_to_bytes(data.remaining());
                rest.as_mut()
                    .poll_frame(context)
                    .map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(whole))))
            }
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.start.is_empty() && self.failure.is_none() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let start = self.start.len() as u64;
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(start.saturating_add(rest.lower()));
        // A body that breaks off has no length: the client would take its start for the whole.
        let upper = rest.upper().filter(|_| self.failure.is_none());
        if let Some(upper) = upper.and_then(|upper| upper.checked_add(start)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// Omits the bytes, which may be confidential.
impl<B: Body> fmt::Debug for HttpIdempotencyBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpIdempotencyBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_with_more_headers_than_a_response_can_have_is_an_error() {
        let read = |headers: usize| {
            let headers: Vec<_> = (0..headers).map(|name| (format!("x-{name}"), "")).collect();
            serde_json::from_value::<StoredResponse>(json!({ "status": 200, "headers": headers }))
        };
        assert!(read(MAX_HEADERS).is_ok_and(|stored| stored.replay::<String>().is_some()));
        assert!(read(1 << 15).is_err_and(|error| error.to_string() == "there are too many headers"));
    }
}
