//! A recipient that writes down what it is told.

use actix::dev::ToEnvelope;
use actix::{Actor, Context, Handler, Message, Recipient};
use tokio::sync::mpsc;

/// Takes messages of one type and keeps them in order.
pub struct Recorder<M> {
    heard: mpsc::UnboundedSender<M>,
}

/// The other end: what was heard so far.
pub struct Heard<M>(mpsc::UnboundedReceiver<M>);

impl<M: Unpin + 'static> Actor for Recorder<M> {
    type Context = Context<Self>;
}

impl<M: Message<Result = ()> + Unpin + 'static> Handler<M> for Recorder<M> {
    type Result = ();

    fn handle(&mut self, message: M, _: &mut Context<Self>) {
        self.heard.send(message).unwrap();
    }
}

/// A recipient and what it hears.
pub fn recorder<M>() -> (Recipient<M>, Heard<M>)
where
    M: Message<Result = ()> + Send + Unpin + 'static,
    Context<Recorder<M>>: ToEnvelope<Recorder<M>, M>,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    (Recorder { heard: sender }.start().recipient(), Heard(receiver))
}

impl<M> Heard<M> {
    /// Waits for the next message.
    pub async fn next(&mut self) -> M {
        self.0.recv().await.expect("the recorder is gone")
    }

    /// What has come by now, without waiting.
    pub fn so_far(&mut self) -> Vec<M> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}

/// Lets every actor of this thread empty its mailbox.
pub async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
