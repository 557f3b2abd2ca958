//! Reads a Rust file as far as the floor rules need: identifiers and paths, with comments and literals left out, and
//! `use` trees, `self` and `super` resolved to full paths.

/// One token that matters, with its line (from 1).
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub line: usize,
    pub kind: Kind,
}

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Word(String),
    /// `::`
    Separator,
    Mark(char),
}

/// Something a file names by a path of two or more parts, or imports.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    pub line: usize,
    pub target: Target,
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// Into this crate, from its root.
    Inside(Vec<String>),
    /// Into another crate, or to a name in scope.
    Outside(Vec<String>),
}

/// Splits a file into tokens; comments, string and character literals, lifetimes and numbers vanish.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let here = chars[at];
        let next = chars.get(at + 1).copied();
        let start = at;
        match here {
            '/' if next == Some('/') => at = end_of_line(&chars, at),
            '/' if next == Some('*') => at = end_of_block_comment(&chars, at),
            '"' => at = end_of_string(&chars, at),
            '\'' => at = end_of_quote(&chars, at),
            ':' if next == Some(':') => {
                found.push(Token { line, kind: Kind::Separator });
                at += 2;
            }
            _ if here.is_alphabetic() || here == '_' => {
                while at < chars.len() && is_word(chars[at]) {
                    at += 1;
                }
                let word: String = chars[start..at].iter().collect();
                match raw_string_end(&chars, at, &word) {
                    Some(end) => at = end,
                    None => found.push(Token { line, kind: Kind::Word(word) }),
                }
            }
            _ if here.is_ascii_digit() => {
                while at < chars.len() && is_word(chars[at]) {
                    at += 1;
                }
            }
            _ => {
                if !here.is_whitespace() {
                    found.push(Token { line, kind: Kind::Mark(here) });
                }
                at += 1;
            }
        }
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn end_of_line(chars: &[char], from: usize) -> usize {
    (from..chars.len()).find(|at| chars[*at] == '\n').unwrap_or(chars.len())
}

fn end_of_block_comment(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => {
                (at, depth) = (at + 2, depth - 1);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn end_of_string(chars: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// After a `'`: a character literal ends at the next `'`, a lifetime at the end of its word.
fn end_of_quote(chars: &[char], from: usize) -> usize {
    match (chars.get(from + 1), chars.get(from + 2)) {
        (Some('\\'), _) => {
            let close = (from + 3..chars.len()).find(|at| chars[*at] == '\'');
            close.map_or(chars.len(), |at| at + 1)
        }
        (Some(_), Some('\'')) => from + 3,
        _ => (from + 1..chars.len()).find(|at| !is_word(chars[*at])).unwrap_or(chars.len()),
    }
}

/// The end of `r"…"`, `r#"…"#`, `b"…"`, `c"…"` when `word` turns out to be the prefix of one.
fn raw_string_end(chars: &[char], after: usize, word: &str) -> Option<usize> {
    if matches!(word, "b" | "c") && chars.get(after) == Some(&'"') {
        return Some(end_of_string(chars, after));
    }
    if !matches!(word, "r" | "br" | "cr") {
        return None;
    }
    let hashes = chars[after..].iter().take_while(|c| **c == '#').count();
    if chars.get(after + hashes) != Some(&'"') {
        return None;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = after + hashes + 1;
    let end = chars[body..].windows(close.len()).position(|window| window == close);
    Some(end.map_or(chars.len(), |at| body + at + close.len()))
}

/// Every path the file names, with `module` as the file's own place in the crate.
pub fn references(module: &[String], tokens: &[Token]) -> Vec<Reference> {
    let mut found = Vec::new();
    let mut place = module.to_vec();
    let mut inline: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at].kind {
            Kind::Mark('{') => depth += 1,
            Kind::Mark('}') => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                    place.pop();
                }
            }
            Kind::Word(word) if word == "mod" => {
                if let (Some(name), Some(Kind::Mark('{'))) =
                    (word_at(tokens, at + 1), kind_at(tokens, at + 2))
                {
                    place.push(name.to_owned());
                    inline.push(depth);
                }
            }
            Kind::Word(word) if word == "use" => {
                at = read_use_tree(tokens, at + 1, &[], &place, &mut found);
                continue;
            }
            Kind::Word(_) if kind_at(tokens, at + 1) == Some(&Kind::Separator) => {
                let line = tokens[at].line;
                let (path, end) = read_path(tokens, at);
                found.push(Reference { line, target: resolve(&path, &place) });
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn kind_at(tokens: &[Token], at: usize) -> Option<&Kind> {
    tokens.get(at).map(|token| &token.kind)
}

fn word_at(tokens: &[Token], at: usize) -> Option<&str> {
    match kind_at(tokens, at) {
        Some(Kind::Word(word)) => Some(word),
        _ => None,
    }
}

fn read_path(tokens: &[Token], from: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    let mut at = from;
    while let Some(word) = word_at(tokens, at) {
        path.push(word.to_owned());
        at += 1;
        if kind_at(tokens, at) != Some(&Kind::Separator) {
            break;
        }
        at += 1;
    }
    (path, at)
}

/// Reads one branch of a `use` tree and returns where it ends.
fn read_use_tree(
    tokens: &[Token],
    from: usize,
    prefix: &[String],
    place: &[String],
    found: &mut Vec<Reference>,
) -> usize {
    let mut at = from + usize::from(kind_at(tokens, from) == Some(&Kind::Separator));
    let line = tokens.get(at).map_or(0, |token| token.line);
    let (path, end) = read_path(tokens, at);
    at = end;
    let full: Vec<String> = prefix.iter().cloned().chain(path).collect();
    if kind_at(tokens, at) == Some(&Kind::Mark('{')) {
        at += 1;
        while at < tokens.len() && kind_at(tokens, at) != Some(&Kind::Mark('}')) {
            at = read_use_tree(tokens, at, &full, place, found);
            at += usize::from(kind_at(tokens, at) == Some(&Kind::Mark(',')));
        }
        return at + 1;
    }
    if !full.is_empty() {
        found.push(Reference { line, target: resolve(&full, place) });
    }
    while at < tokens.len() && !matches!(kind_at(tokens, at), Some(Kind::Mark(',' | ';' | '}'))) {
        at += 1;
    }
    at
}

fn resolve(path: &[String], place: &[String]) -> Target {
    let ups = path.iter().take_while(|part| *part == "super").count();
    match path.first().map(String::as_str) {
        Some("crate") => Target::Inside(path[1..].to_vec()),
        Some("self") => Target::Inside([place, &path[1..]].concat()),
        Some("super") => {
            let kept = place.len().saturating_sub(ups);
            Target::Inside([&place[..kept], &path[ups..]].concat())
        }
        _ => Target::Outside(path.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(module: &str, text: &str) -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        references(&module, &tokens(text))
            .into_iter()
            .map(|reference| match reference.target {
                Target::Inside(path) => format!("{} crate::{}", reference.line, path.join("::")),
                Target::Outside(path) => format!("{} {}", reference.line, path.join("::")),
            })
            .collect()
    }

    #[test]
    fn comments_and_literals_name_nothing() {
        let text = r##"
            // crate::store::Writer
            /* crate::store /* nested */ crate::http */
            const A: &str = "crate::store::Writer \" crate::http";
            const B: &str = r#"crate::"store"::Writer"#;
            const C: char = '"'; fn f<'a>(x: &'a str) {} const D: &[u8] = b"crate::http::x";
        "##;
        assert_eq!(read("domain", text), Vec::<String>::new());
    }

    #[test]
    fn use_trees_are_unfolded() {
        let text = "use crate::{store::{self, Writer as W}, domain::*};\npub use std::{fs, io::Read};";
        let found = [
            "1 crate::store::self",
            "1 crate::store::Writer",
            "1 crate::domain",
            "2 std::fs",
            "2 std::io::Read",
        ];
        assert_eq!(read("journal", text), found);
    }

    #[test]
    fn self_and_super_are_resolved_also_in_inline_modules() {
        let text = "use super::messages::Offer;\nmod tests { use super::*; use super::super::lease_reaper::A; }\nself::x();";
        let found = [
            "1 crate::actors::messages::Offer",
            "2 crate::actors::scheduler",
            "2 crate::actors::lease_reaper::A",
            "3 crate::actors::scheduler::x",
        ];
        assert_eq!(read("actors::scheduler", text), found);
    }

    #[test]
    fn paths_outside_use_lines_count_too() {
        let text = "fn f() {\n    let x: crate::http::Server = tokio::fs::read(p).await;\n}";
        assert_eq!(read("store", text), ["2 crate::http::Server", "2 tokio::fs::read"]);
    }
}
