//! Pages printed from the code equal the files in `docs/`. `UPDATE=1` writes the files instead.

use std::collections::BTreeSet;
use std::path::Path;

use gpulayer::http::routes::ROUTES;
use gpulayer::http::{Metrics, errors_document, openapi_document};
use serde_json::Value;

fn agrees(name: &str, printed: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, printed).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == printed,
        "docs/{name} differs from the code; run this test with UPDATE=1 and look at the change"
    );
}

#[test]
fn errors_are_printed_from_the_table() {
    agrees("ERRORS.md", &errors_document().unwrap());
}

#[test]
fn metrics_are_printed_from_the_registry() {
    agrees("METRICS.md", &Metrics::document().unwrap());
}

#[test]
fn openapi_is_printed_from_the_types() {
    agrees("openapi.json", &openapi_document());
}

#[test]
fn openapi_tells_every_route_and_nothing_else() {
    let document: Value = serde_json::from_str(&openapi_document()).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let told: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let built =
        ROUTES.iter().map(|route| (route.path.replace(":.+}", "}"), route.method.to_owned())).collect();
    assert_eq!(told, built);
}

#[test]
fn every_reference_in_openapi_leads_somewhere() {
    let text = openapi_document();
    let document: Value = serde_json::from_str(&text).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for piece in text.split("\"$ref\": \"#/components/schemas/").skip(1) {
        let name = piece.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name}");
    }
    assert!(schemas.contains_key("JobSpec") && schemas.contains_key("Problem"));
}
