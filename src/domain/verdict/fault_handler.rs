//! What Python's `faulthandler` prints when a signal ends the interpreter: the stack of every thread, innermost first.

use super::transcript::{LastLine, transcript};

/// The headline and the innermost frame of the thread that failed; `None` when no stack was printed.
pub(super) fn stack(lines: &[LastLine]) -> Option<Vec<String>> {
    let spoken = transcript(lines);
    let is_thread = |text: &str| text.contains("hread 0x") && text.contains("(most recent call first)");
    let failed = |text: &str| is_thread(text) && text.starts_with("Current thread");
    let began = spoken.iter().rposition(|line| line.text.starts_with("Fatal Python error: "))?;
    let said = &spoken[began..];
    let thread = said
        .iter()
        .position(|line| failed(&line.text))
        .or_else(|| said.iter().position(|line| is_thread(&line.text)))?;
    let frame = said.get(thread + 1).filter(|line| line.text.starts_with("  File \""))?;
    Some(vec![said[0].text.clone(), frame.text.clone()])
}
