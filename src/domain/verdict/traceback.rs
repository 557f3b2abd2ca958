//! Python's tracebacks in a transcript, as CPython and the launchers around it print them: chained ones (the last
//! counts), exception groups (their first part counts), syntax errors without a header, messages of several lines, and
//! ranks that talk at once.

use super::transcript::Spoken;

const HEADER: &str = "Traceback (most recent call last):";
/// Frames of one traceback, and lines of one message, that are read.
const MOST_BODY: usize = 400;
const MOST_MESSAGE: usize = 40;
/// A message that begins empty goes on with anything that was written with it, so many microseconds at most.
const AT_ONCE_MICROS: i64 = 100_000;

/// One traceback; line numbers are places in the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Traceback {
    /// The class with its module: `torch.OutOfMemoryError`.
    pub(super) class: String,
    /// The message, all its lines.
    pub(super) message: String,
    /// Where class and message stand.
    pub(super) line: usize,
    /// The last line that belongs to it.
    pub(super) last: usize,
    /// The frame worth showing: the innermost one outside of installed packages.
    pub(super) frame: Option<usize>,
    /// Whose it is, where lines are labelled.
    pub(super) rank: Option<u32>,
}

impl Traceback {
    /// The class without its module.
    pub(super) fn short_class(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or(&self.class)
    }
}

/// All whole tracebacks, in the order of their ends. `goes_on` says which lines continue the message before them.
pub(super) fn tracebacks(lines: &[Spoken], goes_on: &dyn Fn(&str) -> bool) -> Vec<Traceback> {
    let mut ranks: Vec<Option<u32>> = lines.iter().map(|line| line.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut found = Vec::new();
    for rank in ranks {
        let own: Vec<usize> = (0..lines.len()).filter(|place| lines[*place].rank == rank).collect();
        Reader { lines, own, at: 0, goes_on }.read(&mut found);
    }
    found.sort_by_key(|traceback| traceback.line);
    found
}

struct Reader<'a> {
    lines: &'a [Spoken],
    /// The places of one rank's lines.
    own: Vec<usize>,
    at: usize,
    goes_on: &'a dyn Fn(&str) -> bool,
}

impl<'a> Reader<'a> {
    fn read(&mut self, found: &mut Vec<Traceback>) {
        while let Some(text) = self.text(self.at) {
            let headed = text.ends_with(HEADER);
            let grouped = headed && text.contains("Exception Group");
            if headed || self.begins_a_syntax_error() {
                self.at += usize::from(headed);
                found.extend(self.body(grouped));
            } else {
                self.at += 1;
            }
        }
    }

    fn text(&self, at: usize) -> Option<&'a str> {
        self.own.get(at).map(|place| self.lines[*place].text.as_str())
    }

    /// Without what an exception group draws at the left.
    fn bare(&self, at: usize) -> Option<&'a str> {
        let text = self.text(at)?;
        let drawn = text.trim_start().strip_prefix(['|', '+']);
        Some(drawn.map_or(text, |rest| rest.strip_prefix(' ').unwrap_or(rest)))
    }

    /// `  File "train.py", line 3`, and soon after it `SyntaxError: …` at the margin.
    fn begins_a_syntax_error(&self) -> bool {
        let is_place =
            self.text(self.at).is_some_and(|text| text.starts_with("  File \"") && !text.contains(", in "));
        is_place
            && (1..=4).any(|ahead| {
                let text = self.text(self.at + ahead).unwrap_or("");
                ["SyntaxError: ", "IndentationError: ", "TabError: "]
                    .iter()
                    .any(|class| text.starts_with(class))
            })
    }

    /// Frames, then the exception. `None` when it breaks off or is garbled.
    fn body(&mut self, grouped: bool) -> Option<Traceback> {
        let mut frame: Option<usize> = None;
        for _ in 0..MOST_BODY {
            let text = if grouped { self.bare(self.at)? } else { self.text(self.at)? };
            if text.trim_start().starts_with("File \"") {
                let ours = !["site-packages", "dist-packages", "<frozen ", "/lib/python3", "\"<string>\""]
                    .iter()
                    .any(|foreign| text.contains(foreign));
                if ours || frame.is_none() {
                    frame = Some(self.own[self.at]);
                }
            } else if text.ends_with(HEADER) {
                return None;
            } else if !text.starts_with(' ') && !text.is_empty() && !is_progress(text) {
                break;
            }
            self.at += 1;
        }
        let text = if grouped { self.bare(self.at)? } else { self.text(self.at)? };
        let (class, message) = exception(text)?;
        let place = self.own[self.at];
        let mut traceback = Traceback {
            class: class.to_owned(),
            message: message.to_owned(),
            line: place,
            last: place,
            frame,
            rank: self.lines[place].rank,
        };
        self.at += 1;
        if grouped {
            self.parts(&mut traceback)
        } else {
            self.message(&mut traceback)
        }
        Some(traceback)
    }

    /// The further lines of a message.
    fn message(&mut self, traceback: &mut Traceback) {
        let began_at = self.lines[traceback.line].time.micros();
        let open_ended = traceback.message.trim().is_empty() || traceback.message.trim_end().ends_with(':');
        let mut nested = false;
        for _ in 0..MOST_MESSAGE {
            let Some(text) = self.text(self.at) else { return };
            let place = self.own[self.at];
            let at_once = self.lines[place].time.micros() - began_at <= AT_ONCE_MICROS;
            if text.ends_with(HEADER) || is_chain(text) {
                return;
            }
            let inner = exception(text).filter(|(class, _)| nested && !class.is_empty());
            if let Some((class, message)) = inner {
                // A remote traceback within the message: what it ends with is what happened.
                (traceback.class, traceback.message) = (class.to_owned(), message.to_owned());
                traceback.line = place;
                nested = false;
            } else if text.is_empty()
                || text.starts_with(' ')
                || (self.goes_on)(text)
                || (open_ended && at_once)
            {
                nested |= text.starts_with("  File \"");
                traceback.message.push('\n');
                traceback.message.push_str(text);
            } else {
                return;
            }
            traceback.last = place;
            self.at += 1;
        }
    }

    /// The parts of an exception group: the first one says what happened.
    fn parts(&mut self, group: &mut Traceback) {
        let mut first = true;
        while let Some(text) = self.text(self.at) {
            if !text.trim_start().starts_with(['|', '+']) {
                return;
            }
            let bare = self.bare(self.at).unwrap_or("");
            group.last = self.own[self.at];
            if bare.contains("File \"") {
                group.frame = Some(self.own[self.at]).filter(|_| first).or(group.frame);
            } else if let Some((class, message)) =
                exception(bare.trim_start_matches(['|', ' '])).filter(|_| first)
                && (class.contains("Error") || class.contains("Exception"))
                && !class.ends_with("Group")
            {
                (group.class, group.message) = (class.to_owned(), message.to_owned());
                group.line = self.own[self.at];
                first = false;
            }
            self.at += 1;
        }
    }
}

fn is_chain(text: &str) -> bool {
    text.starts_with("During handling of the above exception")
        || text.starts_with("The above exception was the direct cause")
}

/// A redrawn bar that came between two lines of a traceback.
fn is_progress(text: &str) -> bool {
    text.contains("%|") || text.contains("it/s]") || text.contains("s/it]")
}

/// `Class: message`, `pkg.Class: message`, `Class`.
pub(super) fn exception(text: &str) -> Option<(&str, &str)> {
    let (class, message) = text.split_once(':').unwrap_or((text, ""));
    let parts = class.split(['.', '(']);
    let is_name = |part: &str| {
        part == "<locals>"
            || (part.starts_with(|first: char| first.is_alphabetic() || first == '_')
                && part.chars().all(|each| each.is_alphanumeric() || each == '_'))
    };
    let named = class.trim_end_matches(')');
    let balanced = class.contains('(') == class.ends_with(')') && !class.is_empty();
    let names = named.split(['.', '(']).all(is_name) && parts.count() > 0;
    (balanced && names && (message.is_empty() || message.starts_with(' ')))
        .then(|| (class, message.strip_prefix(' ').unwrap_or(message)))
}
