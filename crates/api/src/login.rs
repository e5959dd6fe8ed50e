//! What a login gets: the user's own shell, home and environment.
//!
//! /etc/passwd is the sandbox's own file. Code inside may have written anything there, so it is read
//! through the file Operations, up to a limit, and only words of it are believed that a passwd file may hold.

use crate::{Api, Place};
use msb_spec::{Command, Error, Kind, Name, Result, Stdin, TermSize, UserRef};
use msb_wire::EntryKind;

/// A user inside, as far as a login is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The user, with its primary group.
    pub user: UserRef,
    /// What it calls itself.
    pub login: String,
    /// Its home; `/` if what it should have is not there.
    pub home: String,
    /// Its shell; `/bin/sh` if what it should have is not there.
    pub shell: String,
}

const PASSWD: &[u8] = b"/etc/passwd";
/// Files larger than this are not lists of users.
const PASSWD_LIMIT: u64 = 1 << 20;
/// Longer paths are not homes or shells.
const PATH_LIMIT: usize = 4096;
const USUAL_SHELL: &str = "/bin/sh";

impl Account {
    /// Looks a user up in a running sandbox, by name or number.
    pub fn find(api: &dyn Api, sandbox: &Name, user: &str) -> Result<Self> {
        let place = Place::sandbox(sandbox);
        let mut bytes = Vec::new();
        let read = api.file_read(&place, PASSWD, 0, Some(PASSWD_LIMIT), &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        match read {
            // An image without users has root.
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::Invalid) => {
                return Err(error);
            }
            _ => {}
        }
        let mut account = Self::told(&String::from_utf8_lossy(&bytes), user)
            .ok_or_else(|| unknown(sandbox, user))?;
        let is = |path: &str, kind| {
            api.file_stat(&place, path.as_bytes(), true).is_ok_and(|meta| meta.kind == kind)
        };
        if !is(&account.shell, EntryKind::File) {
            USUAL_SHELL.clone_into(&mut account.shell);
        }
        if !is(&account.home, EntryKind::Directory) {
            "/".clone_into(&mut account.home);
        }
        Ok(account)
    }

    /// What a passwd file says of a user.
    fn told(passwd: &str, user: &str) -> Option<Self> {
        let wanted = UserRef::parse(user).ok().filter(|user| user.group().is_none())?;
        let number = user.parse::<u32>().ok();
        let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let line = lines.find(|fields| match number {
            Some(_) => fields.get(2) == Some(&user),
            None => fields.first() == Some(&user),
        });
        let path = |at: usize| {
            let text = line.as_ref()?.get(at)?;
            let well = text.starts_with('/') && text.len() <= PATH_LIMIT;
            (well && !text.contains(char::is_control)).then(|| (*text).to_owned())
        };
        if line.is_none() && number.is_none() && user != "root" {
            return None;
        }
        let login = line.as_ref().and_then(|fields| UserRef::parse(fields.first()?).ok());
        let login = login.map_or_else(|| user.to_owned(), |user| user.to_string());
        let usual_home = if wanted.is_root() { "/root" } else { "/" };
        Some(Self {
            user: wanted,
            login,
            home: path(5).unwrap_or_else(|| usual_home.to_owned()),
            shell: path(6).unwrap_or_else(|| USUAL_SHELL.to_owned()),
        })
    }

    /// The command of a login: a line for the user's shell, or the shell itself. What the client wants in
    /// the environment gives way to what a login is.
    pub fn command(
        &self,
        line: Option<&str>,
        tty: Option<TermSize>,
        wanted: Vec<(String, String)>,
    ) -> Command {
        let argv = match line {
            Some(line) => vec![self.shell.clone(), "-c".to_owned(), line.to_owned()],
            None => vec![self.shell.clone(), "-l".to_owned()],
        };
        let own = [
            ("HOME", &self.home),
            ("USER", &self.login),
            ("LOGNAME", &self.login),
            ("SHELL", &self.shell),
        ];
        let mut env = wanted;
        env.extend(own.map(|(name, value)| (name.to_owned(), value.clone())));
        Command {
            argv,
            env,
            workdir: Some(self.home.clone()),
            user: Some(self.user.clone()),
            stdin: Stdin::Streamed,
            tty,
            ..Command::default()
        }
    }
}

fn unknown(sandbox: &Name, user: &str) -> Error {
    let shown: String = user.chars().filter(|c| !c.is_control()).take(64).collect();
    Error::new(Kind::NotFound, format!("sandbox `{sandbox}` has no user `{shown}`"))
        .hint("its users are in its /etc/passwd; `root` is always there")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nweb:x:33:33::/var/www:/usr/sbin/nologin\n\
        odd:x:7:7::relative:\nbad\u{1b}:x:8:8::/a\u{1b}b:/bin/sh\n";

    fn told(user: &str) -> Option<(String, String, String)> {
        Account::told(PASSWD, user).map(|it| (it.login, it.home, it.shell))
    }

    fn three(a: &str, b: &str, c: &str) -> Option<(String, String, String)> {
        Some((a.to_owned(), b.to_owned(), c.to_owned()))
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(told("root"), three("root", "/root", "/bin/bash"));
        assert_eq!(told("web"), three("web", "/var/www", "/usr/sbin/nologin"));
        assert_eq!(told("33"), three("web", "/var/www", "/usr/sbin/nologin"));
        assert_eq!(told("1000"), three("1000", "/", "/bin/sh"));
        assert_eq!(told("nobody"), None);
    }

    #[test]
    fn root_is_there_without_a_file() {
        let root = Account::told("", "root").map(|it| (it.login, it.home, it.shell));
        assert_eq!(root, three("root", "/root", "/bin/sh"));
    }

    #[test]
    fn what_cannot_be_a_path_is_not_believed() {
        assert_eq!(told("odd"), three("odd", "/", "/bin/sh"));
        assert_eq!(told("8"), three("8", "/", "/bin/sh"));
        for bad in ["", "a b", "root:root", "-x", "a\nb"] {
            assert_eq!(told(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_login_wins_over_what_a_client_wants() {
        let account = Account::told(PASSWD, "root").unwrap();
        let wanted = vec![("HOME".to_owned(), "/x".to_owned()), ("A".to_owned(), "1".to_owned())];
        let command = account.command(Some("ls -l"), None, wanted);
        assert_eq!(command.argv, ["/bin/bash", "-c", "ls -l"]);
        let home: Vec<_> = command.env.iter().filter(|(name, _)| name == "HOME").collect();
        assert_eq!(home.last().unwrap().1, "/root");
        assert_eq!(account.command(None, None, Vec::new()).argv, ["/bin/bash", "-l"]);
    }
}
