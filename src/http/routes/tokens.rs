//! Credentials: list them, make one, revoke one. For admins.

use actix_web::{HttpRequest, HttpResponse, web};

use crate::actors::messages::front_desk::{Keyed, MakeToken, RevokeToken, TokenRefusal};
use crate::clock;
use crate::contract::error_code::ErrorCode;
use crate::contract::job::Page;
use crate::contract::problem::Warning;
use crate::contract::token::{CreateToken, CreatedToken, Token};
use crate::credentials;
use crate::domain::credentials::request;
use crate::http::blocking;
use crate::http::body::{self, Asked, JSON_LIMIT_BYTES};
use crate::http::caller::Client;
use crate::http::desk;
use crate::http::idempotency::{Key, REPLAYED_HEADER};
use crate::http::query::Query;
use crate::http::refusal::Refusal;
use crate::http::state::EdgeState;

const FIELDS: &[&str] = &["name", "kind", "role", "projects", "max_priority", "user", "expires_s"];

/// All credentials, revoked and expired ones too, newest first. Never a secret.
pub async fn list(request: HttpRequest, state: web::Data<EdgeState>) -> Result<HttpResponse, Refusal> {
    Query::none(&request)?;
    let reads = state.ports.reads.clone();
    let mut tokens = blocking(move || reads.tokens()).await?;
    tokens.reverse();
    let items: Vec<Token> = tokens.into_iter().map(|token| token.shown()).collect();
    Ok(HttpResponse::Ok().json(Page { items, next_cursor: None }))
}

/// Makes a credential: 201 with its secret, which is shown this once. A repeat of the call is told so.
pub async fn create(
    request: HttpRequest,
    payload: web::Payload,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let bytes = body::read_json_bytes(&request, payload, JSON_LIMIT_BYTES).await?;
    let key = Key::of(&request, &client, &bytes)?;
    Query::none(&request)?;
    let Asked { asked, warnings } = body::parse_object::<CreateToken>(&request, &bytes, FIELDS)?;
    let secret = credentials::mint(credentials::prefix(asked.kind)).map_err(Refusal::internal)?;
    let hash = credentials::hash(&secret);
    // Made up from the hash, which is as good as random and never repeats.
    let named = |stem: &str| format!("{stem}-{}", hex::encode(&hash[..3]));
    let record = request::record(asked, named, hash, &client.grant.name, clock::now())
        .map_err(|faults| Refusal::faults(ErrorCode::InvalidRequest, faults))?;
    let token = record.clone().shown();
    let used = key.map(|key| key.used(201, &[], clock::now()));
    let outcome = desk::ask(|reply| {
        state.ports.desk.make_token.do_send(MakeToken {
            record: Box::new(record),
            by: Some(client.author()),
            key: used,
            reply,
        });
    })
    .await?;
    match outcome {
        Ok(Keyed::Done(())) => Ok(created(CreatedToken { token, secret }, warnings)),
        Ok(Keyed::Repeat) => {
            state.repeated(key.as_ref())?;
            Err(Refusal::new(
                ErrorCode::SecretAlreadyShown,
                "the first answer to this call showed the secret, and nobody kept it; if it was lost, revoke the \
                 token and make another",
            )
            .replayed())
        }
        Err(TokenRefusal::NameTaken) => Err(Refusal::new(
            ErrorCode::NameTaken,
            format!("a token named `{}` is still valid; revoke it, or choose another name", token.name),
        )),
        Err(other) => Err(other.into()),
    }
}

fn created(answer: CreatedToken, warnings: Vec<Warning>) -> HttpResponse {
    let mut shown = serde_json::to_value(&answer).unwrap_or_default();
    if !warnings.is_empty() {
        shown["warnings"] = serde_json::to_value(warnings).unwrap_or_default();
    }
    HttpResponse::Created().insert_header(("Cache-Control", "no-store")).json(shown)
}

/// Revokes the credential of this name: 204. From then on it opens nothing, and what is parked with it ends.
pub async fn revoke(
    request: HttpRequest,
    path: web::Path<String>,
    client: Client,
    state: web::Data<EdgeState>,
) -> Result<HttpResponse, Refusal> {
    let name = path.into_inner();
    Query::none(&request)?;
    let key = Key::of(&request, &client, &[])?;
    let used = key.map(|key| key.used(204, &[], clock::now()));
    let outcome = desk::ask(|reply| {
        state.ports.desk.revoke_token.do_send(RevokeToken {
            name: name.clone(),
            afar: !client.local,
            by: Some(client.author()),
            key: used,
            reply,
        });
    })
    .await?;
    let mut answer = HttpResponse::NoContent();
    match outcome {
        Ok(Keyed::Done(())) => {}
        Ok(Keyed::Repeat) => {
            state.repeated(key.as_ref())?;
            answer.insert_header((REPLAYED_HEADER, "true"));
        }
        Err(TokenRefusal::Unknown) => {
            return Err(Refusal::not_found(format_args!("token `{}`", name.escape_debug())));
        }
        Err(other) => return Err(other.into()),
    }
    Ok(answer.finish())
}
