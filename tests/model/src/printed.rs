//! Values that are compared and hashed by what they print: the state machines that ship have no `Eq` and no `Hash`.

use std::fmt::{self, Debug};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::str::Chars;

/// A value that was printed once, when it was made.
#[derive(Clone)]
pub(crate) struct Printed<T> {
    print: u64,
    value: T,
}

impl<T: Debug> Printed<T> {
    pub(crate) fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        let text = format!("{value:?}");
        let has_items = text.contains(r#"({""#);
        (if has_items { sorted(&mut text.chars(), None) } else { text }).hash(&mut hasher);
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

/// Sorts the entries of each map in a text: an item, which is a `HashMap`, prints them in any order.
fn sorted(text: &mut Chars<'_>, end: Option<char>) -> String {
    let mut entries = vec![String::new()];
    while let Some(next) = text.next().filter(|next| Some(*next) != end) {
        let inner = match next {
            '{' => Some('}'),
            '(' => Some(')'),
            '[' => Some(']'),
            _ => None,
        };
        let is_comma = next == ',';
        if is_comma {
            entries.push(String::new());
        }
        if let Some(entry) = entries.last_mut().filter(|_| !is_comma) {
            entry.push(next);
            if inner.is_some() {
                entry.push_str(&sorted(text, inner));
            }
        }
    }
    if end == Some('}') {
        for entry in &mut entries {
            *entry = entry.trim().to_owned();
        }
        entries.sort_unstable();
    }
    entries.join(",")
}
