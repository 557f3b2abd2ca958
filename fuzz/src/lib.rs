//! One function per parser that meets the network: takes any bytes, and panics when a promise is broken. The targets of
//! `cargo fuzz` call them, and so does `tests/fuzz` of the package itself, on stable and with a fixed seed.

mod parsers;

pub use parsers::*;
