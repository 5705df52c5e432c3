//! `Layered`: a handler under a layer.

/// A handler under a layer of this crate. [`LockService`](crate::lambda::LockService),
/// [`IdempotencyService`](crate::lambda::IdempotencyService), [`ConsumerService`](crate::lambda::ConsumerService) and
/// `HttpIdempotencyService` are this type with their layer. The pages of these aliases say how the handler is called.
#[derive(Clone, Debug)]
pub struct Layered<S, L> {
    pub(crate) inner: S,
    pub(crate) layer: L,
}
