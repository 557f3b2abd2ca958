//! How GPUs stand, as the worker tells it: with its first word, and with heartbeats.

use std::sync::Arc;
use std::time::Instant;

use gpulayer::contract::gpu::{Gpu, GpuStanding};
use gpulayer::gpu::Nvml;
use gpulayer::worker::WorkerHandle;

use crate::nvml_stub::{NvmlStub, StubGpu};
use crate::server::{Record, Server, stop};

pub fn start(server: &Arc<Server>, stub: &NvmlStub) -> WorkerHandle {
    server.start_worker_with(|options| options.gpus.nvml = Nvml::Library(stub.library()))
}

/// The GPUs as the worker introduced itself with them.
fn introduced(server: &Server) -> Vec<Gpu> {
    server.until("the worker", |record| Some(record.capabilities.as_ref()?.gpus.clone()))
}

/// The newest that heartbeats say of a GPU.
fn newest<'a>(record: &'a Record, uuid: &str) -> Option<&'a GpuStanding> {
    let mut news = record.beats.iter().filter_map(|beat| beat.gpus.as_ref()).flatten();
    news.rfind(|news| news.uuid == uuid).map(|news| &news.standing)
}

/// Waits until heartbeats say so.
pub fn until_told(
    server: &Server,
    what: &str,
    uuid: &str,
    is_so: impl Fn(&GpuStanding) -> bool,
) -> GpuStanding {
    server.until(what, |record| newest(record, uuid).filter(|standing| is_so(standing)).cloned())
}

#[test]
fn news_of_a_gpu_travel_with_heartbeats() {
    let server = Server::new();
    let (stub, mut gpus) = NvmlStub::with_pairs(2);
    let worker = start(&server, &stub);
    let first = introduced(&server);
    assert_eq!(first.len(), 2);
    assert!(first.iter().all(|gpu| gpu.standing == GpuStanding::Ready));
    let (uuid, me) = (gpus[0].uuid.clone(), std::process::id());

    gpus[0].pids = vec![me];
    stub.has(&gpus);
    let busy = until_told(&server, "busy", &uuid, |standing| *standing != GpuStanding::Ready);
    assert_eq!(busy, GpuStanding::BusyOutside { pids: vec![me] });
    gpus[0].pids.clear();
    stub.has(&gpus);
    until_told(&server, "ready", &uuid, |standing| *standing == GpuStanding::Ready);

    let breaks = [("lost=1", "it is lost"), ("pages=1", "it wants a reset"), ("xid=79", "Xid 79")];
    for (word, why) in breaks {
        gpus[0].more = word.into();
        stub.has(&gpus);
        let says = |standing: &GpuStanding| matches!(standing, GpuStanding::Unhealthy { why: said } if said.contains(why));
        until_told(&server, why, &uuid, says);
    }
    // An error of the device stays, also when the driver is silent about it.
    gpus[0].more.clear();
    gpus[1].pids = vec![me];
    stub.has(&gpus);
    until_told(&server, "the other", &gpus[1].uuid, |standing| *standing != GpuStanding::Ready);
    server.change(|record| {
        assert!(matches!(newest(record, &uuid), Some(GpuStanding::Unhealthy { .. })));
    });
    stop(worker);
}

#[test]
fn an_error_of_a_program_is_none_of_its_gpu() {
    let server = Server::new();
    let (stub, mut gpus) = NvmlStub::with_pairs(2);
    let worker = start(&server, &stub);
    gpus[0].more = "xid=31".into();
    gpus[1].pids = vec![std::process::id()];
    stub.has(&gpus);
    until_told(&server, "the other", &gpus[1].uuid, |standing| *standing != GpuStanding::Ready);
    let bad = |standing: &GpuStanding| *standing != GpuStanding::Ready;
    server.change(|record| assert!(!newest(record, &gpus[0].uuid).is_some_and(bad)));
    stop(worker);
}

#[test]
fn a_driver_that_hangs_takes_out_its_gpus_and_never_a_heartbeat() {
    let server = Server::new();
    let (stub, gpus) = NvmlStub::with_pairs(2);
    let worker = start(&server, &stub);
    introduced(&server);
    stub.has_and(&gpus, "hang=1");
    let hung = |standing: &GpuStanding| matches!(standing, GpuStanding::Unhealthy { why } if why.contains("no answer within"));
    let beats = server.change(|record| record.beats.len());
    let begun = Instant::now();
    for StubGpu { uuid, .. } in &gpus {
        until_told(&server, "a GPU that does not answer", uuid, hung);
    }
    let beats = server.change(|record| record.beats.len()) - beats;
    // Every 50 ms here; a machine with much to do may be late now and then.
    assert!(beats as u128 > begun.elapsed().as_millis() / 200, "{beats} beats in {:?}", begun.elapsed());
    stub.has(&gpus);
    for StubGpu { uuid, .. } in &gpus {
        until_told(&server, "a GPU that answers again", uuid, |standing| *standing == GpuStanding::Ready);
    }
    stop(worker);
}

#[test]
fn gpus_of_a_driver_that_is_gone_are_listed_as_not_working() {
    let server = Server::new();
    let (stub, gpus) = NvmlStub::with_pairs(2);
    let worker = start(&server, &stub);
    introduced(&server);
    stop(worker);
    server.change(|record| record.capabilities = None);
    stub.says("driver=missing\n");
    let worker = start(&server, &stub);
    let listed = introduced(&server);
    assert_eq!(listed.len(), gpus.len());
    for gpu in listed {
        let GpuStanding::Unhealthy { why } = &gpu.standing else { panic!("{gpu:?}") };
        assert!(why.contains("the NVIDIA driver is not loaded"), "{why}");
    }
    // It comes back, and its GPUs with it.
    stub.has(&gpus);
    until_told(&server, "a GPU that is back", &gpus[0].uuid, |standing| *standing == GpuStanding::Ready);
    stop(worker);
}
