//! Models of GPUs by the names that people use for them: `H100`, `a100-80gb`, `RTX 4090`, `rtx4090`.

/// Whether a GPU whose driver says `model` is what somebody means who says `wanted`: the words of `wanted` are words
/// of `model`, in that order, or the same letters and digits without a gap.
pub(super) fn is_called(model: &str, wanted: &str) -> bool {
    let (model, wanted) = (words(model), words(wanted));
    if wanted.is_empty() {
        return false;
    }
    let mut rest = model.iter();
    if wanted.iter().all(|word| rest.any(|known| known == word)) {
        return true;
    }
    let run: String = wanted.concat();
    (0..model.len()).any(|first| {
        let mut joined = String::new();
        model[first..].iter().any(|word| {
            joined.push_str(word);
            joined == run
        })
    })
}

fn words(text: &str) -> Vec<String> {
    let lower = text.to_ascii_lowercase();
    lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_say_less_than_drivers() {
        let (a100, h100, gaming) =
            ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090");
        for (model, wanted) in [
            (a100, "A100"),
            (a100, "a100-80gb"),
            (a100, "nvidia a100"),
            (h100, "h100"),
            (gaming, "4090"),
            (gaming, "RTX4090"),
            (gaming, "rtx 4090"),
            (gaming, "GeForce RTX 4090"),
        ] {
            assert!(is_called(model, wanted), "{model}: {wanted}");
        }
        for (model, wanted) in [
            (a100, "A10"),
            (a100, "a100-40gb"),
            (h100, "80GB H100"),
            (gaming, "409"),
            (gaming, ""),
            (gaming, "RTX 4090 Ti"),
        ] {
            assert!(!is_called(model, wanted), "{model}: {wanted}");
        }
    }
}
