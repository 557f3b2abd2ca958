//! The table of routes: path, method, whom it lets in, handler. Everything else that needs to know the routes
//! (registration, authorisation, 405 answers, metrics, the test that tries every credential) reads it.

use actix_web::http::Method;
use actix_web::middleware::from_fn;
use actix_web::{Route, web};

use super::caller::Access;
use super::edge;

mod artifacts;
mod explain;
mod fleet;
mod job;
mod list;
mod sequences;
mod server;
mod submit;
mod tokens;
mod worker;
mod yielded;

pub(super) use artifacts::content_range;

/// One call of the API.
#[derive(Debug)]
pub struct RouteEntry {
    /// `GET`, `POST`, …
    pub method: &'static str,
    /// With `{parameters}`.
    pub path: &'static str,
    /// Whom it lets in.
    pub access: Access,
}

macro_rules! routes {
    ($($path:literal => { $($method:ident $access:ident $($handler:ident)::+),+ $(,)? })*) => {
        /// Every call there is, in the order in which they are tried.
        pub const ROUTES: &[&RouteEntry] = &[
            $($(&RouteEntry { method: stringify!($method), path: $path, access: Access::$access },)+)*
        ];

        /// Registers all of them.
        pub fn configure(config: &mut web::ServiceConfig) {
            $(
                let mut resource = web::resource($path);
                let mut allowed: Vec<&str> = Vec::new();
                $({
                    const ENTRY: &RouteEntry =
                        &RouteEntry { method: stringify!($method), path: $path, access: Access::$access };
                    allowed.push(ENTRY.method);
                    let route = web::method(Method::$method).to($($handler)::+);
                    resource = resource.route(gated(route, ENTRY));
                })+
                let allowed = allowed.join(", ");
                config.service(resource.default_service(web::to(move |request, caller| {
                    edge::no_such_method(allowed.clone(), request, caller)
                })));
            )*
        }
    };
}

fn gated(route: Route, entry: &'static RouteEntry) -> Route {
    route.wrap(from_fn(move |request, next| edge::at_route(entry, request, next)))
}

// The busiest paths come first: the router tries them in this order.
routes! {
    "/v1/jobs" => { POST Submitter submit::one, GET Client list::list }
    "/v1/jobs/batch" => { POST Submitter submit::batch }
    "/v1/jobs/{job_id}" => { GET Client job::show, DELETE Submitter job::purge }
    "/v1/jobs/{job_id}/logs" => { GET Client sequences::logs }
    "/v1/jobs/{job_id}/events" => { GET Client sequences::events }
    "/v1/jobs/{job_id}/yielded" => { GET Client yielded::values }
    "/v1/worker/acquire" => { POST Worker worker::acquire }
    "/v1/worker/report" => { POST Worker worker::report }
    "/v1/worker/heartbeat" => { POST WorkerOrFormer worker::heartbeat }
    "/v1/worker/tasks/{task_id}/logs" => { POST Worker worker::logs }
    "/v1/worker/tasks/{task_id}/start" => { POST Worker worker::start }
    "/v1/worker/tasks/{task_id}/executing" => { POST Worker worker::executing }
    "/v1/worker/tasks/{task_id}/decline" => { POST Worker worker::decline }
    "/v1/worker/tasks/{task_id}/finish" => { POST Worker worker::finish }
    "/v1/worker/resume" => { POST Worker worker::resume }
    "/v1/worker/deregister" => { POST Worker worker::deregister }
    "/v1/workers/register" => { POST Join worker::register }
    "/v1/jobs/{job_id}/cancel" => { POST Submitter job::cancel }
    "/v1/jobs/{job_id}/retry" => { POST Submitter job::retry }
    "/v1/jobs/{job_id}/tasks" => { GET Client job::tasks }
    "/v1/jobs/{job_id}/explain" => { GET Client explain::job }
    "/v1/explain" => { POST Client explain::what_if }
    "/v1/jobs/{job_id}/outputs" => { GET Client job::outputs }
    "/v1/jobs/{job_id}/undeclared/{path:.+}" => { GET Client job::undeclared }
    "/v1/events" => { GET Client sequences::feed }
    "/v1/artifacts/missing" => { POST SubmitterOrWorker artifacts::missing }
    "/v1/artifacts/sha256/{hex}" => {
        GET ClientOrWorker artifacts::read,
        HEAD ClientOrWorker artifacts::head,
        PUT SubmitterOrWorker artifacts::put,
    }
    "/v1/workers" => { GET Client fleet::list }
    "/v1/workers/{worker_id}" => { GET Client fleet::show }
    "/v1/workers/{worker_id}/drain" => { POST Admin fleet::drain }
    "/v1/workers/{worker_id}/evict" => { POST Admin fleet::evict }
    "/v1/workers/{worker_id}/resume" => { POST Admin fleet::resume }
    "/v1/workers/{worker_id}/revoke" => { POST Admin fleet::revoke }
    "/v1/tokens" => { GET Admin tokens::list, POST Admin tokens::create }
    "/v1/tokens/{name}" => { DELETE Admin tokens::revoke }
    "/v1/server" => { GET Client server::status }
    "/v1/whoami" => { GET Client server::whoami }
    "/v1/admin/stop" => { POST Admin server::stop }
    "/v1/openapi.json" => { GET Client server::openapi }
    "/metrics" => { GET Client server::metrics }
    "/healthz" => { GET Open server::healthz, HEAD Open server::healthz }
    "/readyz" => { GET Open server::readyz, HEAD Open server::readyz }
}
