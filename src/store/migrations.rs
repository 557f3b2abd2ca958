//! The embedded migrations of both databases. Each runs in a transaction together with the note that it ran, so
//! that a crash in the middle leaves nothing of it.

use std::path::Path;

use diesel::SqliteConnection;
use diesel::migration::{Migration, MigrationSource, MigrationVersion};
use diesel::sqlite::Sqlite;
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use super::error::StoreError;

/// Of `gpulayer.db`.
pub const MAIN: EmbeddedMigrations = embed_migrations!("migrations/main");
/// Of `logs.db`.
pub const LOGS: EmbeddedMigrations = embed_migrations!("migrations/logs");

/// The newest migration of the main database that this build knows.
pub fn newest_known() -> Result<String, StoreError> {
    let all: Vec<Box<dyn Migration<Sqlite>>> =
        MAIN.migrations().map_err(|source| StoreError::Migrate { path: "gpulayer.db".into(), source })?;
    let newest = all.iter().map(|one| one.name().version()).max();
    Ok(newest.map_or_else(String::new, |version| version.to_string()))
}

/// Refuses a database that a newer build has migrated, and leaves it as it is.
pub fn refuse_newer(
    connection: &mut SqliteConnection,
    path: &Path,
    migrations: &EmbeddedMigrations,
) -> Result<(), StoreError> {
    let failed = |source| StoreError::Migrate { path: path.to_owned(), source };
    let known: Vec<Box<dyn Migration<Sqlite>>> = migrations.migrations().map_err(failed)?;
    let applied = connection.applied_migrations().map_err(failed)?;
    let is_known = |version: &MigrationVersion<'_>| known.iter().any(|one| one.name().version() == *version);
    let Some(found) = applied.iter().filter(|version| !is_known(version)).max() else {
        return Ok(());
    };
    let known = known.iter().map(|one| one.name().version()).max();
    Err(StoreError::NewerSchema {
        path: path.to_owned(),
        found: found.to_string(),
        known: known.map_or_else(String::new, |version| version.to_string()),
    })
}

/// Brings the database to this build's schema.
pub fn run(
    connection: &mut SqliteConnection,
    path: &Path,
    migrations: EmbeddedMigrations,
) -> Result<(), StoreError> {
    match connection.run_pending_migrations(migrations) {
        Ok(_) => Ok(()),
        Err(source) => Err(StoreError::Migrate { path: path.to_owned(), source }),
    }
}
