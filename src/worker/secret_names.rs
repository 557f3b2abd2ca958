//! Which secrets the worker has: looked at beside everything else, since the table may lie on a network file system
//! that does not answer, and nothing of that may hold up a heartbeat.

use std::time::Duration;

use tokio::sync::watch;

use crate::config::SecretSource;

/// Between two looks at whether the table was written.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The names as they are now, and whenever they have changed. Ends with the last receiver.
pub(super) fn followed(source: SecretSource, first: Vec<String>) -> watch::Receiver<Vec<String>> {
    let (news, names) = watch::channel(first);
    if source.has_table() {
        tokio::spawn(async move {
            tokio::select! {
                () = follow(&source, &news) => {}
                () = news.closed() => {}
            }
        });
    }
    names
}

async fn follow(source: &SecretSource, news: &watch::Sender<Vec<String>>) {
    let mut seen = None;
    loop {
        let (source, before) = (source.clone(), seen);
        let look = tokio::task::spawn_blocking(move || {
            let written = source.written_at();
            (written, (written != before).then(|| source.names()))
        });
        if let Ok((written, names)) = look.await {
            seen = written;
            if let Some(names) = names {
                news.send_if_modified(|known| {
                    let changed = *known != names;
                    *known = names;
                    changed
                });
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
