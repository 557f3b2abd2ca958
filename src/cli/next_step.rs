//! Commands offered as the next thing to type. They go to the server that this command line named.

use super::shown::quoted;

/// Begins every offered command as this one began.
#[derive(Debug, Clone, Default)]
pub(super) struct NextStep {
    server: Option<String>,
}

impl NextStep {
    /// After a command with this `--server`; without one, what chose the server chooses it again.
    pub(super) fn after(server_flag: Option<&str>) -> Self {
        Self { server: server_flag.map(quoted) }
    }

    /// `gpulayer WORDS`.
    pub(super) fn command(&self, words: &str) -> String {
        match &self.server {
            Some(server) => format!("gpulayer --server {server} {words}"),
            None => format!("gpulayer {words}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_that_was_typed_is_typed_again() {
        assert_eq!(NextStep::default().command("ps -a"), "gpulayer ps -a");
        let named = NextStep::after(Some("http://box:8470"));
        assert_eq!(named.command("logs a7kq2b"), "gpulayer --server http://box:8470 logs a7kq2b");
        assert_eq!(NextStep::after(Some("/a b.sock")).command("ps"), "gpulayer --server '/a b.sock' ps");
    }
}
