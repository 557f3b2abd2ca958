//! What a job needs of one machine.

use std::collections::BTreeMap;

use super::reader::{Node, Reader, quoted};
use super::{identity, limits, versions};
use crate::contract::quantity::Cpus;
use crate::contract::spec::{GpuCount, GpuRequest, MemoryKind, Resources};
use crate::contract::worker::is_unseen;

const FIELDS: &[&str] =
    &["cpus", "memory_bytes", "disk_bytes", "gpus", "frameworks", "os", "arch", "labels", "worker"];

const GPU_FIELDS: &[&str] =
    &["count", "vendor", "memory_bytes", "memory_kind", "models", "min_compute_capability", "share"];

/// What workers look for in their interpreters.
pub const FRAMEWORKS: [&str; 4] = ["torch", "jax", "tensorflow", "mlx"];

/// `one_gpu`: a profile asks for a GPU, so that what is said of GPUs without a number is said of one.
pub(super) fn read(reader: &mut Reader, node: Node<'_>, one_gpu: bool) -> Option<Resources> {
    let fields = reader.fields(node, FIELDS)?;
    let mut resources = Resources::default();
    fields.set(reader, "cpus", &mut resources.cpus, cpus);
    resources.memory_bytes = fields.read(reader, "memory_bytes", memory);
    resources.disk_bytes = fields.read(reader, "disk_bytes", Reader::bytes);
    resources.gpus = fields.read(reader, "gpus", |reader, node| gpus(reader, node, one_gpu));
    fields.set(reader, "frameworks", &mut resources.frameworks, frameworks);
    resources.os = fields.read(reader, "os", |reader, node| known_word(reader, node, &["linux", "macos"]));
    resources.arch =
        fields.read(reader, "arch", |reader, node| known_word(reader, node, &["x86_64", "aarch64"]));
    fields.set(reader, "labels", &mut resources.labels, identity::labels);
    resources.worker = fields.read(reader, "worker", |reader, node| reader.line(node, limits::NAME_BYTES));
    Some(resources)
}

/// Less than this ends a program before it begins, and is more often a size without its unit than a wish.
fn memory(reader: &mut Reader, node: Node<'_>) -> Option<u64> {
    let bytes = reader.bytes(node)?;
    let least = limits::LEAST_MEMORY_BYTES;
    if bytes < least {
        let expected =
            format!("expected at least {least} bytes (8 MiB); a size may have a unit, such as 16GiB");
        return reader.invalid(node.at, expected);
    }
    Some(bytes)
}

fn known_word(reader: &mut Reader, node: Node<'_>, words: &[&'static str]) -> Option<String> {
    let words: Vec<(&str, &str)> = words.iter().map(|word| (*word, *word)).collect();
    reader.word(node, &words).map(str::to_owned)
}

fn cpus(reader: &mut Reader, node: Node<'_>) -> Option<Cpus> {
    let millis = node.value.as_f64().filter(|cpus| *cpus > 0.0 && *cpus <= limits::CPUS).and_then(|cpus| {
        let millis = (cpus * 1000.0).round();
        // A decimal fraction is not exact in binary; the tolerance is far below a fourth decimal.
        (millis >= 1.0 && (cpus * 1000.0 - millis).abs() < 1e-5).then_some(millis as u32)
    });
    match millis {
        Some(millis) => Some(Cpus::from_millis(millis)),
        None => {
            let most = limits::CPUS;
            reader.invalid(
                node.at,
                format!("expected a number above 0, at most {most}, with up to 3 decimals, such as 0.25"),
            )
        }
    }
}

/// A request for no GPUs is no request.
fn gpus(reader: &mut Reader, node: Node<'_>, one_gpu: bool) -> Option<Box<GpuRequest>> {
    let fields = reader.fields(node, GPU_FIELDS)?;
    let count = fields
        .read(reader, "count", gpu_count)
        .unwrap_or(GpuCount::Count(u32::from(one_gpu && !fields.has("count"))));
    let request = GpuRequest {
        count,
        vendor: fields
            .read(reader, "vendor", |reader, node| known_word(reader, node, &["nvidia", "amd", "apple"])),
        memory_bytes: fields.read(reader, "memory_bytes", memory),
        memory_kind: fields.read(reader, "memory_kind", |reader, node| {
            let words = [("dedicated", MemoryKind::Dedicated), ("unified", MemoryKind::Unified)];
            reader.word(node, &words)
        }),
        models: fields
            .read(reader, "models", |reader, node| {
                reader.list(node, limits::ENTRIES, |reader, node, _| model(reader, node))
            })
            .unwrap_or_default(),
        min_compute_capability: fields.read(reader, "min_compute_capability", compute_capability),
        share: None,
    };
    if count != GpuCount::Count(0) {
        return Some(Box::new(request));
    }
    let none = GpuRequest::of(count);
    if !fields.has("count") && request != none {
        reader
            .warn(node.at, "asks for no GPU without a `count`: what is said here of GPUs counts for nothing");
    }
    None
}

/// As drivers or people call it; without a letter or digit it would be nobody's name.
fn model(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let model = reader.line(node, limits::NAME_BYTES)?;
    if model.chars().any(is_unseen) {
        let detail = format!("{} holds characters that nobody sees, or that turn the text", quoted(&model));
        return reader.invalid(node.at, detail);
    }
    if model.bytes().any(|byte| byte.is_ascii_alphanumeric()) {
        return Some(model);
    }
    reader.invalid(node.at, format!("{} is the name of no GPU; one is called `H100`, say", quoted(&model)))
}

fn gpu_count(reader: &mut Reader, node: Node<'_>) -> Option<GpuCount> {
    if node.value.as_str() == Some("all") {
        return Some(GpuCount::All);
    }
    // `1.0` is one, as for every other number.
    let count = node.value.as_f64().filter(|count| count.fract() == 0.0 && (0.0..=1024.0).contains(count));
    match count {
        Some(count) => Some(GpuCount::Count(count as u32)),
        None => reader.invalid(node.at, "expected a whole number from 0 to 1024, or `all`"),
    }
}

fn compute_capability(reader: &mut Reader, node: Node<'_>) -> Option<String> {
    let text = reader.text(node)?;
    let number = |part: &str| !part.is_empty() && part.len() <= 3 && part.bytes().all(|b| b.is_ascii_digit());
    match text.split_once('.') {
        Some((major, minor)) if number(major) && number(minor) => Some(text.to_owned()),
        _ => reader.invalid(node.at, "expected `major.minor` as text, such as `8.0`"),
    }
}

fn frameworks(reader: &mut Reader, node: Node<'_>) -> Option<BTreeMap<String, String>> {
    reader.map(node, limits::ENTRIES, |reader, name, node| {
        if !FRAMEWORKS.contains(&name) {
            let known = FRAMEWORKS.join("`, `");
            reader.warn(
                node.at,
                format!("workers look for `{known}` alone: none will say that it has this one"),
            );
        }
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > 63 || !name.bytes().all(letter) {
            reader.fault(node.at, "invalid", "a framework's name has 1 to 63 of `A-Z a-z 0-9 . _ -`");
        }
        let range = reader.text(node)?;
        // Nothing at all: any version.
        if range.is_empty() || versions::is_range(range) {
            return Some(range.to_owned());
        }
        reader.invalid(node.at, format!("{} is not {}", quoted(range), versions::ALLOWED))
    })
}
