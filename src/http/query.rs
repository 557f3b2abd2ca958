//! Query strings, read strictly: every fault at once, and an unknown parameter is one of them.

use std::str::FromStr;

use actix_web::{HttpRequest, web};

use super::document::escaped;
use super::refusal::Refusal;
use crate::contract::error_code::ErrorCode;
use crate::contract::problem::Fault;
use crate::contract::quantity::Seconds;

/// Entries of a list's page at most.
pub const PAGE_LIMIT: u32 = 500;
/// The longest long poll.
pub const MAX_WAIT: Seconds = Seconds::new(60);

/// What is said of a number that is none.
pub const SEQUENCE_NUMBER: &str = "a sequence number, from 0 to 9223372036854775807,";

/// Reads a sequence number: the store counts in 63 bits, and nothing is numbered beyond.
pub fn sequence_number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| i64::try_from(*number).is_ok())
}

/// A query string on its way to being understood: take each parameter, then [`Query::finish`].
pub struct Query {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
    faults: Vec<Fault>,
}

impl Query {
    /// Splits the request's query string.
    pub fn of(request: &HttpRequest) -> Self {
        let text = request.query_string();
        let mut query = Self { pairs: Vec::new(), known: Vec::new(), faults: Vec::new() };
        if !text.is_empty() {
            match web::Query::<Vec<(String, String)>>::from_query(text) {
                Ok(pairs) => query.pairs = pairs.into_inner(),
                Err(error) => query.fault("", format!("the query string cannot be read: {error}")),
            }
        }
        query
    }

    /// For a call without parameters: refuses every one.
    pub fn none(request: &HttpRequest) -> Result<(), Refusal> {
        Self::of(request).finish()
    }

    /// Notes a fault of `name`, to be refused by [`Query::finish`].
    pub fn fault(&mut self, name: &str, detail: String) {
        let pointer = if name.is_empty() { "/query".to_owned() } else { format!("/query/{name}") };
        self.faults.push(Fault { pointer, code: "invalid".to_owned(), detail });
    }

    /// Notes a fault of a header that says the same as a parameter.
    pub fn header_fault(&mut self, name: &str, detail: String) {
        self.faults.push(Fault { pointer: format!("/headers/{name}"), code: "invalid".to_owned(), detail });
    }

    /// Every value given for `name`.
    pub fn all(&mut self, name: &'static str) -> Vec<String> {
        self.known.push(name);
        self.pairs.iter().filter(|(given, _)| given == name).map(|(_, value)| value.clone()).collect()
    }

    /// The one value of `name`.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        let mut values = self.all(name);
        if values.len() > 1 {
            self.fault(name, "is given more than once".to_owned());
        }
        values.pop()
    }

    /// `name` as a `T`; `expected` completes "… is expected".
    pub fn parsed<T: FromStr>(&mut self, name: &'static str, expected: &str) -> Option<T> {
        let text = self.text(name)?;
        let value = text.parse().ok();
        if value.is_none() {
            self.fault(name, format!("`{text}` given, {expected} is expected"));
        }
        value
    }

    /// `name` through `read`; `expected` completes "… is expected".
    pub fn read<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(name)?;
        let value = read(&text);
        if value.is_none() {
            self.fault(name, format!("`{text}` given, {expected} is expected"));
        }
        value
    }

    /// `limit`, from 1 to `most`.
    pub fn limit(&mut self, default: u32, most: u32) -> u32 {
        self.read("limit", &format!("a whole number from 1 to {most}"), |text| {
            text.parse().ok().filter(|limit| (1..=most).contains(limit))
        })
        .unwrap_or(default)
    }

    /// `after`, exclusive; 0 when absent.
    pub fn after(&mut self) -> u64 {
        self.read("after", SEQUENCE_NUMBER, sequence_number).unwrap_or(0)
    }

    /// `tail`, a number of lines.
    pub fn tail(&mut self) -> Option<u64> {
        self.read("tail", "a number of lines, from 0 to 9223372036854775807,", sequence_number)
    }

    /// `wait_s`, at most [`MAX_WAIT`]; zero when absent.
    pub fn wait(&mut self) -> Seconds {
        self.read("wait_s", "a number of seconds from 0 to 60", |text| {
            // The number that was given counts, not what it is rounded to.
            let given: f64 = text.parse().ok()?;
            Seconds::from_f64(given).filter(|_| given <= MAX_WAIT.duration().as_secs_f64())
        })
        .unwrap_or_default()
    }

    /// All faults, those of unknown parameters included.
    pub fn finish(mut self) -> Result<(), Refusal> {
        let unknown: Vec<String> = self
            .pairs
            .iter()
            .filter(|(name, _)| !self.known.contains(&name.as_str()))
            .map(|(name, _)| name.chars().take(64).collect())
            .collect();
        for name in unknown {
            let known = self.known.join("`, `");
            let detail = if known.is_empty() {
                format!("`{name}` is unknown; this call takes no parameters")
            } else {
                format!("`{name}` is unknown; this call takes `{known}`")
            };
            self.faults.push(Fault {
                pointer: format!("/query/{}", escaped(&name)),
                code: "unknown_field".to_owned(),
                detail,
            });
        }
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(Refusal::faults(ErrorCode::InvalidRequest, self.faults))
        }
    }
}
