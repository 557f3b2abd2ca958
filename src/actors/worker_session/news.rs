//! What a worker's heartbeats say of its GPUs and interpreters.

use crate::contract::gpu::{GpuNews, Interpreter};
use crate::contract::worker::Capabilities;

/// Takes it in; whether anything is another than before.
pub(super) fn take_in(
    known: &mut Capabilities,
    gpus: Option<Vec<GpuNews>>,
    interpreters: Option<Vec<Interpreter>>,
) -> bool {
    let mut changed = false;
    for GpuNews { uuid, standing } in gpus.into_iter().flatten() {
        let gpu = known.gpus.iter_mut().find(|gpu| gpu.uuid == uuid && gpu.standing != standing);
        if let Some(gpu) = gpu {
            gpu.standing = standing;
            changed = true;
        }
    }
    if let Some(found) = interpreters.filter(|found| *found != known.interpreters) {
        known.interpreters = found;
        changed = true;
    }
    changed
}
