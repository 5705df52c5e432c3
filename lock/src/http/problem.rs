//! The answers to requests that are refused, as `application/problem+json` (RFC 9457).

use http::header::{CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body::Body;
use serde_json::json;

use super::response::HttpIdempotencyBody;
use crate::error::{Error, ErrorKind};

/// Where the `type`s of problems are documented. The last part of a type is its name in the table of the guide.
const TYPES: &str = "https://docs.rs/lambda-lock/latest/lambda_lock/docs/reference/http/index.html#";

/// Returns after how many seconds a client asks again for the response of a run of this age, whose lease lasts for the
/// `rest`, both in milliseconds: after half of its age, so that a client gets the response of a short run soon, and asks a
/// long one less and less often. When the lease has ended, there is no run to wait for.
fn seconds_to_wait(age: u64, rest: u64) -> u64 {
    (age / 2000).min(rest.div_ceil(1000)).max(1)
}

/// Why a request is refused. The guide `http` has a table of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    KeyMissing,
    KeyMalformed,
    KeyTooLong {
        characters: usize,
        most: usize,
    },
    BodyUnreadable,
    CallerUnknown,
    /// With the seconds after which the client asks again.
    InProgress(u64),
    Unfinished,
    ResultNotStored,
    /// With the largest number of bytes.
    BodyTooLarge(usize),
    KeyReused,
    ResultUnusable,
    Failed,
    Interrupted,
    Unavailable,
}

impl Problem {
    /// Returns the problem of an error of the lock or the record, at `now` in milliseconds since the epoch.
    pub(super) fn of(error: &Error, now: u64) -> Self {
        match error.kind() {
            ErrorKind::KeyMissing => Self::KeyMissing,
            ErrorKind::InProgress | ErrorKind::Held => {
                let (since, until) = error.holder().map_or((None, 0), |holder| (holder.since, holder.end()));
                let age = now.saturating_sub(since.unwrap_or(now));
                Self::InProgress(seconds_to_wait(age, until.saturating_sub(now)))
            }
            ErrorKind::Unfinished => Self::Unfinished,
            ErrorKind::Mismatch => Self::KeyReused,
            ErrorKind::UnusableResult => Self::ResultUnusable,
            ErrorKind::Lost => Self::Interrupted,
            ErrorKind::Throttled | ErrorKind::Unavailable | ErrorKind::Conflict => Self::Unavailable,
            _ => Self::Failed,
        }
    }

    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyMalformed | Self::KeyTooLong { .. } | Self::BodyUnreadable => {
                StatusCode::BAD_REQUEST
            }
            Self::CallerUnknown => StatusCode::FORBIDDEN,
            Self::InProgress(_) | Self::Unfinished | Self::ResultNotStored => StatusCode::CONFLICT,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::ResultUnusable | Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Interrupted | Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the last part of the type.
    pub(super) fn name(self) -> &'static str {
        self.facts().0
    }

    /// The last part of the type, and the title.
    const fn facts(self) -> (&'static str, &'static str) {
        match self {
            Self::KeyMissing => ("key-missing", "The request has no idempotency key"),
            Self::KeyMalformed => ("key-malformed", "The idempotency key is malformed"),
            Self::KeyTooLong { .. } => ("key-too-long", "The idempotency key is too long"),
            Self::BodyUnreadable => ("body-unreadable", "The request's body cannot be read"),
            Self::CallerUnknown => ("caller-unknown", "The caller is unknown"),
            Self::InProgress(_) => ("in-progress", "The first request with this key is in progress"),
            Self::Unfinished => ("unfinished", "The first request with this key did not finish"),
            Self::ResultNotStored => ("result-not-stored", "The response to the first request was not stored"),
            Self::BodyTooLarge(_) => ("body-too-large", "The request's body is too large"),
            Self::KeyReused => ("key-reused", "The idempotency key belongs to another request"),
            Self::ResultUnusable => ("result-unusable", "The response cannot be stored or replayed"),
            Self::Failed => ("failed", "The request was not processed"),
            Self::Interrupted => ("interrupted", "The request took too long"),
            Self::Unavailable => ("unavailable", "The service is unavailable"),
        }
    }

    fn detail(self) -> String {
        match self {
            Self::KeyMissing => "Send the header Idempotency-Key with a value that is unique to this operation.".into(),
            Self::KeyMalformed => {
                "Send one header Idempotency-Key with a string in double quotes, of visible ASCII characters and spaces."
                    .into()
            }
            Self::KeyTooLong { characters, most } => {
                format!("The key has {characters} characters, and may have up to {most}.")
            }
            Self::BodyUnreadable => "The body ended before it was complete. Send the request again.".into(),
            Self::CallerUnknown => {
                "Requests with an idempotency key need a caller that the service can tell from others.".into()
            }
            Self::InProgress(_) => {
                "Send the same request again after the time that the header Retry-After names.".into()
            }
            Self::Unfinished => {
                "Its effect may have happened. Find out before you send the operation again with another key.".into()
            }
            Self::ResultNotStored => {
                "The operation was done, and is not done again. Only the first request got the response: read the result \
                 elsewhere."
                    .into()
            }
            Self::BodyTooLarge(most) => format!("The body may have up to {most} bytes."),
            Self::KeyReused => "A request with this key and different content came before. Use a new key.".into(),
            Self::ResultUnusable => "The operation may have been done. Its response is lost.".into(),
            Self::Failed => {
                "The service has a fault. Report it, and send the same request again after it is corrected.".into()
            }
            Self::Interrupted => {
                "The operation may have been done in part. Send the same request again, with the same key.".into()
            }
            Self::Unavailable => "Send the same request again, with the same key.".into(),
        }
    }

    fn retry_after(self) -> Option<u64> {
        match self {
            Self::InProgress(seconds) => Some(seconds),
            Self::Interrupted | Self::Unavailable => Some(1),
            _ => None,
        }
    }

    /// Returns the answer, with a link to the user's documentation.
    pub(super) fn response<B: Body>(self, documentation: Option<&str>) -> Response<HttpIdempotencyBody<B>> {
        let (name, title) = self.facts();
        let mut body = json!({
            "type": format!("{TYPES}{name}"),
            "title": title,
            "status": self.status().as_u16(),
            "detail": self.detail(),
        });
        let link = documentation.and_then(|link| {
            body["documentation"] = link.into();
            let is_safe = link.is_ascii() && !link.contains(['<', '>']);
            HeaderValue::try_from(format!("<{link}>; rel=\"describedby\"")).ok().filter(|_| is_safe)
        });
        let mut response = Response::new(HttpIdempotencyBody::of(body.to_string().into()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(link) = link {
            headers.insert(LINK, link);
        }
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_with_the_age_of_the_run_within_its_lease() {
        for (age, rest, expected) in [
            (0, 900_000, 1),
            (300, 900_000, 1),
            (3_999, 900_000, 1),
            (4_000, 900_000, 2),
            (60_500, 900_000, 30),
            (60_500, 20_001, 21),
            (60_500, 200, 1),
            (0, 0, 1),
        ] {
            assert_eq!(seconds_to_wait(age, rest), expected, "{age} {rest}");
        }
    }

    #[test]
    fn a_client_that_heeds_each_wait_asks_eighteen_times_in_fifteen_minutes() {
        let (mut age, mut asked) = (300, 0);
        while age < 900_000 {
            age += 1_000 * seconds_to_wait(age, 900_000 - age);
            asked += 1;
        }
        assert_eq!(asked, 18);
    }
}
