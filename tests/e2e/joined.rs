//! A worker that joined by hand: its process, and what it says.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::house::DEADLINE;

/// A `join` or `worker start` in the foreground, and the lines it says.
pub struct Joined {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// All lines so far.
    pub said: Vec<String>,
}

impl Joined {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = tell.send(line);
            }
        });
        Self { child, lines, said: Vec::new() }
    }

    /// Waits for a line that holds this.
    pub fn says(&mut self, part: &str) -> String {
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(_) => panic!("never said `{part}`, but {:#?}", self.said),
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn ends(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
