//! What is typed is understood as it was meant, and what is answered is said in words.

use std::io::Write as _;
use std::process::{Output, Stdio};

use crate::house::House;

fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn fed(house: &House, words: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = house.command(words);
    command.current_dir(house.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    texts(&child.wait_with_output().unwrap())
}

#[test]
fn a_spec_comes_from_standard_input() {
    let house = House::new();
    let json = r#"{"workload": {"command": {"argv": ["echo", "from-json"]}}}"#;
    let yaml = "workload:\n  command:\n    argv: [echo, from-yaml]\n";
    for (spec, said) in [(json, "from-json\n"), (yaml, "from-yaml\n")] {
        let (status, out, err) = fed(&house, &["run", "--source", "none", "--spec", "-"], spec);
        assert_eq!((status, out.as_str()), (Some(0), said), "{err}");
    }
    let (status, out, err) = fed(&house, &["explain", "--spec", "-"], json);
    assert!(status == Some(0) && out.starts_with("a job of this spec"), "{out}{err}");
    let (status, out, err) = fed(&house, &["submit", "--source", "none", "--spec", "-"], yaml);
    assert!(status == Some(0) && out.starts_with("job_"), "{out}{err}");
    // What is asked of a spec alone is not passed over for a job.
    for flag in [["--like", "x"], ["--without", "@last"]] {
        let (status, _, err) = texts(&house.run(&["explain", "@last", flag[0], flag[1]]));
        assert!(status == Some(2) && err.contains("suppose something about a spec"), "{err}");
    }
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn a_name_means_the_job_that_is_still_there_to_be_stopped() {
    let house = House::new();
    let submit = |words: &[&str]| {
        let base = ["submit", "--source", "none", "--name", "train"];
        let output = house.command(&[&base, words].concat()).current_dir(house.path()).output().unwrap();
        let (status, out, err) = texts(&output);
        assert_eq!(status, Some(0), "{err}");
        out.trim().to_owned()
    };
    let lives = submit(&["--", "sleep", "600"]);
    let ended = submit(&["--", "true"]);
    assert_eq!(texts(&house.run(&["wait", &ended])).0, Some(0));
    let other = submit(&["--", "sleep", "600"]);
    let (_, out, err) = texts(&house.run(&["cancel", "--now", "train"]));
    assert!(out.contains(&other) && err.contains("several jobs of this name"), "{out}{err}");
    house.run(&["wait", &other]);
    let (_, out, err) = texts(&house.run(&["cancel", "--now", "train"]));
    assert!(out.contains(&lives) && err.is_empty(), "{out}{err}");
    house.run(&["wait", &lives]);
    let (_, out, _) = texts(&house.run(&["cancel", "train"]));
    assert!(out.contains(&other) && out.contains("had ended already"), "{out}");
    // A job's page says what it asked for.
    let (_, page, _) = texts(&house.run(&["show", &ended]));
    assert!(page.contains("asks for     1 CPU"), "{page}");
    let (status, _, err) = texts(&house.run(&["retry", "--failed", &ended]));
    assert!(status == Some(1) && err.contains("is no array") && !err.contains("/failed"), "{err}");
    assert!(house.run(&["down", "--yes"]).status.success());
}
