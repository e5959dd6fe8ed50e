//! Names of owners, and directory entries in the format of `ls -l`.

use crate::users;
use rustix::fs::{FileType, Stat};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Names by id, as read from the image's files on first use.
#[derive(Debug, Default)]
pub(super) struct OwnerNames {
    read: Option<(HashMap<u32, String>, HashMap<u32, String>)>,
}

impl OwnerNames {
    fn read(&mut self) -> &(HashMap<u32, String>, HashMap<u32, String>) {
        self.read.get_or_insert_with(|| (users::names(), users::group_names()))
    }

    pub(super) fn user(&mut self, uid: u32) -> Option<&str> {
        self.read().0.get(&uid).map(String::as_str)
    }

    pub(super) fn group(&mut self, gid: u32) -> Option<&str> {
        self.read().1.get(&gid).map(String::as_str)
    }

    /// A line of `ls -l` without the name at its end; `now` is in seconds.
    pub(super) fn line(&mut self, stat: &Stat, now: i64) -> String {
        let (uid, gid) = (stat.st_uid, stat.st_gid);
        let user = self.user(uid).map_or_else(|| uid.to_string(), str::to_owned);
        let group = self.group(gid).map_or_else(|| gid.to_string(), str::to_owned);
        let mut line = permissions(stat.st_mode);
        let (links, size) = (stat.st_nlink, stat.st_size);
        let time = time(stat.st_mtime, now);
        let _ = write!(line, " {links:>3} {user:<8} {group:<8} {size:>8} {time} ");
        line
    }
}

fn permissions(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::RegularFile | FileType::Unknown => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, set, alone) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => alone,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Time in the format of `ls`, in UTC: the time of day within the last half year, else the year.
fn time(seconds: i64, now: i64) -> String {
    const HALF_A_YEAR: i64 = 365 * 24 * 3600 / 2;
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let written = msb_spec::clock::written(seconds.saturating_mul(1000));
    // `2026-01-31T12:00:00.000Z`; years with more than four digits are not shown.
    let (Some(year), Some(month), Some(day), Some(clock)) =
        (written.get(..4), written.get(5..7), written.get(8..10), written.get(11..16))
    else {
        return "Jan  1  1970".to_owned();
    };
    let month = month.parse().ok().and_then(|month: usize| MONTHS.get(month.wrapping_sub(1)));
    let month = month.unwrap_or(&"Jan");
    let day = day.trim_start_matches('0');
    match seconds <= now && now.saturating_sub(seconds) < HALF_A_YEAR {
        true => format!("{month} {day:>2} {clock}"),
        false => format!("{month} {day:>2}  {year}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_ls_does() {
        assert_eq!(permissions(0o100_644), "-rw-r--r--");
        assert_eq!(permissions(0o041_777), "drwxrwxrwt");
        assert_eq!(permissions(0o104_755), "-rwsr-xr-x");
        assert_eq!(permissions(0o102_640), "-rw-r-S---");
        assert_eq!(permissions(0o120_777), "lrwxrwxrwx");
    }

    #[test]
    fn old_files_show_their_year() {
        let now = 1_790_000_000;
        assert_eq!(time(now - 60, now), "Sep 21 14:12");
        assert_eq!(time(0, now), "Jan  1  1970");
        assert_eq!(time(now + 7200, now), "Sep 21  2026");
        assert_eq!(time(i64::MAX, now).len(), 12);
    }
}
