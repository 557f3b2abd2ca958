//! The known word nearest to a mistyped one.

/// The nearest of `known`, if it is near enough to be what was meant.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given: Vec<char> = given.chars().take(40).flat_map(char::to_lowercase).collect();
    let allowed = given.len().div_ceil(3).min(4);
    known
        .into_iter()
        .map(|word| (distance(&given, &word.chars().collect::<Vec<_>>()), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, word)| word)
}

/// Edits from one word to the other: insert, remove, replace, or swap two neighbours.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(x != y);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant_and_nothing_else() {
        let known = ["priority", "project", "profile", "timeout_s", "env"];
        assert_eq!(nearest("prioritty", known), Some("priority"));
        assert_eq!(nearest("porject", known), Some("project"));
        assert_eq!(nearest("Timeout", known), Some("timeout_s"));
        assert_eq!(nearest("gpus", known), None);
        assert_eq!(nearest("", known), None);
    }
}
