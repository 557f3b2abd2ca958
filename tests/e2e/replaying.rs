//! `gpulayer replay`: the passes of a daemon that was killed are made again and come out equal; a record that somebody
//! changed is found out.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use gpulayer::recording::{FOLDER, segments};
use serde_json::{Value, json};

use crate::house::{House, argv, eventually, shell};

fn recorded(house: &House) -> Vec<PathBuf> {
    segments(&house.state().join(FOLDER)).unwrap()
}

fn replayed(house: &House, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = house.run(&[&["replay", "--json"], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let values = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), values)
}

/// Up to where it was cut.
fn lines(path: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    let mut decoder = zstd::stream::read::Decoder::new(std::fs::File::open(path).unwrap()).unwrap();
    let whole = decoder.read_to_end(&mut bytes);
    assert!(whole.is_ok() || !bytes.is_empty(), "{whole:?}");
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

fn write(path: &Path, lines: &[String]) {
    let mut encoder = zstd::stream::Encoder::new(std::fs::File::create(path).unwrap(), 1).unwrap();
    encoder.write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
    encoder.finish().unwrap();
}

#[actix_rt::test]
async fn the_passes_of_a_killed_daemon_come_out_equal_and_a_doctored_one_does_not() {
    let house = House::new();
    let nothing = house.run(&["replay"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no scheduling is recorded"), "{nothing:?}");

    let daemon = house.daemon().await;
    let mut secret = argv(&["true"]);
    secret["env"] = json!({"WORD": "swordfish-of-the-environment"});
    let first = house.submit(&secret).await;
    house.end(first.id).await;
    let running = house.submit(&shell("sleep 60")).await;
    let mut large = argv(&["true"]);
    large["resources"] = json!({"cpus": 4000});
    let waits = house.submit(&large).await;
    // While it is written.
    let seen = eventually("the record to be on disk", async || {
        let (status, outcomes) = replayed(&house, &[]);
        // Nothing of it may be on disk yet.
        outcomes.last()?;
        assert_eq!(status, Some(0), "{outcomes:?}");
        (outcomes.last()?["placements"].as_u64()? >= 2 && outcomes.last()?["inputs"].as_u64()? > 6)
            .then(|| outcomes.last().unwrap().clone())
    })
    .await;
    assert_eq!((&seen["outcome"], &seen["end"]), (&json!("equal"), &json!("open")));
    daemon.kill();
    let daemon = house.daemon().await;
    let again = house.submit(&argv(&["true"])).await;
    house.end(again.id).await;
    assert!(daemon.terminate().success());

    let (status, outcomes) = replayed(&house, &["--all"]);
    assert_eq!((status, outcomes.len()), (Some(0), 2), "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome["outcome"] == "equal"), "{outcomes:?}");
    assert_eq!((&outcomes[0]["end"], &outcomes[1]["end"]), (&json!("open"), &json!("closed")));
    assert!(outcomes[1]["placements"].as_u64().unwrap() >= 1);
    let text = String::from_utf8(house.run(&["replay", "--last"]).stdout).unwrap();
    assert!(text.starts_with("segment-000002") && text.trim_end().ends_with(": equal"), "{text}");

    // One pass, with what it placed and why others wait.
    let paths = recorded(&house);
    let first_segment = paths[0].to_str().unwrap();
    let passes = outcomes[0]["passes"].to_string();
    let (_, pages) = replayed(&house, &["--segment", first_segment, "--pass", &passes]);
    let waiting = pages[0]["waiting"].as_array().unwrap();
    assert!(waiting.iter().any(|line| line["first"] == json!(waits.id)), "{pages:?}");
    let page =
        String::from_utf8(house.run(&["replay", "--segment", first_segment, "--pass", &passes]).stdout)
            .unwrap();
    assert!(page.contains("needs 4000 CPUs"), "{page}");
    let far = house.run(&["replay", "--pass", "100000"]);
    assert_eq!(far.status.code(), Some(1), "{far:?}");
    let (_, steps) = replayed(&house, &["--job", &again.id.to_string()]);
    // More than one when its worker was just taking its session up again: a proposal made before that is void.
    assert!(
        !steps.is_empty() && steps.iter().all(|step| step["placed"].is_array() && step["pass"].is_u64()),
        "{steps:?}"
    );
    let absent = house.run(&["replay", "--segment", "nowhere.zst"]);
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(said.contains("cannot read nowhere.zst") && said.contains("No such file"), "{said}");

    // Names of secrets and values of variables are none of the scheduler's business.
    for path in &paths {
        assert!(!lines(path).iter().any(|line| line.contains("swordfish")));
    }

    // Somebody says that it ran elsewhere.
    let mut doctored = lines(&paths[1]);
    let placed = doctored.iter().position(|line| line.contains("\"placements\"")).unwrap();
    doctored[placed] = doctored[placed].replacen("\"incarnation\":", "\"incarnation\":9", 1);
    let forged = house.path().join("forged.zst");
    write(&forged, &doctored);
    let (status, outcomes) = replayed(&house, &["--segment", forged.to_str().unwrap()]);
    assert_eq!((status, &outcomes[0]["outcome"]), (Some(1), &json!("different")), "{outcomes:?}");
    assert!(outcomes[0]["difference"]["pass"].as_u64().unwrap() >= 1);
    // Other rules are not a difference.
    let mut foreign = lines(&paths[1]);
    foreign[0] = foreign[0].replacen("\"rules\":", "\"rules\":9", 1);
    foreign[1] = "{\"start\":{}}".to_owned();
    write(&forged, &foreign);
    let (status, outcomes) = replayed(&house, &["--segment", forged.to_str().unwrap()]);
    assert_eq!((status, &outcomes[0]["outcome"]), (Some(0), &json!("other_rules")), "{outcomes:?}");

    let daemon = house.daemon().await;
    for job in [running.id, waits.id] {
        house.client().post::<Value>(&format!("/v1/jobs/{job}/cancel"), &json!({"now": true})).await.unwrap();
        house.end(job).await;
    }
    drop(daemon);
}
