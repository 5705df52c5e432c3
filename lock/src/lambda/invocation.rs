//! The function, holder, tenant and deadline of an invocation.

use std::any::Any;

use lambda_runtime::Context;
use serde_json::Value;

use crate::error::Error;
use crate::holder::Holder;
use crate::idempotency::Invocation;
use crate::limits::{deadline_if_any, holder_within_bounds};
use crate::lock::Locks;

/// Returns the holder's name: the function, the request id and the log stream to look into.
pub(super) fn holder(context: &Context) -> String {
    let config = &context.env_config;
    let name = [&config.function_name, &context.request_id, &config.log_stream].map(String::as_str).join(" ");
    holder_within_bounds(name.trim())
}

/// Returns whether an attempt of this invocation holds the key, or one of its permits. Lambda retries an asynchronous
/// invocation with the same request id. The first attempt has crashed then.
pub(super) fn is_held_by_attempt(context: &Context, refusal: &Error) -> bool {
    if context.request_id.is_empty() {
        return false;
    }
    let attempt = format!("{} {}", context.env_config.function_name, context.request_id);
    let is_attempt = |holder: &Holder| {
        let rest = holder.name().and_then(|name| name.strip_prefix(attempt.trim()));
        !holder.has_released() && rest.is_some_and(|stream| stream.is_empty() || stream.starts_with(' '))
    };
    refusal.holder().is_some_and(|holder| is_attempt(holder) || holder.permits().iter().any(is_attempt))
}

/// Returns the invocation of this context.
pub(crate) fn invocation_of(context: &Context, locks: &Locks) -> Invocation {
    Invocation {
        function: context.env_config.function_name.clone(),
        holder: Some(holder(context)),
        tenant: tenant(context),
        deadline: deadline_if_any(context.deadline(), locks.0.clock.now()),
    }
}

/// Returns the id of the invocation's tenant as a part of a key.
fn tenant(context: &Context) -> Option<String> {
    context.tenant_id.as_deref().filter(|tenant| !tenant.is_empty()).map(escape)
}

/// Adds the invocation's tenant to this key. An empty key stays empty, and is refused later.
pub(super) fn key_of_tenant(context: &Context, key: String) -> Result<String, Error> {
    let tenant = tenant(context).ok_or_else(Error::no_tenant)?;
    Ok(if key.is_empty() { key } else { format!("{key}#{tenant}") })
}

/// Escapes `#`, which separates the parts of a key.
pub(super) fn escape(part: &str) -> String {
    part.replace('%', "%25").replace('#', "%23")
}

/// Refuses an invocation of a durable execution, which returns at each suspension. Only a [`Value`] shows whether it is
/// one.
pub(super) fn check_not_durable<P: 'static>(payload: &P, locks: &Locks) -> Result<(), Error> {
    let event = (payload as &dyn Any).downcast_ref::<Value>();
    let has = |field| event.and_then(|event| event.get(field)).is_some_and(Value::is_string);
    if locks.0.enabled && has("DurableExecutionArn") && has("CheckpointToken") {
        return Err(Error::durable_execution());
    }
    Ok(())
}
