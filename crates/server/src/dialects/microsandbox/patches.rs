//! Changes to the files of a sandbox before its first start.

use super::Microsandbox;
use super::create::SandboxRequest;
use super::envelope::ToolFailure;
use super::exec::decoded;
use msb_spec::{GuestPath, Patch};
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PatchParams {
    kind: PatchKind,
    r#type: Option<PatchKind>,
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
enum PatchKind {
    Text,
    File,
    CopyFile,
    CopyDir,
    Mkdir,
    Append,
    Remove,
    Symlink,
}

impl PatchKind {
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

impl PatchParams {
    /// Refuses options that are meaningless for the kind of patch.
    fn check(&self) -> Result<(), ToolFailure> {
        use PatchKind::{Append, CopyDir, CopyFile, File, Mkdir, Symlink, Text};
        let kind = self.kind;
        if self.r#type.is_some_and(|other| other != kind) {
            return Err(ToolFailure::new("kind and type of a patch differ; kind is enough"));
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
                Err(ToolFailure::new(format!("{what} has no meaning for a {} patch", kind.name())))
            }
            None => Ok(()),
        }
    }

    fn place(&self) -> Result<GuestPath, ToolFailure> {
        let link = self.link_path.as_ref().filter(|_| self.kind == PatchKind::Symlink);
        let place = link.or(self.path.as_ref()).or(self.guest_path.as_ref());
        let missing = || ToolFailure::new(format!("{} patch requires path", self.kind.name()));
        Ok(GuestPath::parse(place.ok_or_else(missing)?)?)
    }

    fn bytes(&self) -> Result<Vec<u8>, ToolFailure> {
        match (&self.content_base64, &self.content) {
            (Some(text), _) => decoded("contentBase64", text),
            (None, text) => Ok(text.clone().unwrap_or_default().into_bytes()),
        }
    }

    fn mode(&self) -> Result<Option<u32>, ToolFailure> {
        let Some(mode) = self.mode else {
            return Ok(None);
        };
        let well = u32::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
        well.map(Some).ok_or_else(|| {
            ToolFailure::new(format!("invalid file mode: {mode}"))
                .detail("hint", "it is a decimal number: 420 is 0644, 493 is 0755")
        })
    }
}

impl Microsandbox {
    pub(super) fn patch(
        &self,
        request: &mut SandboxRequest,
        params: &PatchParams,
    ) -> Result<(), ToolFailure> {
        params.check()?;
        let (path, mode) = (params.place()?, params.mode()?);
        let patches = &mut request.spec.patches;
        if params.replace == Some(false) {
            patches.push(Patch::Absent { path: path.clone() });
        }
        let place = path.clone();
        patches.push(match params.kind {
            PatchKind::Text | PatchKind::File => match String::from_utf8(params.bytes()?) {
                Ok(content) => Patch::Text { path, content, mode: None },
                Err(error) => Patch::Bytes { path, content: error.into_bytes() },
            },
            PatchKind::Append => {
                let content = String::from_utf8(params.bytes()?)
                    .map_err(|_| ToolFailure::new("only text can be appended"))?;
                Patch::Append { path, content }
            }
            PatchKind::CopyFile | PatchKind::CopyDir => {
                Patch::Copy { from: self.copied(params)?, to: path }
            }
            PatchKind::Mkdir => Patch::Mkdir { path },
            PatchKind::Remove => Patch::Remove { path },
            PatchKind::Symlink => {
                let missing = || ToolFailure::new("symlink patch requires target");
                let target = params.target.clone().ok_or_else(missing)?;
                Patch::Symlink { path, target }
            }
        });
        patches.extend(mode.map(|mode| Patch::Mode { path: place, mode }));
        Ok(())
    }

    /// The host file or directory to copy.
    fn copied(&self, params: &PatchParams) -> Result<PathBuf, ToolFailure> {
        let missing =
            || ToolFailure::new(format!("{} patch requires hostPath", params.kind.name()));
        let from = self.host_path(params.host_path.as_ref().ok_or_else(missing)?)?;
        let file = params.kind == PatchKind::CopyFile;
        if from.is_file() != file {
            let kind = if file { "file" } else { "directory" };
            return Err(ToolFailure::new(format!("not a {kind}: {}", from.display())));
        }
        Ok(from)
    }
}
