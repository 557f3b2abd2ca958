//! What a secret is: a value that nothing prints, and where a spec says it comes from.

use std::fmt;

/// Shorter values are refused: hidden wherever they occur, they would make a log unreadable and tell what they
/// are by the holes they leave.
pub const MIN_VALUE_BYTES: usize = 8;
/// Longer values are refused: each of their forms is looked for, which costs the shim a few hundred times as much
/// memory.
pub const MAX_VALUE_BYTES: usize = 16 << 10;

/// The value of a secret. It has no `Display` and no serde form, `Debug` hides it, and its memory is overwritten
/// when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Vec<u8>);

impl SecretValue {
    /// Takes a value as it is.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes themselves. Whoever calls this answers for where they go.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Without the line ends that a file or a pipe leaves behind the value.
    pub fn trim_line_end(&mut self) {
        while self.0.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            self.0.pop();
        }
    }

    /// Whether a task can be given this.
    pub fn check(&self) -> Result<(), UnfitValue> {
        match self.0.len() {
            0 => Err(UnfitValue::Empty),
            1..MIN_VALUE_BYTES => Err(UnfitValue::Short),
            length if length > MAX_VALUE_BYTES => Err(UnfitValue::Long),
            _ if self.0.contains(&0) => Err(UnfitValue::ZeroByte),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

impl Drop for SecretValue {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites bytes that were secret before their memory is used for something else.
pub fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    // Keeps the compiler from leaving out a write that nobody reads.
    std::hint::black_box(bytes);
}

/// Why a value is no use as a secret. Says nothing of the value itself, not even its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnfitValue {
    /// Nothing.
    #[error("is empty")]
    Empty,
    /// Below [`MIN_VALUE_BYTES`].
    #[error("is shorter than {MIN_VALUE_BYTES} bytes, too short to be kept out of the log")]
    Short,
    /// Above [`MAX_VALUE_BYTES`].
    #[error("is longer than {MAX_VALUE_BYTES} bytes; let the program read it from a file")]
    Long,
    /// No variable can hold it.
    #[error("holds a zero byte, which no variable can")]
    ZeroByte,
}

/// Where a spec's `secrets[].ref` says a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretRef<'a> {
    /// `name:NAME`: the worker's own `[secrets]` table.
    Name(&'a str),
    /// `env:NAME`: the worker's own environment.
    Variable(&'a str),
    /// `file:/PATH`: a file on the worker.
    File(&'a str),
}

impl<'a> SecretRef<'a> {
    /// Reads `name:NAME`, `env:NAME` or `file:/ABSOLUTE/PATH`; `None` when it is neither.
    pub fn parse(text: &'a str) -> Option<Self> {
        match text.split_once(':')? {
            ("name", name) if !name.is_empty() => Some(SecretRef::Name(name)),
            ("env", name) if !name.is_empty() && !name.contains(['=', '\0']) => {
                Some(SecretRef::Variable(name))
            }
            ("file", path) if path.starts_with('/') && !path.contains('\0') => Some(SecretRef::File(path)),
            _ => None,
        }
    }

    /// Whether a submitter says by it what of the worker is to be read, so that the worker must allow it.
    pub const fn reaches_into_worker(self) -> bool {
        !matches!(self, SecretRef::Name(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_printed() {
        assert_eq!(format!("{:?}", SecretValue::new("hunter2hunter2")), "SecretValue(…)");
    }

    #[test]
    fn line_ends_behind_a_value_are_not_part_of_it() {
        let mut value = SecretValue::new("line\none\r\n\n");
        value.trim_line_end();
        assert_eq!(value.expose(), b"line\none");
    }

    #[test]
    fn unfit_values_are_told_apart() {
        let check = |bytes: &[u8]| SecretValue::new(bytes).check();
        assert_eq!(check(b""), Err(UnfitValue::Empty));
        assert_eq!(check(b"1234567"), Err(UnfitValue::Short));
        assert_eq!(check(b"12345678"), Ok(()));
        assert_eq!(check(b"1234\x005678"), Err(UnfitValue::ZeroByte));
        assert_eq!(check(&vec![b'x'; MAX_VALUE_BYTES + 1]), Err(UnfitValue::Long));
    }

    #[test]
    fn references_are_read() {
        assert_eq!(SecretRef::parse("name:A"), Some(SecretRef::Name("A")));
        assert_eq!(SecretRef::parse("env:A"), Some(SecretRef::Variable("A")));
        assert_eq!(SecretRef::parse("file:/run/x:y"), Some(SecretRef::File("/run/x:y")));
        for bad in ["A", "name:", "env:", "env:A=B", "file:x", "file:", "vault:x", "Name:x"] {
            assert_eq!(SecretRef::parse(bad), None, "{bad}");
        }
    }
}
