//! How the types with a serde form of their own are described in OpenAPI.

use std::borrow::Cow;

use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::artifact::Digest;
use super::gang::ProcessesPerNode;
use super::gpu::ComputeCapability;
use super::ids::{JobId, TaskId, WorkerId};
use super::pin::Pin;
use super::quantity::{Cpus, Seconds, Timestamp};
use super::spec::GpuCount;
use super::telemetry::ClockOffset;

macro_rules! described {
    ($($name:ident => $schema:expr),* $(,)?) => {
        $(
            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    $schema.into()
                }
            }

            impl ToSchema for $name {
                fn name() -> Cow<'static, str> {
                    Cow::Borrowed(stringify!($name))
                }
            }
        )*
    };
}

fn text(pattern: &str, meaning: &str) -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::String))
        .pattern(Some(pattern))
        .description(Some(meaning))
        .into()
}

fn number(most: usize, meaning: &str) -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::Number))
        .minimum(Some(0))
        .maximum(Some(most))
        .description(Some(meaning))
        .into()
}

fn count_or(word: &str, meaning: &str) -> Schema {
    OneOfBuilder::new()
        .item(ObjectBuilder::new().schema_type(SchemaType::new(Type::Integer)).minimum(Some(0)))
        .item(ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).enum_values(Some([word])))
        .description(Some(meaning))
        .into()
}

described! {
    ComputeCapability => text("^[0-9]+\\.[0-9]+$", "`MAJOR.MINOR`"),
    JobId => text("^job_[0-7][0-9a-hjkmnp-tv-z]{25}$", "A job's id; ids sort by time"),
    TaskId => text("^task_[0-7][0-9a-hjkmnp-tv-z]{25}$", "A task's id; ids sort by time"),
    WorkerId => text("^wkr_[0-7][0-9a-hjkmnp-tv-z]{25}$", "A worker's id; ids sort by time"),
    Digest => text("^artifact://sha256/[0-9a-f]{64}$", "An artifact's address"),
    Pin => text("^sha256:[0-9a-f]{64}$", "SHA-256 of the public key of the server's certificate (SubjectPublicKeyInfo, DER)"),
    Timestamp => ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::String))
        .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::DateTime)))
        .description(Some("A moment in UTC, RFC 3339"))
        .build(),
    Seconds => number((Seconds::MAX.millis() / 1000) as usize, "A span in seconds, in whole milliseconds"),
    ClockOffset => ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::Number))
        .description(Some("A difference in seconds, in whole milliseconds"))
        .build(),
    Cpus => number(4_000_000, "CPU cores, with up to 3 decimals"),
    GpuCount => count_or("all", "So many GPUs, or all of one worker"),
    ProcessesPerNode => count_or("gpu", "So many processes, or one per GPU"),
}
