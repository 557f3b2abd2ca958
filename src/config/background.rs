//! The variables that a process in the background has otherwise than whoever starts it: its working folder is `/`.

use std::ffi::OsString;
use std::path::Path;

/// They name a place, always.
const PLACES: [&str; 4] = ["HOME", "GPULAYER_HOME", "GPULAYER_STATE", "GPULAYER_CA_FILE"];
/// They name a place if they hold a `/`; else they are a word, or a name that is looked up elsewhere.
const PLACES_OR_WORDS: [&str; 2] = ["GPULAYER_NVML", "GPULAYER_UV"];
/// Whoever starts it has joined already; with a token it would join anew, and kill what runs, where the server has
/// forgotten it.
const FOR_THE_STARTER: [&str; 2] = ["GPULAYER_JOIN_TOKEN", "GPULAYER_JOIN_TOKEN_FILE"];

/// What is to be set, or (`None`) to be left out.
pub fn background_variables(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<(&'static str, Option<OsString>)> {
    let relative = |name: &'static str| {
        let value = env(name).filter(|value| !value.is_empty() && Path::new(value).is_relative())?;
        let is_word = PLACES_OR_WORDS.contains(&name) && !value.as_encoded_bytes().contains(&b'/');
        // Without a working folder there is nothing it could be relative to: it stays, and fails there as it would here.
        let absolute = std::path::absolute(&value).ok().filter(|_| !is_word)?;
        Some((name, Some(absolute.into_os_string())))
    };
    let places = PLACES.into_iter().chain(PLACES_OR_WORDS).filter_map(relative);
    places.chain(FOR_THE_STARTER.map(|name| (name, None))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_become_absolute_and_join_tokens_stay_behind() {
        let given = [
            ("HOME", "/root"),
            ("GPULAYER_HOME", "mine"),
            ("GPULAYER_STATE", ""),
            ("GPULAYER_NVML", "off"),
            ("GPULAYER_UV", "bin/uv"),
        ];
        let env = |name: &str| given.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into());
        let here = std::env::current_dir().unwrap();
        let set = |path: &str| Some(here.join(path).into_os_string());
        assert_eq!(
            background_variables(&env),
            [
                ("GPULAYER_HOME", set("mine")),
                ("GPULAYER_UV", set("bin/uv")),
                ("GPULAYER_JOIN_TOKEN", None),
                ("GPULAYER_JOIN_TOKEN_FILE", None),
            ]
        );
    }
}
