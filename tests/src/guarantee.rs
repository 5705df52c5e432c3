//! The guarantees that the histories check. Each violation begins with one of these names, and each mutation says which it
//! breaks.

/// Of the holders that consider themselves valid at one instant, there are no more than the key has permits, or one.
pub(crate) const HOLDERS: &str = "no more valid holders than there may be";
pub(crate) const FENCES: &str = "each fence is larger than all before it";
/// After a crash, the next waiter has the key when the lease and the clock skew have passed.
pub(crate) const CRASHES: &str = "a crash blocks a key for its lease and the skew";
pub(crate) const BUDGET: &str = "a wait ends with its budget";
/// Nobody loses a valid lock, and no request changes what another owner holds.
pub(crate) const OWNERS: &str = "only its owner changes what is held";
/// A client recognises its own writes after lost answers.
pub(crate) const ITSELF: &str = "nobody is refused by itself";
pub(crate) const ORDER: &str = "a late request undoes no later one";
pub(crate) const WITHDRAWN: &str = "an acquire that was withdrawn takes nothing";
/// Work begins again only after its window, or after it failed.
pub(crate) const ONCE: &str = "one effect for each key";
/// Of the calls of a rate: no two are nearer than the interval, and none passes before its time.
pub(crate) const TIMES: &str = "each call has a time of its own";
/// Also: a holder runs once more only if somebody was skipped meanwhile.
pub(crate) const AGAIN: &str = "after an invocation that was skipped, a run begins";
pub(crate) const ALL_OR_NONE: &str = "all keys or none";
pub(crate) const REPEATED: &str = "a request that others prevent is repeated";
/// An identity takes over what it holds, and what an operator or an identity freed stays free.
pub(crate) const FREED: &str = "what was freed stays free";
pub(crate) const SERVED: &str = "every waiter is served, and a free key is refused for a moment only";
pub(crate) const READABLE: &str = "each row can be read";
pub(crate) const GROWTH: &str = "no row grows";
pub(crate) const REPLIES: &str = "a duplicate gets the reply of the run";
pub(crate) const KINDS: &str = "a key keeps its kind while it is held";
