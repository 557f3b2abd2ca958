//! Puts one input into a workspace: a private copy (a reflink where possible), never a link into a cache.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, unlinkat};

use super::beneath::{RelativePath, create_file, make_folders, split};
use super::copy::{clone_contents, copy_contents};
use super::unpack::{UnpackError, UnpackLimits, file_mode, unpack};
use crate::contract::spec::InputMode;

/// Copies the artifact `source` to `path` beneath `workspace`, or extracts it there; folders are made, a file
/// in the way is replaced. [`InputMode::Ro`] gives 0444, [`InputMode::Rw`] 0644; bytes have no mode of their own, so
/// those of a program can be executed too.
pub fn place_input(
    source: &File,
    workspace: BorrowedFd<'_>,
    path: &RelativePath,
    mode: InputMode,
    unpacked: bool,
) -> Result<(), UnpackError> {
    if unpacked {
        let tar = BufReader::with_capacity(64 * 1024, FromStart { file: source, at: 0 });
        unpack(tar, workspace, path, mode, UnpackLimits::default())?;
        return Ok(());
    }
    let shown = path.as_str();
    let (folder, name) = split(shown);
    let size_bytes = source.metadata().map_err(UnpackError::at(shown))?.len();
    let folder = make_folders(workspace, folder).map_err(UnpackError::at(shown))?;
    let executable = is_program(source).map_err(UnpackError::at(shown))?;
    let file =
        create_file(folder.as_fd(), name, file_mode(mode, executable)).map_err(UnpackError::at(shown))?;
    copy_contents(source, &file, size_bytes).map_err(UnpackError::at(shown))
}

/// Makes `path` a file that shares its bytes with the artifact until either is written to, if the file system can do that
/// and both are on it; whether it could. Its mode is 0444.
pub fn place_reflink(source: &File, workspace: BorrowedFd<'_>, path: &RelativePath) -> io::Result<bool> {
    let (folder, name) = split(path.as_str());
    let folder = make_folders(workspace, folder)?;
    let file = create_file(folder.as_fd(), name, file_mode(InputMode::Ro, false))?;
    let shares = clone_contents(source, &file, source.metadata()?.len())?;
    if !shares {
        unlinkat(&folder, name, AtFlags::empty())?;
    }
    Ok(shares)
}

/// All bytes of a file, wherever whoever has looked at it before has left its position.
pub(super) struct FromStart<'a> {
    pub(super) file: &'a File,
    pub(super) at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Whether the kernel could execute these bytes: an interpreter line, ELF, Mach-O.
fn is_program(file: &File) -> io::Result<bool> {
    const STARTS: [&[u8]; 4] = [b"#!", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"];
    let mut start = [0; 4];
    let length = file.read_at(&mut start, 0)?;
    Ok(STARTS.iter().any(|known| start[..length].starts_with(known)))
}
