//! How numbers, times, ids and foreign text look on a screen.

use crate::contract::ids::JobId;
use crate::contract::quantity::{Seconds, Timestamp};

/// Characters of an id's tail in tables: 30 bits, so that a few thousand jobs rarely share one.
const TAIL: usize = 6;

/// `4.1 GB`: decimal units, as disks and networks are labelled.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `79.6 GiB`: binary units, as GPUs are sold, and as placement says what a job asks for.
pub(super) fn binary(bytes: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(40, "TiB"), (30, "GiB"), (20, "MiB")];
    let (shift, unit) = UNITS.into_iter().find(|(shift, _)| bytes >> shift > 0).unwrap_or((20, "MiB"));
    let tenths = ((u128::from(bytes) * 10) + (1_u128 << (shift - 1))) >> shift;
    match tenths % 10 {
        0 => format!("{} {unit}", tenths / 10),
        tenth => format!("{}.{tenth} {unit}", tenths / 10),
    }
}

/// `12 ms`, `3.4 s`, `2 min 5 s`, `1 h 3 min`, `2 d 4 h`.
pub(super) fn span(seconds: Seconds) -> String {
    let millis = seconds.millis();
    let whole = (millis + 500) / 1000;
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..59_950 => format!("{:.1} s", millis as f64 / 1000.0),
        _ if whole < 3_600 => two(whole / 60, "min", whole % 60, "s"),
        _ if whole < 86_400 => two(whole / 3_600, "h", whole % 3_600 / 60, "min"),
        _ => two(whole / 86_400, "d", whole % 86_400 / 3_600, "h"),
    }
}

fn two(first: u64, unit: &str, second: u64, smaller: &str) -> String {
    if second == 0 { format!("{first} {unit}") } else { format!("{first} {unit} {second} {smaller}") }
}

/// A moment in the reader's own time zone, to the second.
pub(super) fn moment(time: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(time.micros()) {
        Ok(time) => {
            time.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => time.to_string(),
    }
}

/// The end of an id, enough to name a job: `a1b2c3`.
pub(super) fn tail(id: JobId) -> String {
    let text = id.to_string();
    text[text.len() - TAIL..].to_owned()
}

/// A word as a shell reads it back.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Text of a job as it may go to a terminal: what could move the cursor, retitle the window or paste is shown, not
/// obeyed. Colours pass when `colour`, and are taken back at the end of the line.
pub(super) fn harmless(text: &str, colour: bool) -> String {
    // The first bytes of what is looked for below: most text has none of them.
    if !text.bytes().any(|byte| matches!(byte, ..0x20 | 0x7f | 0xc2 | 0xd8 | 0xe2)) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    let mut coloured = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(length) = colour_sequence(rest) {
            if colour {
                out.push_str(&rest[..length]);
                coloured = true;
            }
            rest = &rest[length..];
            continue;
        }
        if c == '\t' || !(c.is_control() || turns_text(c)) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
        rest = &rest[c.len_utf8()..];
    }
    if coloured {
        out.push_str("\x1b[0m");
    }
    out
}

/// Whether a character changes the direction of the text around it, so that it reads as what it is not.
const fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The length of a colour sequence `ESC [ digits ; … m` at the start of `text`.
fn colour_sequence(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let length = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters[length..].starts_with('m').then_some(2 + length + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_read_well_at_their_borders() {
        let sizes =
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB")];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(4_100_000_000), "4.1 GB");
        assert_eq!(size(u64::MAX), "18.4 EB");
        for (bytes, text) in [(85_520_809_984, "79.6 GiB"), (24 << 30, "24 GiB"), (1, "0 MiB")] {
            assert_eq!(binary(bytes), text);
        }
        let spans = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (59_949, "59.9 s"),
            (59_960, "1 min"),
            (125_000, "2 min 5 s"),
            (3_600_000, "1 h"),
            (3_780_000, "1 h 3 min"),
            (187_200_000, "2 d 4 h"),
        ];
        for (millis, text) in spans {
            assert_eq!(span(Seconds::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_word_is_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("train.py"), "train.py");
        assert_eq!(quoted("it's two"), r"'it'\''s two'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_job_cannot_take_over_the_terminal() {
        assert_eq!(harmless("plain ü\ttext", true), "plain ü\ttext");
        assert_eq!(harmless("\x1b[31mred", true), "\x1b[31mred\x1b[0m");
        assert_eq!(harmless("\x1b[31mred\x1b[0m", false), "red");
        assert_eq!(harmless("\x1b]0;title\x07\x1b[2J\r", true), "\\u{1b}]0;title\\u{7}\\u{1b}[2J\\r");
        assert_eq!(harmless("a\u{202e}b\u{2066}\u{61c}", true), "a\\u{202e}b\\u{2066}\\u{61c}");
        assert_eq!(harmless("line\u{2028}separator ة", true), "line\u{2028}separator ة");
        assert_eq!(harmless("\u{9b}2J\u{7f}", true), "\\u{9b}2J\\u{7f}");
    }
}
