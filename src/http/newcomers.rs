//! Connections that have not shown a valid credential yet: only so many at once, per address and in all, so that
//! strangers cannot use up memory and file descriptors. When there are too many, the oldest is cut: whoever has a
//! credential shows it with the first request. From then on a connection is not counted any more. Counted is from the
//! moment in which a connection is there: what strangers do not say costs as much as what they say.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use actix_tls::accept::rustls_0_23::TlsStream;
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

/// How many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewcomerLimits {
    /// From one IPv4 address, or from one IPv6 network (/64).
    pub per_address: usize,
    /// In all.
    pub in_all: usize,
}

impl Default for NewcomerLimits {
    fn default() -> Self {
        Self { per_address: 256, in_all: 1024 }
    }
}

/// All of them.
#[derive(Debug)]
pub struct Newcomers {
    limits: NewcomerLimits,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    // In the order in which they came; with a handle of their own, by which they can be cut.
    all: BTreeMap<u64, (IpAddr, OwnedFd)>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    // By the descriptor of the connection itself, by which it is found again when its TLS is there. A descriptor that was
    // closed and is another connection's now names that one.
    by_socket: HashMap<RawFd, (u64, Weak<Newcomer>)>,
}

/// One of them: counted until it is known, or gone.
#[derive(Debug)]
pub struct Newcomer {
    among: Arc<Newcomers>,
    number: u64,
    socket: RawFd,
    // Spares the lock to every further request of a connection.
    counted: AtomicBool,
}

impl Newcomers {
    /// None so far.
    pub fn new(limits: NewcomerLimits) -> Arc<Self> {
        Arc::new(Self { limits, waiting: Mutex::default() })
    }

    /// Counts a new TCP connection, for as long as what is returned lives. `None` = it is gone already.
    pub fn meet(self: &Arc<Self>, socket: &TcpStream) -> Option<Arc<Newcomer>> {
        let handle = socket.as_fd().try_clone_to_owned();
        if let (Ok(peer), Ok(handle)) = (socket.peer_addr(), handle) {
            Some(self.enter(peer.ip(), handle, socket.as_raw_fd()))
        } else {
            // Or there is no descriptor left for it.
            let _ = shutdown(socket, Shutdown::Both);
            None
        }
    }

    /// The one that was met as this connection, or as the one that its TLS goes over. Connections over the Unix socket
    /// are their user's own, and never met.
    pub fn of(&self, connection: &dyn std::any::Any) -> Option<Arc<Newcomer>> {
        let socket = tcp_below(connection)?.as_raw_fd();
        self.waiting.lock().by_socket.get(&socket).and_then(|(_, newcomer)| newcomer.upgrade())
    }

    fn enter(self: &Arc<Self>, address: IpAddr, handle: OwnedFd, socket: RawFd) -> Arc<Newcomer> {
        let address = network_of(address);
        let mut waiting = self.waiting.lock();
        let here = waiting.by_address.get(&address);
        if let Some(oldest) =
            here.filter(|here| here.len() >= self.limits.per_address).and_then(BTreeSet::first)
        {
            let oldest = *oldest;
            waiting.cut(oldest);
        }
        if waiting.all.len() >= self.limits.in_all
            && let Some(oldest) = waiting.all.keys().next().copied()
        {
            waiting.cut(oldest);
        }
        waiting.next += 1;
        let number = waiting.next;
        waiting.by_address.entry(address).or_default().insert(number);
        waiting.all.insert(number, (address, handle));
        let counted = AtomicBool::new(true);
        let newcomer = Arc::new(Newcomer { among: Arc::clone(self), number, socket, counted });
        waiting.by_socket.insert(socket, (number, Arc::downgrade(&newcomer)));
        newcomer
    }
}

impl Waiting {
    fn remove(&mut self, number: u64) -> Option<OwnedFd> {
        let (address, handle) = self.all.remove(&number)?;
        if let Some(here) = self.by_address.get_mut(&address) {
            here.remove(&number);
            if here.is_empty() {
                self.by_address.remove(&address);
            }
        }
        Some(handle)
    }

    /// The connection is actix's; without its two directions it ends by itself.
    fn cut(&mut self, number: u64) {
        if let Some(handle) = self.remove(number) {
            let _ = shutdown(&handle, Shutdown::Both);
            tracing::debug!("too many connections without a valid credential; the oldest was cut");
        }
    }
}

impl Newcomer {
    /// It has shown a valid credential.
    pub fn is_known(&self) {
        if self.counted.swap(false, Ordering::Relaxed) {
            self.among.waiting.lock().remove(self.number);
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut waiting = self.among.waiting.lock();
        if *self.counted.get_mut() {
            waiting.remove(self.number);
        }
        if waiting.by_socket.get(&self.socket).is_some_and(|(number, _)| *number == self.number) {
            waiting.by_socket.remove(&self.socket);
        }
    }
}

/// The TCP connection that a connection is, or that its TLS goes over.
fn tcp_below(connection: &dyn std::any::Any) -> Option<&TcpStream> {
    connection
        .downcast_ref::<TcpStream>()
        .or_else(|| connection.downcast_ref::<TlsStream<TcpStream>>().map(|encrypted| encrypted.get_ref().0))
}

/// What one household or machine is given as a whole.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;

    use super::*;

    struct Connection {
        newcomer: Arc<Newcomer>,
        theirs: UnixStream,
        _ours: UnixStream,
    }

    fn come(newcomers: &Arc<Newcomers>, address: &str) -> Connection {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let handle = ours.try_clone().unwrap().into();
        let newcomer = newcomers.enter(address.parse().unwrap(), handle, ours.as_raw_fd());
        Connection { newcomer, theirs, _ours: ours }
    }

    fn is_cut(connection: &mut Connection) -> bool {
        match connection.theirs.read(&mut [0]) {
            Ok(0) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_oldest_without_a_credential_makes_room() {
        let newcomers = Newcomers::new(NewcomerLimits { per_address: 2, in_all: 3 });
        let mut first = come(&newcomers, "10.0.0.1");
        let mut second = come(&newcomers, "10.0.0.1");
        assert!(!is_cut(&mut first));
        let mut third = come(&newcomers, "10.0.0.1");
        assert!(is_cut(&mut first) && !is_cut(&mut second), "two from one address");
        let mut fourth = come(&newcomers, "10.0.0.2");
        let mut fifth = come(&newcomers, "10.0.0.3");
        assert!(is_cut(&mut second), "three in all");
        third.newcomer.is_known();
        let sixth = come(&newcomers, "10.0.0.4");
        for kept in [&mut third, &mut fourth, &mut fifth] {
            assert!(!is_cut(kept), "who is known is not counted");
        }
        drop((first, second, third, fourth, fifth, sixth));
        let waiting = newcomers.waiting.lock();
        assert!(waiting.all.is_empty() && waiting.by_address.is_empty() && waiting.by_socket.is_empty());
    }

    #[test]
    fn one_network_is_one_address() {
        let network = |text: &str| network_of(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:10.0.0.1"), "10.0.0.1");
    }
}
