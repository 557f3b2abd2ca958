//! A shim's own words, on standard error: the file `shim.log` of its worker.

use std::fmt::Arguments;
use std::io::Write;

/// Writes one line, if it can be written: a full disk or a reader that has gone must not end what is told about.
pub(super) fn remark(words: Arguments<'_>) {
    let line = format!("{words}\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
}
