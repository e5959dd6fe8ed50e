//! One client: what it asks for, and what it is answered.
//!
//! Runs in the loop that reads and writes the connection, so nothing here waits for the sandbox: that is done
//! by threads, one or two for each channel.

use crate::board::{Asked, Board, Inbound};
use crate::forwards::Forwards;
use crate::gate::{Gate, Room};
use crate::keys;
use crate::lobby::{MOST_INSIDE, Seat};
use crate::out::number_of;
use crate::relay::{self, Farewell, Shut};
use crate::server::{Door, SMALL_WINDOW, Site, TINY_WINDOW, Told, WINDOW};
use crate::session::{self, Life};
use msb_api::Account;
use msb_spec::{Asker, Command, Error, Kind, Result, Surface, TermSize};
use russh::keys::{Algorithm, PublicKey};
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty, Sig};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Variables that a client may bring along for one session.
const MOST_VARIABLES: usize = 64;
/// Bytes of all of them.
const VARIABLES_LIMIT: usize = 64 << 10;

type Answer = std::result::Result<(), russh::Error>;
type Judged = std::result::Result<Auth, russh::Error>;

/// One client, for russh.
pub(crate) struct Connection {
    board: Arc<Board>,
    forwards: Forwards,
    seat: Arc<Seat>,
    login: Arc<Login>,
}

/// Who has logged in.
struct Login {
    site: Arc<Site>,
    /// From where, as sshd would tell programs.
    origin: String,
    who: Mutex<Who>,
}

#[derive(Clone, Default)]
struct Who {
    /// The user inside, as the client named it.
    user: String,
    /// The fingerprint of the key that it has shown, if one was asked for.
    key: Option<String>,
    account: Option<Account>,
}

impl Connection {
    pub(crate) fn new(
        site: &Arc<Site>,
        gate: &Arc<Gate>,
        seat: &Arc<Seat>,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) -> Self {
        let board = Arc::new(Board::new(Arc::clone(site), Arc::clone(gate)));
        let origin = ends.map_or_else(
            || "UNKNOWN 65535 UNKNOWN 65535".to_owned(),
            |(peer, own)| format!("{} {} {} {}", peer.ip(), peer.port(), own.ip(), own.port()),
        );
        let login = Login { site: Arc::clone(site), origin, who: Mutex::default() };
        Self {
            forwards: Forwards::new(&board),
            board,
            seat: Arc::clone(seat),
            login: Arc::new(login),
        }
    }

    fn admit(&self, user: &str, key: Option<String>) -> Auth {
        if !self.seat.admit() {
            let many = format!("{MOST_INSIDE} connections are there");
            self.board.site.refused(Error::new(Kind::Limit, many).cause("nobody else is let in"));
            return Auth::reject();
        }
        *self.login.who() = Who { user: user.to_owned(), key, account: None };
        Auth::Accept
    }

    /// Whether a key opens the door. The list is looked at anew each time, so that a key that was taken
    /// back is none from then on.
    async fn knows(&self, key: &PublicKey, algorithm: &Algorithm) -> bool {
        // Signatures by SHA-1 can be forged by whoever is rich enough.
        if matches!(algorithm, Algorithm::Rsa { hash: None }) || keys::is_in_a_token(algorithm) {
            return false;
        }
        let Door::Keys(keys) = &self.board.site.door else { return true };
        let (keys, key, site) = (Arc::clone(keys), key.clone(), Arc::clone(&self.board.site));
        let look = move || {
            let keys = keys();
            // Somebody may wonder why a key that is on the list opens nothing.
            keys.faults.into_iter().for_each(|fault| site.refused(fault));
            keys.good.iter().any(|known| known.matches(&key))
        };
        tokio::task::spawn_blocking(look).await.unwrap_or(false)
    }

    /// Begins the command of a session.
    fn begin(&self, id: ChannelId, line: Option<Vec<u8>>, session: &mut Session) -> Answer {
        let Some(asked) = self.board.take(id) else { return session.channel_failure(id) };
        let Asked { write, env, tty } = asked;
        let life = Arc::new(Life::new(Arc::clone(&self.board.site)));
        let stop = Arc::new(Arc::clone(&life));
        let Some(ends) = self.board.run(write, session.handle(), stop) else {
            return session.channel_failure(id);
        };
        let (board, login) = (Arc::clone(&self.board), Arc::clone(&self.login));
        let work = move || {
            let command = login.command(line, tty, env);
            session::attend(&board, ends, &life, command, tty.is_some());
        };
        self.start(id, work, session)
    }

    /// Begins SFTP, which the guest speaks.
    fn begin_sftp(&self, id: ChannelId, session: &mut Session) -> Answer {
        let Some(asked) = self.board.take(id) else { return session.channel_failure(id) };
        let shut = Arc::new(Shut::default());
        let stop = Arc::clone(&shut);
        let Some(ends) = self.board.run(asked.write, session.handle(), stop) else {
            return session.channel_failure(id);
        };
        let (board, login) = (Arc::clone(&self.board), Arc::clone(&self.login));
        let work = move || {
            let site = &board.site;
            let linked = login
                .account()
                .and_then(|account| site.api()?.link_sftp(&site.name, Some(&account.user)));
            match linked {
                Ok(stream) if shut.begins(&stream) => {
                    relay::carry(&board, ends, stream, Farewell::Status);
                }
                other => {
                    if let Err(error) = other {
                        let _ = ends.out.tell(&error, false);
                    }
                    let _ = ends.out.status(crate::out::OUR_FAILURE);
                    ends.out.close();
                    board.remove(id);
                }
            }
        };
        self.start(id, work, session)
    }

    fn start(
        &self,
        id: ChannelId,
        work: impl FnOnce() + Send + 'static,
        session: &mut Session,
    ) -> Answer {
        match thread::Builder::new().name("ssh-out".to_owned()).spawn(work) {
            Ok(_) => session.channel_success(id),
            Err(_) => {
                self.board.remove(id);
                session.channel_failure(id)?;
                session.close(id)
            }
        }
    }

    fn answer(id: ChannelId, well: bool, session: &mut Session) -> Answer {
        if well { session.channel_success(id) } else { session.channel_failure(id) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.forwards.clear();
        self.board.clear();
    }
}

impl Login {
    /// The user inside, looked up once for each connection, as sshd does.
    fn account(&self) -> Result<Account> {
        let Who { user, account, .. } = self.who().clone();
        if let Some(account) = account {
            return Ok(account);
        }
        let account =
            Account::find(self.site.api()?, &self.site.name, &user).map_err(|error| match error
                .kind()
            {
                Kind::NotFound => {
                    error.hint(format!("try `ssh root@…`; `{user}` is not among its users"))
                }
                _ => error,
            })?;
        self.who().account = Some(account.clone());
        Ok(account)
    }

    /// The one place where the commands of sessions are made.
    fn command(
        &self,
        line: Option<Vec<u8>>,
        tty: Option<TermSize>,
        mut env: Vec<(String, String)>,
    ) -> Result<Command> {
        let account = self.account()?;
        let line = line
            .map(String::from_utf8)
            .transpose()
            .map_err(|_| Error::invalid("the command is not UTF-8"))?;
        let client = self.origin.split(' ').enumerate().filter(|(at, _)| *at != 2);
        let client: Vec<&str> = client.map(|(_, word)| word).collect();
        env.push(("SSH_CONNECTION".to_owned(), self.origin.clone()));
        env.push(("SSH_CLIENT".to_owned(), client.join(" ")));
        let asker = match &self.who().key {
            Some(fingerprint) => Asker::ssh(fingerprint),
            None => Asker::new(Surface::Ssh),
        };
        Ok(Command { asker: Some(asker), ..account.command(line.as_deref(), tty, env) })
    }

    fn who(&self) -> std::sync::MutexGuard<'_, Who> {
        self.who.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A size that a terminal can have. A client that has none itself says zero, and gets what terminals had.
fn size(cols: u32, rows: u32) -> TermSize {
    let fit = |n: u32, usual| if n == 0 { usual } else { u16::try_from(n).unwrap_or(u16::MAX) };
    TermSize { rows: fit(rows, 24), cols: fit(cols, 80) }
}

fn is_variable(name: &str) -> bool {
    let mut letters = name.bytes();
    letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && letters.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_none(&mut self, user: &str) -> Judged {
        match self.board.site.door {
            // Whoever could start this process can run commands in the sandbox without it.
            Door::Anybody => Ok(self.admit(user, None)),
            Door::Keys(_) => Ok(Auth::reject()),
        }
    }

    async fn auth_publickey_offered(&mut self, _: &str, offer: PublicKeyOffer<'_>) -> Judged {
        let known = self.knows(offer.public_key, offer.algorithm).await;
        Ok(if known { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Judged {
        if !self.knows(key.public_key, key.algorithm).await {
            return Ok(Auth::reject());
        }
        Ok(self.admit(user, Some(keys::fingerprint(key.public_key))))
    }

    async fn auth_succeeded(&mut self, _: &mut Session) -> Answer {
        let Who { user, key, .. } = self.login.who().clone();
        let from = self.login.origin.split(' ').next().unwrap_or_default().to_owned();
        if let Some(key) = key {
            self.board.site.tell(&Told::Login { user, key, from });
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Answer {
        let (_, write) = channel.split();
        match self.board.ask(write) {
            true => reply.accept().await,
            false => reply.reject(ChannelOpenFailure::ResourceShortage).await,
        }
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Answer {
        match Forwards::tcp(host, port) {
            Some(target) => {
                let account = self.account_of();
                self.forwards.dial(channel, target, account, reply, session.handle()).await;
            }
            None => reply.reject(ChannelOpenFailure::ConnectFailed).await,
        }
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Answer {
        let (target, account) = (Forwards::unix(path), self.account_of());
        self.forwards.dial(channel, target, account, reply, session.handle()).await;
        Ok(())
    }

    async fn channel_open_confirmation(
        &mut self,
        id: ChannelId,
        _: u32,
        _: u32,
        _: &mut Session,
    ) -> Answer {
        self.board.expect(id);
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _: &mut Session) -> Answer {
        self.board.remove(id);
        Ok(())
    }

    async fn channel_eof(&mut self, id: ChannelId, _: &mut Session) -> Answer {
        self.board.feed(id, Inbound::Eof);
        Ok(())
    }

    async fn data(&mut self, id: ChannelId, data: &[u8], session: &mut Session) -> Answer {
        if self.board.feed(id, Inbound::Data(data.to_vec())) {
            return Ok(());
        }
        let told = "msb: too much waits here for a command that reads nothing\n";
        session.extended_data(id, 1, told.as_bytes().to_vec())?;
        self.board.remove(id);
        session.close(id)
    }

    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        match self.board.gate.room() {
            Room::Much => WINDOW,
            Room::Little => SMALL_WINDOW,
            Room::None => TINY_WINDOW,
        }
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        term: &str,
        cols: u32,
        rows: u32,
        _: u32,
        _: u32,
        _: &[(Pty, u32)],
        session: &mut Session,
    ) -> Answer {
        let well = term.len() <= 128 && term.bytes().all(|b| b.is_ascii_graphic());
        let done = self.board.amend(id, |asked| {
            asked.tty = Some(size(cols, rows));
            if well && !term.is_empty() {
                asked.env.push(("TERM".to_owned(), term.to_owned()));
            }
            true
        });
        Self::answer(id, done, session)
    }

    async fn window_change_request(
        &mut self,
        id: ChannelId,
        cols: u32,
        rows: u32,
        _: u32,
        _: u32,
        _: &mut Session,
    ) -> Answer {
        let size = size(cols, rows);
        let early = self.board.amend(id, |asked| {
            asked.tty = asked.tty.map(|_| size);
            true
        });
        if !early {
            self.board.feed(id, Inbound::Resize(size));
        }
        Ok(())
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Answer {
        let well = is_variable(name) && !value.contains('\0');
        let done = self.board.amend(id, |asked| {
            let bytes: usize = asked.env.iter().map(|(name, value)| name.len() + value.len()).sum();
            let room = asked.env.len() < MOST_VARIABLES
                && bytes + name.len() + value.len() <= VARIABLES_LIMIT;
            if well && room {
                asked.env.push((name.to_owned(), value.to_owned()));
            }
            well && room
        });
        Self::answer(id, done, session)
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> Answer {
        self.begin(id, None, session)
    }

    async fn exec_request(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Answer {
        self.begin(id, Some(line.to_vec()), session)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Answer {
        match name {
            "sftp" => self.begin_sftp(id, session),
            _ => session.channel_failure(id),
        }
    }

    async fn x11_request(
        &mut self,
        id: ChannelId,
        _: bool,
        _: &str,
        _: &str,
        _: u32,
        session: &mut Session,
    ) -> Answer {
        // A hostile sandbox would have the screen and the keyboard.
        session.channel_failure(id)
    }

    async fn signal(&mut self, id: ChannelId, signal: Sig, _: &mut Session) -> Answer {
        if let Some(number) = number_of(&signal) {
            self.board.signal(id, number);
        }
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut Session,
    ) -> std::result::Result<bool, russh::Error> {
        let account = self.account_of();
        Ok(self.forwards.listen_tcp(address, port, account, session.handle()).await)
    }

    async fn cancel_tcpip_forward(
        &mut self,
        address: &str,
        port: u32,
        _: &mut Session,
    ) -> std::result::Result<bool, russh::Error> {
        Ok(self.forwards.cancel(&(address.to_owned(), port)))
    }

    async fn streamlocal_forward(
        &mut self,
        path: &str,
        session: &mut Session,
    ) -> std::result::Result<bool, russh::Error> {
        let account = self.account_of();
        Ok(self.forwards.listen_unix(path, account, session.handle()).await)
    }

    async fn cancel_streamlocal_forward(
        &mut self,
        path: &str,
        _: &mut Session,
    ) -> std::result::Result<bool, russh::Error> {
        Ok(self.forwards.cancel(&(path.to_owned(), 0)))
    }
}

impl Connection {
    /// Finds the user inside, for a thread that may wait for that.
    fn account_of(&self) -> impl FnOnce() -> Result<Account> + Send + 'static {
        let login = Arc::clone(&self.login);
        move || login.account()
    }
}
