//! The placer under test, driven as the daemon drives it.

use std::collections::HashMap;
use std::sync::Arc;

use gpulayer::contract::ids::JobId;
use gpulayer::contract::quantity::{Cpus, Seconds, Timestamp};
use gpulayer::contract::spec::Resources;
use gpulayer::domain::placement::{
    Input, Luggage, Pass, Place, Placed, Placer, Policy, ProjectPolicy, QueuedJob, Shape,
};

use super::hosts;
use super::trace::{Cluster, TraceJob};
use super::{Decisions, Scheduler};

/// When the simulation begins.
pub const START_S: u64 = 1_700_000_000;

/// See the module.
pub struct Ours {
    pub placer: Placer,
    shapes: HashMap<(u32, usize, Option<u64>), Arc<Shape>>,
    placed: HashMap<usize, Placed>,
}

impl Ours {
    /// On idle hosts; `spare` yields to higher priorities if anybody does.
    pub fn new(cluster: Cluster, preempts: bool, reservations: u32) -> Self {
        let spare = ProjectPolicy { preemptible: preempts, ..ProjectPolicy::default() };
        let projects = [("spare".to_owned(), spare)].into();
        let mut placer =
            Placer::new(Policy { projects, reservations, staging_s: Seconds::new(0), ..Policy::default() });
        for number in 1..=cluster.hosts {
            tell(&mut placer, hosts::host_up(number as u32, "NVIDIA H100 80GB HBM3", 80));
        }
        Self { placer, shapes: HashMap::new(), placed: HashMap::new() }
    }
}

fn id(number: usize) -> JobId {
    JobId::from_u128(number as u128 + 1)
}

/// The number in the trace.
pub fn number_of(job_id: JobId) -> usize {
    job_id.as_u128() as usize - 1
}

fn tell(placer: &mut Placer, input: Input) -> Pass {
    placer.apply(input).unwrap_or_else(|error| unreachable!("the books of the placer balance: {error}"))
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_micros(((START_S + second) * 1_000_000) as i64)
}

impl Scheduler for Ours {
    fn queued(&mut self, number: usize, job: &TraceJob, _: u64) {
        let shape = self.shapes.entry((job.gpus, job.nodes, job.limit_s)).or_insert_with(|| {
            let resources = Resources {
                cpus: Cpus::from_millis(6_000 * job.gpus),
                gpus: hosts::gpus(job.gpus),
                ..Resources::default()
            };
            let nodes = (job.nodes > 1).then_some(job.nodes as u32);
            let bound_s = job.limit_s.map(Seconds::new);
            Arc::new(Shape { resources, nodes, bound_s, ..Shape::default() })
        });
        let queued = QueuedJob {
            job_id: id(number),
            epoch: self.placed.remove(&number).map_or(0, |placed| placed.place().epoch),
            priority: job.priority,
            // One that had to go is as old as it was.
            submitted_at: at(job.arrives_s),
            shape: shape.clone(),
            project: job.project.into(),
            avoid: None,
            luggage: Luggage::default(),
        };
        tell(&mut self.placer, Input::Queued(queued));
    }

    fn freed(&mut self, number: usize) {
        let Some(placed) = self.placed.get(&number) else { return };
        let place: Place = placed.place();
        for seat in &placed.seats {
            tell(&mut self.placer, Input::Freed { worker_id: seat.worker_id, place });
        }
    }

    fn pass(&mut self, now_s: u64) -> Decisions {
        let pass = tell(&mut self.placer, Input::Pass { now: at(now_s), budget_checks: u32::MAX });
        let mut decisions = Decisions::default();
        for placed in pass.placements {
            let number = number_of(placed.job.job_id);
            tell(&mut self.placer, Input::Accepted { job_id: placed.job.job_id });
            let hosts = placed.seats.iter().map(|seat| seat.worker_id.as_u128() as usize - 1);
            decisions.starts.push((number, hosts.collect()));
            self.placed.insert(number, placed);
        }
        decisions.stops.extend(pass.preemptions.iter().map(|preemption| number_of(preemption.place.job_id)));
        decisions
    }
}
