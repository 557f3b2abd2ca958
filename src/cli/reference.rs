//! `docs/CLI.md`, printed from the same definitions that read the command line.

use std::fmt::Write as _;

use clap::CommandFactory;

use super::args::Cli;
use super::worker_args::Standalone;

/// The page.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Command line\n\n\
         <!-- Printed from src/cli/args.rs and spec_args.rs; a test compares. `UPDATE=1 cargo nextest run cli` rewrites it. -->\n\n\
         Data goes to standard output, everything else to standard error. `--json` prints JSON, streams as one object a line.\n\
         A job is named by its id, the id's beginning or its tail (4 characters or more), its name (the newest), or `@last`.\n\n\
         ## Exit status\n\n\
         | status | of `run`, `attach`, `wait` |\n|---|---|\n\
         | the job's own | it ended by itself; 126 or 127 when the program cannot be run, 128+N when signal N ended it |\n\
         | 75 | the connection was given up while the job still runs |\n\
         | 124 | it timed out, running or in the queue |\n\
         | 125 | stopped by platform or operator, or without a status of its own |\n\
         | 130 | it was cancelled |\n\n\
         Other commands exit with 0, with 1 when they failed, and with 2 when they were used wrongly.\n",
    );
    let mut root = Cli::command();
    root.build();
    section(&mut page, &mut root, "gpulayer");
    section(&mut page, &mut Standalone::command(), "gpulayer-worker");
    page
}

fn section(page: &mut String, command: &mut clap::Command, name: &str) {
    let help = command.clone().term_width(110).render_help().to_string();
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            let name = format!("{name} {}", inner.get_name());
            section(page, inner, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        Standalone::command().debug_assert();
    }

    #[test]
    fn the_page_is_printed_from_the_definitions() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CLI.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&page, markdown()).unwrap();
        }
        let found = std::fs::read_to_string(&page).unwrap_or_default();
        assert_eq!(found, markdown(), "docs/CLI.md is out of date: run the tests with UPDATE=1");
    }
}
