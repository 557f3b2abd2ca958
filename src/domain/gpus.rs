//! How a GPU stands, from what was seen on it and who has it; and what a task's program is told of its GPUs.

use std::collections::BTreeSet;

use crate::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use crate::contract::ids::TaskId;

/// The variable that names a task's GPUs by uuid; absent when it has none.
pub const GRANTED: &str = "GPULAYER_GPU_UUIDS";

/// Whose a process with memory on a GPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// In the tree of this task.
    Task(TaskId),
    /// In the tree of some task of this worker that cannot be told.
    SomeTask,
    /// Of the worker itself: a probe.
    Ourselves,
    /// Of nobody this worker started.
    Outsider,
    /// It is not there for this worker: it has ended and the driver still cleans up, or it lives in a process
    /// namespace that cannot be looked into.
    Unseen,
}

/// A process with memory on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub pid: u32,
    /// Whose it is.
    pub whose: Whose,
}

/// Who has a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Keeper {
    /// Nobody: it can be granted.
    #[default]
    Nobody,
    /// It was granted to this task.
    Task(TaskId),
    /// The task's tree is gone; nobody has seen yet that nothing of it is left here.
    Left {
        /// The task.
        task_id: TaskId,
        /// Processes that were the task's when they were last seen.
        pids: BTreeSet<u32>,
    },
}

impl Keeper {
    /// After the task's tree is gone: what was last seen on the GPU tells whom to wait for.
    pub fn left(task_id: TaskId, users: &[User]) -> Self {
        let own =
            |user: &&User| !matches!(user.whose, Whose::Outsider) && !is_of_another(user.whose, task_id);
        Keeper::Left { task_id, pids: users.iter().filter(own).map(|user| user.pid).collect() }
    }

    /// Who has it after a look: what a task left may be gone.
    #[must_use]
    pub fn after(self, users: &[User]) -> Self {
        match &self {
            Keeper::Left { .. } if left_behind(&self, users).is_empty() => Keeper::Nobody,
            _ => self,
        }
    }
}

fn is_of_another(whose: Whose, task_id: TaskId) -> bool {
    matches!(whose, Whose::Task(other) if other != task_id)
}

fn left_behind(keeper: &Keeper, users: &[User]) -> Vec<u32> {
    let Keeper::Left { task_id, pids } = keeper else { return Vec::new() };
    let of_it = |user: &&User| {
        pids.contains(&user.pid) || matches!(user.whose, Whose::Unseen) || user.whose == Whose::Task(*task_id)
    };
    users.iter().filter(of_it).map(|user| user.pid).collect()
}

/// How a GPU stands that works and has these users.
pub fn standing(keeper: &Keeper, users: &[User]) -> GpuStanding {
    let wedged = left_behind(keeper, users);
    if !wedged.is_empty() {
        return GpuStanding::Wedged { pids: wedged };
    }
    let foreign = |user: &&User| match keeper {
        // What cannot be looked into is taken for the task's own: a container hides the processes of all.
        Keeper::Task(task_id) => user.whose == Whose::Outsider || is_of_another(user.whose, *task_id),
        Keeper::Nobody | Keeper::Left { .. } => true,
    };
    let pids: Vec<u32> = users.iter().filter(foreign).map(|user| user.pid).collect();
    if pids.is_empty() { GpuStanding::Ready } else { GpuStanding::BusyOutside { pids } }
}

/// What a task's program is told of its GPUs (CONTRACT, On the worker), as variables and their values. `granted` are
/// the task's, `all` those of its machine. `unsure`: whether the machine may have GPUs that are not among `all`, or do
/// not answer. The indices of the others are then anybody's guess, and names are used instead.
pub fn variables(granted: &[Gpu], all: &[Gpu], unsure: bool) -> Vec<(&'static str, String)> {
    let joined = |words: Vec<String>| words.join(",");
    let of = |vendor| move |gpu: &&Gpu| gpu.vendor == vendor;
    let has_amd = all.iter().any(|gpu| gpu.vendor == GpuVendor::Amd);
    let mut told = vec![("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned())];
    let nvidia: Vec<&Gpu> = granted.iter().filter(of(GpuVendor::Nvidia)).collect();
    let amd: Vec<&Gpu> = granted.iter().filter(of(GpuVendor::Amd)).collect();
    let by_name = unsure || nvidia.iter().any(|gpu| gpu.slice.is_some());
    let named = |gpu: &&Gpu| if by_name { gpu.uuid.clone() } else { gpu.index.to_string() };
    // HIP reads this one as well, and takes an empty one for no GPU.
    if amd.is_empty() {
        told.push(("CUDA_VISIBLE_DEVICES", joined(nvidia.iter().map(named).collect())));
    }
    if has_amd {
        // The second counts within what the first leaves.
        let numbers = (0..amd.len()).map(|number| number.to_string()).collect();
        told.push(("ROCR_VISIBLE_DEVICES", joined(amd.iter().map(|gpu| of_rocm(gpu)).collect())));
        told.push(("HIP_VISIBLE_DEVICES", joined(numbers)));
    }
    if !granted.is_empty() {
        let uuids = granted.iter().map(|gpu| gpu.uuid.clone()).collect();
        told.push((GRANTED, joined(uuids)));
    }
    told
}

/// ROCm takes a unique id with this prefix; GPUs without one are counted.
fn of_rocm(gpu: &Gpu) -> String {
    if gpu.uuid.starts_with("GPU-") { gpu.uuid.clone() } else { gpu.index.to_string() }
}

/// GPUs that reach one another over links, in groups of two and more, by their indices.
pub fn groups(gpus: &[Gpu]) -> Vec<Vec<u32>> {
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for gpu in gpus.iter().filter(|gpu| !gpu.links.is_empty()) {
        let linked = gpus.iter().filter(|other| other.uuid == gpu.uuid || gpu.links.contains(&other.uuid));
        let group: Vec<u32> = linked.map(|other| other.index).collect();
        if group.len() > 1 && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::gpu::GpuSlice;
    use crate::contract::spec::MemoryKind;

    const ONE: TaskId = TaskId::from_u128(1);
    const TWO: TaskId = TaskId::from_u128(2);

    fn user(pid: u32, whose: Whose) -> User {
        User { pid, whose }
    }

    fn gpu(vendor: GpuVendor, index: u32, uuid: &str) -> Gpu {
        Gpu {
            uuid: uuid.into(),
            vendor,
            index,
            model: "M".into(),
            memory_bytes: 1,
            memory_kind: MemoryKind::Dedicated,
            compute_capability: None,
            pci_address: None,
            numa_node: None,
            links: Vec::new(),
            slice: None,
            driver: None,
            standing: GpuStanding::Ready,
        }
    }

    #[test]
    fn a_task_on_its_gpu_is_nobodys_business_and_others_are() {
        let keeper = Keeper::Task(ONE);
        let own = [user(1, Whose::Task(ONE)), user(2, Whose::SomeTask), user(3, Whose::Unseen)];
        assert_eq!(standing(&keeper, &own), GpuStanding::Ready);
        let others = [user(1, Whose::Task(ONE)), user(8, Whose::Task(TWO)), user(9, Whose::Outsider)];
        assert_eq!(standing(&keeper, &others), GpuStanding::BusyOutside { pids: vec![8, 9] });
        assert_eq!(standing(&Keeper::Nobody, &own), GpuStanding::BusyOutside { pids: vec![1, 2, 3] });
        assert_eq!(standing(&Keeper::Nobody, &[]), GpuStanding::Ready);
    }

    #[test]
    fn what_a_task_left_wedges_its_gpu_until_it_is_gone() {
        let keeper = Keeper::left(ONE, &[user(1, Whose::Task(ONE)), user(9, Whose::Outsider)]);
        // 1 has escaped the tree, 2 has ended and its memory is not given back yet.
        let users = [user(1, Whose::Outsider), user(2, Whose::Unseen), user(9, Whose::Outsider)];
        assert_eq!(standing(&keeper, &users), GpuStanding::Wedged { pids: vec![1, 2] });
        let keeper = keeper.after(&users);
        assert!(matches!(keeper, Keeper::Left { .. }));
        let users = [user(9, Whose::Outsider)];
        assert_eq!(standing(&keeper, &users), GpuStanding::BusyOutside { pids: vec![9] });
        assert_eq!(keeper.after(&users), Keeper::Nobody);
    }

    #[test]
    fn nvidia_gpus_are_told_by_index_and_slices_by_name() {
        let all: Vec<Gpu> = (0..4).map(|n| gpu(GpuVendor::Nvidia, n, &format!("GPU-{n}"))).collect();
        let told = variables(&all[2..], &all, false);
        assert_eq!(
            told,
            [
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
                ("CUDA_VISIBLE_DEVICES", "2,3".to_owned()),
                ("GPULAYER_GPU_UUIDS", "GPU-2,GPU-3".to_owned()),
            ]
        );
        let cut = GpuSlice { of: "GPU-0".into(), profile: "3g.20gb".into() };
        let slice = Gpu { slice: Some(cut), ..gpu(GpuVendor::Nvidia, 0, "MIG-a") };
        assert_eq!(
            variables(std::slice::from_ref(&slice), std::slice::from_ref(&slice), false)[1].1,
            "MIG-a"
        );
        // A lost GPU: nobody knows whether CUDA still counts it.
        assert_eq!(variables(&all[2..], &all, true)[1].1, "GPU-2,GPU-3");
    }

    #[test]
    fn without_gpus_all_are_hidden() {
        let nvidia = [gpu(GpuVendor::Nvidia, 0, "GPU-0")];
        for all in [&[][..], &nvidia] {
            let told = variables(&[], all, false);
            assert_eq!(told[1..], [("CUDA_VISIBLE_DEVICES", String::new())]);
        }
        let told = variables(&[], &[gpu(GpuVendor::Amd, 0, "GPU-a")], false);
        let hidden = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];
        assert_eq!(told[1..], hidden.map(|name| (name, String::new())));
    }

    #[test]
    fn amd_gpus_are_told_by_id_where_they_have_one() {
        let all =
            [gpu(GpuVendor::Amd, 0, "PCI-0000:03:00.0"), gpu(GpuVendor::Amd, 1, "GPU-18f68e602b6a790f")];
        let told = variables(&all, &all, false);
        assert_eq!(told[1], ("ROCR_VISIBLE_DEVICES", "0,GPU-18f68e602b6a790f".to_owned()));
        assert_eq!(told[2], ("HIP_VISIBLE_DEVICES", "0,1".to_owned()));
        assert!(told.iter().all(|(name, _)| *name != "CUDA_VISIBLE_DEVICES"));
    }
}
