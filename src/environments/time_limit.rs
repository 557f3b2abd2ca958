//! How long a build may take. It ends with this process, whatever that waits for: its shim ends what it has started.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;

use crate::contract::quantity::Seconds;

/// While it lives the time runs.
#[derive(Debug)]
pub(super) struct TimeLimit {
    /// Gone, it is over in time.
    _ends: Sender<()>,
}

impl TimeLimit {
    /// Calls `over` when so much has passed; it is to end this process.
    pub(super) fn begin(limit: Seconds, over: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (ends, ended) = channel();
        thread::Builder::new().name("limit".to_owned()).spawn(move || {
            if ended.recv_timeout(limit.duration()) == Err(RecvTimeoutError::Timeout) {
                over();
            }
        })?;
        Ok(Self { _ends: ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_time_hears_nothing_of_it() {
        let (told, heard) = channel();
        let late = TimeLimit::begin(Seconds::from_millis(1), {
            let told = told.clone();
            move || told.send("late").unwrap()
        });
        assert_eq!(heard.recv(), Ok("late"));
        let in_time = TimeLimit::begin(Seconds::MAX, move || told.send("in time").unwrap());
        drop((late, in_time));
        // Its thread ends without a word, and lets go of its end.
        assert!(heard.recv().is_err());
    }
}
