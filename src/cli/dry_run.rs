//! `--dry-run`: the JobSpec, and how to submit it with curl and with Python.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine;
use serde_json::{Map, Value};

use super::carry::Baggage;
use super::error::CliError;
use super::next_step::NextStep;
use super::python_literal;
use super::screen;
use super::server_choice::Server;
use super::shown::quoted;
use crate::client::{Endpoint, Trust};
use crate::contract::artifact::Digest;
use crate::contract::pin::Pin;

/// Prints all three, or with `--json` the spec alone.
pub(super) fn print(
    spec: &Map<String, Value>,
    baggage: &Baggage,
    server: &Server,
    next: &NextStep,
    json: bool,
) -> Result<(), CliError> {
    if json {
        return screen::print_json(spec);
    }
    let before = steps_before(baggage.contents(), server.own, next);
    screen::print(text(spec, server.client.endpoint(), server.client.trust(), &before).trim_end())
}

/// What has to be done before the job can be submitted by hand.
fn steps_before<'a>(
    contents: impl Iterator<Item = (&'a Path, Digest)>,
    own: bool,
    next: &NextStep,
) -> String {
    let mut steps = String::new();
    if own {
        let _ = writeln!(steps, "# First: the daemon must run\n{}\n", next.command("up"));
    }
    let mut contents = contents.peekable();
    if contents.peek().is_some() {
        steps += "# First: what goes along must be there; each prints its address\n";
        for (path, digest) in contents {
            // Pasted elsewhere, it still means the same file.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let put = next.command(&format!("artifact put {}", quoted(&path.to_string_lossy())));
            let _ = writeln!(steps, "{put}  # {digest}");
        }
        steps.push('\n');
    }
    steps
}

fn text(spec: &Map<String, Value>, endpoint: &Endpoint, trust: &Trust, before: &str) -> String {
    let spec = Value::Object(spec.clone());
    let body = spec.to_string().replace('\'', r"'\''");
    let curl = curl(endpoint, trust);
    let connect = connect(endpoint, trust);
    let literal = python_literal::of(&spec, "spec = ".len());
    format!(
        "# JobSpec\n{spec:#}\n\n{before}\
         # curl\n{curl} -H 'Content-Type: application/json' \\\n  --data '{body}'\n\n\
         # Python\nimport gpulayer as gl\n\nspec = {literal}\n\
         with {connect} as client:\n    print(client.submit(spec).id)\n"
    )
}

/// How curl gets to a server.
fn curl(endpoint: &Endpoint, trust: &Trust) -> String {
    let flags = match endpoint {
        Endpoint::Unix(path) => {
            return format!("curl --unix-socket '{}' http://localhost/v1/jobs", path.display());
        }
        Endpoint::Https { .. } if !trust.pins.is_empty() => {
            let pins: Vec<_> = trust.pins.iter().map(curl_pin).collect();
            format!("-k --pinnedpubkey '{}' ", pins.join(";"))
        }
        Endpoint::Https { .. } => match &trust.ca_file {
            Some(file) => format!("--cacert {} ", quoted(&file.to_string_lossy())),
            None => String::new(),
        },
        Endpoint::Tcp { .. } => String::new(),
    };
    format!("curl {flags}{endpoint}/v1/jobs -H \"Authorization: Bearer $GPULAYER_TOKEN\"")
}

/// How the Python package gets to a server; it takes the token from `GPULAYER_TOKEN` as well.
fn connect(endpoint: &Endpoint, trust: &Trust) -> String {
    let text = |value: &str| python_literal::of(&value.into(), 0);
    let pins: Vec<_> = trust.pins.iter().map(ToString::to_string).collect();
    let word = match (endpoint, pins.as_slice(), &trust.ca_file) {
        (Endpoint::Unix(_) | Endpoint::Tcp { .. }, ..) | (_, [], None) => String::new(),
        (_, [], Some(file)) => format!(", ca_file={}", text(&file.to_string_lossy())),
        (_, [pin], _) => format!(", pin={}", text(pin)),
        (_, pins, _) => format!(", pin={}", python_literal::of(&pins.into(), 0)),
    };
    format!("gl.connect({}{word})", text(&endpoint.to_string()))
}

/// A pin as curl writes it.
pub(super) fn curl_pin(pin: &Pin) -> String {
    format!("sha256//{}", base64::engine::general_purpose::STANDARD.encode(pin.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_pasted() {
        let spec = serde_json::json!({"workload": {"command": {"argv": ["echo", "it's"]}}});
        let Value::Object(spec) = spec else { unreachable!() };
        let digest = Digest::from_bytes([0; 32]);
        let before = steps_before([(Path::new("/my src"), digest)].into_iter(), true, &NextStep::default());
        insta::assert_snapshot!(text(&spec, &Endpoint::parse("unix:/run/g.sock").unwrap(), &Trust::default(), &before), @r###"
        # JobSpec
        {
          "workload": {
            "command": {
              "argv": [
                "echo",
                "it's"
              ]
            }
          }
        }

        # First: the daemon must run
        gpulayer up

        # First: what goes along must be there; each prints its address
        gpulayer artifact put '/my src'  # artifact://sha256/0000000000000000000000000000000000000000000000000000000000000000

        # curl
        curl --unix-socket '/run/g.sock' http://localhost/v1/jobs -H 'Content-Type: application/json' \
          --data '{"workload":{"command":{"argv":["echo","it'\''s"]}}}'

        # Python
        import gpulayer as gl

        spec = {"workload": {"command": {"argv": ["echo", "it's"]}}}
        with gl.connect("unix:/run/g.sock") as client:
            print(client.submit(spec).id)
        "###);
    }

    #[test]
    fn a_server_elsewhere_is_trusted_as_the_command_does() {
        let endpoint = Endpoint::parse("https://box").unwrap();
        let trust = Trust::pinned(Pin::from_bytes([0xab; 32]));
        let by_curl = curl(&endpoint, &trust);
        assert!(by_curl.starts_with("curl -k --pinnedpubkey 'sha256//q6urq"), "{by_curl}");
        let pin = format!("sha256:{}", "ab".repeat(32));
        let by_python = connect(&endpoint, &trust);
        assert_eq!(by_python, format!("gl.connect(\"https://box:8470\", pin=\"{pin}\")"));
        let trust = Trust { pins: [trust.pins.clone(), trust.pins].concat(), ca_file: None };
        let by_python: String = connect(&endpoint, &trust).split_whitespace().collect();
        assert!(by_python.ends_with(&format!("pin=[\"{pin}\",\"{pin}\",])")), "{by_python}");
        let trust = Trust { pins: Vec::new(), ca_file: Some("/a b.pem".into()) };
        let by_curl = curl(&endpoint, &trust);
        assert!(by_curl.contains("--cacert '/a b.pem' https://box:8470/v1/jobs"), "{by_curl}");
        assert_eq!(connect(&endpoint, &trust), "gl.connect(\"https://box:8470\", ca_file=\"/a b.pem\")");
        assert_eq!(connect(&endpoint, &Trust::default()), "gl.connect(\"https://box:8470\")");
    }
}
