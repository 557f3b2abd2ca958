//! How a bound of time is told to people.

use crate::contract::quantity::Seconds;

/// `40 s`, `5 min 10 s`, `2 h 3 min`. Rounded up, as nobody waits longer than is said: to whole seconds below an hour,
/// to whole minutes above.
pub fn at_most(left: Seconds) -> String {
    let seconds = left.millis().div_ceil(1000);
    let minutes = seconds.div_ceil(60);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        _ => two(minutes / 60, "h", minutes % 60, "min"),
    }
}

fn two(first: u64, unit: &str, second: u64, smaller: &str) -> String {
    if second == 0 { format!("{first} {unit}") } else { format!("{first} {unit} {second} {smaller}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_told_as_it_is_and_never_too_short() {
        for (millis, text) in [
            (1, "1 s"),
            (118_001, "119 s"),
            (300_000, "5 min"),
            (309_001, "5 min 10 s"),
            (3_600_000, "1 h"),
            (7_321_000, "2 h 3 min"),
        ] {
            assert_eq!(at_most(Seconds::from_millis(millis)), text);
        }
    }
}
