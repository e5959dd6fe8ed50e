//! Runs the loop in an ordinary process over socket pairs, without a microVM or mounts.

use super::control_conn::ControlConn;
use super::event_loop::{EventLoop, LoopEnd, VmEnv};
use super::layer_export::OverlayChanges;
use msb_spec::{Rlimit, RlimitName, TermSize};
use msb_sys::process;
use msb_sys::signal::{self, SIGCHLD, SIGKILL, SIGPIPE, SIGTERM, Signals};
use msb_sys::socket;
use msb_wire::{
    FileReply, FileRequest, Frame, FrameKind, FramedSocket, FromGuest, FromMachine, Hit,
    MAX_FROM_GUEST, MachineUsage, SPARE_CONNECTIONS, SpawnFailure, ToGuest, ToMachine, encode,
    header,
};
use rustix::net::{SendFlags, sockopt};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const TOKEN: [u8; 16] = *b"sixteen bytes...";
/// Only a hanging guest reaches this.
const TEST_LIMIT: Duration = Duration::from_secs(60);

/// The guest's environment: a connection is one end of a pair, sent to the test.
struct FakeEnv {
    dial: OwnedFd,
}

impl VmEnv for FakeEnv {
    fn connect(&mut self) -> io::Result<OwnedFd> {
        let (ours, theirs) = socket::pair()?;
        socket::send_all(self.dial.as_fd(), b"c", &[theirs.as_fd()])?;
        Ok(ours)
    }

    fn init(&mut self) -> Option<&mut crate::init::InitProcess> {
        None
    }

    fn signal_all(&mut self, signal: i32) {
        let _ = socket::send_all(self.dial.as_fd(), &[signal as u8], &[]);
    }

    fn hit(&mut self) -> Option<Hit> {
        Some(Hit::Disk)
    }

    fn usage(&mut self) -> MachineUsage {
        MachineUsage { memory: 7, ..MachineUsage::default() }
    }

    fn open_files(&self) -> Rlimit {
        Rlimit { name: RlimitName::Nofile, soft: Some(321), hard: Some(321) }
    }

    fn hold(&mut self, hold: bool) -> bool {
        hold
    }

    fn group(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn written(&self) -> Option<&[OverlayChanges]> {
        None
    }
}

/// The test's side of the loop.
struct TestVm {
    control: TestConn,
    dial: OwnedFd,
    pidfd: OwnedFd,
}

impl TestVm {
    fn start() -> Self {
        let (control, theirs) = socket::pair().unwrap();
        let (dial, their_dial) = socket::pair().unwrap();
        socket::send_all(dial.as_fd(), b"!", &[theirs.as_fd()]).unwrap();
        let (mut says, mut hears) = UnixStream::pair().unwrap();
        // The child uses nothing that another thread may have locked but the allocator, which is
        // safe after fork.
        if process::fork().unwrap() {
            let _ = says.write_all(&std::process::id().to_ne_bytes());
            process::leave(serve(&their_dial));
        }
        let mut pid = [0; 4];
        hears.read_exact(&mut pid).unwrap();
        let pid = Pid::from_raw(i32::from_ne_bytes(pid)).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        set_timeout(&dial);
        Self { control: TestConn::new(control), dial, pidfd }
    }

    /// The next action of the guest outside its connections.
    fn next_action(&self) -> (u8, Option<OwnedFd>) {
        let (mut what, mut fds) = ([0u8; 1], Vec::new());
        let received = loop {
            // As in `TestConn::next`.
            match socket::receive(self.dial.as_fd(), &mut what, &mut fds) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => break received.unwrap(),
            }
        };
        assert_eq!(received, 1);
        (what[0], fds.pop())
    }

    fn spare(&self) -> TestConn {
        let mut connection = TestConn::new(self.next_action().1.unwrap());
        let hello = connection.next();
        assert_eq!((hello.kind, hello.payload.as_slice()), (FrameKind::Hello, TOKEN.as_slice()));
        connection
    }

    fn exec(&self, script: &str) -> TestConn {
        self.exec_with(&exec(script, None, false))
    }

    fn exec_with(&self, request: &ToGuest) -> TestConn {
        let mut connection = self.spare();
        connection.send(&encode(FrameKind::Control, request));
        connection
    }

    fn end(self) -> LoopEnd {
        let Self { control, dial, pidfd } = self;
        let status = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        drop((control, dial));
        match status.unwrap().unwrap().exit_status() {
            Some(0) => LoopEnd::Asked,
            Some(1) => LoopEnd::LastExec,
            Some(2) => LoopEnd::WorkerGone,
            other => panic!("the guest failed: {other:?}"),
        }
    }
}

fn serve(dial: &OwnedFd) -> i32 {
    // Descriptors of other tests must be closed.
    let Ok(dial) = process::keep_only(dial.as_fd()) else { return 90 };
    let mut control = Vec::new();
    let received = socket::receive(dial.as_fd(), &mut [0], &mut control);
    let (Ok(1), Some(control)) = (received, control.pop()) else { return 91 };
    let Ok(signals) = Signals::collect(&[SIGCHLD]) else { return 92 };
    let mut env = FakeEnv { dial };
    let worker = ControlConn::new(control);
    match EventLoop::new(&mut env, worker, signals, false, &TOKEN).run() {
        LoopEnd::Asked => 0,
        LoopEnd::LastExec => 1,
        LoopEnd::WorkerGone => 2,
    }
}

fn set_timeout(socket: &OwnedFd) {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(TEST_LIMIT)).unwrap();
}

struct TestConn {
    socket: FramedSocket<File>,
}

impl TestConn {
    fn new(socket: OwnedFd) -> Self {
        set_timeout(&socket);
        Self { socket: FramedSocket::new(File::from(socket), MAX_FROM_GUEST) }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.socket_mut().write_all(bytes).unwrap();
    }

    fn stdin(&mut self, bytes: &[u8]) {
        self.send(&header(FrameKind::Stdin, bytes.len()));
        self.send(bytes);
    }

    fn next(&mut self) -> Frame {
        let frame = self.socket.read_frame(&mut vec![0; 64 << 10]).expect("the guest answers");
        frame.expect("the guest never closes first")
    }

    fn started(&mut self) -> i32 {
        match self.next().value().unwrap() {
            FromGuest::Started { pid, .. } => pid as i32,
            other => panic!("not started: {other:?}"),
        }
    }

    /// Everything up to the exit: both streams and the status.
    fn rest(&mut self) -> (String, String, FromGuest) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            let frame = self.next();
            match frame.kind {
                FrameKind::Stdout => out.extend(frame.payload),
                FrameKind::Stderr => err.extend(frame.payload),
                _ => {
                    let text = |bytes| String::from_utf8(bytes).unwrap();
                    return (text(out), text(err), frame.value().unwrap());
                }
            }
        }
    }
}

fn exec(script: &str, tty: Option<TermSize>, last: bool) -> ToGuest {
    ToGuest::Exec {
        id: 5,
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        workdir: "/".to_owned(),
        user: None,
        tty,
        rlimits: Vec::new(),
        last,
        sweep: false,
    }
}

fn code_and_signal(ended: &FromGuest) -> (Option<i32>, Option<i32>) {
    match ended {
        FromGuest::Exited { id: 5, code, signal, hit: Some(Hit::Disk), .. } => (*code, *signal),
        other => panic!("not exited: {other:?}"),
    }
}

#[test]
fn a_command_starts_writes_and_exits() {
    let machine = TestVm::start();
    let mut exec = machine.exec("ulimit -n; echo two >&2; exit 3");
    exec.started();
    let (out, err, ended) = exec.rest();
    assert_eq!((out.as_str(), err.as_str()), ("321\n", "two\n"));
    assert_eq!(code_and_signal(&ended), (Some(3), None));
}

#[test]
fn spare_connections_are_topped_up() {
    let machine = TestVm::start();
    let numbered = |number: usize| {
        let mut request = exec("cat", None, false);
        if let ToGuest::Exec { id, .. } = &mut request {
            *id = number as u64;
        }
        request
    };
    let all = 0..SPARE_CONNECTIONS * 3;
    let mut execs: Vec<_> = all.map(|number| machine.exec_with(&numbered(number))).collect();
    for exec in &mut execs {
        exec.started();
        exec.stdin(b"hello");
        exec.stdin(b"");
        assert_eq!(exec.rest().0, "hello");
    }
}

#[test]
fn output_arrives_before_the_exit() {
    let machine = TestVm::start();
    let mut exec = machine.exec("head -c 3000000 /dev/zero; printf x >&2");
    exec.started();
    let (out, err, ended) = exec.rest();
    assert_eq!((out.len(), err.as_str()), (3_000_000, "x"));
    assert_eq!(code_and_signal(&ended), (Some(0), None));
}

#[test]
fn background_processes_are_not_waited_for() {
    let machine = TestVm::start();
    let mut exec = machine.exec("sleep 1000 & echo $!");
    exec.started();
    let (out, _, ended) = exec.rest();
    assert_eq!(code_and_signal(&ended), (Some(0), None));
    signal::send(out.trim().parse().unwrap(), SIGKILL).unwrap();
}

#[test]
fn a_command_that_does_not_read_stops_the_worker() {
    let machine = TestVm::start();
    let mut exec = machine.exec("exec sleep 1000");
    let pid = exec.started();
    let frame = [header(FrameKind::Stdin, 4096).as_slice(), &[0; 4096]].concat();
    let mut sent = 0;
    // It takes what fits in a pipe, the queue and a socket, and then no more.
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(exec.socket.socket(), &frame, flags) {
            Ok(n) => sent += n,
            Err(rustix::io::Errno::AGAIN) => {
                std::thread::sleep(Duration::from_millis(50));
                match rustix::net::send(exec.socket.socket(), &frame, flags) {
                    Ok(n) => sent += n,
                    Err(_) => break,
                }
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 4 << 20);
    }
    // The signal goes by the control connection and does not wait behind that.
    let mut machine = machine;
    let kill = ToMachine::Signal { id: 5, signal: SIGTERM };
    machine.control.send(&encode(FrameKind::Control, &kill));
    assert_eq!(code_and_signal(&exec.rest().2), (None, Some(SIGTERM)));
    assert!(signal::send(pid, 0).is_err());
}

#[test]
fn a_slow_worker_stops_the_command() {
    let machine = TestVm::start();
    let mut exec = machine.exec("head -c 8000000 /dev/zero; echo done >&2");
    exec.started();
    std::thread::sleep(Duration::from_millis(200));
    let (out, err, ended) = exec.rest();
    assert_eq!((out.len(), err.as_str()), (8_000_000, "done\n"));
    assert_eq!(code_and_signal(&ended), (Some(0), None));
}

#[test]
fn a_command_whose_connection_closes_is_killed() {
    let machine = TestVm::start();
    let mut exec = machine.exec("exec sleep 1000");
    let pid = exec.started();
    drop(exec);
    // Ends when it has been killed and reaped.
    while signal::send(pid, 0).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_terminal_has_a_size_and_an_end_of_file() {
    let machine = TestVm::start();
    let size = Some(TermSize { rows: 33, cols: 44 });
    let script = "stty -echo; stty size; read x; stty size; cat; echo $x; exit 4";
    let mut exec = machine.exec_with(&exec(script, size, false));
    exec.started();
    let mut said = String::new();
    while !said.contains("33 44") {
        said += &String::from_utf8(exec.next().payload).unwrap();
    }
    exec.send(&encode(FrameKind::Resize, &TermSize { rows: 55, cols: 66 }));
    exec.stdin(b"abc\n");
    exec.stdin(b"");
    let (out, err, ended) = exec.rest();
    assert_eq!((out.as_str(), err.as_str()), ("55 66\r\nabc\r\n", ""));
    assert_eq!(code_and_signal(&ended), (Some(4), None));
}

#[test]
fn closing_a_stream_ends_its_writer() {
    let machine = TestVm::start();
    let mut exec = machine.exec("exec yes");
    exec.started();
    exec.send(&header(FrameKind::CloseOutput, 1));
    exec.send(&[1]);
    assert_eq!(code_and_signal(&exec.rest().2), (None, Some(SIGPIPE)));
}

#[test]
fn a_signal_reaches_the_command() {
    let machine = TestVm::start();
    let mut exec = machine.exec("trap 'exit 9' TERM; echo; while :; do sleep 0.01; done");
    exec.started();
    exec.next();
    exec.send(&encode(FrameKind::Signal, &SIGTERM));
    assert_eq!(code_and_signal(&exec.rest().2), (Some(9), None));
}

#[test]
fn a_missing_program_is_reported() {
    let machine = TestVm::start();
    let ToGuest::Exec { env, workdir, .. } = exec("", None, false) else { unreachable!() };
    let argv = vec!["no-such-program".to_owned()];
    let (user, tty, rlimits) = (None, None, Vec::new());
    let request =
        ToGuest::Exec { id: 6, argv, env, workdir, user, tty, rlimits, last: false, sweep: false };
    let answer = machine.exec_with(&request).next().value();
    let failure = SpawnFailure::NotFound;
    assert_eq!(answer, Ok(FromGuest::Failed { id: 6, failure, errno: libc::ENOENT }));
}

#[test]
fn a_file_operation_may_follow_in_the_same_packet() {
    let machine = TestVm::start();
    let mut connection = machine.spare();
    let request = FileRequest::List { path: b"/proc/self/fd".to_vec() };
    let mut both = encode(FrameKind::Control, &ToGuest::Files { user: None });
    both.extend(encode(FrameKind::File, &request));
    connection.send(&both);
    let FileReply::Entries(entries) = connection.next().value().unwrap() else {
        panic!("no entries")
    };
    // Its standard streams, the connection and the directory; no descriptor of the guest.
    assert_eq!(entries.len(), 5);
    assert!(matches!(connection.next().value().unwrap(), FileReply::Done { entries: 5, .. }));
}

#[test]
fn the_sandbox_ends_with_its_last_command() {
    let machine = TestVm::start();
    let mut last = machine.exec_with(&exec("exit 7", None, true));
    last.started();
    assert_eq!(code_and_signal(&last.rest().2), (Some(7), None));
    drop(last);
    assert_eq!(machine.end(), LoopEnd::LastExec);
}

#[test]
fn control_messages_are_answered() {
    let mut machine = TestVm::start();
    drop((machine.spare(), machine.spare()));
    let ask = |machine: &mut TestVm, what: &ToMachine| {
        machine.control.send(&encode(FrameKind::Control, what));
    };
    ask(&mut machine, &ToMachine::Measure);
    let usage = MachineUsage { memory: 7, ..MachineUsage::default() };
    assert_eq!(machine.control.next().value(), Ok(FromMachine::Usage(usage)));
    for (order, held) in [(ToMachine::Hold, true), (ToMachine::Release, false)] {
        ask(&mut machine, &order);
        assert_eq!(machine.control.next().value(), Ok(FromMachine::Held { held }));
    }
    ask(&mut machine, &ToMachine::SignalAll { signal: SIGTERM });
    let signalled = std::iter::repeat_with(|| machine.next_action().0).find(|deed| *deed != b'c');
    assert_eq!(signalled, Some(SIGTERM as u8));
    ask(&mut machine, &ToMachine::PowerOff);
    assert_eq!(machine.end(), LoopEnd::Asked);
}

#[test]
fn the_loop_ends_without_a_worker() {
    let mut machine = TestVm::start();
    let (nobody, _) = socket::pair().unwrap();
    machine.control = TestConn::new(nobody);
    assert_eq!(machine.end(), LoopEnd::WorkerGone);
}
