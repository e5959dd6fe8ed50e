//! Streams into a sandbox, as an SSH server uses them. They are the engine's own; the SDK has no face for them.

use crate::scratch::{Scratch, executable};
use microsandbox::Kind;
use msb_engine::{Engine, Home, Launcher, LinkListener, Links};
use msb_spec::{Name, Reach, Rule, UserRef};
use msb_wire::Target;
use std::io::{Read, Write};
use std::thread;

fn engine(scratch: &Scratch) -> (Engine, Name) {
    let home = Home::at(&scratch.home()).expect("the scratch directory is ours");
    (Engine::at(home, Launcher::Execute(executable())), Name::parse("box").expect("a name"))
}

fn any_port() -> Target {
    Target::Tcp { host: "localhost".to_owned(), port: 0 }
}

/// What connects inside says something, and hears the answer.
async fn talk(sandbox: &microsandbox::Sandbox, port: u16) -> String {
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; echo question >&3; cat <&3");
    let output = sandbox.exec("bash", ["-c", &script]).await.expect("bash runs");
    output.stdout().expect("text").to_owned()
}

fn answer(listener: &mut dyn LinkListener) {
    let mut accepted = listener.accept().expect("it listens").expect("somebody");
    assert_eq!(accepted.host, "127.0.0.1");
    let mut heard = [0; 9];
    accepted.stream.read_exact(&mut heard).expect("a question");
    assert_eq!(&heard, b"question\n");
    accepted.stream.write_all(b"answer").expect("the client reads");
}

#[tokio::test]
async fn what_listens_inside_leads_out_where_the_host_may_be_reached() {
    let scratch = Scratch::new();
    let sandbox = scratch.box_named("box").network(Reach::Host).create().await.unwrap();
    let (engine, name) = engine(&scratch);
    let mut listener = engine.link_listen(&name, None, &any_port()).unwrap();
    let Target::Tcp { port, .. } = *listener.at() else { panic!("another target") };
    assert_ne!(port, 0);
    let stopper = listener.stopper();
    let accepting = thread::spawn(move || {
        answer(&mut *listener);
        answer(&mut *listener);
        // Ended from elsewhere.
        assert!(listener.accept().unwrap().is_none());
    });
    assert_eq!(talk(&sandbox, port).await, "answer");
    assert_eq!(talk(&sandbox, port).await, "answer");
    let taken = Target::Tcp { host: "127.0.0.1".to_owned(), port };
    let error = engine.link_listen(&name, None, &taken).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Exists);
    stopper();
    accepting.join().unwrap();
    let wrong = UserRef::parse("nobody-of-that-name").unwrap();
    let error = engine.link_listen(&name, Some(&wrong), &any_port()).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[tokio::test]
async fn nobody_listens_inside_where_the_host_may_not_be_reached() {
    let scratch = Scratch::new();
    let _sandbox = scratch.box_named("box").network(Reach::Public).create().await.unwrap();
    let (engine, name) = engine(&scratch);
    let refused = |at: &Target| engine.link_listen(&name, None, at).map(drop).unwrap_err();
    let socket = Target::Unix { path: b"/tmp/socket".to_vec() };
    let some = Target::Tcp { host: "localhost".to_owned(), port: 7070 };
    for at in [&any_port(), &some, &socket] {
        let error = refused(at);
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.advice().unwrap().contains("msb net box --allow host"), "{error:?}");
    }
    // One port is not every port.
    engine.add_rules(&name, &[Rule::parse("allow@host:tcp:7070").unwrap()]).unwrap();
    let listener = engine.link_listen(&name, None, &some).unwrap();
    assert_eq!(listener.at(), &some);
    assert_eq!(refused(&any_port()).kind(), Kind::Denied);
    assert_eq!(refused(&socket).kind(), Kind::Denied);
    // The rules that are in force now.
    engine.add_rules(&name, &[Rule::parse("deny@host").unwrap()]).unwrap();
    assert_eq!(refused(&some).kind(), Kind::Denied);
}

#[tokio::test]
async fn nobody_listens_in_a_sandbox_without_a_network() {
    let scratch = Scratch::new();
    let _sandbox = scratch.box_named("box").network(Reach::None).create().await.unwrap();
    let (engine, name) = engine(&scratch);
    let error = engine.link_listen(&name, None, &any_port()).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    // To go in is another matter.
    let closed = Target::Tcp { host: "localhost".to_owned(), port: 1 };
    let error = engine.link_dial(&name, None, &closed).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (Kind::Host, "connection refused at `localhost:1`")
    );
    let mut sftp = engine.link_sftp(&name, None).unwrap();
    sftp.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
    let mut version = [0; 9];
    sftp.read_exact(&mut version).unwrap();
    assert_eq!(version[4..], [2, 0, 0, 0, 3]);
}
