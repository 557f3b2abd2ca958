//! The server itself: binds the Unix socket and TCP, starts the HTTP threads, and stops without leaving a
//! parked request behind.

use std::io;
use std::net::{SocketAddr, TcpListener};
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

/// Where to listen, and with how many threads.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The Unix socket; its folder should be the owner's alone.
    pub unix_socket: Option<PathBuf>,
    /// TCP; port 0 takes a free one.
    pub tcp: Option<SocketAddr>,
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
    /// The HTTP threads do not start.
    #[error("cannot start the HTTP server")]
    Start(#[source] io::Error),
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
    if let Some(address) = options.tcp {
        let refused = |source| ServeError::Tcp { address, source };
        let listener = TcpListener::bind(address).map_err(refused)?;
        notice_dead_peers(&listener).map_err(refused)?;
        tcp = Some(listener.local_addr().map_err(refused)?);
        server = server.listen(listener).map_err(ServeError::Start)?;
    }
    let server = server.run();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    if let Some(socket) = &socket {
        actix_web::rt::spawn(SocketFile::keep(Rc::downgrade(socket)));
    }
    Ok(Serving { tcp, handle, state, _socket: socket })
}

/// Connections inherit it from their listener: whoever vanished without a word is noticed within two minutes, also
/// when nothing is to be sent.
fn notice_dead_peers(listener: &TcpListener) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(listener, true)?;
    sockopt::set_tcp_keepidle(listener, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(listener, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(listener, 4)?;
    Ok(())
}
