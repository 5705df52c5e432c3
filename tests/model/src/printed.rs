//! Values that are compared and hashed by what they print: the state machines that ship have no `Eq` and no `Hash`.

use std::fmt::{self, Debug};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;

/// A value that was printed once, when it was made.
#[derive(Clone)]
pub(crate) struct Printed<T> {
    print: u64,
    value: T,
}

impl<T: Debug> Printed<T> {
    pub(crate) fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        format!("{value:?}").hash(&mut hasher);
        Self { print: hasher.finish(), value }
    }

    /// The hash of what it prints.
    pub(crate) fn print(&self) -> u64 {
        self.print
    }
}

impl<T> Deref for Printed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Debug> Debug for Printed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> PartialEq for Printed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl<T> Hash for Printed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.print);
    }
}
