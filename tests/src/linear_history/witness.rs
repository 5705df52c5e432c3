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

use super::judge::{Seen, is_of_the_rows};

#[derive(Clone, Debug)]
pub(super) struct Witness {
    seen: Arc<Mutex<Vec<Seen>>>,
    /// The request that arrives, as it was sent. A mutation changes it afterwards.
    arriving: Arc<Mutex<Value>>,
    /// DynamoDB has forgotten the tokens of transactions when they are repeated.
    forgets_tokens: bool,
}

impl Witness {
    pub(super) fn new(forgets_tokens: bool) -> Self {
        Self { seen: Arc::default(), arriving: Arc::default(), forgets_tokens }
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arriving(&self) -> MutexGuard<'_, Value> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_token(&self, request: &mut Value) {
        if let Some(request) = request.as_object_mut().filter(|_| self.forgets_tokens) {
            request.remove("ClientRequestToken");
        }
    }
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
        let mut request = json(context.request().body().bytes());
        self.forget_token(&mut request);
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
        self.forget_token(request);
        *self.arriving() = request.clone();
    }

    fn answer(&self, _: &str, _: &Value, answer: &mut Answer) {
        if is_of_the_rows(answer.status, &answer.body) {
            let request = self.arriving().take();
            self.seen().push(Seen::Arrived { request, status: answer.status });
        }
    }
}
