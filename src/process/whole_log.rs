//! All that a task wrote, byte for byte, as one compressed file: made from the spool and the overflow file at the end,
//! when the stored lines say less than that.
//!
//! The file is zstd frames in a row, as `zstd -d` reads them. The two streams stand in it as their lines arrived.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use zstd::stream::read::Decoder;
use zstd::stream::write::Encoder;

use super::lines::{Close, is_shown_otherwise};
use super::overflow::ZSTD_LEVEL;
use super::plain_file::open_plain;
use super::spool::Mark;
use super::{ExitRecord, OVERFLOW_FILE, ProcessError, SpoolReader};
use crate::contract::log::Stream;
use crate::domain::log_budget::counted_lines;
use crate::domain::task_run::WholeLog;

/// Name of the file in the task's folder that is made here.
pub const WHOLE_LOG_FILE: &str = "whole-log.zst";
/// What stands at the end of a text whose rest is lost.
const BROKEN_MARK: &str = "\n[gpulayer: the rest of the text is lost]\n";

/// Makes [`WHOLE_LOG_FILE`] and opens it; `None`: the stored lines say everything. Blocks for as long as it takes to
/// compress the log.
pub fn write_whole_log(task_folder: &Path, whole_log: WholeLog) -> Result<Option<File>, ProcessError> {
    let path = task_folder.join(WHOLE_LOG_FILE);
    let failed = |source| ProcessError::File { operation: "write", path: path.clone(), source };
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let mut encoder = Encoder::new(file, ZSTD_LEVEL).map_err(failed)?;
    let mut differs = whole_log == WholeLog::Kept;
    let mut spool = SpoolReader::open(task_folder);
    let mut unended = false;
    loop {
        let step = spool.advance(|head, bytes| -> io::Result<Step> {
            match head.mark {
                Mark::Overflowed => return Ok(Step::Overflowed),
                Mark::Lost => {
                    encoder.write_all(b"[gpulayer: ")?;
                    encoder.write_all(bytes)?;
                    encoder.write_all(b"]\n")?;
                    return Ok(Step::Differs);
                }
                Mark::None if head.stream == Stream::System => return Ok(Step::Same),
                Mark::None => {}
            }
            // The last line of one stream, and then a line of the other.
            if std::mem::replace(&mut unended, head.close == Close::Unended) {
                encoder.write_all(b"\n")?;
            }
            encoder.write_all(bytes)?;
            encoder.write_all(head.close.bytes())?;
            Ok(if is_shown_otherwise(head.close, bytes) { Step::Differs } else { Step::Same })
        })?;
        match step.transpose().map_err(failed)? {
            Some(Step::Same) => {}
            Some(Step::Differs) => differs = true,
            Some(Step::Overflowed) => break,
            None => {
                let next_n = spool.next_n();
                if !spool.skip_damage()? {
                    break;
                }
                let lost = counted_lines(spool.next_n() - next_n);
                differs = true;
                writeln!(encoder, "[gpulayer: {lost} lost here: the worker's copy was damaged]")
                    .map_err(failed)?;
            }
        }
    }
    let overflow = match open_plain(&task_folder.join(OVERFLOW_FILE)) {
        Ok(overflow) => Some(overflow),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let file = match overflow {
        Some(mut overflow) if whole_log == WholeLog::Kept => {
            let mut file = encoder.finish().map_err(failed)?;
            io::copy(&mut overflow, &mut file).map_err(failed)?;
            Some(file)
        }
        Some(overflow) => {
            salvage(overflow, &mut encoder).map_err(failed)?;
            Some(encoder.finish().map_err(failed)?)
        }
        None => {
            if let Ok(Some(ExitRecord { lost_records: lost @ 1.., .. })) = ExitRecord::read(task_folder) {
                differs = true;
                let lost = counted_lines(lost);
                writeln!(encoder, "[gpulayer: {lost} missing here: they could not be written on the worker]")
                    .map_err(failed)?;
            }
            Some(encoder.finish().map_err(failed)?).filter(|_| differs)
        }
    };
    // The one that wrote stands at its end.
    file.map(|_| open_plain(&path).map_err(failed)).transpose()
}

enum Step {
    Same,
    Differs,
    Overflowed,
}

/// Takes what can still be read of a frame that was never completed.
fn salvage(overflow: File, into: &mut impl Write) -> io::Result<()> {
    let mut decoder = Decoder::new(BufReader::new(overflow))?;
    let mut buffer = vec![0; 128 << 10];
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => into.write_all(&buffer[..length])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    into.write_all(BROKEN_MARK.as_bytes())
}
