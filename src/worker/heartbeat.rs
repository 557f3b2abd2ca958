//! Signs of life, on a thread and a connection of their own: whatever the rest of the worker does, they go out.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use actix::Recipient;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::actors::messages::task_runner::OrdersReceived;
use crate::actors::task_runner::{DiskRoom, HeldTasks};
use crate::client::worker_channel::{ChannelError, SessionEnd, WorkerChannel};
use crate::contract::protocol::{HeartbeatRequest, Orders};
use crate::contract::quantity::Seconds;

/// What the thread works with.
pub(super) struct Heartbeat {
    pub(super) channel: Arc<dyn WorkerChannel>,
    pub(super) held: HeldTasks,
    pub(super) room: DiskRoom,
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
        let mut seq = 0;
        loop {
            // Dropping the sender is a stop as well.
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            seq += 1;
            let beat = self.channel.heartbeat(HeartbeatRequest {
                seq,
                incarnation: self.incarnation,
                tasks: self.held.list(),
                telemetry: None,
                health: self.room.unhealthy(),
                secrets: Some(self.secret_names.borrow().clone()),
            });
            let answer = tokio::select! {
                answer = beat => answer,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match answer {
                Ok(answer) => self.pass_on(answer.orders),
                Err(ChannelError::SessionOver(end)) => {
                    let _ = self.session_over.send(end);
                    return;
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a heartbeat was lost")
                }
            }
        }
    }

    fn pass_on(&self, orders: Orders) {
        if orders != Orders::default() {
            self.orders.do_send(OrdersReceived { orders });
        }
    }
}
