//! The server itself: takes the Unix socket and TCP, with TLS or without, starts the HTTP threads, and stops without
//! leaving a parked request behind.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};

use super::caller::note_origin;
use super::socket_file::SocketFile;
use super::state::EdgeState;
use super::{edge, routes};
use crate::client::dead_peer;
use crate::tls::{ServerTls, ServerTlsError};

/// For a TLS handshake; whoever is slower is not let in.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// TLS handshakes that a thread has under way at once. While there are more it takes no connection: few enough for the
/// memory, too many to be held up for all others from one machine.
const HANDSHAKES: usize = 2048;

/// Where to listen, and with how many threads.
#[derive(Debug)]
pub struct ServeOptions {
    /// The Unix socket; its folder should be the owner's alone.
    pub unix_socket: Option<PathBuf>,
    /// TCP, from [`listen`].
    pub tcp: Option<TcpListener>,
    /// What to show on TCP; `None` = plain HTTP.
    pub tls: Option<ServerTls>,
    /// HTTP threads, ≥ 1.
    pub threads: usize,
}

/// Why the server does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody answers on the socket already.
    #[error("another daemon answers on {}", path.display())]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// The path holds something that is no socket.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot listen on {}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The TCP address cannot be had.
    #[error("cannot listen on {address}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Somebody else has the port.
    #[error("{}", port_taken(*address))]
    PortTaken {
        /// The address.
        address: SocketAddr,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] ServerTlsError),
    /// The HTTP threads do not start.
    #[error("cannot start the HTTP server")]
    Start(#[source] io::Error),
}

fn port_taken(address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    let place = if ip.is_unspecified() { String::new() } else { format!(" on {ip}") };
    if port == 0 {
        return format!("no port is free{place}");
    }
    format!(
        "port {port}{place} is taken: another program listens there (`ss -ltnp 'sport = :{port}'` names it); \
         end it, or choose another port with --port"
    )
}

/// Takes an address; port 0 takes a free one. `[::]` takes IPv4 as well, and is only that where there is no IPv6.
pub fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let refused = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::PortTaken { address },
        _ => ServeError::Tcp { address, source },
    };
    if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return TcpListener::bind(address).map_err(refused);
    }
    match listen_on_both(address.port()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(refused(error)),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).map_err(refused),
        listening => listening.map_err(refused),
    }
}

/// The standard library leaves it to the system whether such a socket takes IPv4.
fn listen_on_both(port: u16) -> io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketAddrV6, SocketFlags, SocketType, ipproto, sockopt};
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    rustix::net::listen(&socket, 1024)?;
    Ok(TcpListener::from(socket))
}

/// A running server.
pub struct Serving {
    /// The bound TCP address.
    pub tcp: Option<SocketAddr>,
    handle: ServerHandle,
    state: web::Data<EdgeState>,
    _socket: Option<Rc<SocketFile>>,
}

impl Serving {
    /// From now on `/readyz` says that the daemon leaves; everything else is still answered.
    pub fn announce_stop(&self) {
        self.state.announce_stop();
    }

    /// Ends parked requests and streams, lets answers in flight go out, and closes everything.
    pub async fn stop(self) {
        self.state.announce_stop();
        self.state.drain();
        self.handle.stop(true).await;
    }
}

/// Starts serving. Must be called on an actix system's thread; the HTTP threads are the server's own.
pub fn serve(options: ServeOptions, state: Arc<EdgeState>) -> Result<Serving, ServeError> {
    let state = web::Data::from(state);
    let shared = state.clone();
    let newcomers = Arc::clone(&state.newcomers);
    let mut server = HttpServer::new(move || {
        App::new()
            .app_data(shared.clone())
            .configure(routes::configure)
            .default_service(web::to(edge::no_such_path))
            .wrap(from_fn(edge::outermost))
    })
    .workers(options.threads.max(1))
    .disable_signals()
    .h1_allow_half_closed(false)
    .tcp_nodelay(true)
    .keep_alive(Duration::from_secs(600))
    .client_request_timeout(state.patience.head)
    // So long a refused body is still read over, so that its sender comes to read why.
    .client_disconnect_timeout(Duration::from_secs(3))
    .tls_handshake_timeout(HANDSHAKE_WITHIN)
    .max_connection_rate(HANDSHAKES)
    .shutdown_timeout(2)
    .on_connect(move |connection, extensions| {
        note_origin(connection, extensions);
        newcomers.meet(connection, extensions);
    });
    let mut socket = None;
    if let Some(path) = &options.unix_socket {
        let (bound, listener) = SocketFile::bind(path)?;
        server = server.listen_uds(listener).map_err(ServeError::Start)?;
        socket = Some(Rc::new(bound));
    }
    let mut tcp = None;
    if let Some(listener) = options.tcp {
        dead_peer::notice_dead_peer(&listener).map_err(ServeError::Start)?;
        tcp = Some(listener.local_addr().map_err(ServeError::Start)?);
        server = match &options.tls {
            Some(tls) => server.listen_rustls_0_23(listener, tls.config()?),
            None => server.listen(listener),
        }
        .map_err(ServeError::Start)?;
    }
    let server = server.run();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    if let Some(socket) = &socket {
        actix_web::rt::spawn(SocketFile::keep(Rc::downgrade(socket)));
    }
    Ok(Serving { tcp, handle, state, _socket: socket })
}
