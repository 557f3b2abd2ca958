//! Secrets reach the program and nothing else: not the spool, not a file, not another process' environment.

use gpulayer::domain::secrets::SecretValue;
use gpulayer::process::{Launch, Wait};
use sha2::Digest as _;

use crate::bench::{Bench, end_of};

const SECRET: &str = "s3cr3t/Value+with \"quotes\"";

fn with_secret(launch: Launch) -> Launch {
    Launch { secrets: vec![("API_KEY".to_owned(), SecretValue::new(SECRET))], ..launch }
}

/// Every file below this folder, with its bytes.
fn files(folder: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_dir() {
            found.extend(files(&path));
        } else if kind.is_file() {
            found.push((path.clone(), std::fs::read(path).unwrap()));
        }
    }
    found
}

fn holds(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

#[tokio::test]
async fn the_program_has_it_and_its_log_does_not() {
    let bench = Bench::new();
    let program = r#"
import base64, hashlib, json, os, sys, time, urllib.parse
s = os.environ["API_KEY"]
assert hashlib.sha256(s.encode()).hexdigest() == "DIGEST"
print("plain", s, flush=True)
os.write(1, b"split " + s[:9].encode()); time.sleep(0.05); os.write(1, s[9:].encode() + b"\n")
print("b64", base64.b64encode(b"xy" + s.encode()).decode())
print("url", urllib.parse.quote(s, safe=""))
print("json", json.dumps(dict(key=s)))
print("hex", s.encode().hex(), flush=True)
raise RuntimeError(s)
"#;
    let program = program.replace("DIGEST", &hex::encode(sha2::Sha256::digest(SECRET)));
    let ended = bench.run(with_secret(bench.python(&program))).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 1 });
    let lines = ended.texts();
    for expected in [
        "plain [secret API_KEY]",
        "split [secret API_KEY]",
        "url [secret API_KEY]",
        "json {\"key\": \"[secret API_KEY]\"}",
        "hex [secret API_KEY]",
        "RuntimeError: [secret API_KEY]",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:#?}");
    }
    assert!(
        lines.iter().any(|line| line.starts_with("b64 ") && line.contains("[secret API_KEY]")),
        "{lines:#?}"
    );
    for (path, bytes) in files(bench.path()) {
        assert!(!holds(&bytes, "s3cr3t") && !holds(&bytes, "czNjcjN0"), "{}", path.display());
    }
}

#[tokio::test]
async fn no_core_file_can_hold_it_and_the_next_task_is_as_before() {
    let bench = Bench::new();
    let core = |bench: &Bench| bench.shell("ulimit -c; echo ${API_KEY:-none}");
    let before = bench.run(core(&bench)).await.texts();
    assert_eq!(before[1], "none");
    assert_eq!(bench.run(with_secret(core(&bench))).await.texts(), ["0", "[secret API_KEY]"]);
    assert_eq!(bench.run(core(&bench)).await.texts(), before);
}

#[tokio::test]
async fn it_wins_over_a_variable_and_is_in_no_shim() {
    let bench = Bench::new();
    let mut launch = with_secret(bench.shell("test ${#API_KEY} = $1 && echo ready && sleep 60"));
    launch.argv.extend(["sh".into(), SECRET.len().to_string().into()]);
    launch.env.push(("API_KEY".into(), "open".into()));
    let mut process = bench.pool.launch(launch).await.unwrap();
    crate::bench::until("it says ready", || {
        files(bench.path()).iter().any(|(path, bytes)| path.ends_with("spool") && holds(bytes, "ready"))
    })
    .await;
    for entry in std::fs::read_dir(bench.path().join("shims")).unwrap() {
        let name = entry.unwrap().file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_suffix(".sock")) else { continue };
        for file in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!holds(&bytes, "s3cr3t"));
        }
    }
    process.stop(true).await.unwrap();
    end_of(&mut process).await;
}
