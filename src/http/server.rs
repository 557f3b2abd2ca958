//! The server itself: takes the Unix socket and TCP, with TLS or without, starts the HTTP threads, and stops without
//! leaving a parked request behind.

use std::any::Any;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{Extensions, Server, ServerHandle, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};
use futures_util::future::join_all;

use super::caller::note_origin;
use super::newcomers::Newcomers;
use super::socket_file::SocketFile;
use super::state::EdgeState;
use super::{edge, routes, tcp};
use crate::client::dead_peer;
use crate::tls::{ServerTls, ServerTlsError};

/// For a TLS handshake; whoever is slower is not let in.
pub(super) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// So long a connection of somebody known waits for the next request.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(600);
/// So long a refused body is still read over, so that its sender comes to read why.
pub(super) const DISCONNECT_WITHIN: Duration = Duration::from_secs(3);
/// So long answers in flight may take when the server stops.
pub(super) const SHUTDOWN_WITHIN_S: u64 = 2;

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
    handles: Vec<ServerHandle>,
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
        join_all(self.handles.iter().map(|handle| handle.stop(true))).await;
    }
}

/// Starts serving. Must be called on an actix system's thread; the HTTP threads are the server's own, those of the Unix
/// socket and those of TCP apart.
pub fn serve(options: ServeOptions, state: Arc<EdgeState>) -> Result<Serving, ServeError> {
    let state = web::Data::from(state);
    let threads = options.threads.max(1);
    let mut servers = Vec::new();
    let mut socket = None;
    if let Some(path) = &options.unix_socket {
        let (bound, listener) = SocketFile::bind(path)?;
        servers.push(local(listener, state.clone(), threads).map_err(ServeError::Start)?);
        socket = Some(Rc::new(bound));
    }
    let mut address = None;
    if let Some(listener) = options.tcp {
        dead_peer::notice_dead_peer(&listener).map_err(ServeError::Start)?;
        address = Some(listener.local_addr().map_err(ServeError::Start)?);
        let tls = options.tls.as_ref().map(ServerTls::config).transpose()?;
        servers.push(tcp::server(listener, tls, state.clone(), threads).map_err(ServeError::Start)?);
    }
    let handles = servers.iter().map(Server::handle).collect();
    for server in servers {
        actix_web::rt::spawn(server);
    }
    if let Some(socket) = &socket {
        actix_web::rt::spawn(SocketFile::keep(Rc::downgrade(socket)));
    }
    Ok(Serving { tcp: address, handles, state, _socket: socket })
}

/// The server of the Unix socket.
fn local(listener: UnixListener, state: web::Data<EdgeState>, threads: usize) -> io::Result<Server> {
    let (head, newcomers) = (state.patience.head, Arc::clone(&state.newcomers));
    let server = HttpServer::new(move || app(state.clone()))
        .workers(threads)
        .disable_signals()
        .h1_allow_half_closed(false)
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(head)
        .client_disconnect_timeout(DISCONNECT_WITHIN)
        .shutdown_timeout(SHUTDOWN_WITHIN_S)
        .on_connect(move |connection, extensions| meet(connection, extensions, &newcomers))
        .listen_uds(listener)?;
    Ok(server.run())
}

/// All that is served, whatever it comes over.
pub(super) fn app(
    state: web::Data<EdgeState>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<BoxBody>,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    App::new()
        .app_data(state)
        .configure(routes::configure)
        .default_service(web::to(edge::no_such_path))
        .wrap(from_fn(edge::outermost))
}

/// Notes on a new connection what every request over it wants to know.
pub(super) fn meet(connection: &dyn Any, extensions: &mut Extensions, newcomers: &Newcomers) {
    note_origin(connection, extensions);
    if let Some(newcomer) = newcomers.of(connection) {
        extensions.insert(newcomer);
    }
}
