//! The Unix socket's file: private, replaced when stale, never taken from a living daemon.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use gpulayer::http::ServeError;

use crate::stand::{Stand, eventually, serve_at};

#[test]
fn the_socket_is_the_owners_alone() {
    let stand = Stand::start();
    let mode = std::fs::metadata(&stand.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let left: Vec<_> =
        std::fs::read_dir(stand.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let bound_beside = format!(".s{}", std::process::id());
    assert!(!left.iter().any(|name| *name == *bound_beside), "{left:?}");
}

#[test]
fn a_living_daemons_socket_is_not_taken() {
    let stand = Stand::start();
    assert!(matches!(serve_at(&stand.socket), Err(ServeError::SocketInUse { .. })));
    stand.unix("GET", "/healthz").send().ok(200);
}

#[test]
fn a_stale_socket_is_replaced_and_another_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert!(serve_at(&path).is_ok());
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(serve_at(&file), Err(ServeError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn a_socket_that_was_removed_comes_back_and_is_gone_at_the_end() {
    let mut stand = Stand::start();
    std::fs::remove_file(&stand.socket).unwrap();
    eventually("the socket to be back", || stand.socket.exists());
    stand.unix("GET", "/healthz").send().ok(200);
    std::fs::write(stand.folder.path().join("other"), "").unwrap();
    std::fs::rename(stand.folder.path().join("other"), &stand.socket).unwrap();
    std::fs::remove_file(&stand.socket).unwrap();
    eventually("the socket to be back again", || stand.socket.exists());
    stand.stop();
    let left: Vec<_> =
        std::fs::read_dir(stand.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("s.sock")), "{left:?}");
}

#[test]
fn a_socket_that_somebody_else_put_there_is_left_at_the_end() {
    let mut stand = Stand::start();
    std::fs::remove_file(&stand.socket).unwrap();
    let _thief = UnixListener::bind(&stand.socket).unwrap();
    stand.stop();
    assert!(Path::new(&stand.socket).exists());
}
