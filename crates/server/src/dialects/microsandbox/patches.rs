//! Changes to the files of a sandbox before anything runs in it.

use super::Microsandbox;
use super::create::Wanted;
use super::envelope::Failure;
use super::exec::decoded;
use msb_spec::{GuestPath, Patch};
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PatchAsked {
    kind: Kind,
    r#type: Option<Kind>,
    path: Option<String>,
    guest_path: Option<String>,
    host_path: Option<String>,
    content: Option<String>,
    content_base64: Option<String>,
    target: Option<String>,
    link_path: Option<String>,
    mode: Option<i64>,
    replace: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Text,
    File,
    CopyFile,
    CopyDir,
    Mkdir,
    Append,
    Remove,
    Symlink,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::File => "file",
            Self::CopyFile => "copyFile",
            Self::CopyDir => "copyDir",
            Self::Mkdir => "mkdir",
            Self::Append => "append",
            Self::Remove => "remove",
            Self::Symlink => "symlink",
        }
    }
}

impl PatchAsked {
    /// What has no meaning for its kind.
    fn check(&self) -> Result<(), Failure> {
        use Kind::{Append, CopyDir, CopyFile, File, Mkdir, Symlink, Text};
        let kind = self.kind;
        if self.r#type.is_some_and(|other| other != kind) {
            return Err(Failure::new("kind and type of a patch differ; kind is enough"));
        }
        let holds = matches!(kind, Text | File | Append);
        let checks = [
            ("hostPath", self.host_path.is_some(), matches!(kind, CopyFile | CopyDir)),
            ("content", self.content.is_some(), holds),
            ("contentBase64", self.content_base64.is_some(), holds),
            ("target", self.target.is_some(), kind == Symlink),
            ("linkPath", self.link_path.is_some(), kind == Symlink),
            ("mode", self.mode.is_some(), matches!(kind, Text | File | CopyFile | Mkdir)),
            (
                "replace",
                self.replace.is_some(),
                matches!(kind, Text | File | CopyFile | CopyDir | Symlink),
            ),
        ];
        match checks.iter().find(|(_, given, meant)| *given && !meant) {
            Some((what, ..)) => {
                Err(Failure::new(format!("{what} has no meaning for a {} patch", kind.name())))
            }
            None => Ok(()),
        }
    }

    fn place(&self) -> Result<GuestPath, Failure> {
        let link = self.link_path.as_ref().filter(|_| self.kind == Kind::Symlink);
        let place = link.or(self.path.as_ref()).or(self.guest_path.as_ref());
        let missing = || Failure::new(format!("{} patch requires path", self.kind.name()));
        Ok(GuestPath::parse(place.ok_or_else(missing)?)?)
    }

    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        match (&self.content_base64, &self.content) {
            (Some(text), _) => decoded("contentBase64", text),
            (None, text) => Ok(text.clone().unwrap_or_default().into_bytes()),
        }
    }

    fn mode(&self) -> Result<Option<u32>, Failure> {
        let Some(mode) = self.mode else {
            return Ok(None);
        };
        let well = u32::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
        well.map(Some).ok_or_else(|| {
            Failure::new(format!("mode is not one of a file: {mode}"))
                .detail("hint", "it is a plain number: 420 is 0644, 493 is 0755")
        })
    }
}

impl Microsandbox {
    pub(super) fn patch(&self, wanted: &mut Wanted, asked: &PatchAsked) -> Result<(), Failure> {
        asked.check()?;
        let (path, mode) = (asked.place()?, asked.mode()?);
        let patches = &mut wanted.spec.patches;
        if asked.replace == Some(false) {
            patches.push(Patch::Absent { path: path.clone() });
        }
        let place = path.clone();
        patches.push(match asked.kind {
            Kind::Text | Kind::File => match String::from_utf8(asked.bytes()?) {
                Ok(content) => Patch::Text { path, content, mode: None },
                Err(error) => Patch::Bytes { path, content: error.into_bytes() },
            },
            Kind::Append => {
                let content = String::from_utf8(asked.bytes()?)
                    .map_err(|_| Failure::new("only text can be appended"))?;
                Patch::Append { path, content }
            }
            Kind::CopyFile | Kind::CopyDir => Patch::Copy { from: self.copied(asked)?, to: path },
            Kind::Mkdir => Patch::Mkdir { path },
            Kind::Remove => Patch::Remove { path },
            Kind::Symlink => {
                let missing = || Failure::new("symlink patch requires target");
                let target = asked.target.clone().ok_or_else(missing)?;
                Patch::Symlink { path, target }
            }
        });
        patches.extend(mode.map(|mode| Patch::Mode { path: place, mode }));
        Ok(())
    }

    /// The file or directory of the host that is to be copied.
    fn copied(&self, asked: &PatchAsked) -> Result<PathBuf, Failure> {
        let missing = || Failure::new(format!("{} patch requires hostPath", asked.kind.name()));
        let from = self.host_path(asked.host_path.as_ref().ok_or_else(missing)?)?;
        let file = asked.kind == Kind::CopyFile;
        if from.is_file() != file {
            let kind = if file { "file" } else { "directory" };
            return Err(Failure::new(format!("not a {kind}: {}", from.display())));
        }
        Ok(from)
    }
}
