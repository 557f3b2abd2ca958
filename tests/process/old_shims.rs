//! A newer worker beside shims of an older build. `recorded/` holds what a shim of the first build really sent and
//! wrote (`TASK_FOLDER` stands for a path): these files are never to be changed, only added to.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use gpulayer::process::{ExitRecord, ShimEvent, StopCause, Wait, holder};

use crate::bench::{Bench, end_of, event_of, pool_in};

const FRAMES: &str = include_str!("recorded/first-shim.jsonl");
const SHIM_FILE: &str = include_str!("recorded/first-shim.json");

fn send(stream: &mut UnixStream, message: &str) {
    stream.write_all(&u32::try_from(message.len()).unwrap().to_le_bytes()).unwrap();
    stream.write_all(message.as_bytes()).unwrap();
}

fn receive(stream: &mut UnixStream) -> serde_json::Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut message).unwrap();
    serde_json::from_slice(&message).unwrap()
}

/// Plays the recording to whoever connects; returns what it was told.
fn play(listener: &UnixListener, task_folder: &Path) -> serde_json::Value {
    let (mut stream, _) = listener.accept().unwrap();
    let text = FRAMES.replace("TASK_FOLDER", task_folder.to_str().unwrap());
    let (end, before) =
        text.lines().collect::<Vec<_>>().split_last().map(|(end, before)| (*end, before.to_vec())).unwrap();
    before.iter().for_each(|frame| send(&mut stream, frame));
    let order = receive(&mut stream);
    send(&mut stream, end);
    order
}

#[tokio::test]
async fn a_shim_of_the_first_build_is_adopted_stopped_and_finished() {
    let bench = Bench::new();
    let task_folder = bench.path().join("tasks/first");
    std::fs::create_dir_all(&task_folder).unwrap();
    let listener = UnixListener::bind(bench.path().join("shims/13339.sock")).unwrap();
    let folder = task_folder.clone();
    let shim = std::thread::spawn(move || play(&listener, &folder));
    let mut adopted = pool_in(bench.path()).adopt().await.unwrap().remove(0);
    assert_eq!(adopted.task_id.to_string(), "task_01jdzk0000e0080000000000g1");
    assert_eq!(adopted.task_folder, task_folder);
    assert_eq!(event_of(&mut adopted.process).await, Some(ShimEvent::Started { pid: 13340 }));
    assert_eq!(event_of(&mut adopted.process).await, Some(ShimEvent::Logged { through_n: 1 }));
    adopted.process.stop(false).await.unwrap();
    let exit = end_of(&mut adopted.process).await;
    assert_eq!(
        (exit.wait, exit.stop.unwrap().cause, exit.last_n),
        (Wait::Exited { code: 9 }, StopCause::Requested, 2)
    );
    assert_eq!((exit.memory_limit_bytes, exit.oom_kills, exit.cpu_throttling), (None, None, None));
    // That build read these two fields and skips all others.
    let order = shim.join().unwrap();
    assert_eq!((&order["kind"], &order["now"]), (&"stop".into(), &false.into()));
}

#[test]
fn the_files_of_a_shim_of_the_first_build_are_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("shim.json"), SHIM_FILE).unwrap();
    let record = ExitRecord::read(folder.path()).unwrap().unwrap();
    assert_eq!((record.wait, record.after_stop), (Wait::Exited { code: 9 }, true));
    assert_eq!(holder(folder.path()).unwrap(), None);
}
