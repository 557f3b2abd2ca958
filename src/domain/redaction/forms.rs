//! The forms a secret may take in a text: as it is, and as the usual encoders write it.

use std::collections::BTreeSet;

use super::texts;
use crate::domain::secrets::{MIN_VALUE_BYTES, SecretValue};

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Where `base64`, MIME and PEM break their lines.
const BASE64_LINES: [usize; 2] = [64, 76];
/// What percent-encoders leave as it is, beside letters and digits: Python's `quote` with and without `/`,
/// browsers' `encodeURIComponent` and `encodeURI`, HTML forms, Go's path and query escaping, and nothing at all.
const UNRESERVED: [&[u8]; 7] =
    [b"_.-~", b"_.-~/", b"_.-~!*'()", b"_.-~!*'();,/?:@&=+$#", b"_.-*", b"_.-~$&+:=@", b""];

/// Where `xxd -p` breaks its lines.
const HEX_LINE: usize = 60;

/// Every form of `value` that is looked for, each once, none shorter than the shortest secret. A value of several
/// lines is also looked for line by line, since a log shows it so; one that is JSON also by the texts in it, since a
/// program takes it apart (`private_key` of a service account).
pub(super) fn forms(value: &SecretValue) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    let within = texts::within(value.expose());
    for bytes in std::iter::once(value).chain(&within).map(SecretValue::expose) {
        for part in parts(bytes) {
            base64(part, &mut found);
            percent(part, &mut found);
            escaped(part, &mut found);
            for upper in [false, true] {
                let text: Vec<u8> = part.iter().flat_map(|byte| hex(*byte, upper)).collect();
                found.extend(text.chunks(HEX_LINE).map(<[u8]>::to_vec));
                found.insert(text);
            }
            found.insert(part.to_vec());
        }
    }
    // An encoder may put line ends into its output, too; and escapes put them back.
    let lines: Vec<Vec<u8>> = found
        .iter()
        .filter(|form| form.contains(&b'\n'))
        .flat_map(|form| lines(form).map(<[u8]>::to_vec))
        .collect();
    found.extend(lines);
    found.retain(|form| form.len() >= MIN_VALUE_BYTES);
    found
}

fn parts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let several = bytes.contains(&b'\n');
    std::iter::once(bytes).chain(lines(bytes).filter(move |_| several))
}

/// Lines without their indentation that are long enough to be looked for.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| line.len() >= MIN_VALUE_BYTES)
}

/// At each of the three places a value can have within a longer encoded text: the characters that depend on the
/// value alone. The whole text of a value encoded by itself, with and without padding, and in lines.
fn base64(bytes: &[u8], found: &mut BTreeSet<Vec<u8>>) {
    for alphabet in [STANDARD, URL_SAFE] {
        for before in 0..3 {
            let shifted: Vec<u8> = std::iter::repeat_n(0, before).chain(bytes.iter().copied()).collect();
            let text = base64_text(&shifted, alphabet);
            let (first, end) = ((before * 8).div_ceil(6), shifted.len() * 8 / 6);
            found.insert(text[first..end].to_vec());
            for width in BASE64_LINES.into_iter().filter(|width| text.len() > *width) {
                // Only a text that begins with the value is broken at known places.
                let known = if before == 0 { &text[..] } else { &[] };
                found.extend(
                    known.chunks(width).filter(|line| line.len() >= MIN_VALUE_BYTES).map(<[u8]>::to_vec),
                );
            }
            if before == 0 {
                let mut padded = text.clone();
                padded.resize(text.len().next_multiple_of(4), b'=');
                found.extend([text, padded]);
            }
        }
    }
}

fn base64_text(bytes: &[u8], alphabet: &[u8; 64]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().enumerate().fold(0_u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        text.extend((0..=group.len()).map(|at| alphabet[(bits >> (18 - 6 * at) & 63) as usize]));
    }
    text
}

fn percent(bytes: &[u8], found: &mut BTreeSet<Vec<u8>>) {
    for unreserved in UNRESERVED {
        for (upper, plus) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut text = Vec::with_capacity(bytes.len() * 3);
            for byte in bytes {
                let plain = byte.is_ascii_alphanumeric() && !unreserved.is_empty();
                match byte {
                    b' ' if plus => text.push(b'+'),
                    byte if plain || unreserved.contains(byte) => text.push(*byte),
                    byte => {
                        text.push(b'%');
                        text.extend(hex(*byte, upper));
                    }
                }
            }
            found.insert(replaced(&text, |byte| (byte == b'%').then(|| b"%25".to_vec())));
            found.insert(text);
        }
    }
}

fn hex(byte: u8, upper: bool) -> [u8; 2] {
    let digits = if upper { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]
}

/// As programs quote a text: JSON, Python's `repr`, Rust's and Go's debug form, shells, HTML.
fn escaped(bytes: &[u8], found: &mut BTreeSet<Vec<u8>>) {
    let text = String::from_utf8_lossy(bytes);
    let is_text = matches!(text, std::borrow::Cow::Borrowed(_));
    if is_text {
        for style in TEXT_STYLES {
            found.insert(text.chars().map(style).collect::<String>().into_bytes());
        }
        // JSON within JSON.
        for style in &TEXT_STYLES[..2] {
            let once: String = text.chars().map(style).collect();
            found.insert(once.chars().map(style).collect::<String>().into_bytes());
        }
    }
    // Python's bytes: all that is not ASCII, and control characters, as `\xNN`.
    for quote in [None, Some(b'\''), Some(b'"')] {
        let mut form = Vec::new();
        for byte in bytes {
            match byte {
                b'\\' => form.extend(b"\\\\"),
                b'\n' => form.extend(b"\\n"),
                b'\r' => form.extend(b"\\r"),
                b'\t' => form.extend(b"\\t"),
                byte if Some(*byte) == quote => form.extend([b'\\', *byte]),
                0x20..0x7F => form.push(*byte),
                byte => {
                    form.extend(b"\\x");
                    form.extend(hex(*byte, false));
                }
            }
        }
        found.insert(form);
    }
    // Shells: `'\''`, `'"'"'`, a backslash before all that means something, or only what means it in double quotes.
    found.insert(replaced(bytes, |byte| (byte == b'\'').then_some(b"'\\''".to_vec())));
    found.insert(replaced(bytes, |byte| (byte == b'\'').then_some(b"'\"'\"'".to_vec())));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-\n".contains(&byte) || byte >= 0x80;
    found.insert(replaced(bytes, |byte| (!plain(byte)).then(|| vec![b'\\', byte])));
    let bash = |byte: u8| plain(byte) && !b"=,".contains(&byte) || b"~#".contains(&byte);
    found.insert(replaced(bytes, |byte| (!bash(byte)).then(|| vec![b'\\', byte])));
    let bash = |byte: u8| plain(byte) && byte != b',';
    found.insert(replaced(bytes, |byte| (!bash(byte)).then(|| vec![b'\\', byte])));
    found.insert(replaced(bytes, |byte| b"$`\"\\!".contains(&byte).then(|| vec![b'\\', byte])));
    found.insert(replaced(bytes, |byte| b"$`\"\\".contains(&byte).then(|| vec![b'\\', byte])));
}

fn replaced(bytes: &[u8], by: impl Fn(u8) -> Option<Vec<u8>>) -> Vec<u8> {
    bytes.iter().flat_map(|byte| by(*byte).unwrap_or_else(|| vec![*byte])).collect()
}

type Style = fn(char) -> String;

const TEXT_STYLES: [Style; 9] = [
    // JSON: as it must be, with ASCII alone (Python's default), with `\/` too (PHP), and safe in HTML (Go).
    |letter| json(letter).unwrap_or_else(|| letter.to_string()),
    |letter| json(letter).unwrap_or_else(|| ascii_json(letter)),
    |letter| {
        if letter == '/' { "\\/".to_owned() } else { json(letter).unwrap_or_else(|| ascii_json(letter)) }
    },
    |letter| match letter {
        '<' | '>' | '&' => ascii_json_escape(letter),
        _ => json(letter).unwrap_or_else(|| letter.to_string()),
    },
    // Python's repr in either quote; Rust's and Go's debug form is JSON's but for the rarest characters.
    |letter| python(letter, '\''),
    |letter| python(letter, '"'),
    |letter| python(letter, '\0'),
    |letter| letter.escape_debug().to_string(),
    |letter| match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&#x27;".to_owned(),
        _ => letter.to_string(),
    },
];

/// What JSON has to escape.
fn json(letter: char) -> Option<String> {
    Some(match letter {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        '\0'..='\x1f' => ascii_json_escape(letter),
        _ => return None,
    })
}

fn ascii_json(letter: char) -> String {
    if letter.is_ascii() { letter.to_string() } else { ascii_json_escape(letter) }
}

fn ascii_json_escape(letter: char) -> String {
    letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn python(letter: char, quote: char) -> String {
    match letter {
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        _ if letter == quote => format!("\\{letter}"),
        '\0'..='\x1f' | '\x7f' => format!("\\x{:02x}", u32::from(letter)),
        _ => letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(secret: &str, form: &str) {
        let found = forms(&SecretValue::new(secret));
        let shown: Vec<_> = found.iter().map(|form| String::from_utf8_lossy(form).into_owned()).collect();
        assert!(found.contains(form.as_bytes()), "{form}\nis none of {shown:#?}");
    }

    #[test]
    fn the_forms_are_those_that_encoders_write() {
        let secret = "s3cr3t/+ &\"'é";
        // Each written by the tool that is named.
        has(secret, "czNjcjN0LysgJiInw6k="); // base64
        has(secret, "czNjcjN0LysgJiInw6k"); // base64, unpadded
        has(secret, "s3cr3t%2F%2B%20%26%22%27%C3%A9"); // quote(s, safe="")
        has(secret, "s3cr3t/%2B%20%26%22%27%C3%A9"); // quote(s)
        has(secret, "s3cr3t%2F%2B+%26%22%27%C3%A9"); // quote_plus(s)
        has(secret, "s3cr3t%2f%2b%20%26%22%27%c3%a9"); // ASP.NET
        has(secret, "s3cr3t%2F%2B%20%26%22'%C3%A9"); // encodeURIComponent
        has(secret, "s3cr3t/+%20&%22'%C3%A9"); // encodeURI
        has(secret, "s3cr3t/+ &\\\"'é"); // serde_json
        has(secret, "s3cr3t/+ &\\\"'\\u00e9"); // json.dumps
        has(secret, "s3cr3t\\/+ &\\\"'\\u00e9"); // PHP
        has(secret, "s3cr3t/+ \\u0026\\\"'é"); // Go
        has(secret, "s3cr3t/+ &\"\\'é"); // repr
        has(secret, "s3cr3t/+ &\"\\'\\xc3\\xa9"); // repr of bytes
        has(secret, "s3cr3t/+ &\"'\\''é"); // bash ${x@Q}
        has(secret, "s3cr3t/+ &\"'\"'\"'é"); // shlex.quote
        has(secret, "s3cr3t/+\\ \\&\\\"\\'é"); // printf %q
        has(secret, "s3cr3t/+ &amp;&quot;&#x27;é"); // html.escape
        has(secret, "7333637233742f2b20262227c3a9"); // xxd -p
        has(secret, "s3cr3t%252F%252B%2520%2526%2522%2527%25C3%25A9"); // quote(quote(s, safe=""), safe="")
        has(secret, "s3cr3t/+ &\\\\\\\"'\\\\u00e9"); // json.dumps(json.dumps(s))
    }

    #[test]
    fn the_texts_in_a_json_secret_are_looked_for_as_it_is() {
        let key = r#"{"type": "x", "keys": [{"private_key": "-----BEGIN\nMIIEvQIB\"DANB\n"}], "private_key_id": "0123456789abcdef"}"#;
        has(key, "-----BEGIN\nMIIEvQIB\"DANB\n"); // print(json.loads(s)["private_key"])
        has(key, "MIIEvQIB\"DANB"); // a line of that
        has(key, "-----BEGIN\\nMIIEvQIB\"DANB\\n"); // the dictionary as repr shows it
        has(key, "0123456789abcdef");
        has(key, "MDEyMzQ1Njc4OWFiY2RlZg=="); // base64
        let docker = r#"{"auths": {"{\"inner\": \"hunter2-hunter2\"}": "{\"inner\": \"hunter2-hunter2\"}"}}"#;
        has(docker, "hunter2-hunter2"); // JSON in JSON
    }

    #[test]
    fn a_long_value_is_found_in_the_lines_of_xxd() {
        let secret = "0123456789abcdefghijklmnopqrstuvwxyz";
        has(secret, "303132333435363738396162636465666768696a6b6c6d6e6f7071727374");
        has(secret, "75767778797a");
    }

    #[test]
    fn a_key_of_several_lines_is_found_line_by_line() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n  AQEFAASCBKcw\nshort\n";
        for line in ["-----BEGIN KEY-----", "MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcw"] {
            has(key, line);
        }
        let found = forms(&SecretValue::new(key));
        assert!(!found.contains(b"short".as_slice()));
    }

    #[test]
    fn a_long_value_is_found_in_the_lines_of_base64() {
        let secret: String = ('0'..='z').chain('0'..='z').collect();
        let found = forms(&SecretValue::new(secret.clone()));
        let text = base64_text(secret.as_bytes(), STANDARD);
        assert!(text.len() > 152);
        for line in text.chunks(76).chain(text.chunks(64)) {
            assert!(found.contains(line), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn base64_is_base64() {
        for (plain, text) in
            [("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE")]
        {
            assert_eq!(base64_text(plain.as_bytes(), STANDARD), text.as_bytes());
        }
        assert_eq!(base64_text(&[0xFB, 0xFF], URL_SAFE), b"-_8");
    }
}
