//! How far each platform is supported: one table, printed into `docs/SUPPORT.md`, shown by `gpulayer resources detect`,
//! and there for whoever places jobs.

use std::fmt;

use serde::Serialize;

use crate::contract::gpu::GpuVendor;

/// How far something is supported; each level holds what is below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It is recognised and named; nothing is granted.
    Detected,
    /// The code is there and was never run on it.
    Implemented,
    /// Tests run it, with a stand-in for hardware where there is any.
    Tested,
    /// Runs on the hardware itself, regularly.
    HardwareValidated,
}

impl Level {
    /// All of them, the least first.
    pub const ALL: [Level; 4] =
        [Level::Detected, Level::Implemented, Level::Tested, Level::HardwareValidated];

    /// The word in documents and on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Level::Detected => "detected",
            Level::Implemented => "implemented",
            Level::Tested => "tested",
            Level::HardwareValidated => "hardware_validated",
        }
    }

    /// What it means, in one sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            Level::Detected => "It is recognised and named; nothing is granted there.",
            Level::Implemented => "The code is there, and was never run on it.",
            Level::Tested => "Tests run it, with a stand-in where hardware is needed.",
            Level::HardwareValidated => "It is run on the hardware itself, regularly.",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Support {
    /// The system, as workers say it: `linux`, `macos`.
    pub os: &'static str,
    /// The architecture, as workers say it; empty = all.
    pub arch: &'static str,
    /// Whose GPUs; `None` = tasks without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<GpuVendor>,
    /// What it is, for people.
    pub what: &'static str,
    /// How far.
    pub level: Level,
    /// What that rests on.
    pub because: &'static str,
}

const fn row(
    os: &'static str,
    arch: &'static str,
    vendor: Option<GpuVendor>,
    what: &'static str,
    level: Level,
    because: &'static str,
) -> Support {
    Support { os, arch, vendor, what, level, because }
}

/// The table. The first row that fits a machine is its own.
pub const SUPPORT: &[Support] = &[
    row("linux", "x86_64", None, "Linux, x86-64", Level::Tested, "all tests run there"),
    row("linux", "aarch64", None, "Linux, ARM 64", Level::Implemented, "the same code, built for no test"),
    row(
        "linux",
        "x86_64",
        Some(GpuVendor::Nvidia),
        "GPUs of NVIDIA, whole or in MIG slices",
        Level::Tested,
        "through the real NVML wrapper, with a stand-in for NVIDIA's library; on no GPU yet",
    ),
    row(
        "linux",
        "aarch64",
        Some(GpuVendor::Nvidia),
        "GPUs of NVIDIA beside ARM (Grace)",
        Level::Implemented,
        "the same code, built for no test",
    ),
    row(
        "linux",
        "",
        Some(GpuVendor::Amd),
        "GPUs of AMD with ROCm",
        Level::Implemented,
        "what `rocm-smi` prints is read in tests; who uses a GPU is not seen",
    ),
    row("macos", "", None, "macOS", Level::Implemented, "behind `cfg`, never run here"),
    row(
        "macos",
        "aarch64",
        Some(GpuVendor::Apple),
        "the GPU of Apple's chips",
        Level::Implemented,
        "what the system's tools print is read in tests; never run here",
    ),
];

/// The row of a machine's GPUs of a vendor, or of its tasks without any; `None` = nobody thought of it.
pub fn support(os: &str, arch: &str, vendor: Option<GpuVendor>) -> Option<&'static Support> {
    SUPPORT
        .iter()
        .find(|row| row.os == os && (row.arch.is_empty() || row.arch == arch) && row.vendor == vendor)
}

/// That tasks somewhere are supported less than by tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// How far they are.
    pub level: Level,
    what: String,
    because: &'static str,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, what, because } = self;
        write!(f, "{what}: support is `{}` only ({because}), no test covers it", level.word())
    }
}

/// What is to be said of tasks on a machine, on its GPUs of a vendor or without any; `None` = tests run them.
pub fn shortfall(os: &str, arch: &str, vendor: Option<GpuVendor>) -> Option<Shortfall> {
    let unheard = |vendor: Option<GpuVendor>| Shortfall {
        level: Level::Detected,
        what: match vendor {
            Some(vendor) => format!("GPUs of {} on {os} {arch}", vendor.word()),
            None => format!("{os} {arch}"),
        },
        because: "nobody has thought of it",
    };
    let of = |vendor: Option<GpuVendor>| match support(os, arch, vendor) {
        Some(row) if row.level >= Level::Tested => None,
        Some(row) => Some(Shortfall { level: row.level, what: row.what.to_owned(), because: row.because }),
        None => Some(unheard(vendor)),
    };
    // The lesser of both: GPUs are of no use on a system that is not supported.
    let without = of(None);
    let with = vendor.and_then(|vendor| of(Some(vendor)));
    [with, without].into_iter().flatten().min_by_key(|shortfall| shortfall.level)
}

/// The page `docs/SUPPORT.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Support\n\n\
         Printed from `src/domain/support.rs` (`UPDATE=1 cargo nextest run --test documents` rewrites it). `gpulayer \
         resources detect` says what holds for the machine it runs on.\n\n| level | what it means |\n|---|---|\n",
    );
    for level in Level::ALL {
        page.push_str(&format!("| `{}` | {} |\n", level.word(), level.meaning()));
    }
    page.push_str("\n| system | architecture | what | level | what that rests on |\n|---|---|---|---|---|\n");
    for Support { os, arch, what, level, because, .. } in SUPPORT {
        let arch = if arch.is_empty() { "all" } else { arch };
        page.push_str(&format!("| `{os}` | `{arch}` | {what} | `{}` | {because} |\n", level.word()));
    }
    page.push_str(
        "\nNothing is `hardware_validated` yet: no test of this project has run on a GPU. `cargo nextest run --test \
         hardware` on a machine that has one is how that is to change.\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_finds_its_row() {
        let nvidia = support("linux", "x86_64", Some(GpuVendor::Nvidia)).unwrap();
        assert_eq!(nvidia.level, Level::Tested);
        assert_eq!(support("linux", "riscv64", Some(GpuVendor::Amd)).unwrap().level, Level::Implemented);
        assert_eq!(support("linux", "riscv64", None), None);
        assert_eq!(support("windows", "x86_64", None), None);
    }

    #[test]
    fn what_no_test_covers_is_said_of_the_weaker_part() {
        assert_eq!(shortfall("linux", "x86_64", None), None);
        assert_eq!(shortfall("linux", "x86_64", Some(GpuVendor::Nvidia)), None);
        let said = |os, arch, vendor| shortfall(os, arch, vendor).unwrap().to_string();
        let amd = said("linux", "x86_64", Some(GpuVendor::Amd));
        assert!(amd.starts_with("GPUs of AMD with ROCm: support is `implemented` only"), "{amd}");
        assert!(said("linux", "aarch64", None).starts_with("Linux, ARM 64: support is `implemented`"));
        assert!(
            said("linux", "x86_64", Some(GpuVendor::Apple))
                .starts_with("GPUs of apple on linux x86_64: support is `detected`")
        );
        assert!(said("plan9", "mips", None).starts_with("plan9 mips: support is `detected`"));
    }

    #[test]
    fn nothing_is_called_more_than_it_is() {
        assert!(SUPPORT.iter().all(|row| row.level < Level::HardwareValidated));
        assert!(Level::ALL.is_sorted());
    }
}
