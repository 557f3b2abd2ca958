//! `--source auto`: which folder a command's source is in.

use std::path::{Path, PathBuf};

/// What marks the top of a project.
const MARKERS: [&str; 3] = [".git", "pyproject.toml", ".gpulayerignore"];

/// A folder to bundle, and where in it the command was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRoot {
    /// The folder, all links in its path resolved.
    pub root: PathBuf,
    /// The current folder relative to it; empty at the top.
    pub cwd: PathBuf,
}

/// The nearest folder from `cwd` upwards with `.git`, `pyproject.toml` or `.gpulayerignore`; else `cwd` itself
/// when `argv` names a file in it, or a Python module of it after `-m`; else none. Never `/`, `home` or a folder that
/// holds `home`.
pub fn source_root(cwd: &Path, argv: &[String], home: Option<&Path>) -> Option<SourceRoot> {
    let cwd = cwd.canonicalize().ok()?;
    let home = home.and_then(|home| home.canonicalize().ok());
    let allowed = |folder: &Path| {
        folder.parent().is_some() && !home.as_ref().is_some_and(|home| home.starts_with(folder))
    };
    let marked = |folder: &&Path| MARKERS.iter().any(|marker| folder.join(marker).symlink_metadata().is_ok());
    let marked = cwd.ancestors().take_while(|folder| allowed(folder)).find(marked);
    let root = match marked {
        Some(root) => root,
        None if allowed(&cwd)
            && (argv.iter().any(|word| names_file(&cwd, word)) || names_module(&cwd, argv)) =>
        {
            &cwd
        }
        None => return None,
    };
    let below = cwd.strip_prefix(root).ok()?.to_owned();
    Some(SourceRoot { root: root.to_owned(), cwd: below })
}

/// `train.py`, `./run.sh` or `--config=conf.yaml`; an absolute path would not be there on a worker.
fn names_file(cwd: &Path, word: &str) -> bool {
    let candidates = [Some(word), word.split_once('=').map(|(_, value)| value)];
    candidates.into_iter().flatten().any(|text| {
        let path = Path::new(text);
        let inside = path
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
        !text.is_empty() && inside && cwd.join(path).is_file()
    })
}

/// `python -m train.loop`: `train.py` or a folder `train` here.
fn names_module(cwd: &Path, argv: &[String]) -> bool {
    let module = argv.iter().skip_while(|word| *word != "-m").nth(1);
    let top = module.and_then(|module| module.split('.').next()).filter(|top| {
        !top.is_empty() && top.chars().all(|character| character == '_' || character.is_alphanumeric())
    });
    top.is_some_and(|top| cwd.join(format!("{top}.py")).is_file() || cwd.join(top).is_dir())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_nearest_marker_wins() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("repo/.git")).unwrap();
        fs::create_dir_all(top.join("repo/pkg/deep")).unwrap();
        fs::write(top.join("repo/pkg/pyproject.toml"), "").unwrap();
        let found = source_root(&top.join("repo/pkg/deep"), &words("true"), Some(&top)).unwrap();
        assert_eq!(found, SourceRoot { root: top.join("repo/pkg"), cwd: "deep".into() });
        let found = source_root(&top.join("repo"), &words("true"), Some(&top)).unwrap();
        assert_eq!(found, SourceRoot { root: top.join("repo"), cwd: "".into() });
    }

    #[test]
    fn without_a_marker_a_named_file_decides() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().canonicalize().unwrap();
        let here = top.join("scratch");
        fs::create_dir_all(here.join("sub")).unwrap();
        fs::write(here.join("train.py"), "").unwrap();
        fs::write(here.join("sub/conf"), "").unwrap();
        let some = Some(SourceRoot { root: here.clone(), cwd: "".into() });
        assert_eq!(source_root(&here, &words("python ./train.py"), Some(&top)), some);
        assert_eq!(source_root(&here, &words("python -m x --config=sub/conf"), Some(&top)), some);
        assert_eq!(source_root(&here, &words("python -m train --lr 1"), Some(&top)), some);
        assert_eq!(source_root(&here, &words("python -m sub.tool"), Some(&top)), some);
        assert_eq!(source_root(&here, &words("python -m http.server"), Some(&top)), None);
        assert_eq!(source_root(&here, &words("nvidia-smi"), Some(&top)), None);
        assert_eq!(source_root(&here, &words("cat sub"), Some(&top)), None);
        assert_eq!(source_root(&here.join("sub"), &words("cat ../train.py"), Some(&top)), None);
    }

    #[test]
    fn never_home_nor_what_holds_it() {
        let above = tempfile::tempdir().unwrap();
        let above = above.path().canonicalize().unwrap();
        let home = above.join("ann");
        fs::create_dir_all(home.join(".git")).unwrap();
        fs::create_dir_all(home.join("work")).unwrap();
        fs::create_dir_all(above.join(".git")).unwrap();
        fs::write(home.join("x.py"), "").unwrap();
        assert_eq!(source_root(&home, &words("python x.py"), Some(&home)), None);
        assert_eq!(source_root(&home.join("work"), &words("true"), Some(&home)), None);
        assert_eq!(source_root(&above, &words("true"), Some(&home)), None);
        assert_eq!(source_root(Path::new("/"), &words("cat etc/hostname"), None), None);
    }
}
