//! The OpenAPI 3.1 document, from the types of the contract and one row per route. A test holds the rows against
//! the table of routes, and `docs/openapi.json` against this.

mod absence;
mod calls;
mod refusals;

use std::borrow::Cow;
use std::collections::BTreeSet;

use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathsBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, KnownFormat, OpenApi, OpenApiBuilder, Ref, RefOr, Required, ResponseBuilder,
    Schema, SchemaFormat,
};
use utoipa::{PartialSchema, ToSchema};

use super::body::PREFER_HEADER;
use super::caller::Access;
use super::idempotency::KEY_HEADER;
use super::refusal::PROTOCOLS;
use super::routes::{ROUTES, RouteEntry};
use crate::contract::job::JobState;
use crate::contract::problem::Problem;
use crate::contract::protocol::PROTOCOL_HEADER;

/// A schema with the name it goes by, and those it refers to.
pub struct Described {
    name: String,
    collect: fn(&mut Schemas),
    schema: fn() -> RefOr<Schema>,
}

type Schemas = Vec<(String, RefOr<Schema>)>;

/// The schema of `T` under its own name.
pub fn of<T: ToSchema>() -> Described {
    Described { name: T::name().into_owned(), collect: T::schemas, schema: <T as PartialSchema>::schema }
}

/// The schema of a generic `T` of `I`s, named for what it holds.
pub fn named<T: ToSchema, I: ToSchema>(name: &str) -> Described {
    fn collect<T: ToSchema, I: ToSchema>(schemas: &mut Schemas) {
        include(schemas, &of::<I>());
        T::schemas(schemas);
    }
    Described { name: name.to_owned(), collect: collect::<T, I>, schema: <T as PartialSchema>::schema }
}

/// What a body or an answer holds.
pub enum Content {
    /// Nothing.
    Nothing,
    /// JSON of this form.
    Json(Described),
    /// JSON of this form, or its entries as server-sent events.
    Followed(Described),
    /// Bytes, text, or JSON without a schema, of this content type.
    Raw(&'static str),
}

/// A query parameter: its name, its type and what it does.
pub type Parameter = (&'static str, Type, &'static str);

/// One call of the API, as the document tells it.
pub struct Call {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    query: &'static [Parameter],
    takes: Content,
    status: u16,
    gives: Content,
}

/// The document as JSON, ending with a line break.
pub fn printed() -> String {
    unsigned(&document().to_pretty_json().unwrap_or_default())
}

/// The generator calls every whole number signed, also those that begin at 0; readers of the document would take the
/// larger ones for faults.
fn unsigned(document: &str) -> String {
    let lines: Vec<&str> = document.lines().collect();
    let mut text = String::with_capacity(document.len() + 1);
    for (at, line) in lines.iter().enumerate() {
        let mut rest = lines[at..].iter().take_while(|line| !line.trim_start().starts_with('}'));
        let signed = line.contains("\"format\": \"int32\"") || line.contains("\"format\": \"int64\"");
        if signed && rest.any(|line| line.trim_start().starts_with("\"minimum\": 0")) {
            text.push_str(&line.replace("\"int", "\"uint"));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

/// The document.
pub fn document() -> OpenApi {
    let (mut schemas, mut from_clients): (Schemas, Schemas) = (Vec::new(), Vec::new());
    include(&mut schemas, &of::<Problem>());
    let mut paths = PathsBuilder::new().build();
    for call in calls::all() {
        let entry = ROUTES.iter().find(|entry| entry.method == call.method && entry.path == call.path);
        for content in [&call.takes, &call.gives] {
            if let Content::Json(described) | Content::Followed(described) = content {
                include(&mut schemas, described);
            }
        }
        if let (Content::Json(described), Some(false)) =
            (&call.takes, entry.map(|entry| entry.access.is_of_workers()))
        {
            include(&mut from_clients, described);
        }
        paths.add_path_operation(
            shown_path(call.path),
            vec![method_of(call.method)],
            operation(&call, entry.copied()),
        );
    }
    let from_clients: BTreeSet<String> = from_clients.into_iter().map(|(name, _)| name).collect();
    for (_, schema) in schemas.iter_mut().filter(|(name, _)| from_clients.contains(name)) {
        absence::admit_null(schema);
    }
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("glc_… | glj_… | gls_… | gli_…")
        .build();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme("token", SecurityScheme::Http(bearer))
        .build();
    let mut info = InfoBuilder::new()
        .title("GPUlayer")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(env!("CARGO_PKG_DESCRIPTION")))
        .build();
    info.license = None;
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build()
}

fn include(schemas: &mut Schemas, described: &Described) {
    schemas.push((described.name.clone(), (described.schema)()));
    (described.collect)(schemas);
}

// actix writes `{path:.+}` for the rest of a path, OpenAPI has no word for it.
fn shown_path(path: &'static str) -> Cow<'static, str> {
    Cow::Owned(path.replace(":.+}", "}"))
}

fn method_of(method: &str) -> HttpMethod {
    match method {
        "POST" => HttpMethod::Post,
        "PUT" => HttpMethod::Put,
        "DELETE" => HttpMethod::Delete,
        "HEAD" => HttpMethod::Head,
        _ => HttpMethod::Get,
    }
}

fn operation(call: &Call, entry: Option<&RouteEntry>) -> OperationBuilder {
    let access = entry.map_or(Access::Open, |entry| entry.access);
    let mut operation = OperationBuilder::new()
        .summary(Some(call.summary))
        .operation_id(Some(operation_id(call)))
        .response(call.status.to_string(), answer(call));
    for (status, meant) in also(call).into_iter().chain(refusals::of(call, access)) {
        operation = operation.response(status, meant);
    }
    for segment in call.path.split('/').filter_map(|segment| segment.strip_prefix('{')) {
        let name = segment.trim_end_matches('}').split(':').next().unwrap_or(segment);
        operation = operation.parameter(parameter(name, Type::String, ParameterIn::Path, None));
    }
    for (name, kind, meaning) in call.query {
        operation = operation.parameter(parameter(name, kind.clone(), ParameterIn::Query, Some(meaning)));
    }
    if let Some(body) = body(&call.takes) {
        operation = operation.request_body(Some(body));
    }
    match entry.map(|entry| entry.access) {
        Some(Access::Open) | None => operation,
        Some(access) => {
            if access.is_of_workers() {
                let meaning = Some("The worker protocol's version: `1`");
                operation = operation.parameter(parameter(
                    PROTOCOL_HEADER,
                    Type::Integer,
                    ParameterIn::Header,
                    meaning,
                ));
            }
            for (name, meaning) in headers(call, access) {
                let optional = parameter(name, Type::String, ParameterIn::Header, Some(meaning));
                operation = operation.parameter(optional.required(Required::False));
            }
            operation.security(SecurityRequirement::new("token", Vec::<String>::new()))
        }
    }
}

/// Further answers that are no refusals, with what they mean.
fn also(call: &Call) -> Vec<(String, ResponseBuilder)> {
    let meanings: &[(u16, &str)] = match (call.method, call.path) {
        ("PUT", "/v1/artifacts/sha256/{hex}") => {
            &[(200, "The artifact was here already"), (202, "The part was taken in; more is to come")]
        }
        _ => &[],
    };
    meanings
        .iter()
        .map(|(status, meaning)| (status.to_string(), answer(call).description(*meaning)))
        .collect()
}

/// Whether a call takes an idempotency key.
fn is_keyed(call: &Call) -> bool {
    matches!(
        (call.method, call.path),
        ("POST", "/v1/jobs" | "/v1/jobs/batch" | "/v1/jobs/{job_id}/cancel" | "/v1/jobs/{job_id}/retry")
            | ("DELETE", "/v1/jobs/{job_id}" | "/v1/tokens/{name}")
            | ("POST", "/v1/workers/{worker_id}/drain" | "/v1/workers/{worker_id}/evict")
            | ("POST", "/v1/workers/{worker_id}/resume" | "/v1/workers/{worker_id}/revoke" | "/v1/tokens")
    )
}

/// Headers that a call takes, with what they mean.
fn headers(call: &Call, access: Access) -> Vec<(&'static str, &'static str)> {
    let mut headers = Vec::new();
    if is_keyed(call) {
        headers.push((KEY_HEADER, "1 to 255 bytes: a repeat with the same key gets the first answer"));
    }
    if !access.is_of_workers() && matches!(call.takes, Content::Json(_)) {
        let meaning = match call.path {
            "/v1/jobs" => {
                "`handling=strict` makes unknown fields faults, `impossible=refuse` refuses (`no_worker_fits`) what no worker could ever take"
            }
            _ => "`handling=strict` makes unknown fields faults",
        };
        headers.push((PREFER_HEADER, meaning));
    }
    headers
}

fn operation_id(call: &Call) -> String {
    let words = call.path.split(['/', '.', ':', '+']).map(|word| word.trim_matches(['{', '}']));
    let words: Vec<&str> = words.filter(|word| !word.is_empty() && *word != "v1").collect();
    format!("{}_{}", call.method.to_lowercase(), words.join("_"))
}

fn parameter(name: &str, kind: Type, place: ParameterIn, meaning: Option<&str>) -> ParameterBuilder {
    let required = match place {
        ParameterIn::Path | ParameterIn::Header => Required::True,
        ParameterIn::Query | ParameterIn::Cookie | ParameterIn::QueryString => Required::False,
    };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .description(meaning)
        .schema(Some(bounded(name, ObjectBuilder::new().schema_type(SchemaType::new(kind)))))
}

/// The bounds of a parameter: those of one name are the same everywhere.
fn bounded(name: &str, schema: ObjectBuilder) -> ObjectBuilder {
    match name {
        "limit" => schema.minimum(Some(1)).maximum(Some(500)),
        "wait_s" => schema.minimum(Some(0)).maximum(Some(60)),
        "after" | "tail" => schema.minimum(Some(0)).maximum(Some(i64::MAX as usize)),
        KEY_HEADER => schema.min_length(Some(1)).max_length(Some(255)),
        PROTOCOL_HEADER => schema.minimum(Some(PROTOCOLS.min)).maximum(Some(PROTOCOLS.max)),
        "parent" => schema.pattern(Some("^job_[0-7][0-9a-hjkmnp-tv-z]{25}$")),
        "stream" => schema.enum_values(Some(["stdout", "stderr", "system"])),
        "state" => {
            let word = JobState::ALL.map(JobState::word).join("|");
            schema.pattern(Some(format!("^({word})(,({word}))*$")))
        }
        "submitted_after" => schema.format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))),
        _ => schema,
    }
}

fn content(schema: Option<RefOr<Schema>>) -> utoipa::openapi::Content {
    ContentBuilder::new().schema(schema).build()
}

fn body(takes: &Content) -> Option<utoipa::openapi::request_body::RequestBody> {
    let body = RequestBodyBuilder::new();
    match takes {
        Content::Nothing => None,
        Content::Json(described) | Content::Followed(described) => {
            let reference = Ref::from_schema_name(described.name.clone()).into();
            // No body is an empty object.
            let needed = match (described.schema)() {
                RefOr::T(Schema::Object(object)) if object.required.is_empty() => Required::False,
                _ => Required::True,
            };
            Some(body.content("application/json", content(Some(reference))).required(Some(needed)).build())
        }
        Content::Raw(kind) => Some(body.content(*kind, content(None)).build()),
    }
}

fn answer(call: &Call) -> ResponseBuilder {
    let answer = ResponseBuilder::new().description(call.summary);
    let reference = |described: &Described| Some(RefOr::from(Ref::from_schema_name(described.name.clone())));
    match &call.gives {
        Content::Nothing => answer,
        Content::Json(described) => answer.content("application/json", content(reference(described))),
        Content::Followed(described) => answer
            .content("application/json", content(reference(described)))
            .content("text/event-stream", content(None)),
        Content::Raw(kind) => answer.content(*kind, content(None)),
    }
}
