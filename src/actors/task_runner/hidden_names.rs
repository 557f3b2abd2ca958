//! A program may write its secrets into names of files, which are shown with its job. What they contain is the
//! program's own doing; what is shown is not.

use std::sync::Arc;

use super::Surroundings;
use crate::config::SecretSource;
use crate::contract::spec::{JobSpec, Secret};
use crate::domain::redaction::Redactor;
use crate::domain::task_run::Collection;

/// The same with every name that holds a secret shown without it: the bytes come back under that name. The secrets
/// are looked up again for it; one that has been removed or changed meanwhile is not known any more.
pub(super) async fn hide_secrets(
    around: &Surroundings,
    spec: &Arc<JobSpec>,
    collection: Collection,
) -> Collection {
    if spec.secrets.is_empty() {
        return collection;
    }
    let (source, spec) = (around.options.secrets.clone(), Arc::clone(spec));
    let redactor = tokio::task::spawn_blocking(move || redactor(&source, &spec.secrets)).await;
    match redactor {
        Ok(Some(redactor)) => hidden(collection, &redactor),
        Ok(None) | Err(_) => collection,
    }
}

pub(super) fn redactor(source: &SecretSource, secrets: &[Secret]) -> Option<Redactor> {
    let found: Vec<_> = secrets
        .iter()
        .filter_map(|secret| source.resolve(std::slice::from_ref(secret)).ok())
        .flatten()
        .collect();
    let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value)).collect();
    Redactor::new(&found).ok()
}

fn hidden(mut collection: Collection, redactor: &Redactor) -> Collection {
    let hide = |text: &mut String| *text = redactor.redact(text);
    for output in &mut collection.outputs {
        hide(&mut output.name);
        hide(&mut output.path);
        output.link_target.iter_mut().for_each(hide);
    }
    for uncollected in &mut collection.uncollected {
        hide(&mut uncollected.name);
        hide(&mut uncollected.why);
    }
    collection.undeclared.iter_mut().for_each(|file| hide(&mut file.path));
    collection.warnings.iter_mut().for_each(|warning| hide(&mut warning.detail));
    collection
}
