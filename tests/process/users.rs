//! Tasks as another user than their shim: who they are, what they cannot reach, and that they still end whole.
//!
//! Only root can do that; as anybody else these tests say so and pass.

use std::path::Path;

use gpulayer::process::account::Account;
use gpulayer::process::{Launch, ShimEvent, Wait};

use crate::bench::{Bench, end_of, event_of, is_running, noted_pids, shims, until, until_printed};

fn nobody() -> Option<Account> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: only root can run tasks as another user");
        return None;
    }
    Some(Account::named("nobody").unwrap())
}

fn let_pass(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).unwrap();
}

fn as_user(bench: &Bench, user: &Account, program: &str) -> Launch {
    let mut launch = bench.shell(program);
    for folder in [bench.path(), &bench.path().join("tasks"), &launch.task_folder] {
        let_pass(folder);
    }
    std::os::unix::fs::chown(&launch.workspace, Some(user.ids.uid), Some(user.ids.gid)).unwrap();
    launch.run_as = Some(user.ids.clone());
    launch
}

#[tokio::test]
async fn the_program_has_the_users_ids_and_nothing_of_its_shim() {
    let Some(user) = nobody() else { return };
    let bench = Bench::new();
    let program = "id -u; id -g; id -G; grep -E '^(Cap(Prm|Eff|Amb)|SigBlk|SigIgn):' /proc/self/status; \
                   ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo leads; ls /proc/self/fd | wc -l; touch mine && stat -c %U mine; \
                   echo again > /dev/stdout; (echo err > /dev/stderr) 2>&1";
    let ended = bench.run(as_user(&bench, &user, program)).await;
    assert_eq!(ended.exit.wait, Wait::Exited { code: 0 }, "{:?}", ended.texts());
    let groups: Vec<_> = user.ids.groups.iter().map(u32::to_string).collect();
    let none = "0000000000000000";
    let expected = [
        user.ids.uid.to_string(),
        user.ids.gid.to_string(),
        groups.join(" "),
        format!("SigBlk:\t{none}"),
        format!("SigIgn:\t{none}"),
        format!("CapPrm:\t{none}"),
        format!("CapEff:\t{none}"),
        format!("CapAmb:\t{none}"),
        "leads".to_owned(),
        // Its three streams, and the folder that `ls` has open.
        "4".to_owned(),
        "nobody".to_owned(),
        // Its streams are its own to open.
        "again".to_owned(),
        "err".to_owned(),
    ];
    assert_eq!(ended.texts(), expected);
    // The shim did not become anybody: the next task can be root's again.
    let next = bench.run(bench.shell("id -u")).await;
    assert_eq!(next.texts(), ["0"]);
    assert_eq!(shims(bench.path()).len(), 1, "one shim did both");
}

#[tokio::test]
async fn it_cannot_touch_its_shim_or_what_the_shim_writes() {
    let Some(user) = nobody() else { return };
    let bench = Bench::new();
    let program = "
        kill -KILL $PPID 2>/dev/null && echo killed it
        kill -STOP $PPID 2>/dev/null && echo stopped it
        for file in ../spool ../shim.json ../../../shims; do
            cat $file >/dev/null 2>&1 && echo read $file
            ls $file/ >/dev/null 2>&1 && echo listed $file
            echo x 2>/dev/null >> $file && echo wrote $file
        done
        mv ../workspace ../elsewhere 2>/dev/null && echo moved
        touch ../new 2>/dev/null && echo made
        echo done";
    let ended = bench.run(as_user(&bench, &user, program)).await;
    let said: Vec<_> = ended.texts().into_iter().filter(|line| !line.contains("ermission denied")).collect();
    assert_eq!(said, ["done"]);
    assert_eq!(ended.exit.wait, Wait::Exited { code: 0 });
}

#[tokio::test]
async fn the_whole_tree_of_another_user_dies() {
    let Some(user) = nobody() else { return };
    let bench = Bench::new();
    let program = "
        trap '' TERM
        setsid sh -c 'trap \"\" TERM; echo $$ >> pids; exec sleep 1000' &
        (sh -c 'echo $$ >> pids; exec sleep 1000' &)
        echo $$ >> pids
        while [ $(wc -l < pids) -lt 3 ]; do sleep 0.01; done
        echo up; while :; do sleep 1; done";
    let launch = as_user(&bench, &user, program);
    let folder = launch.task_folder.clone();
    let mut process = bench.pool.launch(launch).await.unwrap();
    until_printed(&folder, "up").await;
    let pids = noted_pids(&folder);
    assert_eq!(pids.len(), 3);
    process.stop(true).await.unwrap();
    let record = end_of(&mut process).await;
    assert!(matches!(record.wait, Wait::Signalled { signal: 9, .. }), "{record:?}");
    until("all of them gone", || !pids.iter().any(|pid| is_running(*pid))).await;
}

#[tokio::test]
async fn a_folder_or_a_program_that_the_user_cannot_reach_is_said() {
    let Some(user) = nobody() else { return };
    let bench = Bench::new();
    let mut closed = as_user(&bench, &user, "true");
    std::os::unix::fs::chown(&closed.workspace, Some(0), Some(0)).unwrap();
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&closed.workspace, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    closed.argv = vec!["true".into()];
    let Wait::NotStarted { detail, .. } = bench.run(closed).await.exit.wait else { panic!("it started") };
    assert!(detail.contains("working folder") && detail.contains(&user.ids.uid.to_string()), "{detail}");
    let mut program = as_user(&bench, &user, "true");
    let own = bench.path().join("own");
    std::fs::copy("/bin/true", &own).unwrap();
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    program.argv = vec![own.clone().into()];
    let Wait::NotStarted { detail, .. } = bench.run(program).await.exit.wait else { panic!("it started") };
    assert!(detail.contains("is not executable"), "{detail}");
    // No child is left that never became a program.
    let mut process = bench.pool.launch(as_user(&bench, &user, "echo fine")).await.unwrap();
    while let Some(event) = event_of(&mut process).await {
        if let ShimEvent::Ended(record) = event {
            assert_eq!(record.wait, Wait::Exited { code: 0 });
            return;
        }
    }
}
