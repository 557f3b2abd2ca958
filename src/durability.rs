//! How far the disk has come, for those who await it rather than being told: rare calls such as a worker's
//! registration. Job steps never wait here; the supervisor is told `Durable` and releases their answers.

use tokio::sync::watch;

use crate::journal::Seq;

/// Follows the journal. Clones share the same view.
#[derive(Debug, Clone)]
pub struct Durability {
    reached: watch::Receiver<Seq>,
}

/// The journal's side: says how far the disk has come.
#[derive(Debug)]
pub struct DurabilityMark {
    reached: watch::Sender<Seq>,
}

/// A mark at zero, and its view.
pub fn durability() -> (DurabilityMark, Durability) {
    let (sender, receiver) = watch::channel(Seq::default());
    (DurabilityMark { reached: sender }, Durability { reached: receiver })
}

impl DurabilityMark {
    /// Everything up to `seq` is on disk.
    pub fn advance(&self, seq: Seq) {
        self.reached.send_replace(seq);
    }
}

impl Durability {
    /// To follow every commit.
    pub fn watch(&self) -> watch::Receiver<Seq> {
        self.reached.clone()
    }

    /// Waits until everything up to `seq` is on disk. Never returns once the journal has failed: what was not
    /// made durable must not be spoken of.
    pub async fn reached(mut self, seq: Seq) {
        if self.reached.wait_for(|reached| *reached >= seq).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
