//! What a program says of its progress, from its file to the API and the tables.

use gpulayer::contract::job::Job;
use serde_json::{Value, json};

use crate::house::{House, eventually, shell};

#[actix_rt::test]
async fn the_newest_word_of_a_program_is_shown_and_its_last_one_stays() {
    let house = House::new();
    let daemon = house.daemon().await;
    let (go, done) = (house.path().join("go"), r#"{"done": 10, "total": 10, "step": 10}"#);
    let text = format!(
        r#"echo '{{"done": 3, "total": 10, "metrics": {{"loss": 0.5}}}}' > "$GPULAYER_PROGRESS_FILE"
        while [ ! -e {} ]; do sleep 0.05; done
        echo '{done}' > "$GPULAYER_PROGRESS_FILE""#,
        go.display()
    );
    let id = house.submit(&shell(&text)).await.id;
    let asked = async || house.client().get::<Job>(&format!("/v1/jobs/{id}")).await.unwrap().progress;
    let said = |progress: Option<Value>| progress.and_then(|progress| progress["done"].as_f64());
    eventually("the first word", async || (said(asked().await) == Some(3.0)).then_some(())).await;
    assert_eq!(asked().await.unwrap()["metrics"], json!({"loss": 0.5}));
    let table = house.run(&["ps"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("3/10 (30 %) · loss=0.5"), "{table}");
    let shown = house.run(&["show", "@last"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("progress     3/10 (30 %)"), "{shown:?}");
    // Nobody has to look for the last word to be kept, and nothing of it is lost with the daemon.
    daemon.kill();
    std::fs::write(go, "").unwrap();
    let _daemon = house.daemon().await;
    let ended = house.end(id).await;
    assert_eq!(ended.progress.clone().unwrap()["step"], json!(10), "{ended:?}");
    assert_eq!(said(ended.progress), Some(10.0));
    assert!(ended.undeclared.is_empty());
}

#[actix_rt::test]
async fn its_metrics_show_no_secret() {
    let house = House::new();
    let _daemon = house.daemon().await;
    let secret = house.path().join("secret");
    std::fs::write(&secret, "wonderfully-hidden").unwrap();
    let text = r#"printf '{"done": 1, "metrics": {"key": "%s", "of %s": 2}}' "$KEY" "$KEY" > "$GPULAYER_PROGRESS_FILE""#;
    let mut spec = shell(text);
    spec["secrets"] = json!([{"name": "KEY", "ref": format!("file:{}", secret.display())}]);
    let ended = house.end(house.submit(&spec).await.id).await;
    let shown = ended.progress.unwrap()["metrics"].clone();
    assert_eq!(shown, json!({"key": "[secret KEY]", "of [secret KEY]": 2}));
}
