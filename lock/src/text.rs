//! Text of others, made fit for a message, a log or a terminal: on one line, and not too long.
//!
//! Keys and names of holders come from callers, from other hosts and from other programs. A line break in one of
//! them would forge a line of a log, and a name of 100 KB would hide the rest of it.

use std::borrow::Cow;

/// The longest value in a message, in bytes. The ARN of a table is shorter.
pub const MAX_SHOWN: usize = 320;

/// Returns a value for people: shortened, and escaped.
#[must_use]
pub fn printable(value: &str) -> Cow<'_, str> {
    printable_up_to(value, MAX_SHOWN)
}

/// Returns a text for people that is shortened to this many bytes, and then escaped.
#[must_use]
pub fn printable_up_to(text: &str, most: usize) -> Cow<'_, str> {
    match shortened(text, most) {
        Cow::Borrowed(whole) => escaped(whole),
        Cow::Owned(short) => Cow::Owned(escaped(&short).into_owned()),
    }
}

/// Returns the text, or its start, its end and its length in `most` bytes. Both ends, because many keys differ only there.
#[must_use]
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let length = format!(" ({} bytes)", text.len());
    let room = most.saturating_sub(length.len() + '…'.len_utf8());
    let start = text.floor_char_boundary(room - room / 4);
    let end = text.ceil_char_boundary(text.len() - room / 4);
    Cow::Owned(format!("{}…{}{length}", &text[..start], &text[end..]))
}

/// Returns the text with an escape, such as `\n` or `\u{202e}`, for each character that misleads its reader.
pub fn escaped(text: &str) -> Cow<'_, str> {
    // Most texts are plain.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(misleads) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Returns whether a character steers the terminal, ends the line, changes the text direction, or is invisible: control
/// characters, the separators of lines and paragraphs, the annotation characters, and `Default_Ignorable_Code_Point` of
/// Unicode 17, which includes the direction marks.
#[must_use]
pub fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_value_is_unchanged() {
        for value in ["", "nightly-report", "arn:aws:dynamodb:eu-west-1:1:table/a", "Größe#\\n %0A", &"k".repeat(320)]
        {
            assert!(matches!(printable(value), Cow::Borrowed(same) if same == value), "{value}");
        }
    }

    #[test]
    fn a_long_value_keeps_both_ends_and_tells_its_length() {
        let short = printable_up_to(&format!("start{}end", "é".repeat(50_000)), 64).into_owned();
        assert!(short.starts_with("starté") && short.ends_with("éend (100008 bytes)"), "{short}");
        assert!(short.contains("é…é") && (60..=64).contains(&short.len()), "{short}");
        // Cut in the middle of a character, at every offset.
        for start in 0..4 {
            let text = "x".repeat(start) + &"🔒".repeat(1000);
            assert!(shortened(&text, 64).len() <= 64);
        }
        assert_eq!(shortened("0123456789", 4), "… (10 bytes)");
    }

    #[test]
    fn a_misleading_character_is_escaped() {
        let misleading = "a\nb\r\u{1b}[2J\u{9b}\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}";
        let shown = r"a\nb\r\u{1b}[2J\u{9b}\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}";
        assert_eq!(printable(misleading), shown);
        assert_eq!(printable(shown), shown);
    }
}
