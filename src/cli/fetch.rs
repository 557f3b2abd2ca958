//! `fetch`: a job's files into a folder. Whatever a server says, nothing is written outside that folder and no link in
//! it is followed; what is there already is overwritten only with `--force`.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::Context;
use super::args::FetchArgs;
use super::carry::digest_of;
use super::error::CliError;
use super::exit_status::ExitStatus;
use super::job_choice;
use super::screen::{print, print_json, say};
use super::server_choice::OnDemand;
use super::shown::{size, tail};
use crate::client::Client;
use crate::client::endpoint::encoded;
use crate::contract::artifact::{Digest, OutputFile, UndeclaredFile};
use crate::contract::ids::JobId;
use crate::contract::job::Job;

/// `gpulayer fetch`.
pub(super) async fn run(context: &Context, args: &FetchArgs) -> Result<ExitStatus, CliError> {
    let client = context.server(OnDemand::Start)?.client;
    let id = job_choice::one(&client, &args.job).await?;
    let job: Job = client.get(&format!("/v1/jobs/{id}")).await?;
    let wanted: Vec<Wanted> = if args.undeclared {
        job.undeclared.iter().map(|file| Wanted::kept(id, file)).collect()
    } else {
        job.outputs.iter().map(Wanted::output).collect()
    };
    if wanted.is_empty() {
        return Err(CliError::NothingToFetch {
            job: tail(id),
            ended: job.state.ended(),
            state: job.state.word(),
            undeclared: args.undeclared,
            kept: job.undeclared.len(),
        });
    }
    let written = bring_all(&client, &wanted, &args.to, args.force).await?;
    if context.json {
        if args.undeclared {
            print_json(&job.undeclared)?
        } else {
            print_json(&job.outputs)?
        }
        return Ok(ExitStatus::SUCCESS);
    }
    for file in &wanted {
        print(&args.to.join(&file.path).display().to_string())?;
    }
    say(&brought(wanted.len(), written, &args.to));
    Ok(ExitStatus::SUCCESS)
}

/// `2 files, 1.2 MB brought to out`.
pub(super) fn brought(count: usize, written: u64, to: &Path) -> String {
    let files = if count == 1 { "file" } else { "files" };
    format!("{count} {files}, {} brought to {}", size(written), to.display())
}

/// One file to bring: where it goes, and where it is.
struct Wanted {
    /// Relative to the folder.
    path: String,
    origin: Origin,
    size_bytes: u64,
    mode: u32,
}

enum Origin {
    Artifact(Digest),
    Link(String),
    /// A path of the API that answers with the bytes; their digest is not known before.
    Kept(String),
    Folder,
}

impl Wanted {
    fn output(file: &OutputFile) -> Self {
        let origin = match (&file.artifact, &file.link_target) {
            (Some(digest), _) => Origin::Artifact(*digest),
            (None, Some(target)) => Origin::Link(target.clone()),
            (None, None) => Origin::Folder,
        };
        Self { path: file.path.clone(), origin, size_bytes: file.size_bytes, mode: file.mode }
    }

    fn kept(job: JobId, file: &UndeclaredFile) -> Self {
        let parts: Vec<_> = file.path.split('/').map(encoded).collect();
        let origin = Origin::Kept(format!("/v1/jobs/{job}/undeclared/{}", parts.join("/")));
        Self { path: file.path.clone(), origin, size_bytes: file.size_bytes, mode: 0o644 }
    }
}

/// Brings a job's outputs into `to`; bytes written.
pub(super) async fn outputs(client: &Client, files: &[OutputFile], to: &Path) -> Result<u64, CliError> {
    let wanted: Vec<_> = files.iter().map(Wanted::output).collect();
    bring_all(client, &wanted, to, false).await
}

/// Files that are there with the same contents stay; with others they are in the way, all of them or none.
async fn bring_all(client: &Client, files: &[Wanted], to: &Path, force: bool) -> Result<u64, CliError> {
    // Two declared outputs may cover one file: it is brought once.
    let files: BTreeMap<&str, &Wanted> = files.iter().map(|file| (file.path.as_str(), file)).collect();
    for file in files.values() {
        refuse_outside(file)?;
    }
    let file_error = |operation, source| CliError::File { operation, path: to.to_owned(), source };
    std::fs::create_dir_all(to).map_err(|source| file_error("make", source))?;
    let root = rustix::fs::openat(CWD, to, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| file_error("open", errno.into()))?;
    let mut wanted = Vec::new();
    let mut in_the_way = Vec::new();
    for file in files.values() {
        match standing(to, file)? {
            Standing::Absent => wanted.push(*file),
            Standing::Same => {}
            Standing::Other if force => wanted.push(*file),
            Standing::Other => in_the_way.push(to.join(&file.path)),
        }
    }
    if let Some(path) = in_the_way.first() {
        return Err(CliError::InTheWay { path: path.clone(), count: in_the_way.len() });
    }
    let (mut written, mut refused) = (0, None);
    for file in wanted {
        match bring(client, &root, to, file).await {
            Ok(bytes) => written += bytes,
            // One that the server does not give costs none of the others; the first is told about at the end.
            Err(CliError::Client(error)) if error.problem().is_some() => drop(refused.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    refused.map_or(Ok(written), |error| Err(error.into()))
}

/// What is at a file's place now.
enum Standing {
    Absent,
    Same,
    Other,
}

fn standing(to: &Path, file: &Wanted) -> Result<Standing, CliError> {
    let path = to.join(&file.path);
    let Ok(found) = std::fs::symlink_metadata(&path) else { return Ok(Standing::Absent) };
    let same = match &file.origin {
        Origin::Artifact(digest) => {
            found.is_file() && found.len() == file.size_bytes && digest_of(&path)?.0 == *digest
        }
        Origin::Link(target) => std::fs::read_link(&path).is_ok_and(|found| found == Path::new(target)),
        Origin::Kept(_) => false,
        Origin::Folder => found.is_dir(),
    };
    Ok(if same { Standing::Same } else { Standing::Other })
}

/// A path or link target that would leave the folder is refused before anything is written.
fn refuse_outside(file: &Wanted) -> Result<(), CliError> {
    let leaves = || CliError::LeavesFolder { path: file.path.clone() };
    let depth = depth(0, Path::new(&file.path)).filter(|depth| *depth > 0).ok_or_else(leaves)?;
    if Path::new(&file.path).components().any(|part| !matches!(part, Component::Normal(_))) {
        return Err(leaves());
    }
    match &file.origin {
        Origin::Link(target) => self::depth(depth - 1, Path::new(target)).map(drop).ok_or_else(leaves),
        Origin::Artifact(_) | Origin::Kept(_) | Origin::Folder => Ok(()),
    }
}

/// How deep below the folder `path` ends when it begins at `depth`; `None` as soon as it leaves it.
fn depth(begin: usize, path: &Path) -> Option<usize> {
    path.components().try_fold(begin, |depth, part| match part {
        Component::Normal(_) => Some(depth + 1),
        Component::CurDir => Some(depth),
        Component::ParentDir => depth.checked_sub(1),
        Component::RootDir | Component::Prefix(_) => None,
    })
}

/// Brings one file: its bytes go to a new name beside its place, and take the place when they are whole.
async fn bring(client: &Client, root: &OwnedFd, to: &Path, file: &Wanted) -> Result<u64, CliError> {
    let shown = to.join(&file.path);
    let fault =
        |operation, errno: Errno| CliError::File { operation, path: shown.clone(), source: errno.into() };
    let (folder, name) = parent(root, &file.path).map_err(|errno| fault("make the folder of", errno))?;
    let fresh = format!(".gpulayer-{}", hex::encode(rand::random::<[u8; 6]>()));
    let path = PathBuf::from(format!("/proc/self/fd/{}/{fresh}", folder.as_raw_fd()));
    let brought = match &file.origin {
        Origin::Artifact(digest) => client.download(digest, &path, |_| {}).await,
        Origin::Kept(source) => client.download_from_url(source, &path, |_| {}).await.map(|(bytes, _)| bytes),
        Origin::Link(target) => {
            rustix::fs::symlinkat(target, &folder, &*fresh).map_err(|errno| fault("link", errno))?;
            Ok(0)
        }
        Origin::Folder => {
            let made = rustix::fs::mkdirat(&folder, &*name, Mode::from_raw_mode(0o755));
            return made.map(|()| 0).map_err(|errno| fault("make", errno));
        }
    };
    let brought = brought.map_err(CliError::from).and_then(|bytes| {
        if !matches!(file.origin, Origin::Link(_)) {
            let mode = PermissionsExt::from_mode(file.mode & 0o777);
            std::fs::set_permissions(&path, mode).map_err(|source| CliError::File {
                operation: "write",
                path: shown.clone(),
                source,
            })?;
        }
        Ok(bytes)
    });
    let placed = brought.and_then(|bytes| {
        let placed = rustix::fs::renameat(&folder, &*fresh, &folder, &*name);
        placed.map(|()| bytes).map_err(|errno| fault("write", errno))
    });
    if placed.is_err() {
        let _ = rustix::fs::unlinkat(&folder, &*fresh, AtFlags::empty());
    }
    placed
}

/// Opens the folder a file belongs in, making what is missing and following no link.
fn parent(root: &OwnedFd, path: &str) -> rustix::io::Result<(OwnedFd, String)> {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    let open = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = rustix::fs::openat(root, ".", open, Mode::empty())?;
    for part in folders.split('/').filter(|part| !part.is_empty()) {
        match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        folder = rustix::fs::openat(&folder, part, open, Mode::empty())?;
    }
    Ok((folder, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, link_target: Option<&str>) -> Wanted {
        let origin = link_target.map_or(Origin::Folder, |target| Origin::Link(target.to_owned()));
        Wanted { path: path.into(), origin, size_bytes: 0, mode: 0o644 }
    }

    #[test]
    fn what_leaves_the_folder_is_refused() {
        for (path, target) in
            [("a/b", None), ("a/l", Some("../b")), ("l", Some("b/../c")), ("a/b/l", Some("../../c"))]
        {
            assert!(refuse_outside(&file(path, target)).is_ok(), "{path} {target:?}");
        }
        let bad = [
            ("../a", None),
            ("/etc/passwd", None),
            ("a/../../b", None),
            ("a/../b", None),
            ("", None),
            (".", None),
            ("l", Some("..")),
            ("l", Some("/etc/passwd")),
            ("a/l", Some("../../b")),
        ];
        for (path, target) in bad {
            assert!(refuse_outside(&file(path, target)).is_err(), "{path} {target:?}");
        }
    }

    #[test]
    fn a_link_on_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", folder.path().join("out")).unwrap();
        let root = rustix::fs::openat(CWD, folder.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(parent(&root, "out/file").is_err());
        assert_eq!(parent(&root, "a/b/file").unwrap().1, "file");
        assert!(folder.path().join("a/b").is_dir());
    }

    #[test]
    fn only_other_contents_are_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "abc").unwrap();
        let (digest, _) = digest_of(&folder.path().join("f")).unwrap();
        let mut wanted = Wanted { origin: Origin::Artifact(digest), size_bytes: 3, ..file("f", None) };
        assert!(matches!(standing(folder.path(), &wanted).unwrap(), Standing::Same));
        std::fs::write(folder.path().join("f"), "abd").unwrap();
        assert!(matches!(standing(folder.path(), &wanted).unwrap(), Standing::Other));
        wanted.path = "g".into();
        assert!(matches!(standing(folder.path(), &wanted).unwrap(), Standing::Absent));
    }
}
