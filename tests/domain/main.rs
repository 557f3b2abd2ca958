//! The decisions, as tables and as random-event machines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod machine;
