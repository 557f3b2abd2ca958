//! Bytes on disk: the content-addressed store, source bundles, and what crosses a workspace's border in either
//! direction. Owns the layout of `$GPULAYER_STATE/artifacts`. Everything here blocks and streams: memory does
//! not grow with the size of a file. Never does: permissions (a digest is no permission; callers check),
//! network, processes.

mod beneath;
pub mod bundle;
mod collect;
mod copy;
mod error;
mod links;
mod listing;
mod owner;
mod pack;
mod place;
mod remove;
mod snapshot;
mod store;
mod transfer;
mod unpack;
mod upload;
mod whole;

pub use beneath::{
    FolderId, RelativePath, RelativePathError, open_beneath, open_folder, open_folder_beneath,
};
pub use collect::{
    CollectError, Collected, CollectedContent, CollectedFile, collect, collect_in_real_folder,
};
pub use copy::{copy_contents, digest_of};
pub use error::ArtifactError;
pub use owner::give_contents;
pub use pack::{Packed, pack, unpack_packed};
pub use place::{place_input, place_reflink};
pub use remove::{RemoveError, empty_folder, remove_in, remove_tree};
pub use snapshot::Snapshot;
pub use store::{ArtifactStore, Limits};
pub use transfer::Imported;
pub use unpack::{UnpackError, UnpackLimits, Unpacked, unpack};
pub use upload::{Begun, Sender, Upload};
pub use whole::Whole;
