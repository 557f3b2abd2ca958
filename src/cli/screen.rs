//! Standard output and standard error: data on the one, everything said about it on the other. Asks a stream whether
//! it is a terminal only when the answer matters.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde::Serialize;

use super::error::CliError;

/// Whether colours are wanted on this stream.
pub(super) fn colour_on(stream: &impl IsTerminal) -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && stream.is_terminal()
}

/// Says something about what happens, on standard error. That nobody listens is no fault.
pub(super) fn say(text: &str) {
    let mut line = String::with_capacity(text.len() + 1);
    line.push_str(text);
    line.push('\n');
    drop(io::stderr().lock().write_all(line.as_bytes()));
}

/// Standard output for data, buffered until it is flushed or dropped.
pub(super) struct Output {
    to: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub(super) fn new() -> Self {
        Self { to: BufWriter::with_capacity(32 << 10, io::stdout().lock()) }
    }

    pub(super) fn line(&mut self, text: &str) -> Result<(), CliError> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    pub(super) fn text(&mut self, text: &str) -> Result<(), CliError> {
        self.bytes(text.as_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.to.write_all(bytes).map_err(|source| CliError::Stdout { source })
    }

    /// One JSON object on a line.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        serde_json::to_writer(&mut self.to, value)
            .map_err(|error| CliError::Stdout { source: error.into() })?;
        self.bytes(b"\n")
    }

    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        self.to.flush().map_err(|source| CliError::Stdout { source })
    }
}

/// Prints one text and a line end.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut output = Output::new();
    output.line(text)?;
    output.flush()
}

/// Prints one JSON object.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let mut output = Output::new();
    output.json(value)?;
    output.flush()
}

/// A table: drawn on a terminal, columns with two spaces between in a pipe.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> Result<(), CliError> {
    let text = if io::stdout().is_terminal() { drawn(header, rows) } else { plain(header, rows) };
    let mut output = Output::new();
    output.text(&text)?;
    output.flush()
}

fn drawn(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt() + "\n"
}

fn plain(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
    let all = || std::iter::once(&header).chain(rows);
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!("{cell:width$}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_in_a_pipe() {
        let rows = [vec!["a1".to_owned(), "running".to_owned()], vec!["…b22".to_owned(), String::new()]];
        insta::assert_snapshot!(plain(&["JOB", "STATE"], &rows), @"
        JOB   STATE
        a1    running
        …b22
        ");
    }
}
