//! Signs of life, on a thread and a connection of their own: whatever the rest of the worker does, they go out.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use actix::Recipient;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::gauges::Gauges;
use super::gpus::{News, Told};

use crate::actors::messages::task_runner::OrdersReceived;
use crate::actors::task_runner::{DiskRoom, HeldTasks};
use crate::client::worker_channel::{ChannelError, SessionEnd, WorkerChannel};
use crate::clock;
use crate::contract::gpu::{Gpu, Interpreter};
use crate::contract::protocol::{HeartbeatAnswer, HeartbeatRequest, Orders};
use crate::contract::quantity::Seconds;
use crate::contract::telemetry::ClockOffset;
use crate::domain::clock_note;
use crate::gpu::Devices;

/// Heartbeats on their way at once, at most.
const AT_ONCE: usize = 16;

/// What the thread works with.
pub(super) struct Heartbeat {
    pub(super) channel: Arc<dyn WorkerChannel>,
    pub(super) held: HeldTasks,
    pub(super) room: DiskRoom,
    pub(super) gauges: Gauges,
    pub(super) gpus: Devices,
    /// As the session was opened with them.
    pub(super) gpus_at_first: Vec<Gpu>,
    pub(super) interpreters: watch::Receiver<Option<Vec<Interpreter>>>,
    pub(super) secret_names: watch::Receiver<Vec<String>>,
    pub(super) incarnation: u64,
    pub(super) every: Seconds,
    pub(super) orders: Recipient<OrdersReceived>,
    pub(super) session_over: mpsc::UnboundedSender<SessionEnd>,
}

impl Heartbeat {
    /// Beats until `stop` says so, or the session ends.
    pub(super) fn start(self, stop: watch::Receiver<bool>) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
            // With every core busy it must not wait for its turn behind them.
            if !crate::process::priority::hurry_this_thread() {
                tracing::debug!("the heartbeat runs at the priority of everybody else");
            }
            runtime.block_on(self.run(stop));
        })
    }

    async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(self.every.duration());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seq, mut answered_seq, mut clock_offset) = (0, None, None);
        let mut under_way = JoinSet::new();
        let mut silence = Silence::default();
        let mut told = Told::at_first(&self.gpus_at_first);
        loop {
            // Dropping the sender is a stop as well.
            let answered = tokio::select! {
                _ = ticks.tick() => {
                    // A beat that hangs, on a connection that may be dead, does not hold up the next one.
                    if under_way.len() >= AT_ONCE {
                        under_way.abort_all();
                    }
                    seq += 1;
                    let says = self.says(seq, answered_seq, clock_offset, &told);
                    under_way.spawn(beat(Arc::clone(&self.channel), says));
                    continue;
                }
                Some(ended) = under_way.join_next() => match ended {
                    Ok(answered) => answered,
                    Err(_aborted) => continue,
                },
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match answered {
                Ok(Answered { seq, answer, offset, news }) => {
                    told.heard(news);
                    // Older ones have nothing to say any more.
                    under_way.abort_all();
                    silence.broken();
                    clock_offset = offset;
                    answered_seq = answered_seq.max(Some(seq));
                    self.pass_on(answer.orders);
                }
                Err(ChannelError::SessionOver(end)) => {
                    let _ = self.session_over.send(end);
                    return;
                }
                Err(error) => {
                    // The server may have been restarted, with what it knew at the session's beginning.
                    told = Told::default();
                    silence.lasts(&error);
                }
            }
        }
    }

    fn says(
        &self,
        seq: u64,
        answered_seq: Option<u64>,
        clock_offset_s: Option<ClockOffset>,
        told: &Told,
    ) -> HeartbeatRequest {
        HeartbeatRequest {
            seq,
            incarnation: self.incarnation,
            tasks: self.held.list(),
            telemetry: self.gauges.read(),
            clock_offset_s,
            health: self.room.unhealthy(),
            secrets: Some(self.secret_names.borrow().clone()),
            answered_seq,
            gpus: told.news(seq, self.gpus.standings()),
            // Whoever leaves says so on its way out (`cli::join::told`).
            leaving: false,
            interpreters: told.news_of_interpreters(seq, &self.interpreters.borrow()),
        }
    }

    fn pass_on(&self, orders: Orders) {
        if orders != Orders::default() {
            self.orders.do_send(OrdersReceived { orders });
        }
    }
}

/// The answer to one heartbeat.
struct Answered {
    seq: u64,
    answer: HeartbeatAnswer,
    /// What it says of the clocks.
    offset: Option<ClockOffset>,
    /// What it told of GPUs and interpreters, which the server has now.
    news: News,
}

async fn beat(channel: Arc<dyn WorkerChannel>, says: HeartbeatRequest) -> Result<Answered, ChannelError> {
    let seq = says.seq;
    let news = News { gpus: says.gpus.clone(), interpreters: says.interpreters.is_some() };
    let (sent, begun) = (clock::now(), Instant::now());
    let answer = channel.heartbeat(says).await?;
    let round_trip = Seconds::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
    let offset = clock_note::measured(sent, round_trip, answer.server_time);
    Ok(Answered { seq, answer, offset, news })
}

/// Tells people once when the server no longer answers, and once when it does again.
#[derive(Debug, Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    fn lasts(&mut self, error: &ChannelError) {
        let error = error as &dyn std::error::Error;
        if self.since.is_none() {
            self.since = Some(Instant::now());
            tracing::warn!(error, "a heartbeat was lost; the worker's tasks go on, and it keeps trying");
        } else {
            tracing::debug!(error, "another heartbeat was lost");
        }
    }

    fn broken(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!("the server answers again, after {:.1} s", since.elapsed().as_secs_f64());
        }
    }
}
