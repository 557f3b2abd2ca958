//! Whatever the cuts: a secret never shows, and what is no secret passes unchanged.

use proptest::prelude::*;

use super::*;

fn redactor(secrets: &[(&str, &str)]) -> Redactor {
    let values: Vec<_> = secrets.iter().map(|(name, value)| (*name, SecretValue::new(*value))).collect();
    let borrowed: Vec<_> = values.iter().map(|(name, value)| (*name, value)).collect();
    Redactor::new(&borrowed).unwrap()
}

fn in_parts<'a>(redactor: &Redactor, parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut stream, mut out) = (redactor.another(), Vec::new());
    for part in parts {
        stream.feed(part, &mut out);
        assert!(stream.held.len() <= stream.longest_held_bytes());
    }
    stream.finish(&mut out);
    assert!(stream.held.is_empty());
    out
}

fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

const SECRET: &str = "hf_Ab3/+ \"9'x\\Zé";

#[test]
fn every_cut_gives_the_same() {
    let redactor = redactor(&[("TOKEN", SECRET), ("OTHER", "9'x\\Zéa tail")]);
    let text = format!("before {SECRET}{SECRET} {SECRET}a tail after, {} h", &SECRET[..9]);
    let whole = in_parts(&redactor, [text.as_bytes()]);
    let expected = format!("before [secret TOKEN][secret TOKEN] [secret TOKEN] after, {} h", &SECRET[..9]);
    assert_eq!(String::from_utf8(whole).unwrap(), expected);
    for first in 0..text.len() {
        for second in first..text.len() {
            let bytes = text.as_bytes();
            let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
            assert_eq!(in_parts(&redactor, parts), expected.as_bytes(), "cut at {first} and {second}");
        }
    }
    assert_eq!(in_parts(&redactor, text.as_bytes().chunks(1)), expected.as_bytes());
}

#[test]
fn a_secret_that_begins_another_hides_no_less() {
    let redactor = redactor(&[("SHORT", "abcdefgh"), ("LONG", "abcdefghijklmnop")]);
    assert_eq!(redactor.redact("x abcdefghijklmnop y abcdefghij z"), "x [secret LONG] y [secret SHORT]ij z");
}

#[test]
fn a_stream_of_nothing_but_secret_is_not_held() {
    let redactor = redactor(&[("TOKEN", "abababab")]);
    assert_eq!(in_parts(&redactor, [b"ab".repeat(10_000).as_slice()]), b"[secret TOKEN]");
    assert_eq!(in_parts(&redactor, b"ab".repeat(10_000).chunks(3)), b"[secret TOKEN]");
}

#[test]
fn what_cannot_become_a_secret_is_given_out_at_once() {
    let mut stream = redactor(&[("TOKEN", "zyxwvutsrq")]);
    let mut out = Vec::new();
    stream.feed(b"progress 10%\r", &mut out);
    assert_eq!(out, b"progress 10%\r");
    stream.feed(b"zyx", &mut out);
    assert_eq!(out, b"progress 10%\r");
    stream.feed(b"!", &mut out);
    assert_eq!(out, b"progress 10%\rzyx!");
    stream.feed(b"zyxwvutsrq", &mut out);
    assert_eq!(out, b"progress 10%\rzyx![secret TOKEN]");
}

#[test]
fn a_key_is_hidden_whole_and_by_its_lines() {
    let key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----";
    let redactor = redactor(&[("KEY", key)]);
    assert_eq!(redactor.redact(&format!("<{key}>")), "<[secret KEY]>");
    assert_eq!(
        redactor.redact("1: MIIEvQIBADANBgkq\r\n2: hkiG9w0BAQEFAASC\n"),
        "1: [secret KEY]\r\n2: [secret KEY]\n"
    );
    assert_eq!(redactor.redact(&key.replace('\n', "\\n")), "[secret KEY]");
}

#[test]
fn base64_inside_a_longer_text_is_hidden_at_every_place() {
    let redactor = redactor(&[("TOKEN", "hunter2-hunter2")]);
    // base64.b64encode(prefix + secret + suffix)
    for text in ["aHVudGVyMi1odW50ZXIyIQ==", "eGh1bnRlcjItaHVudGVyMiE=", "eHlodW50ZXIyLWh1bnRlcjIh"] {
        let shown = redactor.redact(text);
        let rest = shown.replace("[secret TOKEN]", "");
        assert!(rest.len() <= 6, "{text} becomes {shown}");
    }
}

#[test]
fn what_a_program_takes_out_of_a_json_secret_is_hidden() {
    let redactor = redactor(&[(
        "GCP",
        r#"{"private_key": "-----BEGIN KEY-----\nMIIEvQIBADAN\n", "n": 8, "id": "abc"}"#,
    )]);
    assert_eq!(redactor.redact("-----BEGIN KEY-----\nMIIEvQIBADAN\n"), "[secret GCP]");
    assert_eq!(
        redactor.redact("{'private_key': '-----BEGIN KEY-----\\nMIIEvQIBADAN\\n', 'n': 8}"),
        "{'private_key': '[secret GCP]', 'n': 8}"
    );
    assert_eq!(redactor.redact("id abc of 8 is short"), "id abc of 8 is short");
}

/// Text in which beginnings of the secret are common.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (0..SECRET.len()).prop_map(|end| SECRET.as_bytes()[..end].to_vec()),
        (0..SECRET.len()).prop_map(|start| SECRET.as_bytes()[start..].to_vec()),
        prop::collection::vec(any::<u8>(), 0..12),
        Just(b"\n".to_vec()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    // Each case makes an index of its own, which takes most of the time.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_form_of_a_secret_shows_however_the_stream_is_cut(
        before in noise(), after in noise(), form in any::<prop::sample::Index>(), size in 1usize..40
    ) {
        let redactor = redactor(&[("TOKEN", SECRET)]);
        let forms: Vec<_> = forms::forms(&SecretValue::new(SECRET)).into_iter().collect();
        let form = form.get(&forms);
        let text = [&before[..], form, &after].concat();
        let out = in_parts(&redactor, text.chunks(size));
        for form in &forms {
            prop_assert!(!holds(&out, form), "{:?} in {:?}", form, out);
        }
        prop_assert!(holds(&out, b"[secret TOKEN]"));
        prop_assert_eq!(out, in_parts(&redactor, [text.as_slice()]));
    }

    #[test]
    fn what_holds_no_secret_passes_byte_by_byte(text in noise(), size in 1usize..40) {
        let redactor = redactor(&[("TOKEN", SECRET)]);
        let forms = forms::forms(&SecretValue::new(SECRET));
        prop_assume!(!forms.iter().any(|form| holds(&text, form)));
        prop_assert_eq!(in_parts(&redactor, text.chunks(size)), text);
    }

    #[test]
    fn any_secret_is_hidden_wherever_it_stands(
        secret in "[ -~é🚀\n]{8,200}", before in "[ -~]{0,40}", after in "[ -~]{0,40}", size in 1usize..64
    ) {
        let value = SecretValue::new(secret.clone());
        let redactor = Redactor::new(&[("S", &value)]).unwrap();
        let text = format!("{before}{secret}{after}");
        let out = in_parts(&redactor, text.as_bytes().chunks(size));
        prop_assert!(!holds(&out, secret.as_bytes()));
    }
}
