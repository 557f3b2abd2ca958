//! From flags and a spec file to the JobSpec that is sent. Only the form is made here; what is allowed is decided by
//! the server, with every fault at once.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::array;
use super::error::CliError;
use super::quantities::{bytes, number, seconds};
use super::spec_args::SpecArgs;
use crate::domain::spec::human;
use crate::short_file;

/// Variables that make a program find its environment: on the own daemon a job gets them from the submitting shell.
const RECORDED: [&str; 4] = ["PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"];

/// Files of requirements that name one another are followed so far.
const DEEPEST_REQUIREMENTS: u32 = 8;

/// A spec on its way: the JSON that is sent, and what is still to be brought along.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) spec: Map<String, Value>,
    /// `--input` as typed, to be stored and named by its digest.
    pub(super) inputs: Vec<String>,
    /// `--after` as typed, to be resolved to ids.
    pub(super) after: Vec<String>,
}

/// What the spec takes from this process.
pub(super) struct Surroundings<'a> {
    /// Reads an environment variable.
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Whether the job may run on this machine as this user.
    pub(super) own: bool,
}

impl Draft {
    /// Puts flags over the spec file.
    pub(super) fn from_flags(args: &SpecArgs, around: &Surroundings<'_>) -> Result<Self, CliError> {
        let mut spec = match &args.spec {
            Some(path) => read_file(path)?,
            None => Map::new(),
        };
        workload(&mut spec, args)?;
        identity(&mut spec, args)?;
        resources(&mut spec, args)?;
        environment(&mut spec, args, around)?;
        limits(&mut spec, args)?;
        Ok(Self { spec, inputs: args.input.clone(), after: args.after.clone() })
    }

    /// The command's working folder, relative to the workspace, or absolute on the own daemon.
    pub(super) fn set_cwd(&mut self, cwd: &str) {
        let workload = table(&mut self.spec, "workload");
        let command = table(workload, "command");
        command.entry("cwd").or_insert_with(|| cwd.into());
    }

    /// The words of the command, for finding which of them are files.
    pub(super) fn argv(&self) -> Vec<String> {
        let argv = self.spec.get("workload").and_then(|workload| workload.pointer("/command/argv"));
        let words = argv.and_then(Value::as_array).into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

/// The table at `key`, made when it is not one.
fn table<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(table) => table,
        // invariant: made an object just above.
        _ => unreachable!("an object was put here"),
    }
}

fn list<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Vec<Value> {
    let value = map.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        // invariant: made an array just above.
        _ => unreachable!("an array was put here"),
    }
}

fn put<T: Clone + Into<Value>>(map: &mut Map<String, Value>, key: &str, value: &Option<T>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value.clone().into());
    }
}

fn pair<'a>(flag: &'static str, text: &'a str) -> Result<(&'a str, &'a str), CliError> {
    text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| CliError::Flag {
        flag,
        given: text.to_owned(),
        expected: "KEY=VALUE",
    })
}

/// One `--secret NAME=REF`. What stands where a reference belongs may be the secret itself, so it is never repeated.
fn secret(text: &str) -> Result<(&str, &str), CliError> {
    let (name, reference) = text.split_once('=').unwrap_or((text, ""));
    let refers = ["name:", "env:", "file:"]
        .iter()
        .any(|kind| reference.strip_prefix(kind).is_some_and(|rest| !rest.is_empty()));
    if name.is_empty() || !refers {
        return Err(CliError::Flag {
            flag: "--secret",
            given: name.to_owned(),
            expected: "NAME=REF with a REF of name:NAME (from the [secrets] table of the worker's config.toml), \
                       env:VARIABLE or file:PATH, never the value itself",
        });
    }
    Ok((name, reference))
}

/// A spec, or a list of variables, that is larger was not written by hand, and no server takes it.
const MOST_GIVEN_BYTES: u64 = 16 << 20;

/// What a flag names standard input with.
const STANDARD_INPUT: &str = "-";

/// The text of a file that a flag names, or of standard input.
pub(super) fn given_text(flag: &'static str, path: &Path) -> Result<String, CliError> {
    let text = if path == Path::new(STANDARD_INPUT) {
        short_file::take_text(std::io::stdin().lock(), MOST_GIVEN_BYTES)
    } else {
        short_file::read_text(path, MOST_GIVEN_BYTES)
    };
    text.map_err(|source| CliError::GivenFile { flag, path: path.to_owned(), source })
}

/// What a spec is written in: said by its name, else by how it begins.
fn format_of(path: &Path, text: &str) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => "YAML",
        Some("toml") => "TOML",
        None if path == Path::new(STANDARD_INPUT) && !text.trim_start().starts_with('{') => "YAML",
        _ => "JSON",
    }
}

pub(super) fn read_file(path: &Path) -> Result<Map<String, Value>, CliError> {
    let text = given_text("--spec", path)?;
    let format = format_of(path, &text);
    let value = match format {
        // YAML 1.2: `yes` and `no` are words, as in `env: {ANSWER: yes}`.
        "YAML" => {
            let words = serde_saphyr::options! { strict_booleans: true };
            serde_saphyr::from_str_with_options::<Value>(&text, words).map_err(Into::into)
        }
        "TOML" => toml::from_str::<Value>(&text).map_err(Into::into),
        _ => serde_json::from_str::<Value>(&text).map_err(Into::into),
    };
    let mut value = value.map_err(|source| CliError::SpecFormat { path: path.to_owned(), format, source })?;
    let faults = human::to_wire(&mut value, "");
    if !faults.is_empty() {
        return Err(CliError::SpecFaults { path: path.to_owned(), faults });
    }
    match value {
        Value::Object(spec) => Ok(spec),
        _ => Err(CliError::SpecShape { path: path.to_owned() }),
    }
}

fn workload(spec: &mut Map<String, Value>, args: &SpecArgs) -> Result<(), CliError> {
    match (&args.shell, args.argv.as_slice()) {
        (Some(_), [_, ..]) => return Err(CliError::TwoCommands),
        (Some(text), []) => {
            let command = table(table(spec, "workload"), "command");
            command.remove("argv");
            command.insert("shell".to_owned(), text.as_str().into());
        }
        (None, [_, ..]) => {
            let command = table(table(spec, "workload"), "command");
            command.remove("shell");
            command.insert("argv".to_owned(), json!(args.argv));
        }
        (None, []) if spec.contains_key("workload") => {}
        (None, []) => return Err(CliError::NothingToRun),
    }
    if args.distributed.is_some() || args.nodes.is_some() || args.nproc_per_node.is_some() {
        let gang = table(spec, "distributed");
        put(gang, "launcher", &args.distributed);
        put(gang, "nodes", &args.nodes);
        gang.entry("nodes").or_insert_with(|| 1.into());
        if let Some(text) = &args.nproc_per_node {
            let processes = text.parse::<u32>().map_or_else(|_| text.as_str().into(), Value::from);
            gang.insert("processes_per_node".to_owned(), processes);
        }
    }
    Ok(())
}

fn identity(spec: &mut Map<String, Value>, args: &SpecArgs) -> Result<(), CliError> {
    put(spec, "name", &args.name);
    put(spec, "project", &args.project);
    put(spec, "priority", &args.priority);
    put(spec, "target", &args.target);
    put(spec, "profile", &args.profile);
    for label in &args.label {
        let (key, value) = pair("--label", label)?;
        table(spec, "labels").insert(key.to_owned(), value.into());
    }
    if let Some(text) = &args.array {
        table(spec, "array").extend(array::parsed(text)?);
    }
    Ok(())
}

fn resources(spec: &mut Map<String, Value>, args: &SpecArgs) -> Result<(), CliError> {
    if let Some(text) = &args.cpus {
        let cpus = text.parse().ok().filter(|cpus: &f64| cpus.is_finite()).and_then(number);
        let cpus = cpus.ok_or_else(|| CliError::Flag {
            flag: "--cpus",
            given: text.clone(),
            expected: "a number with up to 3 decimals",
        })?;
        table(spec, "resources").insert("cpus".to_owned(), cpus);
    }
    for (flag, key, text) in
        [("--memory", "memory_bytes", &args.memory), ("--disk", "disk_bytes", &args.disk)]
    {
        if let Some(text) = text {
            table(spec, "resources").insert(key.to_owned(), bytes(flag, text)?.into());
        }
    }
    gpus(spec, args)?;
    for text in &args.framework {
        let end = text.find(['<', '>', '=', '!', '~']).unwrap_or(text.len());
        let (name, range) = (text[..end].trim(), text[end..].trim());
        table(table(spec, "resources"), "frameworks").insert(name.to_owned(), range.into());
    }
    let named: Vec<_> = args.on.iter().filter(|place| !place.contains('=')).map(String::as_str).collect();
    if named.len() > 1 {
        return Err(CliError::Flag {
            flag: "--on",
            given: named.join(" --on "),
            expected: "one worker at most, because a job runs on one (any of several: give them a label, --on KEY=VALUE)",
        });
    }
    for place in &args.on {
        let resources = table(spec, "resources");
        match place.split_once('=') {
            Some((key, value)) => drop(table(resources, "labels").insert(key.to_owned(), value.into())),
            None => drop(resources.insert("worker".to_owned(), place.as_str().into())),
        }
    }
    Ok(())
}

fn gpus(spec: &mut Map<String, Value>, args: &SpecArgs) -> Result<(), CliError> {
    if args.gpus.is_none() && args.gpu_memory.is_none() && args.gpu_memory_kind.is_none() {
        return Ok(());
    }
    let gpus = table(table(spec, "resources"), "gpus");
    if let Some(text) = &args.gpus {
        let (model, count) = match text.rsplit_once(':') {
            Some((model, count)) => (Some(model), count),
            None => (None, text.as_str()),
        };
        let count: Value = match count {
            "all" => "all".into(),
            count => count
                .parse::<u32>()
                .map_err(|_| CliError::Flag {
                    flag: "--gpus",
                    given: text.clone(),
                    expected: "[MODEL:]N or all",
                })?
                .into(),
        };
        gpus.insert("count".to_owned(), count);
        if let Some(model) = model {
            gpus.insert("models".to_owned(), json!([model]));
        }
    }
    gpus.entry("count").or_insert_with(|| 1.into());
    if let Some(text) = &args.gpu_memory {
        gpus.insert("memory_bytes".to_owned(), bytes("--gpu-memory", text)?.into());
    }
    put(gpus, "memory_kind", &args.gpu_memory_kind);
    Ok(())
}

fn environment(
    spec: &mut Map<String, Value>,
    args: &SpecArgs,
    around: &Surroundings<'_>,
) -> Result<(), CliError> {
    for path in &args.env_file {
        for (name, value) in env_file(path)? {
            table(spec, "env").insert(name, value.into());
        }
    }
    for text in &args.env {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (
                text.as_str(),
                (around.variable)(text).ok_or_else(|| CliError::Flag {
                    flag: "--env",
                    given: text.clone(),
                    expected: "NAME=VALUE, or the name of a variable that is set here",
                })?,
            ),
        };
        table(spec, "env").insert(name.to_owned(), value.into());
    }
    if around.own {
        for name in RECORDED {
            if let Some(value) = (around.variable)(name)
                && !table(spec, "env").contains_key(name)
            {
                table(spec, "env").insert(name.to_owned(), value.into());
                list(spec, "shell_env").push(name.into());
            }
        }
    }
    for text in &args.secret {
        let (name, reference) = secret(text)?;
        list(spec, "secrets").push(json!({ "name": name, "ref": reference }));
    }
    for path in &args.output {
        list(spec, "outputs").push(json!({ "path": path }));
    }
    if args.python.is_some() || args.requirements.is_some() || args.uv.is_some() {
        let python = table(spec, "python");
        put(python, "interpreter", &args.python);
        put(python, "uv", &args.uv);
        if let Some(path) = &args.requirements {
            python.insert("requirements".to_owned(), requirement_lines(path, 0)?.into());
        }
    }
    Ok(())
}

/// What a file of requirements asks for, one line each, with those of the files that it names by `-r`.
fn requirement_lines(path: &Path, depth: u32) -> Result<Vec<String>, CliError> {
    let text = given_text("--requirements", path)?;
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let named = line.strip_prefix("--requirement").or_else(|| line.strip_prefix("-r"));
        // A file that names itself has no end; the worker's `uv` says so of what is deeper.
        match named
            .map(|name| name.trim_start_matches(['=', ' ', '\t']))
            .filter(|_| depth < DEEPEST_REQUIREMENTS)
        {
            Some(name) if !name.contains("://") => {
                let name = name.split(" #").next().unwrap_or(name).trim_end();
                let beside = path.parent().unwrap_or(Path::new("")).join(name);
                lines.extend(requirement_lines(&beside, depth + 1)?);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    Ok(lines)
}

/// `NAME=VALUE` lines; blank lines and lines that begin with `#` say nothing, and quotes round a value are no part of
/// it.
fn env_file(path: &Path) -> Result<Vec<(String, String)>, CliError> {
    let text = given_text("--env-file", path)?;
    let mut pairs = Vec::new();
    let lines = text.lines().map(str::trim).enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let line = line.strip_prefix("export ").unwrap_or(line);
        let pair = line.split_once('=').filter(|(name, _)| !name.trim().is_empty());
        let (name, value) =
            pair.ok_or_else(|| CliError::EnvFileLine { path: path.to_owned(), line: index + 1 })?;
        let value = value.trim();
        let unquoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        pairs.push((name.trim().to_owned(), unquoted.unwrap_or(value).to_owned()));
    }
    Ok(pairs)
}

fn limits(spec: &mut Map<String, Value>, args: &SpecArgs) -> Result<(), CliError> {
    let times = [
        ("--timeout", "timeout_s", &args.timeout),
        ("--queue-timeout", "queue_timeout_s", &args.queue_timeout),
        ("--grace", "grace_s", &args.grace),
    ];
    for (flag, key, text) in times {
        if let Some(text) = text {
            spec.insert(key.to_owned(), seconds(flag, text)?);
        }
    }
    if let Some(signal) = &args.stop_signal {
        let signal = signal.to_ascii_uppercase();
        spec.insert("stop_signal".to_owned(), signal.strip_prefix("SIG").unwrap_or(&signal).into());
    }
    if let Some(retries) = args.retries {
        table(spec, "retry").insert("max_attempts".to_owned(), (u64::from(retries) + 1).into());
    }
    if !args.retry_on.is_empty() {
        table(spec, "retry").insert("retry_on".to_owned(), json!(args.retry_on));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        spec: SpecArgs,
    }

    fn drafted(words: &[&str], own: bool) -> Result<Value, CliError> {
        let args = Line::try_parse_from(std::iter::once(&"run").chain(words)).unwrap().spec;
        let variable = |name: &str| match name {
            "PATH" => Some("/bin".to_owned()),
            "HERE" => Some("yes".to_owned()),
            _ => None,
        };
        Draft::from_flags(&args, &Surroundings { variable: &variable, own })
            .map(|draft| Value::Object(draft.spec))
    }

    #[test]
    fn what_stands_where_a_reference_belongs_is_not_repeated() {
        for given in ["HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN", "HF_TOKEN=", "HF_TOKEN=name:"] {
            let said = drafted(&["--secret", given, "true"], true).unwrap_err().to_string();
            assert!(said.starts_with("--secret HF_TOKEN: expected NAME=REF"), "{said}");
            assert!(!said.contains("hf_"), "{said}");
        }
    }

    #[test]
    fn a_job_is_placed_on_one_worker() {
        let said = drafted(&["--on", "a", "--on", "x=1", "--on", "b", "true"], true).unwrap_err().to_string();
        assert!(said.starts_with("--on a --on b: expected one worker at most"), "{said}");
        assert!(drafted(&["--on", "a", "--on", "x=1", "--on", "y=2", "true"], true).is_ok());
    }

    #[test]
    fn each_flag_sets_its_field() {
        let table: &[(&[&str], Value)] = &[
            (&["--name", "n"], json!({"name": "n"})),
            (&["--gpus", "A100:2"], json!({"resources": {"gpus": {"count": 2, "models": ["A100"]}}})),
            (&["--gpus", "all"], json!({"resources": {"gpus": {"count": "all"}}})),
            (
                &["--gpu-memory", "40GB"],
                json!({"resources": {"gpus": {"count": 1, "memory_bytes": 40_000_000_000_u64}}}),
            ),
            (&["--cpus", "0.25"], json!({"resources": {"cpus": 0.25}})),
            (&["--memory", "16GiB"], json!({"resources": {"memory_bytes": 17_179_869_184_u64}})),
            (&["--framework", "torch>=2.3"], json!({"resources": {"frameworks": {"torch": ">=2.3"}}})),
            (
                &["--on", "box", "--on", "zone=a"],
                json!({"resources": {"worker": "box", "labels": {"zone": "a"}}}),
            ),
            (&["--env", "A=b=c", "-e", "HERE"], json!({"env": {"A": "b=c", "HERE": "yes"}})),
            (&["--secret", "T=name:T"], json!({"secrets": [{"name": "T", "ref": "name:T"}]})),
            (
                &["-o", "m.json", "--output", "*.pt"],
                json!({"outputs": [{"path": "m.json"}, {"path": "*.pt"}]}),
            ),
            (&["--timeout", "90m", "--grace", "1.5"], json!({"timeout_s": 5400, "grace_s": 1.5})),
            (&["--stop-signal", "sigint"], json!({"stop_signal": "INT"})),
            (
                &["--retries", "2", "--retry-on", "any,oom_killed"],
                json!({"retry": {"max_attempts": 3, "retry_on": ["any", "oom_killed"]}}),
            ),
            (&["--array", "3-5%2"], json!({"array": {"start": 3, "count": 3, "max_running": 2}})),
            (
                &["--distributed", "--nodes", "2"],
                json!({"distributed": {"launcher": "torchrun", "nodes": 2}}),
            ),
            (&["--nproc-per-node", "gpu"], json!({"distributed": {"nodes": 1, "processes_per_node": "gpu"}})),
            (&["--priority", "-5", "--project", "p"], json!({"priority": -5, "project": "p"})),
        ];
        for (flags, expected) in table {
            let words: Vec<_> = flags.iter().copied().chain(["--", "true"]).collect();
            let mut expected = expected.clone();
            expected["workload"] = json!({"command": {"argv": ["true"]}});
            assert_eq!(drafted(&words, false).unwrap(), expected, "{flags:?}");
        }
    }

    #[test]
    fn argv_begins_after_the_dashes_or_at_the_first_plain_word() {
        let argv = |words: &[&str]| drafted(words, false).unwrap()["workload"]["command"]["argv"].clone();
        assert_eq!(argv(&["--", "-x", "--name"]), json!(["-x", "--name"]));
        assert_eq!(
            argv(&["python", "-c", "1", "--name", "x", "--", "y"]),
            json!(["python", "-c", "1", "--name", "x", "--", "y"])
        );
        assert_eq!(argv(&["--name", "x", "echo", "--json"]), json!(["echo", "--json"]));
        assert_eq!(argv(&["--", "sh", "--", "a"]), json!(["sh", "--", "a"]));
    }

    #[test]
    fn the_shell_of_the_own_daemon_is_recorded_unless_given() {
        assert_eq!(drafted(&["true"], true).unwrap()["env"], json!({"PATH": "/bin"}));
        assert_eq!(drafted(&["-e", "PATH=/x", "true"], true).unwrap()["env"], json!({"PATH": "/x"}));
    }

    #[test]
    fn flags_go_over_the_file_and_sizes_in_it_may_be_written_for_people() {
        let folder = tempfile::tempdir().unwrap();
        let expected = json!({
            "workload": {"command": {"argv": ["true"]}}, "name": "flag",
            "resources": {"memory_bytes": 2_147_483_648_u64}, "timeout_s": 5400, "env": {"X_s": "1m", "NO": "no"},
        });
        let files = [
            (
                "s.json",
                r#"{"name":"file","workload":{"command":{"argv":["true"]}},"resources":{"memory_bytes":"2GiB"},"timeout_s":"90m","env":{"X_s":"1m","NO":"no"}}"#,
            ),
            (
                "s.yaml",
                "name: file\nworkload: {command: {argv: ['true']}}\nresources: {memory_bytes: 2GiB}\ntimeout_s: 90m\nenv: {X_s: 1m, NO: no}\n",
            ),
            (
                "s.toml",
                "name = 'file'\ntimeout_s = '90m'\nworkload.command.argv = ['true']\nresources.memory_bytes = '2GiB'\nenv.X_s = '1m'\nenv.NO = 'no'\n",
            ),
        ];
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let words = ["--spec", path.to_str().unwrap(), "--name", "flag"];
            assert_eq!(drafted(&words, false).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn requirements_are_read_with_the_files_that_they_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join("more")).unwrap();
        write("all.txt", "# All\ntorch==2.4 \\\n    --hash=sha256:00\n-r more/base.txt  # the rest\n--pre\n");
        write("more/base.txt", "numpy\n\n-r itself.txt\n-c limits.txt\n");
        write("more/itself.txt", "-r itself.txt\n");
        let lines = requirement_lines(&folder.path().join("all.txt"), 0).unwrap();
        let expected =
            ["torch==2.4 \\", "--hash=sha256:00", "numpy", "-r itself.txt", "-c limits.txt", "--pre"];
        assert_eq!(lines, expected);
        write("more/base.txt", "-r absent.txt\n");
        let error = requirement_lines(&folder.path().join("all.txt"), 0).unwrap_err().to_string();
        assert!(error.contains("more/absent.txt"), "{error}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(matches!(drafted(&[], false), Err(CliError::NothingToRun)));
        assert!(matches!(drafted(&["--shell", "x", "true"], false), Err(CliError::TwoCommands)));
        for words in [["--env", "NOT_SET_HERE"], ["--gpus", "x"], ["--array", "5-3"], ["--label", "x"]] {
            let words: Vec<_> = words.into_iter().chain(["true"]).collect();
            assert!(matches!(drafted(&words, false), Err(CliError::Flag { .. })), "{words:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("env");
        std::fs::write(&file, "# A\nA=1\n\nnot this\n").unwrap();
        let words = ["--env-file", file.to_str().unwrap(), "true"];
        assert!(matches!(drafted(&words, false), Err(CliError::EnvFileLine { line: 4, .. })));
        for flag in ["--env-file", "--spec", "--requirements"] {
            let error = drafted(&[flag, "/nowhere/x", "true"], false).unwrap_err().to_string();
            assert_eq!(error, format!("{flag} /nowhere/x cannot be read"));
        }
        assert!(matches!(drafted(&["--timeout", "1y", "true"], false), Err(CliError::Quantity { .. })));
    }
}
