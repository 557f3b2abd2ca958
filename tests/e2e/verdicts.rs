//! What a person reads when a job failed: the reason, what shows it, how sure it is, what to try.

use std::process::Output;

use gpulayer::contract::end::{Certainty, EndReason};

use crate::house::House;

fn text(output: &Output) -> String {
    [output.stdout.as_slice(), output.stderr.as_slice()].map(String::from_utf8_lossy).concat()
}

fn down(house: &House) {
    assert!(house.run(&["down", "--yes"]).status.success());
}

#[test]
fn a_missing_module_is_named_with_what_to_try() {
    let house = House::new();
    let run = house.run(&["run", "--source", "none", "--", "python3", "-c", "import a_module_nobody_has"]);
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let last = text(&run);
    assert!(
        last.contains("failed: import_error: Python module `a_module_nobody_has` is not there"),
        "{last}"
    );
    let show = text(&house.run(&["show", "@last"]));
    for said in [
        "import_error (user): Python module `a_module_nobody_has` is not there",
        "ModuleNotFoundError: No module named 'a_module_nobody_has'",
        "likely: the exception that ended the program",
        "try: activate the environment",
    ] {
        assert!(show.contains(said), "no `{said}` in:\n{show}");
    }
    down(&house);
}

#[test]
fn a_file_that_gitignore_left_out_is_told_as_such_also_from_elsewhere() {
    let house = House::new();
    let project = house.path().join("project");
    std::fs::create_dir_all(project.join("data")).unwrap();
    std::fs::write(project.join(".gitignore"), "data/\n").unwrap();
    std::fs::write(project.join("data/rows.csv"), "1,2\n").unwrap();
    std::fs::write(project.join("train.py"), "open('data/rows.csv')\n").unwrap();
    let run = house
        .command(&["run", "--source", ".", "--", "python3", "train.py"])
        .current_dir(&project)
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let advice = "try: .gitignore left data/ out: --input data/ or --here";
    assert!(text(&run).contains(advice), "{}", text(&run));
    // `show` may run anywhere: the server remembers.
    let show = text(&house.run(&["show", "@last"]));
    assert!(show.contains(advice) && show.contains("data/rows.csv"), "{show}");
    let again = house
        .command(&["run", "--source", ".", "--input", "data", "--", "python3", "train.py"])
        .current_dir(&project)
        .output()
        .unwrap();
    assert!(again.status.success(), "what it said to try works: {again:?}");
    down(&house);
}

#[actix_rt::test]
async fn ends_carry_their_certainty_over_the_api_and_success_carries_nothing() {
    use crate::house::shell;
    let house = House::new();
    let _daemon = house.daemon().await;
    let end = async |script: &str| house.end(house.submit(&shell(script)).await.id).await.end.unwrap();
    let done = end("echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 0").await;
    assert_eq!((done.reason, done.certainty, done.evidence.len()), (EndReason::Completed, None, 0));
    let killed = end("kill -KILL $$").await;
    assert_eq!((killed.reason, killed.certainty), (EndReason::Signalled, Some(Certainty::Possible)));
    let absent = end("no-such-program-anywhere --flag").await;
    assert_eq!((absent.reason, absent.exit_code), (EndReason::ExitNonzero, Some(127)));
    assert!(absent.detail.unwrap().contains("`no-such-program-anywhere`"));
    assert!(absent.evidence[0].contains("no-such-program-anywhere"), "{:?}", absent.evidence);
}
