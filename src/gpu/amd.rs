//! AMD's GPUs by `rocm-smi --json` and sysfs. Which processes use one, and whether it is well, is not asked.
//! The reading is tested with outputs in the forms of several ROCm releases; on such a GPU it was never run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::GpuOptions;
use super::error::GpuError;
use crate::contract::gpu::{Gpu, GpuStanding, GpuVendor};
use crate::contract::spec::MemoryKind;
use crate::process::asked::{Asked, printed_by};

const WHAT: &str = "rocm-smi";
const USUAL_PLACES: [&str; 2] = ["/opt/rocm/bin/rocm-smi", "/usr/bin/rocm-smi"];
const ARGUMENTS: [&str; 8] = [
    "--showproductname",
    "--showuniqueid",
    "--showmeminfo",
    "vram",
    "--showbus",
    "--showdriverversion",
    "--showtopotype",
    "--json",
];

/// Whether AMD's compute driver has devices: a display alone is no GPU to grant.
pub fn has_compute(sysfs: &Path) -> bool {
    sysfs.join("class/kfd/kfd/topology").exists() && super::sysfs::devices_of(sysfs, super::sysfs::AMD) > 0
}

/// Asks. Blocks, for that long at most.
pub(super) fn look(options: &GpuOptions, within: Duration) -> Result<Vec<Gpu>, GpuError> {
    let usual = || USUAL_PLACES.map(PathBuf::from).into_iter().find(|place| place.exists());
    let Some(program) = options.rocm_smi.clone().or_else(usual) else {
        let why = "there are GPUs of AMD with their compute driver, but the program is not there".to_owned();
        return Err(GpuError::Refused { what: WHAT, why });
    };
    let asked = Asked {
        program,
        name: None,
        arguments: ARGUMENTS.map(Into::into).into(),
        environment: vec![("PATH".into(), "/usr/bin:/bin:/opt/rocm/bin".into()), ("LANG".into(), "C".into())],
        run_as: None,
    };
    let printed = printed_by(&asked, within).map_err(|source| GpuError::Asked { what: WHAT, source })?;
    let mut gpus = read(&printed.output)?;
    if gpus.is_empty() && !printed.well {
        return Err(GpuError::Refused { what: WHAT, why: printed.said });
    }
    for gpu in &mut gpus {
        gpu.memory_bytes = gpu.memory_bytes.max(memory_in_sysfs(options, gpu).unwrap_or(0));
    }
    Ok(gpus)
}

/// The kernel's own count, for releases that leave it out.
fn memory_in_sysfs(options: &GpuOptions, gpu: &Gpu) -> Option<u64> {
    let device = options.sysfs.join("bus/pci/devices").join(gpu.pci_address.as_ref()?);
    std::fs::read_to_string(device.join("mem_info_vram_total")).ok()?.trim().parse().ok()
}

/// What it prints, with or without warnings before it.
pub fn read(output: &[u8]) -> Result<Vec<Gpu>, GpuError> {
    let begins = output.iter().position(|byte| *byte == b'{').unwrap_or(output.len());
    if begins == output.len() {
        // Without a GPU it says so in plain words.
        return Ok(Vec::new());
    }
    let garbled = |source| GpuError::Garbled { what: WHAT, source };
    let printed: Map<String, Value> = serde_json::from_slice(&output[begins..]).map_err(garbled)?;
    let system = printed.get("system").and_then(Value::as_object);
    let driver = system.and_then(|system| text(system, &["driver version"]));
    let mut cards: Vec<(u32, &Map<String, Value>)> = printed
        .iter()
        .filter_map(|(name, card)| Some((name.strip_prefix("card")?.parse().ok()?, card.as_object()?)))
        .collect();
    cards.sort_by_key(|(number, _)| *number);
    let mut gpus: Vec<(u32, Gpu)> =
        cards.into_iter().map(|(number, card)| (number, gpu(number, card, driver.clone()))).collect();
    gpus.sort_by(|(_, a), (_, b)| a.pci_address.cmp(&b.pci_address));
    let named: Vec<(u32, String)> = gpus.iter().map(|(number, gpu)| (*number, gpu.uuid.clone())).collect();
    for (index, (number, gpu)) in (0..).zip(&mut gpus) {
        gpu.index = index;
        let linked = |other: u32| system.is_some_and(|system| is_xgmi(system, *number, other));
        gpu.links = named.iter().filter(|(other, _)| linked(*other)).map(|(_, uuid)| uuid.clone()).collect();
    }
    Ok(gpus.into_iter().map(|(_, gpu)| gpu).collect())
}

fn gpu(number: u32, card: &Map<String, Value>, driver: Option<String>) -> Gpu {
    let pci_address = text(card, &["pci bus"]).map(|address| address.to_ascii_lowercase());
    let unique = text(card, &["unique id"]);
    let unique =
        unique.and_then(|id| u64::from_str_radix(id.strip_prefix("0x")?, 16).ok()).filter(|id| *id != 0);
    let uuid = match (unique, &pci_address) {
        (Some(id), _) => format!("GPU-{id:016x}"),
        (None, Some(address)) => format!("PCI-{address}"),
        (None, None) => format!("AMD-{number}"),
    };
    let model = text(card, &["device name", "card series", "card model"]);
    Gpu {
        uuid,
        vendor: GpuVendor::Amd,
        index: 0,
        model: model.unwrap_or_else(|| "AMD GPU".to_owned()),
        memory_bytes: text(card, &["vram total memory (b)"])
            .and_then(|bytes| bytes.parse().ok())
            .unwrap_or(0),
        memory_kind: MemoryKind::Dedicated,
        compute_capability: None,
        pci_address,
        numa_node: None,
        links: Vec::new(),
        slice: None,
        driver,
        standing: GpuStanding::Ready,
    }
}

/// The first of these fields that says something; releases write their names with other capitals.
fn text(fields: &Map<String, Value>, names: &[&str]) -> Option<String> {
    let of = |name: &&str| {
        let (_, value) = fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name))?;
        let text = value.as_str()?.trim();
        (!text.is_empty() && !text.starts_with("N/A")).then(|| text.to_owned())
    };
    names.iter().find_map(of)
}

/// AMD's own links between two cards.
fn is_xgmi(system: &Map<String, Value>, one: u32, other: u32) -> bool {
    [(one, other), (other, one)].iter().any(|(a, b)| {
        let name = format!("(Topology) Link type between DRM devices {a} and {b}");
        system.get(&name).and_then(Value::as_str) == Some("XGMI")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"Unique ID": "0x18f68e602b6a790f", "VRAM Total Memory (B)": "68702699520",
  "VRAM Total Used Memory (B)": "11079680", "PCI Bus": "0000:C1:00.0",
  "Card Series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Card Model": "0x740c", "GFX Version": "gfx9010"},
 "card1": {"Unique ID": "0xa0f68e602b6a790e", "VRAM Total Memory (B)": "68702699520",
  "PCI Bus": "0000:2F:00.0", "Card Series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Card Model": "0x740c"},
 "system": {"Driver version": "6.14.14", "(Topology) Link type between DRM devices 0 and 1": "XGMI"}}"#;

    #[test]
    fn cards_come_in_pci_order_with_their_links() {
        let gpus = read(TWO.as_bytes()).unwrap();
        let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        assert_eq!(uuids, ["GPU-a0f68e602b6a790e", "GPU-18f68e602b6a790f"]);
        assert_eq!((gpus[0].index, gpus[1].index), (0, 1));
        assert_eq!(gpus[0].links, ["GPU-18f68e602b6a790f"]);
        assert_eq!(gpus[0].model, "AMD INSTINCT MI250 (MCM) OAM AC MBA");
        assert_eq!(gpus[0].memory_bytes, 68_702_699_520);
        assert_eq!(gpus[1].pci_address.as_deref(), Some("0000:c1:00.0"));
        assert_eq!(gpus[1].driver.as_deref(), Some("6.14.14"));
    }

    #[test]
    fn an_older_release_and_a_card_without_an_id_are_understood() {
        let old = r#"{"card0": {"Unique ID": "N/A", "PCI Bus": "0000:03:00.0", "Card series": "Navi 21",
            "Card model": "0x0c34", "VRAM Total Memory (B)": "17163091968"}}"#;
        let gpus = read(old.as_bytes()).unwrap();
        assert_eq!((gpus[0].uuid.as_str(), gpus[0].model.as_str()), ("PCI-0000:03:00.0", "Navi 21"));
        assert_eq!(gpus[0].driver, None);
    }

    #[test]
    fn words_without_cards_are_no_gpus_and_half_an_answer_is_a_fault() {
        assert_eq!(read(b"ERROR:root:Driver not initialized (amdgpu not found in modules)\n").unwrap(), []);
        assert!(matches!(read(b"{\"card0\": {"), Err(GpuError::Garbled { .. })));
    }

    #[test]
    fn the_program_is_run_and_its_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("rocm-smi");
        let write = |script: &str| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let options = GpuOptions { rocm_smi: Some(program.clone()), ..GpuOptions::default() };
        std::fs::write(folder.path().join("out"), TWO).unwrap();
        write(&format!("cat {}/out", folder.path().display()));
        assert_eq!(look(&options, Duration::from_secs(20)).unwrap().len(), 2);
        write("echo no driver >&2; exit 1");
        assert_eq!(look(&options, Duration::from_secs(20)).unwrap_err().to_string(), "rocm-smi: no driver");
        write("sleep 1000");
        let hung = look(&options, Duration::from_millis(200)).unwrap_err();
        assert_eq!(crate::domain::causes::said(&hung), "rocm-smi cannot be asked: no answer within 0.2 s");
    }
}
