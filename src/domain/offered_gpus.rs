//! Which of its machine's GPUs a worker offers: the setting `worker_gpus`, and `--gpus` of a worker that joins.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::contract::gpu::Gpu;

/// See the module. As text: `all`, `none`, a number, or a list with commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OfferedGpus {
    /// All of them.
    #[default]
    All,
    /// So many, the first in PCI order.
    First(u32),
    /// These: places in PCI order, or uuids. A slice is also meant by the uuid of its GPU.
    These(BTreeSet<String>),
}

/// Text that says none of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `all`, `none`, how many, or places in PCI order and uuids with commas between (`3,` is the one in place 3)"
)]
pub struct NoChoice;

impl FromStr for OfferedGpus {
    type Err = NoChoice;

    fn from_str(text: &str) -> Result<Self, NoChoice> {
        let text = text.trim();
        match text {
            "all" => return Ok(OfferedGpus::All),
            "none" => return Ok(OfferedGpus::These(BTreeSet::new())),
            _ => {}
        }
        if let Ok(count) = text.parse::<u32>() {
            return Ok(OfferedGpus::First(count));
        }
        if !text.contains(',') && place(text).is_none() && !is_uuid(text) {
            return Err(NoChoice);
        }
        Self::these(text.split(',').map(str::trim).filter(|word| !word.is_empty()))
    }
}

impl OfferedGpus {
    /// From the words of a list, which may be empty: none.
    pub fn these<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, NoChoice> {
        let known = |word: &str| place(word).is_some() || is_uuid(word);
        let words =
            words.into_iter().map(|word| if known(word) { Ok(word.to_owned()) } else { Err(NoChoice) });
        Ok(OfferedGpus::These(words.collect::<Result<_, _>>()?))
    }

    /// The uuids of those that are offered of all that there are, which stand in PCI order.
    pub fn of(&self, all: &[Gpu]) -> BTreeSet<String> {
        let meant = |gpu: &Gpu| match self {
            OfferedGpus::All | OfferedGpus::First(_) => true,
            OfferedGpus::These(words) => words.iter().any(|word| means(word, gpu)),
        };
        let most = match self {
            OfferedGpus::First(most) => *most as usize,
            OfferedGpus::All | OfferedGpus::These(_) => usize::MAX,
        };
        all.iter().filter(|gpu| meant(gpu)).take(most).map(|gpu| gpu.uuid.clone()).collect()
    }

    /// What was named and is not there.
    pub fn absent_from<'a>(&'a self, all: &[Gpu]) -> Vec<&'a str> {
        let OfferedGpus::These(words) = self else { return Vec::new() };
        let absent = |word: &&String| !all.iter().any(|gpu| means(word, gpu));
        words.iter().filter(absent).map(String::as_str).collect()
    }
}

fn means(word: &str, gpu: &Gpu) -> bool {
    place(word) == Some(gpu.index)
        || gpu.uuid == word
        || gpu.slice.as_ref().is_some_and(|slice| slice.of == word)
}

fn place(word: &str) -> Option<u32> {
    word.parse().ok()
}

/// `GPU-…`, `MIG-…`, or what another vendor has for that: never a mere word, and no range such as `0-3`.
fn is_uuid(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.contains(['-', ':'])
        && word.contains(|c: char| c.is_ascii_alphabetic() || c == ':')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_'))
}

impl fmt::Display for OfferedGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OfferedGpus::All => f.write_str("all"),
            OfferedGpus::First(count) => write!(f, "{count}"),
            OfferedGpus::These(words) if words.is_empty() => f.write_str("none"),
            // With a comma at the end, or a single place would read as a number of GPUs.
            OfferedGpus::These(words) => words.iter().try_for_each(|word| write!(f, "{word},")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::gpu::{GpuSlice, GpuStanding, GpuVendor};
    use crate::contract::spec::MemoryKind;

    fn gpu(index: u32, uuid: &str, of: Option<&str>) -> Gpu {
        Gpu {
            uuid: uuid.into(),
            vendor: GpuVendor::Nvidia,
            index,
            model: "M".into(),
            memory_bytes: 1,
            memory_kind: MemoryKind::Dedicated,
            compute_capability: None,
            pci_address: None,
            numa_node: None,
            links: Vec::new(),
            slice: of.map(|of| GpuSlice { of: of.into(), profile: "3g.40gb".into() }),
            driver: None,
            standing: GpuStanding::Ready,
        }
    }

    #[test]
    fn gpus_are_chosen_by_number_by_place_and_by_name() {
        let all = [
            gpu(0, "GPU-a", None),
            gpu(1, "GPU-b", None),
            gpu(2, "MIG-c", Some("GPU-x")),
            gpu(2, "MIG-d", Some("GPU-x")),
        ];
        for (text, offered) in [
            ("all", vec!["GPU-a", "GPU-b", "MIG-c", "MIG-d"]),
            ("none", vec![]),
            ("0", vec![]),
            ("3", vec!["GPU-a", "GPU-b", "MIG-c"]),
            ("9", vec!["GPU-a", "GPU-b", "MIG-c", "MIG-d"]),
            ("1,", vec!["GPU-b"]),
            ("0, 2", vec!["GPU-a", "MIG-c", "MIG-d"]),
            ("GPU-x", vec!["MIG-c", "MIG-d"]),
            ("MIG-d,GPU-a", vec!["GPU-a", "MIG-d"]),
        ] {
            let choice: OfferedGpus = text.parse().unwrap();
            assert_eq!(choice.of(&all).into_iter().collect::<Vec<_>>(), offered, "{text}");
            assert_eq!(choice.to_string().parse(), Ok(choice), "{text}");
        }
        let choice: OfferedGpus = "7,GPU-b,GPU-z".parse().unwrap();
        assert_eq!(choice.absent_from(&all), ["7", "GPU-z"]);
        for wrong in ["", "some", "-1", "1.5", "H100", "0,two", "0-3", "0,2-3"] {
            assert!(wrong.parse::<OfferedGpus>().is_err(), "{wrong}");
        }
    }
}
