//! `--dry-run`: the JobSpec, and how to submit it with curl and with Python.

use serde_json::{Map, Value};

use super::error::CliError;
use super::screen;
use super::server_choice::Server;
use crate::client::Endpoint;

/// Prints all three, or with `--json` the spec alone.
pub(super) fn print(spec: &Map<String, Value>, server: &Server, json: bool) -> Result<(), CliError> {
    if json {
        return screen::print_json(spec);
    }
    screen::print(text(spec, server.client.endpoint()).trim_end())
}

fn text(spec: &Map<String, Value>, endpoint: &Endpoint) -> String {
    let pretty = format!("{:#}", Value::Object(spec.clone()));
    let compact = Value::Object(spec.clone()).to_string();
    let quoted = compact.replace('\'', r"'\''");
    let (curl, connection) = match endpoint {
        Endpoint::Unix(path) => {
            let path = path.display();
            (
                format!("curl --unix-socket '{path}' http://localhost/v1/jobs"),
                format!(
                    "connection = http.client.HTTPConnection(\"localhost\")\n\
                     connection.sock = socket.socket(socket.AF_UNIX)\n\
                     connection.sock.connect(\"{path}\")\n\
                     headers = {{\"Content-Type\": \"application/json\"}}"
                ),
            )
        }
        Endpoint::Tcp { host, port } => (
            format!("curl {endpoint}/v1/jobs -H \"Authorization: Bearer $GPULAYER_TOKEN\""),
            format!(
                "connection = http.client.HTTPConnection(\"{host}\", {port})\n\
                 headers = {{\"Content-Type\": \"application/json\", \"Authorization\": f\"Bearer {{os.environ['GPULAYER_TOKEN']}}\"}}"
            ),
        ),
    };
    let imports = if matches!(endpoint, Endpoint::Unix(_)) {
        "http.client, json, socket"
    } else {
        "http.client, json, os"
    };
    let python_spec = serde_json::to_string(&compact).unwrap_or_default();
    format!(
        "# JobSpec\n{pretty}\n\n\
         # curl\n{curl} -H 'Content-Type: application/json' \\\n  --data '{quoted}'\n\n\
         # Python\nimport {imports}\n\n{connection}\n\
         connection.request(\"POST\", \"/v1/jobs\", {python_spec}, headers)\n\
         print(json.load(connection.getresponse())[\"id\"])\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_pasted() {
        let spec = serde_json::json!({"workload": {"command": {"argv": ["echo", "it's"]}}});
        let Value::Object(spec) = spec else { unreachable!() };
        insta::assert_snapshot!(text(&spec, &Endpoint::parse("unix:/run/g.sock").unwrap()), @r###"
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

        # curl
        curl --unix-socket '/run/g.sock' http://localhost/v1/jobs -H 'Content-Type: application/json' \
          --data '{"workload":{"command":{"argv":["echo","it'\''s"]}}}'

        # Python
        import http.client, json, socket

        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect("/run/g.sock")
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/jobs", "{\"workload\":{\"command\":{\"argv\":[\"echo\",\"it's\"]}}}", headers)
        print(json.load(connection.getresponse())["id"])
        "###);
    }
}
