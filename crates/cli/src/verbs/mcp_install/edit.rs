//! One entry of a file of settings, put in or taken out. The file is JSON, perhaps with comments;
//! every other byte of it stays what it was.
//!
//! Pure: text in, text out.

use super::one_line::OneLine;
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstObjectProp, CstRootNode};
use msb_spec::{Error, Kind, Result};

/// What an entry says.
pub(crate) type Entry = Vec<(&'static str, Value)>;

/// One value of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    List(Vec<String>),
    /// Members that are set; others of the same object stay.
    Members(Vec<(&'static str, String)>),
}

/// Where an entry is, and whether it may come from another author.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot<'a> {
    pub(crate) section: &'a str,
    pub(crate) name: &'a str,
    pub(crate) force: bool,
    /// Whether members that were added to an entry of ours stay. A repository may be written by others: what
    /// its file adds, such as `env`, would change what the server allows.
    pub(crate) keep: bool,
}

/// What goes before some files of Windows.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The text with the entry in it. One of ours by that name is brought up to date; whether what was added
/// to it stays, the spot says.
pub(crate) fn put(text: &str, spot: Spot<'_>, entry: &Entry) -> Result<String> {
    let (mark, root) = parse(text)?;
    let whole = root.object_value_or_create().ok_or_else(no_object)?;
    let found = section(&whole, spot.section)?;
    let old = found.as_ref().map(|section| single(section, spot.name)).transpose()?.flatten();
    match old {
        Some(old)
            if is_ours(&old)
                && (spot.keep || added(&old, entry).is_empty())
                && !has_twice(&old) =>
        {
            renew(&old, entry);
        }
        Some(old) if is_ours(&old) || spot.force => old.set_value(input(entry)),
        Some(_) => {
            return Err(foreign(spot)
                .hint("`--name` gives ours another name, `--force` writes over that one"));
        }
        None => {
            let rest = &text[mark.len()..];
            let existing = found.is_some().then_some(spot.section);
            if let Some(line) = OneLine::find(rest, &options(), existing) {
                return Ok(format!("{mark}{}", line.with(spot, entry)));
            }
            let section = found.unwrap_or_else(|| whole.object_value_or_set(spot.section));
            section.append(spot.name, input(entry));
        }
    }
    Ok(format!("{mark}{}", ended(text, root.to_string())))
}

/// The members that [`put`] takes out of an entry that is there.
pub(crate) fn dropped(text: &str, spot: Spot<'_>, entry: &Entry) -> Result<Vec<String>> {
    let (_, root) = parse(text)?;
    let whole = root.value().and_then(|value| value.as_object());
    let found = whole.map(|whole| section(&whole, spot.section)).transpose()?.flatten();
    let old = found.map(|section| single(&section, spot.name)).transpose()?.flatten();
    Ok(match old {
        Some(old) if !spot.keep || !is_ours(&old) => added(&old, entry),
        _ => Vec::new(),
    })
}

/// The text without the entry; none if it was not there.
pub(crate) fn take(text: &str, spot: Spot<'_>) -> Result<Option<String>> {
    let (mark, root) = parse(text)?;
    let Some(value) = root.value() else { return Ok(None) };
    let whole = value.as_object().ok_or_else(no_object)?;
    let Some(section) = section(&whole, spot.section)? else { return Ok(None) };
    let Some(old) = single(&section, spot.name)? else { return Ok(None) };
    if !is_ours(&old) && !spot.force {
        return Err(foreign(spot).hint("`--force` removes it all the same"));
    }
    old.remove();
    Ok(Some(format!("{mark}{root}")))
}

/// The text as it may be shown: what others have written into strings can be their keys.
pub(crate) fn masked(text: &str, spot: Spot<'_>) -> String {
    let Ok((mark, root)) = parse(text) else { return String::new() };
    if let Some(value) = root.value() {
        mask(&value, &[spot.section, spot.name]);
    }
    format!("{mark}{root}")
}

/// Hides strings, but for those of one member.
fn mask(node: &CstNode, but: &[&str]) {
    if let Some(text) = node.as_string_lit() {
        text.set_raw_value("\"…\"".to_owned());
    } else if let Some(object) = node.as_object() {
        for member in object.properties() {
            let Some(value) = member.value() else { continue };
            match but {
                [last] if member.decoded_name().as_deref() == Some(last) => {}
                [first, rest @ ..] if member.decoded_name().as_deref() == Some(first) => {
                    mask(&value, rest);
                }
                _ => mask(&value, &[]),
            }
        }
    } else if let Some(array) = node.as_array() {
        array.elements().iter().for_each(|element| mask(element, &[]));
    }
}

/// As editors read settings: comments and a last comma, and nothing else beside JSON.
fn options() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// What goes before the text, and the text.
fn parse(text: &str) -> Result<(&str, CstRootNode)> {
    let rest = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mark = &text[..text.len() - rest.len()];
    let root = CstRootNode::parse(rest, &options()).map_err(|error| {
        let (line, column) = (error.line_display(), error.column_display());
        Error::invalid(format!("it is not JSON at line {line}, column {column}"))
            .cause(error.kind())
            .hint("nothing was written; mend the file and do it once more")
    })?;
    Ok((mark, root))
}

fn section(whole: &CstObject, name: &str) -> Result<Option<CstObject>> {
    match single(whole, name)? {
        None => Ok(None),
        Some(member) => member.object_value().map(Some).ok_or_else(|| {
            Error::invalid(format!("its `{name}` is not an object"))
                .hint("nothing was written; mend the file and do it once more")
        }),
    }
}

/// A member by its name. Of two with one name, programs disagree about which counts.
fn single(object: &CstObject, name: &str) -> Result<Option<CstObjectProp>> {
    let named = |member: &CstObjectProp| member.decoded_name().as_deref() == Some(name);
    let mut members = object.properties().into_iter().filter(named);
    match (members.next(), members.next()) {
        (first, None) => Ok(first),
        (_, Some(_)) => Err(Error::invalid(format!("it has `{name}` twice"))
            .hint("nothing was written; mend the file and do it once more")),
    }
}

/// Whether an entry starts `msb mcp`, whatever else it says.
fn is_ours(member: &CstObjectProp) -> bool {
    let Some(object) = member.object_value() else { return false };
    let value = |name: &str| object.get(name).and_then(|member| read(&member));
    let Some(Value::Text(command)) = value("command") else { return false };
    let Some(Value::List(words)) = value("args") else { return false };
    let program = command.rsplit('/').next();
    program == Some("msb") && words.first().is_some_and(|word| word == "mcp")
}

/// The members of an entry that are not of ours.
fn added(member: &CstObjectProp, entry: &Entry) -> Vec<String> {
    let own = |name: &String| entry.iter().any(|(own, _)| own == name);
    names(member).into_iter().filter(|name| !own(name)).collect()
}

/// Whether a member is there twice: programs disagree about which counts.
fn has_twice(member: &CstObjectProp) -> bool {
    let mut names = names(member);
    let all = names.len();
    names.sort();
    names.dedup();
    names.len() != all
}

fn names(member: &CstObjectProp) -> Vec<String> {
    let members = member.object_value().map(|object| object.properties()).unwrap_or_default();
    members.iter().map(|member| member.decoded_name().unwrap_or_default()).collect()
}

fn renew(member: &CstObjectProp, entry: &Entry) {
    let object = member.object_value_or_set();
    for (name, value) in entry {
        match object.get(name) {
            Some(old) if read(&old).as_ref() == Some(value) => {}
            Some(old) => match (value, old.object_value()) {
                (Value::Members(members), Some(object)) => set_members(&object, members),
                _ => old.set_value(value.input()),
            },
            None => {
                object.append(name, value.input());
            }
        }
    }
}

fn set_members(object: &CstObject, members: &[(&'static str, String)]) {
    for (name, text) in members {
        let wanted = Value::Text(text.clone());
        match object.get(name) {
            Some(old) if read(&old).as_ref() == Some(&wanted) => {}
            Some(old) => old.set_value(wanted.input()),
            None => {
                object.append(name, wanted.input());
            }
        }
    }
}

/// A string or a list of strings.
fn read(member: &CstObjectProp) -> Option<Value> {
    let text = |node: CstNode| node.as_string_lit()?.decoded_value().ok();
    let value = member.value()?;
    match value.as_array() {
        Some(list) => list.elements().into_iter().map(text).collect::<Option<_>>().map(Value::List),
        None => text(value).map(Value::Text),
    }
}

fn input(entry: &Entry) -> CstInputValue {
    let members = entry.iter().map(|(name, value)| ((*name).to_owned(), value.input()));
    CstInputValue::Object(members.collect())
}

impl Value {
    fn input(&self) -> CstInputValue {
        match self {
            Self::Text(text) => CstInputValue::String(text.clone()),
            Self::List(list) => {
                CstInputValue::Array(list.iter().cloned().map(CstInputValue::String).collect())
            }
            Self::Members(members) => {
                let member = |(name, text): &(&str, String)| {
                    ((*name).to_owned(), CstInputValue::String(text.clone()))
                };
                CstInputValue::Object(members.iter().map(member).collect())
            }
        }
    }
}

/// A file that we make ends as files do; one that does not stays so.
fn ended(before: &str, mut after: String) -> String {
    if before.trim().is_empty() && !after.ends_with('\n') {
        after.push('\n');
    }
    after
}

fn no_object() -> Error {
    Error::invalid("it holds no JSON object")
        .hint("nothing was written; mend the file and do it once more")
}

fn foreign(spot: Spot<'_>) -> Error {
    let Spot { section, name, .. } = spot;
    Error::new(Kind::Exists, format!("its `{section}` has a `{name}` that does not start msb"))
}

#[cfg(test)]
mod tests;
