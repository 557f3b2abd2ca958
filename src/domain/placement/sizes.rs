//! Sizes in sentences, as people write them.

use std::fmt;

/// Binary units with one decimal, in integers; rounded to the nearest. What was asked for in powers of 1000 is told as it
/// was asked for, too: `60 GB (55.9 GiB)`.
pub(in crate::domain) struct Bytes(pub(in crate::domain) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match asked_in_thousands(self.0) {
            Some((count, unit)) => write!(f, "{count} {unit} ({})", Binary(self.0)),
            None => Binary(self.0).fmt(f),
        }
    }
}

/// Whole megabytes to terabytes, of what is no whole number of MiB as well; `None` = nobody wrote it so.
fn asked_in_thousands(bytes: u64) -> Option<(u64, &'static str)> {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB")];
    let whole = UNITS.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    whole.filter(|_| !bytes.is_multiple_of(1 << 20)).map(|(unit, name)| (bytes / unit, name))
}

struct Binary(u64);

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in UNITS {
            if self.0 >> shift > 0 {
                let tenths = ((u128::from(self.0) * 10) + (1u128 << (shift - 1))) >> shift;
                return match tenths % 10 {
                    0 => write!(f, "{} {unit}", tenths / 10),
                    tenth => write!(f, "{}.{tenth} {unit}", tenths / 10),
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// The same, rounded down: whoever types what is read asks for no more than that.
pub(super) struct AtMost(pub(super) u64);

impl fmt::Display for AtMost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = [40, 30, 20, 10].into_iter().find(|shift| self.0 >> shift > 0).unwrap_or(0);
        let tenths = (u128::from(self.0) * 10) >> unit;
        // Just as much as is shown, so that nothing is left to round.
        let shown = (tenths << unit).div_ceil(10);
        Binary(u64::try_from(shown).unwrap_or(self.0)).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_like_people_write_them() {
        for (bytes, text) in [
            (512, "512 B"),
            (1 << 30, "1 GiB"),
            (1_610_612_736, "1.5 GiB"),
            (80_000_000_000, "80 GB (74.5 GiB)"),
            (500_000_000, "500 MB (476.8 MiB)"),
            (85_520_809_984, "79.6 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for (bytes, text) in [(85_520_809_984, "79.6 GiB"), (85_580_000_000, "79.7 GiB"), (1023, "1023 B")] {
            assert_eq!(AtMost(bytes).to_string(), text);
        }
        assert_eq!(AtMost((1 << 40) - 1).to_string(), "1023.9 GiB");
    }
}
