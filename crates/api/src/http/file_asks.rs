//! Files of sandboxes and volumes, but for their bytes.

use super::answers::{Done, FileMeta, RealPath};
use super::place::{InsidePath, Where};
use super::table;
use crate::files::{Attributes, Copied};
use msb_spec::{Name, UserRef, VolumeName};
use std::path::PathBuf;

/// The same with the members that say where.
macro_rules! file_asks {
    ($(
        $(#[doc = $about:literal])+
        $ask:ident = $name:literal $method:ident $path:literal
        { $( $(#[$meta:meta])+ $field:ident: $type:ty ),* $(,)? } -> $answer:ty
        = |$it:ident, $api:ident, $at:ident| $done:expr;
    )*) => {
        table! {$(
            $(#[doc = $about])+
            $ask = $name $method $path {
                /// The sandbox, which runs; or `volume`.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                sandbox: Option<Name>,
                /// The volume; or `sandbox`.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                volume: Option<VolumeName>,
                /// Who looks and owns what is made, in a sandbox; root if it is not said.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                user: Option<UserRef>,
                $( $(#[$meta])+ $field: $type ),*
            } -> $answer = |$it, $api, _watch| {
                let (sandbox, volume) = ($it.sandbox.clone(), $it.volume.clone());
                let $at = &Where { sandbox, volume, user: $it.user.clone() }.place()?;
                $done
            };
        )*}

        $(
            impl $ask {
                /// At this place.
                #[must_use]
                pub fn at(place: &crate::Place, $( $field: $type ),*) -> Self {
                    let Where { sandbox, volume, user } = place.into();
                    Self { sandbox, volume, user, $( $field ),* }
                }
            }
        )*
    };
}

file_asks! {
    /// What a path is.
    FileStat = "file_stat" Get "/api/v1/files/stat" {
        /// Which.
        path: InsidePath,
        /// Whether a link is followed.
        #[serde(default)]
        follow: bool,
    } -> FileMeta = |it, api, at| api.file_stat(at, &it.path.0, it.follow).map(FileMeta::from);

    /// Where a path leads: absolute and without links, and from the user's home if it is relative.
    FileReal = "file_real" Get "/api/v1/files/real" {
        /// Which.
        path: InsidePath,
    } -> RealPath = |it, api, at| {
        Ok(RealPath { path: InsidePath(api.file_real(at, &it.path.0)?) })
    };

    /// The entries of a directory, sorted by name.
    FileList = "file_list" Get "/api/v1/files/list" {
        /// Which.
        path: InsidePath,
    } -> Vec<FileMeta> = |it, api, at| {
        Ok(api.file_list(at, &it.path.0)?.into_iter().map(FileMeta::from).collect())
    };

    /// Makes a directory.
    FileMkdir = "file_mkdir" Post "/api/v1/files/mkdir" {
        /// Which.
        path: InsidePath,
        /// Whether those above are made as well, and it may be there.
        #[serde(default)]
        parents: bool,
    } -> Done = |it, api, at| api.file_mkdir(at, &it.path.0, it.parents).map(|()| Done {});

    /// Removes a file or an empty directory.
    FileRemove = "file_remove" Delete "/api/v1/files" {
        /// Which.
        path: InsidePath,
        /// Whatever it is and holds, if it is there.
        #[serde(default)]
        recursive: bool,
    } -> Done = |it, api, at| api.file_remove(at, &it.path.0, it.recursive).map(|()| Done {});

    /// Renames, replacing what is there.
    FileRename = "file_rename" Post "/api/v1/files/rename" {
        /// Which.
        from: InsidePath,
        /// What it is called then.
        to: InsidePath,
    } -> Done = |it, api, at| api.file_rename(at, &it.from.0, &it.to.0).map(|()| Done {});

    /// Copies a file or tree within the place.
    FileCopy = "file_copy" Post "/api/v1/files/copy" {
        /// Which.
        from: InsidePath,
        /// Where to.
        to: InsidePath,
    } -> Done = |it, api, at| api.file_copy(at, &it.from.0, &it.to.0).map(|()| Done {});

    /// Makes a symbolic link, replacing a link or file that is there.
    FileSymlink = "file_symlink" Post "/api/v1/files/symlink" {
        /// The link.
        path: InsidePath,
        /// What it says.
        target: InsidePath,
    } -> Done = |it, api, at| api.file_symlink(at, &it.path.0, &it.target.0).map(|()| Done {});

    /// Changes whose a file or directory is and what its permissions are; a link is followed.
    FileSet = "file_set" Post "/api/v1/files/attributes" {
        /// Which.
        path: InsidePath,
        /// What is to be; what is absent stays as it is.
        attributes: Attributes,
    } -> Done = |it, api, at| api.file_set(at, &it.path.0, &it.attributes).map(|()| Done {});

    /// Copies a file or tree of the server's host in, if its paths are allowed.
    FilePush = "file_push" Post "/api/v1/files/push" {
        /// On the host.
        from: PathBuf,
        /// Inside; below it by its name if it is a directory.
        to: InsidePath,
    } -> Copied = |it, api, at| api.file_push(at, &it.from, &it.to.0);

    /// Copies a file or tree out to the server's host, if its paths are allowed.
    FilePull = "file_pull" Post "/api/v1/files/pull" {
        /// Inside.
        from: InsidePath,
        /// On the host; below it by its name if it is a directory.
        to: PathBuf,
    } -> Copied = |it, api, at| api.file_pull(at, &it.from.0, &it.to);
}
