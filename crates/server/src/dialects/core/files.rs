//! Tools for files of a sandbox.

use super::{Core, MOST_TEXT};
use crate::dialect::ToolCall;
use crate::exec;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use msb_api::{EntryKind, Meta, Place};
use msb_spec::{Command, Error, Kind, Name, Result, Span};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Largest file, in bytes, that is edited or read by lines: it is held in memory.
const MOST_HELD: u64 = 16 << 20;
const SEARCH_LIMIT: Duration = Duration::from_secs(30);
const MOST_MATCHES: usize = 1000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileEncoding {
    #[default]
    Text,
    Base64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArguments {
    sandbox: Name,
    path: String,
    start_line: Option<usize>,
    lines: Option<usize>,
    #[serde(default)]
    encoding: FileEncoding,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    sandbox: Name,
    path: String,
    content: String,
    #[serde(default)]
    encoding: FileEncoding,
    #[serde(default)]
    append: bool,
    #[serde(default)]
    executable: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EditArguments {
    sandbox: Name,
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    all: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchArguments {
    sandbox: Name,
    path: Option<String>,
    pattern: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
}

impl Core {
    pub(super) fn file_read(&self, arguments: &ReadArguments) -> Result<Value> {
        self.awake(&arguments.sandbox)?;
        let at = Place::sandbox(&arguments.sandbox);
        let path = arguments.path.as_bytes();
        let meta = self.config.api.file_stat(&at, path, true)?;
        if meta.kind == EntryKind::Directory {
            let entries = self.config.api.file_list(&at, path)?;
            let lines: Vec<String> = entries.iter().map(listed).collect();
            return Ok(json!({
                "content": lines.join("\n"), "lines": lines.len(), "size": entries.len(),
                "note": "a directory",
            }));
        }
        let mut bytes = Vec::new();
        let held =
            if arguments.encoding == FileEncoding::Base64 { MOST_TEXT as u64 } else { MOST_HELD };
        self.config.api.file_read(&at, path, 0, Some(held), &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let cut = |shown: usize| {
            format!("only {shown} of {} bytes are shown; exec with head, tail or dd", meta.size)
        };
        if arguments.encoding == FileEncoding::Base64 {
            let mut answer = json!({"content": BASE64.encode(&bytes), "size": meta.size});
            if (bytes.len() as u64) < meta.size {
                answer["note"] = json!(cut(bytes.len()));
            }
            return Ok(answer);
        }
        let Ok(text) = str::from_utf8(&bytes) else {
            return Err(Error::invalid(format!("`{}` is not text", arguments.path))
                .hint("`encoding` `base64` reads any file"));
        };
        let start = arguments.start_line.unwrap_or(1).max(1);
        let all = text.lines().count();
        let mut content = String::new();
        let mut shown = 0;
        for line in text.split_inclusive('\n').skip(start - 1).take(arguments.lines.unwrap_or(2000))
        {
            if content.len() + line.len() > MOST_TEXT && !content.is_empty() {
                break;
            }
            content.push_str(line);
            shown += 1;
        }
        let mut answer = json!({"content": content, "lines": all, "size": meta.size});
        if start - 1 + shown < all {
            let next = start + shown;
            answer["note"] = json!(format!(
                "lines {start} to {} of {all}; go on with start_line {next}",
                next - 1
            ));
        }
        Ok(answer)
    }

    pub(super) fn file_write(&self, arguments: WriteArguments) -> Result<Value> {
        self.awake(&arguments.sandbox)?;
        let bytes = match arguments.encoding {
            FileEncoding::Text => arguments.content.into_bytes(),
            FileEncoding::Base64 => BASE64
                .decode(&arguments.content)
                .map_err(|error| Error::invalid("argument `content` is not base64").cause(error))?,
        };
        let at = Place::sandbox(&arguments.sandbox);
        let path = arguments.path.as_bytes();
        if let Some(parent) = std::path::Path::new(&arguments.path).parent()
            && !parent.as_os_str().is_empty()
        {
            use std::os::unix::ffi::OsStrExt;
            self.config.api.file_mkdir(&at, parent.as_os_str().as_bytes(), true)?;
        }
        let mode = if arguments.executable { 0o755 } else { 0o644 };
        let api = &self.config.api;
        let written = api.file_write(&at, path, mode, arguments.append, &mut bytes.as_slice())?;
        Ok(json!({"path": arguments.path, "bytes": written}))
    }

    pub(super) fn file_edit(&self, arguments: &EditArguments) -> Result<Value> {
        if arguments.old.is_empty() {
            return Err(
                Error::invalid("argument `old` is empty").hint("file_write writes a whole file")
            );
        }
        self.awake(&arguments.sandbox)?;
        let at = Place::sandbox(&arguments.sandbox);
        let path = arguments.path.as_bytes();
        let api = &self.config.api;
        let meta = api.file_stat(&at, path, true)?;
        if meta.size > MOST_HELD {
            return Err(Error::new(
                Kind::Limit,
                format!("`{}` is too large to edit", arguments.path),
            )
            .hint("exec with sed edits it in place"));
        }
        let mut bytes = Vec::new();
        api.file_read(&at, path, 0, Some(MOST_HELD), &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::invalid(format!("`{}` is not text", arguments.path)))?;
        let count = text.matches(&arguments.old).count();
        if count == 0 {
            return Err(Error::new(Kind::NotFound, "argument `old` does not occur in the file")
                .hint("file_read shows the text as it is, with its spaces"));
        }
        if count > 1 && !arguments.all {
            return Err(Error::invalid(format!("argument `old` occurs {count} times"))
                .hint("give more of the text around it, or `all`: true"));
        }
        let text = text.replace(&arguments.old, &arguments.new);
        let mode = meta.mode & 0o777;
        let written = api.file_write(&at, path, mode, false, &mut text.as_bytes())?;
        Ok(json!({"path": arguments.path, "bytes": written, "replaced": count}))
    }

    pub(super) fn file_search(&self, call: &ToolCall, arguments: SearchArguments) -> Result<Value> {
        self.awake(&arguments.sandbox)?;
        let limit = arguments.limit.unwrap_or(100).clamp(1, MOST_MATCHES);
        let path = arguments.path.unwrap_or_else(|| ".".to_owned());
        let path = if path.starts_with('-') { format!("./{path}") } else { path };
        let mut argv: Vec<String>;
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match (&arguments.pattern, &arguments.name) {
            (None, None) => {
                return Err(Error::invalid("`file_search` needs `pattern`, `name` or both"));
            }
            (None, Some(name)) => argv = words(&["find", &path, "-name", name]),
            (Some(pattern), name) => {
                argv = words(&["grep", "-rnIE"]);
                argv.extend(name.iter().map(|name| format!("--include={name}")));
                argv.extend(words(&["-e", pattern, "--", &path]));
            }
        }
        let tool = argv[0].clone();
        let timeout = Some(Span(SEARCH_LIMIT));
        let command = Command { argv, timeout, ..Command::default() };
        let api = self.config.api.as_ref();
        let most = MOST_TEXT.max(limit * 200);
        let captured = exec::run(api, &arguments.sandbox, command, None, most, &call.cancel)
            .map_err(|error| match error.kind() {
                Kind::CommandNotFound => error.hint(format!("this image has no `{tool}`")),
                _ => error,
            })?;
        let text = String::from_utf8_lossy(&captured.stdout);
        let matches: Vec<&str> = text.lines().take(limit).collect();
        // grep exits with 1 if nothing matches.
        let failed = !matches!(captured.exit.code, Some(0 | 1)) && matches.is_empty();
        if failed {
            let said = String::from_utf8_lossy(&captured.stderr).trim().to_owned();
            return Err(Error::new(Kind::Invalid, format!("the search failed: {said}")));
        }
        let mut answer = json!({"matches": matches});
        if captured.stdout_bytes > text.len() as u64 || text.lines().count() > limit {
            answer["note"] = json!(format!("the first {}; there are more", matches.len()));
        }
        Ok(answer)
    }
}

/// One line of a directory listing.
fn listed(meta: &Meta) -> String {
    let name = String::from_utf8_lossy(&meta.name);
    match &meta.kind {
        EntryKind::Directory => format!("{name}/"),
        EntryKind::Symlink(target) => format!("{name} -> {}", String::from_utf8_lossy(target)),
        _ => format!("{name} ({} bytes)", meta.size),
    }
}
