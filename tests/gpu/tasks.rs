//! Who gets a GPU: what its program is told, when a task is declined, and when the next one may have it.

use gpulayer::contract::end::EndReason;
use gpulayer::contract::gpu::GpuStanding;
use gpulayer::contract::ids::TaskId;
use gpulayer::contract::protocol::Report;
use gpulayer::gpu::locks::Locks;
use gpulayer::process::host_lock::{HowToLock, lock};

use crate::nvml_stub::{NvmlStub, pairs};
use crate::server::{Server, shell, stop};
use crate::standing::{start, until_told};

/// A process that is surely not there.
const NOBODY: u32 = 4_194_303;

fn declined(server: &Server, task_id: TaskId) -> String {
    server.until("a decline", |record| {
        record.reports.iter().find_map(|item| match &item.report {
            Report::Decline { detail } if item.task_id == task_id => Some(detail.clone()),
            _ => None,
        })
    })
}

#[test]
fn a_program_is_told_its_gpus_and_sees_no_others() {
    let server = Server::new();
    let stub = NvmlStub::new();
    let mut gpus = pairs(4);
    gpus[3].slices = vec![("3g.40gb".into(), vec![]), ("4g.40gb".into(), vec![])];
    stub.has(&gpus);
    let worker = start(&server, &stub);
    let print = "echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES $GPULAYER_GPU_UUIDS";
    let slice = format!("MIG-0-{}", gpus[3].uuid);
    let both = vec![gpus[1].uuid.clone(), gpus[2].uuid.clone()];
    let two = server.offer_on(shell(print), both.clone());
    let one = server.offer_on(shell(print), vec![slice.clone()]);
    let none = server.offer(shell(&format!("{print}; echo ${{CUDA_VISIBLE_DEVICES-unset}}.")));
    for task_id in [two, one, none] {
        assert_eq!(server.finish_of(task_id).end.reason, EndReason::Completed);
    }
    assert_eq!(server.lines_of(two), [format!("PCI_BUS_ID 1,2 {}", both.join(","))]);
    assert_eq!(server.lines_of(one), [format!("PCI_BUS_ID {slice} {slice}")]);
    assert_eq!(server.lines_of(none), ["PCI_BUS_ID", "."]);
    stop(worker);
}

#[test]
fn a_task_is_declined_when_its_gpus_are_not_as_the_server_knows_them() {
    let server = Server::new();
    let (stub, mut gpus) = NvmlStub::with_pairs(4);
    let worker = start(&server, &stub);
    server.until("the worker", |record| record.capabilities.is_some().then_some(()));
    gpus[0].pids = vec![std::process::id()];
    gpus[1].name = "NVIDIA A100-SXM4-40GB".into();
    gpus[2].more = "lost=1".into();
    stub.has(&gpus);
    let reason = |uuid: &str| declined(&server, server.offer_on(shell("true"), vec![uuid.to_owned()]));
    let busy = reason(&gpus[0].uuid);
    assert!(busy.contains(&format!("in use by process {} outside", std::process::id())), "{busy}");
    let changed = reason(&gpus[1].uuid);
    assert!(changed.contains("is now a NVIDIA A100"), "{changed}");
    let lost = reason(&gpus[2].uuid);
    assert!(lost.contains("it is lost"), "{lost}");
    let absent = reason("GPU-none");
    assert!(absent.contains("GPU-none is not there"), "{absent}");
    // All or none: the healthy one was not touched.
    let mixed = server.offer_on(shell("true"), vec![gpus[3].uuid.clone(), gpus[2].uuid.clone()]);
    declined(&server, mixed);
    let well = server.offer_on(shell("true"), vec![gpus[3].uuid.clone()]);
    assert_eq!(server.finish_of(well).end.reason, EndReason::Completed);
    stop(worker);
}

#[test]
fn no_two_daemons_give_out_one_gpu_even_while_one_is_restarted() {
    let (server, other) = (Server::new(), Server::new());
    let (stub, gpus) = NvmlStub::with_pairs(2);
    let wanted = vec![gpus[0].uuid.clone()];
    let (worker, other_worker) = (start(&server, &stub), start(&other, &stub));
    let go = server.folder().join("go");
    let wait = format!("echo here; until [ -e {} ]; do sleep 0.01; done", go.display());
    let first = server.offer_on(shell(&wait), wanted.clone());
    server.until_line(first, "here");
    let refusal = |wanted: &Vec<String>| declined(&other, other.offer_on(shell("true"), wanted.clone()));
    let why = refusal(&wanted);
    assert!(why.contains("outside of GPUlayer") || why.contains("another GPUlayer on this host"), "{why}");

    // The worker is gone; the task and its lock are not.
    stop(worker);
    refusal(&wanted);
    let worker = start(&server, &stub);
    server.until("the worker's return", |record| (!record.resumes.is_empty()).then_some(()));
    refusal(&wanted);
    std::fs::write(go, "").unwrap();
    assert_eq!(server.finish_of(first).end.reason, EndReason::Completed);
    until_told(&other, "the GPU being free", &wanted[0], |standing| *standing == GpuStanding::Ready);
    let second = other.offer_on(shell("true"), wanted.clone());
    assert_eq!(other.finish_of(second).end.reason, EndReason::Completed);
    stop(worker);
    stop(other_worker);
}

#[test]
fn a_gpu_that_a_stranger_has_locked_is_said_to_be_busy() {
    let server = Server::new();
    let (stub, gpus) = NvmlStub::with_pairs(1);
    let worker = start(&server, &stub);
    let path = Locks::of_host().paths(&gpus[0].uuid).remove(0);
    let held = lock(&path, HowToLock::Alone).unwrap();
    let busy = until_told(&server, "busy", &gpus[0].uuid, |standing| *standing != GpuStanding::Ready);
    assert_eq!(busy, GpuStanding::BusyOutside { pids: vec![std::process::id()] });
    drop(held);
    until_told(&server, "ready", &gpus[0].uuid, |standing| *standing == GpuStanding::Ready);
    stop(worker);
}

#[test]
fn a_gpu_goes_to_the_next_task_when_nothing_of_the_last_is_left_on_it() {
    let server = Server::new();
    let (stub, mut gpus) = NvmlStub::with_pairs(2);
    let worker = start(&server, &stub);
    let wanted = vec![gpus[0].uuid.clone()];
    let first = server.offer_on(shell("echo here; sleep 1"), wanted.clone());
    server.until_line(first, "here");
    gpus[0].pids = vec![NOBODY];
    stub.has(&gpus);
    let finish = server.finish_of(first);
    assert_eq!(finish.end.reason, EndReason::Completed);
    let warned = finish.warnings.iter().any(|warning| warning.detail.contains("is still held by [4194303]"));
    assert!(warned, "{:?}", finish.warnings);
    let wedged = until_told(&server, "wedged", &wanted[0], |standing| *standing != GpuStanding::Ready);
    assert_eq!(wedged, GpuStanding::Wedged { pids: vec![NOBODY] });
    let refused = declined(&server, server.offer_on(shell("true"), wanted.clone()));
    assert!(refused.contains("still has memory of an ended task, held by process 4194303"), "{refused}");
    // The other is another's business.
    let beside = server.offer_on(shell("true"), vec![gpus[1].uuid.clone()]);
    assert_eq!(server.finish_of(beside).end.reason, EndReason::Completed);

    gpus[0].pids.clear();
    stub.has(&gpus);
    until_told(&server, "ready", &wanted[0], |standing| *standing == GpuStanding::Ready);
    let second = server.offer_on(shell("true"), wanted);
    assert_eq!(server.finish_of(second).end.reason, EndReason::Completed);
    stop(worker);
}

#[test]
fn a_tasks_own_processes_do_not_make_its_gpu_busy() {
    let server = Server::new();
    let (stub, mut gpus) = NvmlStub::with_pairs(2);
    let worker = start(&server, &stub);
    let task_id = server.offer_on(shell("echo $$; sleep 1000"), vec![gpus[0].uuid.clone()]);
    let pid = server.until("its pid", |record| record.logs.get(&task_id)?.first()?.text.parse::<u32>().ok());
    gpus[0].pids = vec![pid];
    // Where it has no business, it is one like any other.
    gpus[1].pids = vec![pid];
    stub.has(&gpus);
    let busy = until_told(&server, "busy", &gpus[1].uuid, |standing| *standing != GpuStanding::Ready);
    assert_eq!(busy, GpuStanding::BusyOutside { pids: vec![pid] });
    server.change(|record| {
        let told = record.beats.iter().filter_map(|beat| beat.gpus.as_ref()).flatten();
        let bad =
            told.filter(|news| news.uuid == gpus[0].uuid && news.standing != GpuStanding::Ready).count();
        assert_eq!(bad, 0);
        record.orders.kill_task_ids.push(task_id);
    });
    gpus[0].pids.clear();
    gpus[1].pids.clear();
    stub.has(&gpus);
    server.finish_of(task_id);
    stop(worker);
}
