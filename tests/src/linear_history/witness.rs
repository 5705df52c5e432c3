//! What a client of DynamoDB saw: each request when it was sent, and its answer when it came.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{self, ConfigBag, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use lambda_lock::embedded::{Answer, Intercept};
use serde_json::Value;

/// Something that a client saw, or that the network did.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// A request was sent. Its number is its position.
    Sent { operation: String, request: Value },
    /// The answer to the request of this number arrived.
    Answered { number: usize, status: u16, body: Value },
    /// A request reached the row, and was accepted or rejected. If one does so more often than it was sent, the network has
    /// repeated it.
    Arrived { request: Value },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Witness {
    seen: Arc<Mutex<Vec<Seen>>>,
    /// The request that arrives, as it was sent. A mutation changes it afterwards.
    arriving: Arc<Mutex<Value>>,
}

impl Witness {
    pub(super) fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arriving(&self) -> MutexGuard<'_, Value> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an answer is one of the row: not that of a throttled request, or of one that meets a transaction.
pub(super) fn is_of_the_row(status: u16, body: &Value) -> bool {
    let is_rejected = || body["__type"].as_str().is_some_and(|of| of.ends_with("ConditionalCheckFailedException"));
    status == 200 || (status == 400 && is_rejected())
}

/// The number of a request, between its transmission and its answer.
#[derive(Clone, Copy, Debug)]
struct Number(usize);

impl Storable for Number {
    type Storer = StoreReplace<Self>;
}

fn json(body: Option<&[u8]>) -> Value {
    serde_json::from_slice(body.unwrap_or_default()).unwrap_or_default()
}

/// What the client sends and gets, each attempt of the SDK by itself.
impl config::Intercept for Witness {
    fn name(&self) -> &'static str {
        "Witness"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        let request = json(context.request().body().bytes());
        let mut seen = self.seen();
        bag.interceptor_state().store_put(Number(seen.len()));
        seen.push(Seen::Sent { operation, request });
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        if let Some(Number(number)) = bag.load::<Number>() {
            let (status, body) = (response.status().as_u16(), json(response.body().bytes()));
            self.seen().push(Seen::Answered { number: *number, status, body });
        }
        Ok(())
    }
}

/// What arrives.
impl Intercept for Witness {
    fn request(&self, _: &str, request: &mut Value) {
        *self.arriving() = request.clone();
    }

    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if is_of_the_row(answer.status, &answer.body) {
            let request = self.arriving().take();
            self.seen().push(Seen::Arrived { request });
        }
    }
}
