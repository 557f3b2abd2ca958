//! How the system notices that the other end of a TCP connection has gone without a word: a machine that lost its
//! power, a link that was cut, a firewall that forgot the connection.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// A connection that says nothing for so long is asked whether its other end is there. Below the minute or so after
/// which routers and firewalls forget a silent connection.
const ASK_AFTER: Duration = Duration::from_secs(15);
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASK_TIMES: u32 = 3;
/// What was sent and not acknowledged within this breaks the connection; the system itself would try for 15 minutes.
#[cfg(target_os = "linux")]
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(20);

/// Makes a connection break when its other end has been gone for about 20 to 30 s. Of a listener: all that it accepts.
pub fn notice_dead_peer(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASK_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, ASK_TIMES)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, u32::try_from(ACKNOWLEDGE_WITHIN.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_a_listener_accepts_has_it_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        notice_dead_peer(&listener).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), ASK_AFTER);
        assert!(!sockopt::socket_keepalive(&stream).unwrap());
        notice_dead_peer(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
    }
}
