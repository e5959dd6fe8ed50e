//! Users and groups from the image's /etc/passwd and /etc/group.
//!
//! Parsed here, because the C library would load NSS modules of the image into PID 1.

use msb_spec::UserRef;
use msb_sys::spawn::Identity;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Ids and home of a user.
pub(crate) struct ResolvedUser {
    pub(crate) identity: Identity,
    pub(crate) home: String,
}

/// Why a user cannot be resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserError {
    /// No file has an entry for it.
    Unknown,
    /// Only root exists in this sandbox.
    OnlyRoot,
}

const PASSWD: &str = "/etc/passwd";

/// Bytes that are read of a file at most.
const FILE_LIMIT: usize = 1 << 20;

pub(crate) fn find(user: &UserRef) -> Result<ResolvedUser, UserError> {
    let found = resolve(user, &read(PASSWD), &read("/etc/group"))?;
    if !user.is_root() && only_root() {
        return Err(UserError::OnlyRoot);
    }
    Ok(found)
}

/// The gid of a group by name or number.
pub(crate) fn group(name: &str) -> Result<u32, UserError> {
    let gid = match name.parse::<u32>() {
        Ok(gid) => gid,
        Err(_) => group_in(name, &read("/etc/group")).ok_or(UserError::Unknown)?,
    };
    if gid != 0 && only_root() { Err(UserError::OnlyRoot) } else { Ok(gid) }
}

/// Root's home, cached while /etc/passwd is unchanged: every Exec needs it.
#[derive(Default)]
pub(crate) struct RootHome {
    known: Option<(Stamp, String)>,
}

/// Identifies a version of a file: device, inode, size and ctime.
type Stamp = (u64, u64, u64, i64, i64);

impl RootHome {
    pub(crate) fn get(&mut self) -> String {
        let stamp = fs::metadata(PASSWD)
            .map(|meta| (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()))
            .unwrap_or_default();
        if let Some((_, home)) = self.known.as_ref().filter(|(known, _)| *known == stamp) {
            return home.clone();
        }
        let home = entry(&read(PASSWD), |fields| fields.get(2) == Some(&"0"))
            .and_then(|fields| fields.get(5).map(|home| (*home).to_owned()))
            .filter(|home| home.starts_with('/'))
            .unwrap_or_else(|| "/root".to_owned());
        self.known = Some((stamp, home.clone()));
        home
    }
}

/// The home of a user, if it exists.
pub(crate) fn home(user: &UserRef) -> Option<String> {
    match user.is_root() {
        true => Some(RootHome::default().get()),
        false => resolve(user, &read(PASSWD), "").ok().map(|user| user.home),
    }
}

/// User names by uid; the first entry of a uid wins.
pub(crate) fn names() -> HashMap<u32, String> {
    numbered(&read(PASSWD))
}

/// Group names by gid; the first entry of a gid wins.
pub(crate) fn group_names() -> HashMap<u32, String> {
    numbered(&read("/etc/group"))
}

fn numbered(file: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in file.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(number))) = (fields.next(), fields.nth(1).map(str::parse)) {
            names.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    names
}

fn resolve(user: &UserRef, passwd: &str, group: &str) -> Result<ResolvedUser, UserError> {
    let by_number = user.user().parse::<u32>().ok();
    let line = entry(passwd, |fields| match by_number {
        Some(_) => fields.get(2) == Some(&user.user()),
        None => fields.first() == Some(&user.user()),
    });
    let number = |field: Option<&&str>| field.and_then(|text| text.parse::<u32>().ok());
    let uid = by_number.or_else(|| number(line.as_ref()?.get(2))).ok_or(UserError::Unknown)?;
    let own_gid = line.as_ref().and_then(|fields| number(fields.get(3)));
    let gid = match user.group() {
        None => own_gid.unwrap_or(0),
        Some(name) => match name.parse::<u32>() {
            Ok(gid) => gid,
            Err(_) => group_in(name, group).ok_or(UserError::Unknown)?,
        },
    };
    let name = line.as_ref().and_then(|fields| fields.first().copied());
    let mut groups = vec![gid];
    if let (Some(name), None) = (name, user.group()) {
        groups.extend(group.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let member = fields.get(3)?.split(',').any(|member| member == name);
            member.then(|| number(fields.get(2))).flatten()
        }));
    }
    groups.dedup();
    // The kernel takes 65536. An image with more than this is hostile or broken.
    groups.truncate(1024);
    let home = line
        .and_then(|fields| fields.get(5).map(|home| (*home).to_owned()))
        .filter(|home| home.starts_with('/'))
        .unwrap_or_else(|| "/".to_owned());
    Ok(ResolvedUser { identity: Identity { uid, gid, groups }, home })
}

fn group_in(name: &str, group: &str) -> Option<u32> {
    entry(group, |fields| fields.first() == Some(&name))?.get(2)?.parse().ok()
}

fn entry(file: &str, wanted: impl Fn(&[&str]) -> bool) -> Option<Vec<&str>> {
    file.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| wanted(fields))
}

fn read(path: &str) -> String {
    let bytes = msb_sys::files::read_ordinary(path, FILE_LIMIT).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the user namespace maps a single id. Read from PID 1, because this process may not
/// appear in the mounted /proc.
fn only_root() -> bool {
    let map = fs::read_to_string("/proc/1/uid_map").unwrap_or_default();
    let mut counts = map.lines().filter_map(|line| line.split_whitespace().nth(2));
    counts.next() == Some("1") && counts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/var/www:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nweb:x:33:\ndocker:x:99:web,ann\n";

    fn found(text: &str) -> Result<(u32, u32, Vec<u32>, String), UserError> {
        resolve(&UserRef::parse(text).unwrap(), LINES, GROUP)
            .map(|u| (u.identity.uid, u.identity.gid, u.identity.groups, u.home))
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(found("web"), Ok((33, 33, vec![33, 99], "/var/www".to_owned())));
        assert_eq!(found("33"), Ok((33, 33, vec![33, 99], "/var/www".to_owned())));
        assert_eq!(found("web:docker"), Ok((33, 99, vec![99], "/var/www".to_owned())));
        assert_eq!(found("1000:7"), Ok((1000, 7, vec![7], "/".to_owned())));
    }

    #[test]
    fn numbers_have_names() {
        let names = numbered("root:x:0:0\ntoor:x:0:0\nbroken\nann:x:7:7\n");
        assert_eq!(names, HashMap::from([(0, "root".to_owned()), (7, "ann".to_owned())]));
    }

    #[test]
    fn unknown_names_are_refused() {
        assert_eq!(found("eve"), Err(UserError::Unknown));
        assert_eq!(found("web:eve"), Err(UserError::Unknown));
    }
}
