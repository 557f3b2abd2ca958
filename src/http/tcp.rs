//! The TCP side of the server, with TLS or without. It has an acceptor and threads of its own, so that whatever strangers
//! do there, the Unix socket is served; and it counts a connection as soon as it is there, before the TLS handshake, which
//! a stranger need never begin.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use actix_http::body::BoxBody;
use actix_http::{HttpService, HttpServiceBuilder, Request, Response, TlsAcceptorConfig};
use actix_server::GracefulShutdownSignal;
use actix_service::boxed::{self, BoxServiceFactory};
use actix_service::{
    IntoServiceFactory as _, Service as _, ServiceFactory, ServiceFactoryExt as _, apply_fn_factory,
    map_config,
};
use actix_tls::accept::max_concurrent_tls_connect;
use actix_tls::accept::rustls_0_23::reexports::ServerConfig;
use actix_web::dev::{AppConfig, Server, ServiceResponse};
use actix_web::web;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::newcomers::Newcomers;
use super::server::{DISCONNECT_WITHIN, HANDSHAKE_WITHIN, KEEP_ALIVE, SHUTDOWN_WITHIN_S, app, meet};
use super::state::EdgeState;

/// TLS handshakes that a thread has under way at once; while there are more it takes no connection. Far more than there
/// may be newcomers, of whom the oldest go, so that nobody is kept waiting at the door.
const HANDSHAKES: usize = 16_384;

type Served = BoxServiceFactory<(), Request, ServiceResponse<BoxBody>, Response<BoxBody>, ()>;

/// Serves on `listener` once it is awaited.
pub(super) fn server(
    listener: TcpListener,
    tls: Option<ServerConfig>,
    state: web::Data<EdgeState>,
    threads: usize,
) -> io::Result<Server> {
    max_concurrent_tls_connect(HANDSHAKES);
    let builder = Server::build().workers(threads).disable_signals().shutdown_timeout(SHUTDOWN_WITHIN_S);
    let stops = builder.graceful_shutdown_signal();
    let builder = match tls {
        Some(config) => builder.listen("tls", listener, move || {
            let acceptor = TlsAcceptorConfig::default().handshake_timeout(HANDSHAKE_WITHIN);
            let service = http(&state, &stops).rustls_0_23_with_config(config.clone(), acceptor);
            counted(service, Arc::clone(&state.newcomers))
        }),
        None => builder.listen("tcp", listener, move || {
            counted(http(&state, &stops).tcp(), Arc::clone(&state.newcomers))
        }),
    };
    Ok(builder?.run())
}

/// What is served over one kind of connection.
fn http<T>(state: &web::Data<EdgeState>, stops: &GracefulShutdownSignal) -> HttpService<T, Served, BoxBody>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (stops, newcomers) = (stops.clone(), Arc::clone(&state.newcomers));
    let answered =
        app(state.clone()).into_factory().map_err(|error: actix_web::Error| error.error_response().into());
    HttpServiceBuilder::<T, Served>::default()
        .graceful_shutdown_signal(move || {
            let stops = stops.clone();
            async move { stops.notified().await }
        })
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(state.patience.head)
        .client_disconnect_timeout(DISCONNECT_WITHIN)
        .h1_allow_half_closed(false)
        .tcp_nodelay(true)
        .on_connect_ext(move |connection, extensions| meet(connection, extensions, &newcomers))
        .finish(boxed::factory(map_config(answered, |()| AppConfig::default())))
}

/// The same, with every connection among the newcomers from its first moment to its last.
fn counted<S>(
    service: S,
    newcomers: Arc<Newcomers>,
) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = S::Error, InitError = S::InitError>
where
    S: ServiceFactory<TcpStream, Config = (), Response = ()>,
{
    apply_fn_factory(service, move |connection: TcpStream, service: &S::Service| {
        let newcomer = newcomers.meet(&connection);
        let served = service.call(connection);
        async move {
            let served = served.await;
            drop(newcomer);
            served
        }
    })
}
