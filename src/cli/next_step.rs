//! Commands offered as the next thing to type. They go to the server that this command line named.

use super::shown::quoted;
use crate::client::ConnectionString;

/// Begins every offered command as this one began.
#[derive(Debug, Clone, Default)]
pub(super) struct NextStep {
    server: Option<String>,
}

impl NextStep {
    /// After a command with this `--server`; without one, what chose the server chooses it again.
    pub(super) fn after(server_flag: Option<&str>) -> Self {
        Self { server: server_flag.map(|given| quoted(&without_token(given))) }
    }

    /// `gpulayer WORDS`.
    pub(super) fn command(&self, words: &str) -> String {
        match &self.server {
            Some(server) => format!("gpulayer --server {server} {words}"),
            None => format!("gpulayer {words}"),
        }
    }
}

/// A connection string holds a secret, which is not shown again; its address says which server was meant.
pub(super) fn without_token(given: &str) -> String {
    match ConnectionString::parse(given) {
        Ok(parsed) => parsed.endpoint.to_string(),
        Err(_) => given.to_owned(),
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
        let secret = NextStep::after(Some("gpulayer://glc_0f@box"));
        assert_eq!(secret.command("ps"), "gpulayer --server https://box:8470 ps");
        assert_eq!(NextStep::after(Some("/a b.sock")).command("ps"), "gpulayer --server '/a b.sock' ps");
    }
}
