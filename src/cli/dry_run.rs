//! `--dry-run`: the JobSpec, and how to submit it with curl and with Python.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine;
use serde_json::{Map, Value};

use super::carry::Baggage;
use super::error::CliError;
use super::next_step::NextStep;
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
    let pretty = format!("{:#}", Value::Object(spec.clone()));
    let compact = Value::Object(spec.clone()).to_string();
    let body = compact.replace('\'', r"'\''");
    let Way { curl, imports, connection } = way(endpoint, trust);
    let python_spec = serde_json::to_string(&compact).unwrap_or_default();
    format!(
        "# JobSpec\n{pretty}\n\n{before}\
         # curl\n{curl} -H 'Content-Type: application/json' \\\n  --data '{body}'\n\n\
         # Python\nimport {imports}\n\n{connection}\n\
         connection.request(\"POST\", \"/v1/jobs\", {python_spec}, headers)\n\
         answer = connection.getresponse()\n\
         job = json.load(answer)\n\
         if answer.status != 201:\n    sys.exit(json.dumps(job, indent=2))\n\
         print(job[\"id\"])\n"
    )
}

/// How curl and Python get to a server.
struct Way {
    curl: String,
    imports: &'static str,
    connection: String,
}

fn way(endpoint: &Endpoint, trust: &Trust) -> Way {
    let (host, port) = match endpoint {
        Endpoint::Unix(path) => {
            let path = path.display();
            return Way {
                curl: format!("curl --unix-socket '{path}' http://localhost/v1/jobs"),
                imports: "http.client, json, socket, sys",
                connection: format!(
                    "connection = http.client.HTTPConnection(\"localhost\")\n\
                     connection.sock = socket.socket(socket.AF_UNIX)\n\
                     connection.sock.connect(\"{path}\")\n\
                     headers = {{\"Content-Type\": \"application/json\"}}"
                ),
            };
        }
        Endpoint::Tcp { host, port } | Endpoint::Https { host, port } => (host, port),
    };
    let headers = "headers = {\"Content-Type\": \"application/json\", \
                   \"Authorization\": f\"Bearer {os.environ['GPULAYER_TOKEN']}\"}";
    let (flags, context) = match endpoint {
        Endpoint::Https { .. } => trusting(trust),
        _ => (String::new(), None),
    };
    let connection = match (endpoint, context) {
        (Endpoint::Https { .. }, Some(context)) => format!(
            "context = ssl.create_default_context(cafile={context}\n\
             connection = http.client.HTTPSConnection(\"{host}\", {port}, context=context)\n{headers}"
        ),
        (Endpoint::Https { .. }, None) => {
            format!("connection = http.client.HTTPSConnection(\"{host}\", {port})\n{headers}")
        }
        _ => format!("connection = http.client.HTTPConnection(\"{host}\", {port})\n{headers}"),
    };
    Way {
        curl: format!("curl {flags}{endpoint}/v1/jobs -H \"Authorization: Bearer $GPULAYER_TOKEN\""),
        imports: if connection.starts_with("context") {
            "http.client, json, os, ssl, sys"
        } else {
            "http.client, json, os, sys"
        },
        connection,
    }
}

/// Flags of curl, and what Python's `cafile=` says. Python has no pins: it is given the certificate itself.
fn trusting(trust: &Trust) -> (String, Option<String>) {
    if !trust.pins.is_empty() {
        let pins: Vec<_> = trust.pins.iter().map(curl_pin).collect();
        let context = "\"cert.pem\")  # the server's $GPULAYER_HOME/tls/cert.pem, brought over";
        return (format!("-k --pinnedpubkey '{}' ", pins.join(";")), Some(context.to_owned()));
    }
    match &trust.ca_file {
        Some(file) => {
            let file = file.to_string_lossy();
            (format!("--cacert {} ", quoted(&file)), Some(format!("{file:?})")))
        }
        None => (String::new(), None),
    }
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
        import http.client, json, socket, sys

        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect("/run/g.sock")
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/jobs", "{\"workload\":{\"command\":{\"argv\":[\"echo\",\"it's\"]}}}", headers)
        answer = connection.getresponse()
        job = json.load(answer)
        if answer.status != 201:
            sys.exit(json.dumps(job, indent=2))
        print(job["id"])
        "###);
    }

    #[test]
    fn a_server_elsewhere_is_trusted_as_the_command_does() {
        let endpoint = Endpoint::parse("https://box").unwrap();
        let pinned = way(&endpoint, &Trust::pinned(Pin::from_bytes([0xab; 32])));
        assert!(pinned.curl.starts_with("curl -k --pinnedpubkey 'sha256//q6urq"), "{}", pinned.curl);
        assert!(pinned.connection.contains("cafile=\"cert.pem\")") && pinned.imports.contains("ssl"));
        let ca = Trust { pins: Vec::new(), ca_file: Some("/a b.pem".into()) };
        let named = way(&endpoint, &ca);
        assert!(named.curl.contains("--cacert '/a b.pem' https://box:8470/v1/jobs"), "{}", named.curl);
        assert!(named.connection.contains("cafile=\"/a b.pem\")"), "{}", named.connection);
        let system = way(&endpoint, &Trust::default());
        assert!(system.connection.starts_with("connection = http.client.HTTPSConnection(\"box\", 8470)"));
    }
}
