//! Handler of one client connection: authentication, channels and requests.
//!
//! Runs in the event loop of the connection, so nothing here waits for the sandbox: threads do
//! that, one or two for each channel.

use crate::channel_writer::number_of;
use crate::channels::{Channels, Inbound, PendingSession};
use crate::conn_limiter::{ConnPermit, MAX_AUTHENTICATED};
use crate::flow_control::{FlowControl, WindowSize};
use crate::keys;
use crate::port_forwards::PortForwards;
use crate::relay::{self, EndNotice, StreamCloser};
use crate::server::{Door, SMALL_WINDOW, ServerNotice, ServerState, TINY_WINDOW, WINDOW};
use crate::session::{self, ExecLifetime};
use msb_api::Account;
use msb_spec::{CallOrigin, Command, Error, Kind, Result, Surface, TermSize};
use russh::keys::{Algorithm, PublicKey};
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty, Sig};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Environment variables that a client may set for a session.
const MAX_VARIABLES: usize = 64;
/// Bytes of all these variables together.
const VARIABLES_LIMIT: usize = 64 << 10;

type HandlerResult = std::result::Result<(), russh::Error>;
type AuthResult = std::result::Result<Auth, russh::Error>;

/// Handler of one client, for russh.
pub(crate) struct SshConnection {
    channels: Arc<Channels>,
    forwards: PortForwards,
    permit: Arc<ConnPermit>,
    login: Arc<Login>,
}

/// User and key of a logged-in client.
struct Login {
    server: Arc<ServerState>,
    /// Addresses of both ends, as in `SSH_CONNECTION` of sshd.
    origin: String,
    info: Mutex<LoginInfo>,
}

#[derive(Clone, Default)]
struct LoginInfo {
    /// User inside, as the client named it.
    user: String,
    /// Fingerprint of the key, if one was required.
    key: Option<String>,
    account: Option<Account>,
}

impl SshConnection {
    pub(crate) fn new(
        server: &Arc<ServerState>,
        flow: &Arc<FlowControl>,
        permit: &Arc<ConnPermit>,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) -> Self {
        let channels = Arc::new(Channels::new(Arc::clone(server), Arc::clone(flow)));
        let origin = ends.map_or_else(
            || "UNKNOWN 65535 UNKNOWN 65535".to_owned(),
            |(peer, own)| format!("{} {} {} {}", peer.ip(), peer.port(), own.ip(), own.port()),
        );
        let login = Login { server: Arc::clone(server), origin, info: Mutex::default() };
        Self {
            forwards: PortForwards::new(&channels),
            channels,
            permit: Arc::clone(permit),
            login: Arc::new(login),
        }
    }

    fn accept_login(&self, user: &str, key: Option<String>) -> Auth {
        if !self.permit.authenticate() {
            let message = format!("{MAX_AUTHENTICATED} connections are open");
            self.channels.server.report_refusal(
                Error::new(Kind::Limit, message).cause("further logins are refused"),
            );
            return Auth::reject();
        }
        *self.login.info() = LoginInfo { user: user.to_owned(), key, account: None };
        Auth::Accept
    }

    /// Whether a key is authorized. The list is read each time, so that a removed key is refused
    /// from then on.
    async fn is_authorized(&self, key: &PublicKey, algorithm: &Algorithm) -> bool {
        // SHA-1 signatures can be forged at a cost that attackers can pay.
        if matches!(algorithm, Algorithm::Rsa { hash: None }) || keys::is_fido(algorithm) {
            return false;
        }
        let Door::Keys(keys) = &self.channels.server.door else { return true };
        let (keys, key, server) =
            (Arc::clone(keys), key.clone(), Arc::clone(&self.channels.server));
        let check = move || {
            let keys = keys();
            // Reported, so that users learn why a listed key is not accepted.
            keys.faults.into_iter().for_each(|fault| server.report_refusal(fault));
            keys.good.iter().any(|known| known.matches(&key))
        };
        tokio::task::spawn_blocking(check).await.unwrap_or(false)
    }

    /// Starts the command of a session.
    fn start_command(
        &self,
        id: ChannelId,
        line: Option<Vec<u8>>,
        session: &mut Session,
    ) -> HandlerResult {
        let Some(pending) = self.channels.take_pending(id) else {
            return session.channel_failure(id);
        };
        let PendingSession { write, env, tty } = pending;
        let lifetime = Arc::new(ExecLifetime::new(Arc::clone(&self.channels.server)));
        let stop = Arc::new(Arc::clone(&lifetime));
        let Some(ends) = self.channels.start(write, session.handle(), stop) else {
            return session.channel_failure(id);
        };
        let (channels, login) = (Arc::clone(&self.channels), Arc::clone(&self.login));
        let work = move || {
            let command = login.command(line, tty, env);
            session::run_command(&channels, ends, &lifetime, command, tty.is_some());
        };
        self.spawn_thread(id, work, session)
    }

    /// Starts SFTP, which the guest serves.
    fn start_sftp(&self, id: ChannelId, session: &mut Session) -> HandlerResult {
        let Some(pending) = self.channels.take_pending(id) else {
            return session.channel_failure(id);
        };
        let closer = Arc::new(StreamCloser::default());
        let stop = Arc::clone(&closer);
        let Some(ends) = self.channels.start(pending.write, session.handle(), stop) else {
            return session.channel_failure(id);
        };
        let (channels, login) = (Arc::clone(&self.channels), Arc::clone(&self.login));
        let work = move || {
            let server = &channels.server;
            let linked = login
                .account()
                .and_then(|account| server.api()?.link_sftp(&server.name, Some(&account.user)));
            match linked {
                Ok(stream) if closer.set_stream(&stream) => {
                    relay::relay(&channels, ends, stream, EndNotice::ExitStatus);
                }
                other => {
                    if let Err(error) = other {
                        let _ = ends.out.write_error(&error, false);
                    }
                    let _ = ends.out.send_status(crate::channel_writer::INTERNAL_FAILURE);
                    ends.out.close();
                    channels.remove(id);
                }
            }
        };
        self.spawn_thread(id, work, session)
    }

    fn spawn_thread(
        &self,
        id: ChannelId,
        work: impl FnOnce() + Send + 'static,
        session: &mut Session,
    ) -> HandlerResult {
        match thread::Builder::new().name("ssh-out".to_owned()).spawn(work) {
            Ok(_) => session.channel_success(id),
            Err(_) => {
                self.channels.remove(id);
                session.channel_failure(id)?;
                session.close(id)
            }
        }
    }

    fn reply(id: ChannelId, valid: bool, session: &mut Session) -> HandlerResult {
        if valid { session.channel_success(id) } else { session.channel_failure(id) }
    }
}

impl Drop for SshConnection {
    fn drop(&mut self) {
        self.forwards.clear();
        self.channels.clear();
    }
}

impl Login {
    /// Account of the user inside, looked up once for each connection, as sshd does.
    fn account(&self) -> Result<Account> {
        let LoginInfo { user, account, .. } = self.info().clone();
        if let Some(account) = account {
            return Ok(account);
        }
        let account = Account::find(self.server.api()?, &self.server.name, &user).map_err(
            |error| match error.kind() {
                Kind::NotFound => {
                    error.hint(format!("the sandbox has no user `{user}`; try `ssh root@…`"))
                }
                _ => error,
            },
        )?;
        self.info().account = Some(account.clone());
        Ok(account)
    }

    /// Builds the command of a session: the only place that does.
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
        let origin = match &self.info().key {
            Some(fingerprint) => CallOrigin::ssh(fingerprint),
            None => CallOrigin::new(Surface::Ssh),
        };
        Ok(Command { origin: Some(origin), ..account.command(line.as_deref(), tty, env) })
    }

    fn info(&self) -> std::sync::MutexGuard<'_, LoginInfo> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A valid terminal size. Clients without a terminal send zero and get 80 columns and 24 rows.
fn size(cols: u32, rows: u32) -> TermSize {
    let fit = |n: u32, usual| if n == 0 { usual } else { u16::try_from(n).unwrap_or(u16::MAX) };
    TermSize { rows: fit(rows, 24), cols: fit(cols, 80) }
}

fn is_variable(name: &str) -> bool {
    let mut letters = name.bytes();
    letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && letters.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Handler for SshConnection {
    type Error = russh::Error;

    async fn auth_none(&mut self, user: &str) -> AuthResult {
        match self.channels.server.door {
            // The parent of this process can run commands in the sandbox anyway.
            Door::Anybody => Ok(self.accept_login(user, None)),
            Door::Keys(_) => Ok(Auth::reject()),
        }
    }

    async fn auth_publickey_offered(&mut self, _: &str, offer: PublicKeyOffer<'_>) -> AuthResult {
        let known = self.is_authorized(offer.public_key, offer.algorithm).await;
        Ok(if known { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> AuthResult {
        if !self.is_authorized(key.public_key, key.algorithm).await {
            return Ok(Auth::reject());
        }
        Ok(self.accept_login(user, Some(keys::fingerprint(key.public_key))))
    }

    async fn auth_succeeded(&mut self, _: &mut Session) -> HandlerResult {
        let LoginInfo { user, key, .. } = self.login.info().clone();
        let from = self.login.origin.split(' ').next().unwrap_or_default().to_owned();
        if let Some(key) = key {
            self.channels.server.notify(&ServerNotice::Login { user, key, from });
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> HandlerResult {
        let (_, write) = channel.split();
        match self.channels.open_session(write) {
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
    ) -> HandlerResult {
        match PortForwards::tcp(host, port) {
            Some(target) => {
                let account = self.account_lookup();
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
    ) -> HandlerResult {
        let (target, account) = (PortForwards::unix(path), self.account_lookup());
        self.forwards.dial(channel, target, account, reply, session.handle()).await;
        Ok(())
    }

    async fn channel_open_confirmation(
        &mut self,
        id: ChannelId,
        _: u32,
        _: u32,
        _: &mut Session,
    ) -> HandlerResult {
        self.channels.reserve(id);
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _: &mut Session) -> HandlerResult {
        self.channels.remove(id);
        Ok(())
    }

    async fn channel_eof(&mut self, id: ChannelId, _: &mut Session) -> HandlerResult {
        self.channels.deliver(id, Inbound::Eof);
        Ok(())
    }

    async fn data(&mut self, id: ChannelId, data: &[u8], session: &mut Session) -> HandlerResult {
        if self.channels.deliver(id, Inbound::Data(data.to_vec())) {
            return Ok(());
        }
        let message = "msb: too much unread input for a command that does not read it\n";
        session.extended_data(id, 1, message.as_bytes().to_vec())?;
        self.channels.remove(id);
        session.close(id)
    }

    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        match self.channels.flow.window() {
            WindowSize::Full => WINDOW,
            WindowSize::Small => SMALL_WINDOW,
            WindowSize::Tiny => TINY_WINDOW,
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
    ) -> HandlerResult {
        let valid = term.len() <= 128 && term.bytes().all(|b| b.is_ascii_graphic());
        let done = self.channels.update_pending(id, |pending| {
            pending.tty = Some(size(cols, rows));
            if valid && !term.is_empty() {
                pending.env.push(("TERM".to_owned(), term.to_owned()));
            }
            true
        });
        Self::reply(id, done, session)
    }

    async fn window_change_request(
        &mut self,
        id: ChannelId,
        cols: u32,
        rows: u32,
        _: u32,
        _: u32,
        _: &mut Session,
    ) -> HandlerResult {
        let size = size(cols, rows);
        let early = self.channels.update_pending(id, |pending| {
            pending.tty = pending.tty.map(|_| size);
            true
        });
        if !early {
            self.channels.deliver(id, Inbound::Resize(size));
        }
        Ok(())
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> HandlerResult {
        let valid = is_variable(name) && !value.contains('\0');
        let done = self.channels.update_pending(id, |pending| {
            let bytes: usize =
                pending.env.iter().map(|(name, value)| name.len() + value.len()).sum();
            let room = pending.env.len() < MAX_VARIABLES
                && bytes + name.len() + value.len() <= VARIABLES_LIMIT;
            if valid && room {
                pending.env.push((name.to_owned(), value.to_owned()));
            }
            valid && room
        });
        Self::reply(id, done, session)
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> HandlerResult {
        self.start_command(id, None, session)
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        line: &[u8],
        session: &mut Session,
    ) -> HandlerResult {
        self.start_command(id, Some(line.to_vec()), session)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> HandlerResult {
        match name {
            "sftp" => self.start_sftp(id, session),
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
    ) -> HandlerResult {
        // X11 would give a hostile sandbox the screen and the keyboard.
        session.channel_failure(id)
    }

    async fn signal(&mut self, id: ChannelId, signal: Sig, _: &mut Session) -> HandlerResult {
        if let Some(number) = number_of(&signal) {
            self.channels.signal(id, number);
        }
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut Session,
    ) -> std::result::Result<bool, russh::Error> {
        let account = self.account_lookup();
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
        let account = self.account_lookup();
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

impl SshConnection {
    /// Lookup of the account, for a thread that may block.
    fn account_lookup(&self) -> impl FnOnce() -> Result<Account> + Send + 'static {
        let login = Arc::clone(&self.login);
        move || login.account()
    }
}
