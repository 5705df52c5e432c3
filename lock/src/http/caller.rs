//! `Caller`: whose request it is.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use lambda_http::request::RequestContext;
use lambda_runtime::Context;
use serde_json::{Value, json};

use crate::idempotency::is_missing;

/// The role session of all identities of a Cognito identity pool.
const COGNITO_SESSION: &str = ":CognitoIdentityCredentials";

type Identify = dyn Fn(&Parts) -> Option<Value> + Send + Sync;

/// Whose idempotency keys these are.
///
/// ```
/// # use lambda_lock::http::Caller;
/// /// The account that a layer around `HttpIdempotencyLayer` has authenticated and inserted.
/// #[derive(Clone)]
/// struct Account(String);
///
/// let caller = Caller::by(|request| request.extensions.get::<Account>().map(|account| account.0.clone()));
/// ```
///
/// Two callers can use the same key for different operations.
///
/// Every `HttpIdempotencyLayer` needs one. A request whose caller is unknown is answered with 403 and does not run. The
/// caller is stored only as part of the hash that is the record's key. In a function with Lambda's tenant isolation,
/// each tenant has its own keys, with any `Caller`.
///
/// | | who is a caller | from |
/// | --- | --- | --- |
/// | [`iam_principal`](Self::iam_principal) | an IAM user, role session or Cognito identity | REST and HTTP APIs and function URLs with IAM authorization |
/// | [`jwt_subject`](Self::jwt_subject) | the subject of a token, with its issuer | HTTP APIs with a JWT authorizer, REST APIs with a Cognito authorizer |
/// | [`api_key`](Self::api_key) | an API key, by its id | REST APIs |
/// | [`tenant`](Self::tenant) | a tenant: all its users share their keys | functions with tenant isolation |
/// | [`by`](Self::by) | what a closure reads from the request | |
/// | [`shared`](Self::shared) | everyone: all share their keys | |
///
/// `iam_principal`, `jwt_subject` and `api_key` trust the event's `requestContext`. A principal that may invoke the
/// function directly can forge it: grant `lambda:InvokeFunction` to callers of a function URL only with the condition
/// `lambda:InvokedViaFunctionUrl`.
#[derive(Clone)]
pub struct Caller(Option<Arc<Identify>>);

impl Caller {
    /// Reads the caller from the request's head: a string, or any JSON value. `None`, null, an empty string and a list
    /// of nulls mean that the caller is unknown. A list with one null, such as `[tenant, user]` without a user, is a
    /// known caller: return `None` if a part is missing.
    ///
    /// Read only what an authorizer, a gateway or your own check has verified. A client that can choose its caller can
    /// read the stored responses of others.
    #[must_use]
    pub fn by<C: Into<Value>>(caller: impl Fn(&Parts) -> Option<C> + Send + Sync + 'static) -> Self {
        Self::known(move |parts| caller(parts).map(Into::into))
    }

    /// The IAM principal that signed the request, by its unique id: a user, or one session of a role. The principal
    /// that assumes a role chooses the session's name, which is part of the id, unless the role's trust policy
    /// restricts `sts:RoleSessionName`.
    ///
    /// For credentials of a Cognito identity pool, the identity is part of the caller, because all identities have the
    /// same role session. A function URL does not name the identity, so these callers are unknown there.
    #[must_use]
    pub fn iam_principal() -> Self {
        Self::known(|parts| {
            let (principal, identity) = match parts.extensions.get::<RequestContext>()? {
                RequestContext::ApiGatewayV1(context) => {
                    (context.identity.user.as_ref()?, context.identity.cognito_identity_id.as_ref())
                }
                RequestContext::ApiGatewayV2(context) => {
                    let iam = context.authorizer.as_ref()?.iam.as_ref()?;
                    let cognito = iam.cognito_identity.as_ref();
                    (iam.user_id.as_ref()?, cognito.and_then(|cognito| cognito.identity_id.as_ref()))
                }
                _ => return None,
            };
            let identity = identity.filter(|identity| !identity.is_empty());
            let is_known = !principal.is_empty() && (identity.is_some() || !principal.ends_with(COGNITO_SESSION));
            is_known.then(|| json!(["iam", principal, identity]))
        })
    }

    /// The subject of the request's JSON Web Token (`sub`), with its issuer (`iss`). Both are required.
    #[must_use]
    pub fn jwt_subject() -> Self {
        Self::known(|parts| {
            let (issuer, subject) = match parts.extensions.get::<RequestContext>()? {
                RequestContext::ApiGatewayV1(context) => {
                    let claims = context.authorizer.fields.get("claims")?;
                    (claims["iss"].as_str()?, claims["sub"].as_str()?)
                }
                RequestContext::ApiGatewayV2(context) => {
                    let claims = &context.authorizer.as_ref()?.jwt.as_ref()?.claims;
                    (claims.get("iss")?.as_str(), claims.get("sub")?.as_str())
                }
                _ => return None,
            };
            (!issuer.is_empty() && !subject.is_empty()).then(|| json!(["jwt", issuer, subject]))
        })
    }

    /// The API key of the request, by its id. The key's value is not read.
    #[must_use]
    pub fn api_key() -> Self {
        Self::known(|parts| {
            let RequestContext::ApiGatewayV1(context) = parts.extensions.get::<RequestContext>()? else { return None };
            let id = context.identity.api_key_id.as_ref().filter(|id| !id.is_empty())?;
            Some(json!(["api-key", id]))
        })
    }

    /// The tenant of the invocation, [`Context::tenant_id`]. All users of a tenant are one caller.
    #[must_use]
    pub fn tenant() -> Self {
        Self::known(|parts| {
            let tenant = parts.extensions.get::<Context>()?.tenant_id.as_ref().filter(|tenant| !tenant.is_empty())?;
            Some(json!(["tenant", tenant]))
        })
    }

    /// Treats all callers as one. A caller who learns another one's key can read the response to it.
    #[must_use]
    pub fn shared() -> Self {
        Self(None)
    }

    fn known(caller: impl Fn(&Parts) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(caller)))
    }

    /// Returns the caller of a request as a part of its key, or `None` if it is unknown.
    pub(super) fn of(&self, parts: &Parts) -> Option<Value> {
        match &self.0 {
            Some(caller) => caller(parts).filter(|caller| !is_missing(caller)),
            None => Some(Value::Null),
        }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").finish_non_exhaustive()
    }
}
