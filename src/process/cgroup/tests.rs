//! Probing, on a folder tree that looks like a host.

use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::process::identity::start_ticks;

const ME: u32 = 4711;

/// A folder that stands for a group of version 2 with these files.
fn group(path: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(path).unwrap();
    for (name, text) in files {
        fs::write(path.join(name), text).unwrap();
    }
}

fn v2(own: &Path) -> Hierarchies {
    Hierarchies { v1: BTreeMap::new(), v2: Some(own.to_owned()) }
}

#[test]
fn version_1_is_used_where_its_files_are() {
    let root = tempfile::tempdir().unwrap();
    let memory = root.path().join("memory");
    // A real hierarchy puts its files into every new folder.
    group(&memory.join("gpulayer-0"), &[("memory.limit_in_bytes", "")]);
    let v1 =
        BTreeMap::from([("memory".to_owned(), memory.clone()), ("cpu".to_owned(), root.path().join("cpu"))]);
    let (plan, enforced) = probe(&Hierarchies { v1, v2: None }, "gpulayer-0", ME);
    assert_eq!(plan.memory, Some(Place { base: memory.join("gpulayer-0"), version: Version::V1 }));
    assert_eq!((plan.cpu, plan.unified), (None, None));
    assert_eq!(
        enforced,
        EnforcedLimits { memory: true, tree_kill: TreeKill::Group, ..EnforcedLimits::default() }
    );
}

#[test]
fn alone_in_a_group_of_version_2_the_worker_moves_into_a_leaf() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("container");
    let files = [
        ("cgroup.type", "domain"),
        ("cgroup.controllers", "cpu io memory pids"),
        ("cgroup.subtree_control", ""),
    ];
    group(&own, &files);
    group(&own, &[("cgroup.procs", "4711\n")]);
    let base = own.join("gpulayer-0");
    // What the kernel would show after the writes, which here go over the beginning.
    group(
        &base,
        &[("cgroup.subtree_control", "-------- memory pids cpu"), ("cgroup.kill", ""), ("cpu.weight", "")],
    );
    group(&base.join("worker"), &[("cgroup.procs", "")]);
    let (plan, enforced) = probe(&v2(&own), "gpulayer-0", ME);
    assert_eq!(files::read(&base.join("worker/cgroup.procs")), Some("4711".into()));
    let written = files::read(&own.join("cgroup.subtree_control")).unwrap();
    assert!(
        written.starts_with("+pids"),
        "the last of three writes, at the beginning of a plain file: {written}"
    );
    let place = Some(Place { base, version: Version::V2 });
    assert_eq!((&plan.memory, &plan.cpu, &plan.pids, &plan.unified), (&place, &place, &place, &place));
    assert_eq!(plan.bases().len(), 1);
    assert_eq!(enforced, EnforcedLimits { memory: true, cpu: true, pids: true, tree_kill: TreeKill::Cgroup });
}

#[test]
fn a_group_of_version_2_with_others_in_it_is_not_divided() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("session-3.scope");
    let files =
        [("cgroup.type", "domain"), ("cgroup.controllers", "cpu memory"), ("cgroup.subtree_control", "")];
    group(&own, &files);
    group(&own, &[("cgroup.procs", "17\n4711\n")]);
    group(&own.join("gpulayer-0"), &[("cgroup.subtree_control", ""), ("cgroup.kill", "")]);
    let (plan, enforced) = probe(&v2(&own), "gpulayer-0", ME);
    assert_eq!(files::read(&own.join("cgroup.subtree_control")), Some(String::new()));
    assert_eq!(plan.memory, None);
    // It can still be used to find and kill a tree.
    assert_eq!(enforced, EnforcedLimits { tree_kill: TreeKill::Cgroup, ..EnforcedLimits::default() });
}

#[test]
fn a_group_that_systemd_made_is_divided_only_from_a_leaf_of_it() {
    let service = Path::new("/g/gpulayer.service");
    assert!(is_of_systemd(service, service));
    assert!(!is_of_systemd(service, Path::new("/g/gpulayer.service/worker")));
    assert!(!is_of_systemd(Path::new("/g/container"), Path::new("/g/container")));
}

#[test]
fn a_restarted_worker_divides_the_same_group_again() {
    let name = "gpulayer-0";
    for own in ["/g/unit", "/g/unit/worker", "/g/unit/gpulayer-0/worker"] {
        assert_eq!(v2_home(Path::new(own), name), Path::new("/g/unit"), "{own}");
    }
}

#[test]
fn a_host_without_groups_has_none() {
    let (plan, enforced) = probe(&Hierarchies::default(), "gpulayer-0", ME);
    assert_eq!((plan, enforced), (Plan::default(), EnforcedLimits::default()));
}

#[test]
fn the_record_keeps_what_is_there_and_believes_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let earlier = root.path().join("gpulayer-0123456789ab");
    fs::create_dir(&earlier).unwrap();
    let record = root.path().join(RECORD);
    let lines = [
        earlier.to_str().unwrap(),
        "/sys/fs/cgroup/gpulayer-000000000000",
        "/sys/fs/cgroup",
        "gpulayer-0123456789ab",
    ];
    fs::write(&record, lines.join("\n")).unwrap();
    let wanted = std::slice::from_ref(&earlier);
    assert_eq!(remember(&record, &Plan::default()), wanted);
    assert_eq!(remember(&record, &Plan::default()), wanted);
}

#[test]
fn names_tell_a_shim_from_a_pid_that_is_used_again() {
    let me = std::process::id();
    let ticks = start_ticks(me).unwrap();
    assert!(is_of_live_shim(&group_name(me, ticks)));
    assert!(!is_of_live_shim(&group_name(me, ticks - 1)));
    assert!(!is_of_live_shim("shim-1"));
}
