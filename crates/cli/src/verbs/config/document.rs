//! Changes of single settings in the text of config.toml; the rest of the text stays as it is.

use msb_spec::{Error, Kind, Result};
use toml_edit::{DocumentMut, Item, Key, Table, TableLike, Value};

/// The keys of a setting such as `registries."a.b:5000".insecure`. `-` may be written for `_` in
/// `[defaults]`, as in the flags of the same names.
pub(super) fn canonical(key: &str) -> Result<Vec<String>> {
    let keys = Key::parse(key).map_err(|_| {
        Error::invalid(format!("not the key of a setting: `{key}`"))
            .hint("write it as `defaults.memory` or `registries.'host:5000'.insecure`")
    })?;
    let mut keys: Vec<String> = keys.iter().map(|key| key.get().to_owned()).collect();
    if let [table, field] = keys.as_mut_slice()
        && table == "defaults"
    {
        *field = field.replace('-', "_");
    }
    Ok(keys)
}

/// The text with one setting changed or added. Fails before anything is written if msb could not
/// use the result.
pub(super) fn set(text: &str, key: &str, value: &str) -> Result<String> {
    let mut wrong = None;
    for value in candidates(value) {
        let mut document = parse(text)?;
        place(&mut document, &canonical(key)?, value)?;
        let changed = document.to_string();
        match super::check(&changed) {
            Ok(()) => return Ok(changed),
            // That of the first reading is the one that says more.
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    // A file that was wrong before is not the fault of the new value.
    super::check(text).map_err(|error| {
        error.under("config.toml has a mistake already").hint("`msb config edit` opens it")
    })?;
    let wrong = wrong.unwrap_or_else(|| Error::invalid("no value"));
    // The line is one of the changed text, which has not been written.
    let message = wrong.message().split_once(": ").filter(|(line, _)| line.starts_with("line "));
    let message = message.map_or(wrong.message(), |(_, message)| message);
    let error = Error::invalid(format!("cannot set `{key}`")).cause(message);
    let error = wrong.causes().iter().fold(error, Error::cause);
    Err(match wrong.advice() {
        Some(hint) => error.hint(hint),
        None => error,
    })
}

/// The text without one setting.
pub(super) fn unset(text: &str, key: &str) -> Result<String> {
    let mut document = parse(text)?;
    let keys = canonical(key)?;
    let missing = || {
        Error::new(Kind::NotFound, format!("config.toml does not set `{key}`"))
            .hint("`msb config show` tells where each value comes from")
    };
    let (last, tables) = keys.split_last().ok_or_else(missing)?;
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for key in tables {
        table = table.get_mut(key).and_then(Item::as_table_like_mut).ok_or_else(missing)?;
    }
    table.remove(last).or_else(|| table.remove(&dashed(last))).ok_or_else(missing)?;
    let changed = document.to_string();
    super::check(&changed)?;
    Ok(changed)
}

/// Each single value that the text sets, by its dotted key.
pub(super) fn leaves(text: &str) -> Result<Vec<(Vec<String>, String)>> {
    fn walk(table: &dyn TableLike, above: &[String], found: &mut Vec<(Vec<String>, String)>) {
        for (key, item) in table.iter() {
            let mut keys = above.to_vec();
            keys.push(key.to_owned());
            match (item.as_table_like(), item.as_value()) {
                (Some(table), _) => walk(table, &keys, found),
                (None, Some(value)) => found.push((keys, shown(value))),
                (None, None) => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(parse(text)?.as_table(), &[], &mut found);
    Ok(found)
}

/// A value as it is typed for `msb config set`.
fn shown(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string().trim().to_owned(),
    }
}

fn parse(text: &str) -> Result<DocumentMut> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        msb_spec::file_mistake(before.matches('\n').count() + 1, error.message())
            .under("config.toml cannot be read")
            .hint("`msb config edit` opens it")
    })
}

/// What a value may mean: a number, truth value or list if it is written as one, else text.
fn candidates(text: &str) -> Vec<Value> {
    let typed = text.parse::<Value>().ok().filter(|value| !value.is_str());
    typed.into_iter().chain([Value::from(text)]).collect()
}

fn place(document: &mut DocumentMut, keys: &[String], value: Value) -> Result<()> {
    let no_table = |key: &str| Error::invalid(format!("not a table of settings: `{key}`"));
    let (last, tables) = keys.split_last().ok_or_else(|| no_table(""))?;
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for key in tables {
        let item = table.entry(key).or_insert_with(|| Item::Table(implicit_table()));
        table = item.as_table_like_mut().ok_or_else(|| no_table(key))?;
    }
    let last = if table.contains_key(&dashed(last)) { dashed(last) } else { last.clone() };
    match table.get_mut(&last) {
        None => {
            table.insert(&last, Item::Value(value));
        }
        Some(Item::Value(present)) => {
            // The comment behind a value is part of its decor.
            let decor = present.decor().clone();
            *present = value;
            *present.decor_mut() = decor;
        }
        Some(_) => {
            return Err(Error::invalid(format!("a table cannot be set as a whole: `{last}`"))
                .hint("set one of its fields, or use `msb config edit`"));
        }
    }
    Ok(())
}

/// `trust-host-cas` is read as well as `trust_host_cas`.
fn dashed(field: &str) -> String {
    field.replace('_', "-")
}

/// A new table. Its header is written only if it has values of its own.
fn implicit_table() -> Table {
    let mut table = Table::new();
    table.set_implicit(true);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# mine\n[defaults]\nmemory = '1G'   # for builds\n# how far\nnetwork = \
                        'none'\n\n[aliases] # short\npy = 'python:3'\n";

    #[test]
    fn a_value_is_changed_and_all_else_stays() {
        let changed = set(TEXT, "defaults.memory", "512M").unwrap();
        assert_eq!(changed, TEXT.replace("'1G'", "\"512M\""));
        let changed = set(TEXT, "defaults.trust-host-cas", "true").unwrap();
        let added = TEXT.replace("'none'\n", "'none'\ntrust_host_cas = true\n");
        assert_eq!(changed, added);
        let changed = set(
            &added.replace("trust_host_cas", "trust-host-cas"),
            "defaults.trust_host_cas",
            "false",
        );
        assert!(changed.unwrap().contains("trust-host-cas = false\n"));
        assert_eq!(set("", "defaults.cpus", "2").unwrap(), "[defaults]\ncpus = 2\n");
        let nested = set(TEXT, "registries.'a.b:5000'.mirrors", "['https://m.example']").unwrap();
        let added = "\n[registries.\"a.b:5000\"]\nmirrors = ['https://m.example']\n";
        assert!(nested.ends_with(added), "{nested}");
    }

    #[test]
    fn a_mistake_is_refused() {
        for (key, value, cause, hint) in [
            ("defaults.memroy", "1G", "unknown field `memroy`", Some("did you mean `memory`?")),
            ("default.memory", "1G", "unknown field `default`", Some("did you mean `defaults`?")),
            ("defaults.memory", "much", "not an amount of bytes: `much`", None),
            ("defaults.trust_host_cas", "perhaps", "invalid type: string", None),
        ] {
            let error = set(TEXT, key, value).unwrap_err();
            assert_eq!(error.message(), format!("cannot set `{key}`"));
            assert!(error.causes()[0].starts_with(cause), "{error}");
            assert_eq!(error.advice(), hint, "{key}");
        }
        assert!(set(TEXT, "aliases", "x").is_err());
        assert!(set(TEXT, "defaults.memory.x", "x").is_err());
        assert!(set("nonsense = 1\n", "defaults.cpus", "1").unwrap_err().advice().is_some());
    }

    #[test]
    fn a_value_is_removed() {
        let changed = unset(TEXT, "defaults.network").unwrap();
        assert!(!changed.contains("none") && changed.contains("# for builds"), "{changed}");
        assert!(unset(TEXT, "defaults.cpus").is_err());
        let keys: Vec<String> = leaves(TEXT)
            .unwrap()
            .into_iter()
            .map(|(keys, value)| keys.join(".") + "=" + &value)
            .collect();
        assert_eq!(keys, ["defaults.memory=1G", "defaults.network=none", "aliases.py=python:3"]);
    }
}
