//! Errors as people read them: each says what failed, and its causes say why.

use std::error::Error;

/// An error and its causes in one line.
pub fn said(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot {0}")]
    struct Cannot(&'static str, #[source] Option<Box<Cannot>>);

    #[test]
    fn causes_follow_what_they_caused() {
        let inner = Cannot("read it", Some(Box::new(Cannot("open it", None))));
        assert_eq!(said(&inner), "cannot read it: cannot open it");
        assert_eq!(said(&Cannot("begin", None)), "cannot begin");
    }
}
