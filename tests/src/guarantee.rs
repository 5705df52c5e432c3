//! The guarantees that the histories check. Each violation begins with one of these names, and each mutation says which it
//! breaks.

/// Of the holders that consider themselves valid at one instant, there are no more than the key has permits, or one.
pub const HOLDERS: &str = "no more valid holders than there may be";
pub const FENCES: &str = "each fence is larger than all before it";
/// After a crash, the next waiter has the key when the lease and the clock skew have passed.
pub const CRASHES: &str = "a crash blocks a key for its lease and the skew";
pub const BUDGET: &str = "a wait ends with its budget";
/// Nobody loses a valid lock, and no request changes what another owner holds.
pub const OWNERS: &str = "only its owner changes what is held";
/// A client recognises its own writes after lost answers, and a ticket that nobody has used works.
pub const ITSELF: &str = "nobody is refused by itself";
pub const ORDER: &str = "a late request undoes no later one";
pub const WITHDRAWN: &str = "an acquire that was withdrawn takes nothing";
/// Work begins again only after its window, or after it failed.
pub const ONCE: &str = "one effect for each key";
pub const ALL_OR_NONE: &str = "all keys or none";
pub const REPEATED: &str = "a request that others prevent is repeated";
/// An identity takes over what it holds, and what an operator or an identity freed stays free.
pub const FREED: &str = "what was freed stays free";
pub const SERVED: &str = "every waiter is served, and a free key is refused for a moment only";
pub const READABLE: &str = "each row can be read";
pub const GROWTH: &str = "no row grows";
pub const REPLIES: &str = "a duplicate gets the reply of the run";
pub const KINDS: &str = "a key keeps its kind while it is held";
