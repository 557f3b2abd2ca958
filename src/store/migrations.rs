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

#[cfg(test)]
mod tests {
    use diesel::connection::SimpleConnection;
    use diesel::prelude::*;
    use diesel::sql_types::Text;

    use super::*;
    use crate::store::connection::{self, Role};

    #[derive(QueryableByName)]
    struct Object {
        #[diesel(sql_type = Text)]
        sql: String,
    }

    fn schema(connection: &mut SqliteConnection) -> Vec<String> {
        let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE '\\_\\_%' ESCAPE '\\' ORDER BY name";
        diesel::sql_query(sql)
            .load::<Object>(connection)
            .unwrap()
            .into_iter()
            .map(|object| object.sql)
            .collect()
    }

    #[test]
    fn every_migration_goes_up_down_and_up_again() {
        for migrations in [|| MAIN, || LOGS] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("test.db");
            let mut connection = connection::open(&path, Role::Writer).unwrap();
            let empty = schema(&mut connection);
            let mut steps = vec![empty];
            while connection.run_next_migration(migrations()).is_ok() {
                steps.push(schema(&mut connection));
            }
            assert!(steps.len() > 1);
            for step in (1..steps.len()).rev() {
                connection.revert_last_migration(migrations()).unwrap();
                assert_eq!(schema(&mut connection), steps[step - 1], "down from {step}");
                connection.run_next_migration(migrations()).unwrap();
                assert_eq!(schema(&mut connection), steps[step], "up again to {step}");
                connection.revert_last_migration(migrations()).unwrap();
            }
            run(&mut connection, &path, migrations()).unwrap();
            assert_eq!(schema(&mut connection), steps[steps.len() - 1]);
        }
    }

    #[test]
    fn a_newer_schema_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.db");
        let mut connection = connection::open(&path, Role::Writer).unwrap();
        run(&mut connection, &path, MAIN).unwrap();
        refuse_newer(&mut connection, &path, &MAIN).unwrap();
        connection.batch_execute("INSERT INTO __diesel_schema_migrations (version) VALUES ('9999')").unwrap();
        match refuse_newer(&mut connection, &path, &MAIN) {
            Err(StoreError::NewerSchema { found, .. }) => assert_eq!(found, "9999"),
            other => panic!("{other:?}"),
        }
    }
}
