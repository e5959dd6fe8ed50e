//! A microVM in which nothing happens: its processors stand still until something comes.

use std::io::{Read, Write};
use std::net::TcpStream;

use msb_e2e::eventually;

use crate::lab;

#[test]
fn a_machine_that_sleeps_wakes_for_its_network_and_for_a_command() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("web", ["--net", "public", "-p", "80", "-m", "128M", "--idle-pause", "2s"]);
    let serve = "echo inside > /index.html; exec httpd -f -p 80 -h /";
    msb.run(["exec", "-d", "web", "--", "sh", "-c", serve]).ok();
    let listed = msb.words("port ls web").line();
    let address = listed.strip_suffix(":80").unwrap().to_owned();
    let sleeps = || msb.json(["inspect", "web"])["status"] == "paused";
    eventually("it sleeps", sleeps);
    let fetched = || -> Option<String> {
        let mut stream = TcpStream::connect(&address).ok()?;
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.ends_with("inside\n").then_some(answer)
    };
    eventually("it answers", || fetched().is_some());
    let events = msb.words("events web").ok().stdout;
    assert!(events.contains("paused, because nothing happened"), "{events}");
    assert!(events.contains("resumed by its network"), "{events}");
    eventually("it sleeps again", sleeps);
    assert_eq!(msb.run(["exec", "web", "--", "echo", "on"]).line(), "on");
    assert!(msb.words("events web").ok().stdout.contains("resumed for a command"));
    msb.words("rm -f web").ok();
}
