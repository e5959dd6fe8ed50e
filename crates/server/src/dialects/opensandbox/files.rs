//! Reads and changes files.

use super::arguments::{MkdirArgs, MoveArgs, PathsArgs, ReadArgs, ReplaceArgs, WriteArgs};
use super::connections::SandboxConnection;
use super::encoding::TextEncoding;
use super::output::{FileContent, ReplaceOutput};
use super::{OpenSandboxState, ToolOutput, argument_error, labels};
use crate::dialect::ToolCall;
use msb_api::{Attributes, EntryKind, Place};
use msb_spec::{Error, Kind, Result, UserRef};

/// Largest file in bytes; larger ones are read in parts, as no model can use them whole.
const READ_LIMIT: u64 = 8 << 20;

impl SandboxConnection {
    /// The files of the sandbox, as its commands see them.
    pub(super) fn files(&self) -> Place {
        Place::Sandbox { name: self.name.clone(), user: self.user.clone() }
    }
}

impl OpenSandboxState {
    pub(super) fn read(&self, call: &ToolCall, arguments: &ReadArgs) -> Result<ToolOutput> {
        let path = absolute("path", &arguments.path)?;
        let encoding = TextEncoding::parse(&arguments.encoding)?;
        let range = arguments.range_header.as_deref().map(ByteRange::parse).transpose()?;
        let connection = self.connected(call, arguments)?;
        let size = self.api().file_stat(&connection.files(), path, true)?.size;
        let (offset, length) = match &range {
            Some(range) => range.resolve(size)?,
            None => (0, size),
        };
        let bytes = self.bytes(&connection.files(), path, offset, length)?;
        let content = encoding.decode(&bytes, range.is_some())?;
        ToolOutput::one(&FileContent { path: arguments.path.clone(), content })
    }

    /// Reads part of a file. Bytes that were appended since its size was read are dropped, except
    /// for
    /// size 0: files of /proc report that and are not empty.
    pub(super) fn bytes(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>> {
        let large = || {
            let what = format!("larger than {} MiB: {length} bytes", READ_LIMIT >> 20);
            Error::new(Kind::Limit, what).hint("read a part of it with `range_header`")
        };
        if length > READ_LIMIT {
            return Err(large());
        }
        let most = if length == 0 { READ_LIMIT } else { length };
        let mut bytes = Vec::new();
        self.api().file_read(at, path, offset, Some(most), &mut |piece| {
            bytes.extend_from_slice(piece);
            // The guest may send more than was requested.
            if bytes.len() as u64 > READ_LIMIT { Err(large()) } else { Ok(()) }
        })?;
        Ok(bytes)
    }

    pub(super) fn write(&self, call: &ToolCall, arguments: &WriteArgs) -> Result<ToolOutput> {
        let path = absolute("path", &arguments.path)?;
        let content = TextEncoding::parse(&arguments.encoding)?.encode(&arguments.content)?;
        let owner = (arguments.owner.as_deref(), arguments.group.as_deref());
        let attributes = attributes(arguments.mode, owner)?;
        let connection = self.connected(call, arguments)?;
        let mode = attributes.mode.unwrap_or_default();
        self.api().file_write(&connection.files(), path, mode, false, &mut content.as_slice())?;
        self.set_attributes(&connection, path, &attributes)?;
        ToolOutput::status("written")
    }

    /// Changes owner and mode as root, because only root may change owners.
    fn set_attributes(
        &self,
        connection: &SandboxConnection,
        path: &[u8],
        attributes: &Attributes,
    ) -> Result<()> {
        let given = attributes.owner.is_some() || attributes.group.is_some();
        let at = if given { Place::sandbox(&connection.name) } else { connection.files() };
        self.api().file_set(&at, path, attributes)
    }

    pub(super) fn delete(&self, call: &ToolCall, arguments: &PathsArgs) -> Result<ToolOutput> {
        let paths = all_absolute(&arguments.paths)?;
        let connection = self.connected(call, arguments)?;
        for_each("removed", &paths, |path| {
            let found = match self.api().file_stat(&connection.files(), path, false) {
                Err(error) if labels::is_gone(&error) => return Ok(()),
                found => found?,
            };
            match found.kind {
                EntryKind::Directory => {
                    Err(Error::invalid(format!("`{}` is a directory", display_path(path)))
                        .hint("`file_delete_directories` removes directories"))
                }
                _ => self.api().file_remove(&connection.files(), path, false),
            }
        })?;
        ToolOutput::status("deleted")
    }

    pub(super) fn make_directories(
        &self,
        call: &ToolCall,
        arguments: &MkdirArgs,
    ) -> Result<ToolOutput> {
        let mut wanted = Vec::new();
        for entry in &arguments.entries {
            let owner = (entry.owner.as_deref(), entry.group.as_deref());
            wanted.push((absolute("entries.path", &entry.path)?, attributes(entry.mode, owner)?));
        }
        let connection = self.connected(call, arguments)?;
        for_each("created", &wanted, |(path, attributes)| {
            match self.api().file_stat(&connection.files(), path, true) {
                // An existing directory keeps its attributes.
                Ok(found) if found.kind == EntryKind::Directory => Ok(()),
                Ok(_) => {
                    Err(Error::new(Kind::Exists, format!("`{}` is a file", display_path(path))))
                }
                Err(error) if labels::is_gone(&error) => {
                    self.api().file_mkdir(&connection.files(), path, true)?;
                    self.set_attributes(&connection, path, attributes)
                }
                Err(error) => Err(error),
            }
        })?;
        ToolOutput::status("created")
    }

    pub(super) fn delete_directories(
        &self,
        call: &ToolCall,
        arguments: &PathsArgs,
    ) -> Result<ToolOutput> {
        let paths = all_absolute(&arguments.paths)?;
        let connection = self.connected(call, arguments)?;
        for_each("removed", &paths, |path| {
            match self.api().file_stat(&connection.files(), path, false) {
                Ok(found) if found.kind != EntryKind::Directory => {
                    Err(Error::invalid(format!("`{}` is not a directory", display_path(path)))
                        .hint("`file_delete` removes files"))
                }
                Ok(_) => self.api().file_remove(&connection.files(), path, true),
                Err(error) if labels::is_gone(&error) => Ok(()),
                Err(error) => Err(error),
            }
        })?;
        ToolOutput::status("deleted")
    }

    pub(super) fn move_files(&self, call: &ToolCall, arguments: &MoveArgs) -> Result<ToolOutput> {
        let mut wanted = Vec::new();
        for entry in &arguments.entries {
            let from = absolute("entries.source", &entry.source)?;
            wanted.push((from, absolute("entries.destination", &entry.destination)?));
        }
        let connection = self.connected(call, arguments)?;
        for_each("moved", &wanted, |(from, to)| {
            self.api().file_stat(&connection.files(), from, false)?;
            match self.api().file_stat(&connection.files(), to, false) {
                Ok(_) => {
                    return Err(Error::new(
                        Kind::Exists,
                        format!("`{}` is there already", display_path(to)),
                    )
                    .hint("remove it first, or choose another destination"));
                }
                Err(error) if labels::is_gone(&error) => {}
                Err(error) => return Err(error),
            }
            let parent = to.iter().rposition(|byte| *byte == b'/').map_or(&to[..0], |at| &to[..at]);
            if !parent.is_empty() {
                self.api().file_mkdir(&connection.files(), parent, true)?;
            }
            self.api().file_rename(&connection.files(), from, to)
        })?;
        ToolOutput::status("moved")
    }

    pub(super) fn replace(&self, call: &ToolCall, arguments: &ReplaceArgs) -> Result<ToolOutput> {
        for entry in &arguments.entries {
            absolute("entries.path", &entry.path)?;
            if entry.old_content.is_empty() {
                return Err(argument_error("entries.old_content", "it must not be empty"));
            }
        }
        let connection = self.connected(call, arguments)?;
        let mut replaced = Vec::new();
        for_each("edited", &arguments.entries, |entry| {
            let path = entry.path.as_bytes();
            let size = self.api().file_stat(&connection.files(), path, true)?.size;
            let before = self.bytes(&connection.files(), path, 0, size)?;
            let (old, new) = (entry.old_content.as_bytes(), entry.new_content.as_bytes());
            let (after, count) = substitute(&before, old, new);
            if count > 0 {
                // An existing file keeps its permissions.
                self.api().file_write(
                    &connection.files(),
                    path,
                    0o644,
                    false,
                    &mut after.as_slice(),
                )?;
            }
            replaced.push(ReplaceOutput { path: entry.path.clone(), replaced_count: count });
            Ok(())
        })?;
        ToolOutput::many(&replaced)
    }
}

/// Applies a function to all items. The error says how many were done before it.
fn for_each<T>(done: &str, all: &[T], mut act: impl FnMut(&T) -> Result<()>) -> Result<()> {
    for (number, one) in all.iter().enumerate() {
        act(one).map_err(|error| match number {
            0 => error,
            _ => error.cause(format!("the {number} before it were {done}")),
        })?;
    }
    Ok(())
}

/// Replaces every occurrence, from the left; returns the count, too.
fn substitute(text: &[u8], old: &[u8], new: &[u8]) -> (Vec<u8>, u64) {
    let (mut result, mut count, mut from) = (Vec::with_capacity(text.len()), 0, 0);
    while let Some(at) = text[from..].windows(old.len()).position(|window| window == old) {
        result.extend_from_slice(&text[from..from + at]);
        result.extend_from_slice(new);
        from += at + old.len();
        count += 1;
    }
    result.extend_from_slice(&text[from..]);
    (result, count)
}

/// Checks that a path inside is absolute.
pub(super) fn absolute<'a>(argument: &str, path: &'a str) -> Result<&'a [u8]> {
    if path.starts_with('/') && !path.contains('\0') {
        return Ok(path.as_bytes());
    }
    Err(argument_error(argument, format!("not an absolute path: `{}`", msb_spec::shown(path)))
        .hint("a path inside begins with `/`"))
}

fn all_absolute(paths: &[String]) -> Result<Vec<&[u8]>> {
    paths.iter().map(|path| absolute("paths", path)).collect()
}

fn display_path(path: &[u8]) -> String {
    msb_spec::shown(&String::from_utf8_lossy(path)).to_string()
}

/// Attributes from a mode in decimal digits that are read as octal: 755 is 0o755.
fn attributes(mode: u32, (owner, group): (Option<&str>, Option<&str>)) -> Result<Attributes> {
    let octal = u32::from_str_radix(&mode.to_string(), 8).ok().filter(|mode| *mode <= 0o7777);
    let mode = octal.ok_or_else(|| {
        argument_error("mode", format!("not permissions: `{mode}`"))
            .hint("write them as 644 or 755")
    })?;
    let user = |argument: &str, name: &str| match UserRef::parse(name) {
        Ok(user) if user.group().is_none() => Ok(user),
        _ => Err(argument_error(argument, format!("not a name: `{}`", msb_spec::shown(name)))),
    };
    Ok(Attributes {
        mode: Some(mode),
        owner: owner.map(|name| user("owner", name)).transpose()?,
        group: group.map(|name| user("group", name)).transpose()?,
    })
}

/// A byte range, as in the HTTP `Range` header.
#[derive(Debug, PartialEq, Eq)]
enum ByteRange {
    /// From this offset to another, or to the end.
    From(u64, Option<u64>),
    /// This many bytes at the end.
    Last(u64),
}

impl ByteRange {
    fn parse(text: &str) -> Result<Self> {
        let argument_error = || {
            argument_error(
                "range_header",
                format!("not one range of bytes: `{}`", msb_spec::shown(text)),
            )
            .hint("write it as `bytes=0-99`, `bytes=100-` or `bytes=-100`")
        };
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().map_err(|_| argument_error()),
            false => Err(argument_error()),
        };
        let range = text.trim().strip_prefix("bytes=").ok_or_else(argument_error)?;
        match range.split_once('-').ok_or_else(argument_error)? {
            ("", last) => Ok(Self::Last(number(last)?)),
            (from, "") => Ok(Self::From(number(from)?, None)),
            (from, to) => {
                let (from, to) = (number(from)?, number(to)?);
                if from <= to { Ok(Self::From(from, Some(to))) } else { Err(argument_error()) }
            }
        }
    }

    /// Offset and length in a file of this size.
    fn resolve(&self, size: u64) -> Result<(u64, u64)> {
        match *self {
            Self::Last(count) if count > 0 && size > 0 => {
                let count = count.min(size);
                Ok((size - count, count))
            }
            Self::From(from, to) if from < size => {
                let end = to.map_or(size, |to| to.saturating_add(1).min(size));
                Ok((from, end - from))
            }
            _ => Err(argument_error("range_header", format!("the file has only {size} bytes"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_http() {
        for (text, place) in [
            ("bytes=0-3", (0, 4)),
            ("bytes=5-", (5, 5)),
            ("bytes=-4", (6, 4)),
            ("bytes=-99", (0, 10)),
            ("bytes=9-99", (9, 1)),
            (" bytes=3-3 ", (3, 1)),
        ] {
            assert_eq!(ByteRange::parse(text).unwrap().resolve(10).unwrap(), place, "{text}");
        }
        for bad in [
            "",
            "0-3",
            "bytes=",
            "bytes=-",
            "bytes=3-1",
            "bytes=a-b",
            "bytes=0-1,4-5",
            "bytes=+1-2",
        ] {
            let error = ByteRange::parse(bad).unwrap_err();
            assert!(error.message().contains("`range_header`"), "{bad}");
        }
        for beyond in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
            assert!(ByteRange::parse(beyond).unwrap().resolve(10).is_err(), "{beyond}");
        }
        assert!(ByteRange::parse("bytes=0-").unwrap().resolve(0).is_err());
    }

    #[test]
    fn permissions_are_digits_of_chmod() {
        let mode = |mode| attributes(mode, (None, None)).map(|it| it.mode.unwrap());
        assert_eq!(mode(755).unwrap(), 0o755);
        assert_eq!(mode(4755).unwrap(), 0o4755);
        assert_eq!(mode(0).unwrap(), 0);
        for bad in [8, 799, 77_777, u32::MAX] {
            assert!(mode(bad).is_err(), "{bad}");
        }
        assert!(attributes(755, (Some("a:b"), None)).is_err());
        assert!(attributes(755, (None, Some(""))).is_err());
    }

    #[test]
    fn every_occurrence_is_replaced_from_the_left() {
        let replaced = |text: &str, old: &str, new: &str| {
            let (bytes, count) = substitute(text.as_bytes(), old.as_bytes(), new.as_bytes());
            (String::from_utf8(bytes).unwrap(), count)
        };
        assert_eq!(replaced("aaa", "aa", "b"), ("ba".to_owned(), 1));
        assert_eq!(replaced("x.x", "x", "xx"), ("xx.xx".to_owned(), 2));
        assert_eq!(replaced("", "x", "y"), (String::new(), 0));
        assert_eq!(replaced("ab", "abc", "y"), ("ab".to_owned(), 0));
    }
}
