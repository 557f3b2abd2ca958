//! What the worker's interpreters can import: found out beside everything else, after the worker has joined, and told
//! with a heartbeat.

use std::io;

use tokio::sync::watch;

use super::WorkerOptions;
use crate::contract::gpu::{Gpu, Interpreter};
use crate::contract::worker::WorkerKind;
use crate::frameworks::{self, Look};

/// Those that it offers: the server's own host also the one of its `PATH`.
pub(super) fn offered(options: &WorkerOptions) -> Vec<String> {
    let mut pythons = options.pythons.clone();
    if options.kind == WorkerKind::Local
        && let Some(own) = frameworks::on_path().filter(|own| !pythons.contains(own))
    {
        pythons.push(own);
    }
    pythons
}

/// Begins to look; the result comes when it is there. `None` = not yet.
pub(super) fn found(
    options: &WorkerOptions,
    folder: &std::path::Path,
    gpus: Vec<Gpu>,
) -> io::Result<watch::Receiver<Option<Vec<Interpreter>>>> {
    let pythons = offered(options);
    let (tell, told) = watch::channel(None);
    if pythons.is_empty() {
        return Ok(told);
    }
    let run_as = options.task_user.as_ref().map(|user| user.ids.clone());
    let wanted = Look { pythons, gpus, run_as, folder: Some(folder.to_owned()) };
    std::thread::Builder::new().name("interpreters".to_owned()).spawn(move || {
        let found = frameworks::look(&wanted);
        for Interpreter { path, frameworks, fault, .. } in &found {
            for fault in
                fault.iter().chain(frameworks.values().filter_map(|framework| framework.fault.as_ref()))
            {
                tracing::warn!(interpreter = path, "{fault}");
            }
        }
        // Nobody may listen any more.
        let _ = tell.send(Some(found));
    })?;
    Ok(told)
}
