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
    table_within(header, rows, &[])
}

/// The same, of which `spare` columns are left out where the terminal is too narrow for all, the first of them first.
/// The last column takes the room that is left, in several lines if need be.
pub(super) fn table_within(header: &[&str], rows: &[Vec<String>], spare: &[&str]) -> Result<(), CliError> {
    let text = if io::stdout().is_terminal() {
        let width = comfy_table::Table::new().width().unwrap_or(u16::MAX);
        let shown = fitting(header, rows, spare, width.into());
        let header: Vec<&str> = shown.iter().filter_map(|&column| header.get(column).copied()).collect();
        let cells = |row: &Vec<String>| shown.iter().filter_map(|&column| row.get(column).cloned()).collect();
        drawn(&header, &rows.iter().map(cells).collect::<Vec<_>>())
    } else {
        plain(header, rows)
    };
    let mut output = Output::new();
    output.text(&text)?;
    output.flush()
}

/// The widest cell of a column.
fn width_of(header: &[&str], rows: &[Vec<String>], column: usize) -> usize {
    let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
    cells.chain(header.get(column).copied()).map(|cell| cell.chars().count()).max().unwrap_or(0)
}

/// The columns that have room side by side.
fn fitting(header: &[&str], rows: &[Vec<String>], spare: &[&str], width: usize) -> Vec<usize> {
    /// Of a sentence, which goes on in the next line.
    const LEAST_OF_LAST: usize = 20;
    let last = header.len().saturating_sub(1);
    let takes = |column: usize| {
        let whole = width_of(header, rows, column);
        BETWEEN + if column == last { whole.min(LEAST_OF_LAST) } else { whole }
    };
    let mut shown: Vec<usize> = (0..header.len()).collect();
    for name in spare {
        if shown.iter().map(|&column| takes(column)).sum::<usize>() <= width {
            break;
        }
        shown.retain(|&column| header[column] != *name);
    }
    shown
}

/// Spaces that a drawn column has beside its text.
const BETWEEN: usize = 2;

fn drawn(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    let last = header.len().saturating_sub(1);
    let width = |column: usize| BETWEEN + width_of(header, rows, column);
    let before_last: usize = (0..last).map(width).sum();
    // A header, or a word, in two parts reads badly: only what is too long for any terminal is cut.
    if table.width().is_some_and(|all| before_last + BETWEEN < usize::from(all)) {
        for column in table.column_iter_mut().take(last) {
            column.set_constraint(comfy_table::ColumnConstraint::ContentWidth);
        }
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
    fn what_is_needed_least_goes_first_and_only_where_there_is_no_room() {
        let row = ["…a1b2c3", "train", "running", "2026-01-01 00:00:00", "a sentence that may go on below"];
        let rows = [row.map(str::to_owned).to_vec()];
        let header = ["JOB", "NAME", "STATE", "SUBMITTED", "WHY"];
        let shown = |width| fitting(&header, &rows, &["SUBMITTED", "NAME"], width);
        assert_eq!(shown(80), [0, 1, 2, 3, 4]);
        assert_eq!(shown(60), [0, 1, 2, 4]);
        assert_eq!(shown(45), [0, 2, 4]);
        assert_eq!(shown(1), [0, 2, 4], "the others stay");
    }

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
