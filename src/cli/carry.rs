//! Brings along what a job needs: the source folder, input files and folders. Each is stored under its digest, and
//! only what the server lacks is sent.

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::{Component, Path, PathBuf};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::error::CliError;
use super::screen::say;
use super::shown::size;
use super::spec_building::Draft;
use crate::artifacts::bundle::{self, BundleError, LeftOut, LeftOutReason, PlanOptions, SourceRoot};
use crate::client::Client;
use crate::config::Places;
use crate::contract::artifact::Digest;
use crate::contract::job::{LeftOutOfSource, MOST_LEFT_OUT};

/// Reading more than this takes long enough for a word.
const LARGE_BYTES: u64 = 1 << 30;
/// How many left-out things a line names.
const NAMED: usize = 4;
/// What a submission says of left-out things travels as a header: bytes of it at most.
const MOST_LEFT_OUT_BYTES: usize = 16 << 10;
/// Bytes in a header that one byte of a path may need.
const LONGEST_ESCAPE: usize = 6;

/// Something to be stored on the server.
pub(super) struct Parcel {
    pub(super) digest: Digest,
    pub(super) size_bytes: u64,
    origin: Origin,
}

enum Origin {
    File(PathBuf),
    Folder(Box<bundle::Plan>),
    /// Of a folder, as it was read.
    Spooled {
        root: PathBuf,
        spool: Spool,
    },
}

/// What goes along with a job.
#[derive(Default)]
pub(super) struct Baggage {
    parcels: Vec<Parcel>,
    /// `14 files, 1.2 MB · left out: data/ (4.1 GB)`, by the digest of the bundle.
    remarks: Vec<(Digest, String)>,
    /// What stayed behind of the source, for the server to remember.
    left_out: Vec<LeftOutOfSource>,
}

/// How `--source` was given.
pub(super) enum Source<'a> {
    Auto,
    None,
    Folder(&'a Path),
    /// `--here`.
    Here,
}

impl Baggage {
    /// Decides what goes along and writes its digests into the draft. Reads files; sends nothing.
    pub(super) fn pack(draft: &mut Draft, source: &Source<'_>, places: &Places) -> Result<Self, CliError> {
        let mut baggage = Self::default();
        let here = || {
            std::env::current_dir().map_err(|source| CliError::File {
                operation: "find the current folder",
                path: ".".into(),
                source,
            })
        };
        let root = match source {
            // A spec that names a source, or a function, brings its own.
            Source::Auto if draft.spec.contains_key("source") => None,
            Source::Auto => bundle::source_root(&here()?, &draft.argv(), std::env::home_dir().as_deref()),
            Source::None => None,
            Source::Folder(folder) if !folder.is_dir() => {
                let given = folder.display().to_string();
                return Err(CliError::Flag {
                    flag: "--source",
                    given,
                    expected: "a folder, `auto` or `none`",
                });
            }
            Source::Folder(folder) => Some(SourceRoot { root: (*folder).to_owned(), cwd: PathBuf::new() }),
            Source::Here => {
                draft.set_cwd(&here()?.to_string_lossy());
                None
            }
        };
        let mut place = PathBuf::new();
        if let Some(SourceRoot { root, cwd }) = root {
            let (parcel, left_out) = baggage.folder(&root, places)?;
            baggage.left_out = left_out;
            draft.spec.insert("source".to_owned(), json!(parcel));
            if cwd != Path::new("") {
                draft.set_cwd(&cwd.to_string_lossy());
            }
            place = cwd;
        }
        for given in std::mem::take(&mut draft.inputs) {
            let input = baggage.input(&given, &place, places)?;
            match draft.spec.entry("inputs").or_insert_with(|| json!([])) {
                serde_json::Value::Array(inputs) => inputs.push(input),
                other => *other = json!([input]),
            }
        }
        Ok(baggage)
    }

    /// One `--input SRC[:PATH]` as the spec has it. `place` is where the current folder is in the workspace.
    fn input(&mut self, given: &str, place: &Path, places: &Places) -> Result<serde_json::Value, CliError> {
        let (source, path) = split_input(given);
        if source.starts_with("artifact://") {
            let digest = source.parse::<Digest>().map_err(|_| CliError::Flag {
                flag: "--input",
                given: given.to_owned(),
                expected: "artifact://sha256/, 64 lower-case hex digits, and :PATH",
            })?;
            let path = path.ok_or_else(|| CliError::Flag {
                flag: "--input",
                given: given.to_owned(),
                expected: "ADDRESS:PATH, as an artifact has no name of its own",
            })?;
            return Ok(json!({ "artifact": digest, "path": path }));
        }
        let from = Path::new(source);
        let path =
            path.map(str::to_owned).or_else(|| landing(from, place)).ok_or_else(|| CliError::Flag {
                flag: "--input",
                given: given.to_owned(),
                expected: "SRC:PATH, as SRC has no name of its own",
            })?;
        let found = std::fs::metadata(from).map_err(|source| CliError::GivenFile {
            flag: "--input",
            path: from.to_owned(),
            source,
        })?;
        if found.is_dir() {
            Ok(json!({ "artifact": self.folder(from, places)?.0, "path": path, "unpack": true }))
        } else if !found.is_file() {
            // A pipe or a device may never end.
            Err(CliError::Flag {
                flag: "--input",
                given: given.to_owned(),
                expected: "a file or a folder, and SRC is a pipe, a device or a socket",
            })
        } else {
            if found.len() > LARGE_BYTES {
                say(&format!("reading {} ({})", from.display(), size(found.len())));
            }
            Ok(json!({ "artifact": self.file(from)?, "path": path }))
        }
    }

    fn file(&mut self, path: &Path) -> Result<Digest, CliError> {
        let parcel = Parcel::file(path)?;
        let digest = parcel.digest;
        self.parcels.push(parcel);
        Ok(digest)
    }

    fn folder(&mut self, root: &Path, places: &Places) -> Result<(Digest, Vec<LeftOutOfSource>), CliError> {
        let (parcel, remark, left_out) = Parcel::folder(root, places)?;
        let digest = parcel.digest;
        self.parcels.push(parcel);
        self.remarks.push((digest, remark));
        Ok((digest, left_out))
    }

    /// What stayed behind of the source.
    pub(super) fn left_out(&self) -> &[LeftOutOfSource] {
        &self.left_out
    }

    /// What is sent along, as paths of this machine with their digests.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&Path, Digest)> {
        self.parcels.iter().map(|parcel| match &parcel.origin {
            Origin::File(path) => (path.as_path(), parcel.digest),
            Origin::Folder(plan) => (plan.root(), parcel.digest),
            Origin::Spooled { root, .. } => (root.as_path(), parcel.digest),
        })
    }

    /// Sends what the server lacks, and says what went along.
    pub(super) async fn send(&self, client: &Client) -> Result<(), CliError> {
        if self.parcels.is_empty() {
            return Ok(());
        }
        let digests: Vec<_> = self.parcels.iter().map(|parcel| parcel.digest).collect();
        let missing = client.missing(&digests).await?;
        for parcel in &self.parcels {
            if missing.contains(&parcel.digest) {
                parcel.send(client).await?;
            }
        }
        for (digest, remark) in &self.remarks {
            let verb = if missing.contains(digest) { "sent" } else { "unchanged" };
            say(&format!("{verb} {remark}"));
        }
        Ok(())
    }
}

impl Parcel {
    /// One file's bytes.
    pub(super) fn file(path: &Path) -> Result<Self, CliError> {
        let (digest, size_bytes) = digest_of(path)?;
        Ok(Self { digest, size_bytes, origin: Origin::File(path.to_owned()) })
    }

    /// A folder as a bundle, and the sentence that says what it holds.
    pub(super) fn folder(
        root: &Path,
        places: &Places,
    ) -> Result<(Self, String, Vec<LeftOutOfSource>), CliError> {
        let fault = |source: BundleError| CliError::Bundle { path: root.to_owned(), source: source.into() };
        let own_folders = vec![places.home.clone(), places.state.clone()];
        let plan =
            bundle::plan(root, &PlanOptions { own_folders, ..PlanOptions::default() }).map_err(fault)?;
        let cache = places.home.join("cache/bundles");
        let made = match plan.is_restless() {
            true => Err(BundleError::Changed { path: root.to_owned() }),
            false => bundle::digest(&plan, Some(&cache)),
        };
        let (made, origin) = match made {
            // Somebody writes there: what is named must be what is sent.
            Err(BundleError::Changed { .. }) => {
                let mut spool = Spool::create()?;
                let made = bundle::snapshot(&plan, &mut spool.file).map_err(fault)?;
                (made, Origin::Spooled { root: plan.root().to_owned(), spool })
            }
            made => (made.map_err(fault)?, Origin::Folder(Box::new(plan))),
        };
        let remark = remark(made.file_count, made.size_bytes, &made.left_out);
        Ok((
            Self { digest: made.digest, size_bytes: made.size_bytes, origin },
            remark,
            remembered(made.left_out),
        ))
    }

    /// Sends the bytes.
    pub(super) async fn send(&self, client: &Client) -> Result<(), CliError> {
        let plan = match &self.origin {
            Origin::File(path) => {
                return Ok(client.upload(&self.digest, path, self.size_bytes, |_| {}).await?);
            }
            Origin::Spooled { spool, .. } => {
                return Ok(client.upload(&self.digest, &spool.path, self.size_bytes, |_| {}).await?);
            }
            Origin::Folder(plan) => plan,
        };
        let spool = Spool::create()?;
        let written = bundle::write(plan, BufWriter::with_capacity(256 << 10, &spool.file));
        written.map_err(|source| CliError::Bundle { path: plan.root().to_owned(), source: source.into() })?;
        Ok(client.upload(&self.digest, &spool.path, self.size_bytes, |_| {}).await?)
    }
}

/// A private temporary file, removed when dropped.
pub(super) struct Spool {
    path: PathBuf,
    file: File,
}

impl Spool {
    pub(super) fn create() -> Result<Self, CliError> {
        use std::os::unix::fs::OpenOptionsExt;
        let name = format!("gpulayer-bundle-{}", hex::encode(rand::random::<[u8; 8]>()));
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        match file {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(CliError::File { operation: "make", path, source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

/// The digest and size of a file's bytes.
pub(super) fn digest_of(path: &Path) -> Result<(Digest, u64), CliError> {
    let fault = |source| CliError::File { operation: "read", path: path.to_owned(), source };
    let mut file = File::open(path).map_err(fault)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 256 << 10];
    let mut size_bytes = 0;
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(&piece[..read]);
                size_bytes += read as u64;
            }
            Err(again) if again.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(fault(source)),
        }
    }
    Ok((Digest::from_bytes(hash.finalize().into()), size_bytes))
}

/// `SRC[:PATH]`; the colons of an artifact's address are no separator.
fn split_input(given: &str) -> (&str, Option<&str>) {
    let begin = if given.starts_with("artifact://") { "artifact://".len() } else { 0 };
    match given[begin..].rsplit_once(':') {
        Some((source, path)) if !source.is_empty() && !path.is_empty() => {
            (&given[..begin + source.len()], Some(path))
        }
        _ => (given, None),
    }
}

/// Where an input goes that names no place: where it is here, seen from the current folder, or else by its name.
fn landing(from: &Path, place: &Path) -> Option<String> {
    let name = from.file_name()?;
    let below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let relative =
        if from.components().all(below) { from.strip_prefix("./").unwrap_or(from) } else { name.as_ref() };
    Some(place.join(relative).to_string_lossy().into_owned())
}

/// What a program may miss later: not what no program reads, and not without end.
fn remembered(left_out: Vec<LeftOut>) -> Vec<LeftOutOfSource> {
    let missed =
        |left: &LeftOut| !matches!(left.reason, LeftOutReason::VersionControl | LeftOutReason::OwnState);
    let mut room_bytes = MOST_LEFT_OUT_BYTES;
    let fits = |left: &LeftOut| {
        room_bytes = room_bytes.saturating_sub(left.path.len() * LONGEST_ESCAPE + 64);
        room_bytes > 0
    };
    let named = left_out.into_iter().filter(missed).take(MOST_LEFT_OUT).take_while(fits);
    named.map(|left| LeftOutOfSource { by: left.reason.by().to_owned(), path: left.path }).collect()
}

fn remark(file_count: u64, size_bytes: u64, left_out: &[LeftOut]) -> String {
    let files = if file_count == 1 { "file" } else { "files" };
    let mut text = format!("{file_count} {files}, {}", size(size_bytes));
    let mut worth: Vec<_> =
        left_out.iter().filter(|left| left.size_bytes > 0 || left.reason.cannot_travel()).collect();
    worth.sort_by_key(|left| (!left.reason.cannot_travel(), std::cmp::Reverse(left.size_bytes)));
    let named: Vec<_> = worth.iter().take(NAMED).map(|left| named(left)).collect();
    if !named.is_empty() {
        text += &format!(" · left out: {}", named.join(", "));
        if worth.len() > NAMED {
            text += &format!(" and {} more", worth.len() - NAMED);
        }
    }
    text
}

fn named(left: &LeftOut) -> String {
    if left.reason.cannot_travel() {
        return format!("{} ({})", left.path, left.reason);
    }
    let more = if left.at_least { "≥ " } else { "" };
    format!("{} ({more}{})", left.path, size(left.size_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_split_at_its_last_colon() {
        let address = format!("artifact://sha256/{}", "0".repeat(64));
        assert_eq!(split_input("data.csv"), ("data.csv", None));
        assert_eq!(split_input("a/b:c"), ("a/b", Some("c")));
        assert_eq!(split_input(&format!("{address}:in")), (address.as_str(), Some("in")));
        assert_eq!(split_input(&address), (address.as_str(), None));
        assert_eq!(split_input("x:"), ("x:", None));
    }

    #[test]
    fn an_input_lands_where_it_is_here() {
        let landing = |from: &str, place: &str| landing(Path::new(from), Path::new(place));
        assert_eq!(landing("data/big.bin", "").unwrap(), "data/big.bin");
        assert_eq!(landing("./big.bin", "sub").unwrap(), "sub/big.bin");
        assert_eq!(landing("/mnt/data/big.bin", "").unwrap(), "big.bin");
        assert_eq!(landing("../big.bin", "sub").unwrap(), "sub/big.bin");
        assert_eq!(landing("..", ""), None);
    }

    #[test]
    fn the_remark_names_what_could_not_travel_first_and_then_the_largest() {
        let left = |path: &str, reason, size_bytes| LeftOut {
            path: path.into(),
            reason,
            size_bytes,
            at_least: false,
        };
        assert_eq!(remark(14, 1_200_000, &[]), "14 files, 1.2 MB");
        let all = [
            left("small/", LeftOutReason::Ignored, 10),
            left("data/", LeftOutReason::Ignored, 4_100_000_000),
            left("pipe", LeftOutReason::Fifo, 0),
            left(".git", LeftOutReason::VersionControl, 0),
        ];
        assert_eq!(
            remark(1, 999, &all),
            "1 file, 999 B · left out: pipe (a fifo), data/ (4.1 GB), small/ (10 B)"
        );
    }
}
