//! Profiles: one word for an accelerator and the framework on it. A profile adds to what the spec says and takes
//! nothing away.

use super::Shape;
use crate::contract::spec::{GpuCount, GpuRequest};

/// A name, the vendor of its GPUs, and its framework with what that computes on.
type Profile = (&'static str, Option<&'static str>, Option<(&'static str, &'static str)>);

/// What each stands for.
const TABLE: &[Profile] = &[
    ("cpu", None, None),
    ("pytorch-cpu", None, Some(("torch", "cpu"))),
    ("pytorch-cuda", Some("nvidia"), Some(("torch", "cuda"))),
    ("pytorch-mps", Some("apple"), Some(("torch", "mps"))),
    ("pytorch-rocm", Some("amd"), Some(("torch", "rocm"))),
    ("mlx", Some("apple"), Some(("mlx", "metal"))),
];

/// Their names.
pub const PROFILES: [&str; TABLE.len()] = {
    let mut names = [""; TABLE.len()];
    let mut index = 0;
    while index < TABLE.len() {
        names[index] = TABLE[index].0;
        index += 1;
    }
    names
};

/// The vendor of a profile's GPUs; `None` = it wants none.
pub fn vendor_of(profile: &str) -> Option<&'static str> {
    TABLE.iter().find(|(name, ..)| *name == profile).and_then(|(_, vendor, _)| *vendor)
}

/// Adds what a profile asks for: one GPU of its vendor when none is asked for, its framework in any version, and what
/// that has to compute on.
pub(super) fn apply(profile: &str, shape: &mut Shape) {
    let Some((_, vendor, framework)) = TABLE.iter().find(|(name, ..)| *name == profile) else { return };
    if let Some(vendor) = vendor {
        let one = || Box::new(GpuRequest::of(GpuCount::Count(1)));
        let gpus = shape.resources.gpus.get_or_insert_with(one);
        gpus.vendor.get_or_insert_with(|| (*vendor).to_owned());
    }
    if let Some((name, backend)) = framework {
        shape.resources.frameworks.entry((*name).to_owned()).or_default();
        shape.backends.insert((*name).to_owned(), (*backend).to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_adds_and_takes_nothing_away() {
        let mut shape = Shape::default();
        apply("pytorch-cuda", &mut shape);
        let gpus = shape.resources.gpus.as_ref().unwrap();
        assert_eq!((gpus.count, gpus.vendor.as_deref()), (GpuCount::Count(1), Some("nvidia")));
        assert_eq!(shape.backends["torch"], "cuda");

        let mut asked = Shape::default();
        apply("pytorch-cuda", &mut asked);
        asked.resources.gpus.as_mut().unwrap().count = GpuCount::Count(4);
        asked.resources.frameworks.insert("torch".into(), ">=2.3".into());
        let before = asked.clone();
        apply("pytorch-cuda", &mut asked);
        assert_eq!(asked, before);

        let mut plain = Shape::default();
        apply("cpu", &mut plain);
        assert_eq!(plain, Shape::default());
    }
}
