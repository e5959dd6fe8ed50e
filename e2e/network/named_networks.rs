//! Other sandboxes cannot be reached, unless both joined a named network.

use crate::testnet::{TestNet, TestUser};
use msb_e2e::eventually;
use std::process::{Child, Stdio};

struct Server(Child);

impl Server {
    /// A server inside a sandbox at port 8000.
    fn inside(user: &TestUser, name: &str) -> Self {
        let args = ["exec", name, "--", "/usr/bin/python3", "-m", "http.server", "8000"];
        let mut command = user.command(args);
        Self(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("msb can be executed"),
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listens(user: &TestUser, name: &str) {
    let own = "curl -s -o /dev/null http://127.0.0.1:8000/";
    eventually("the server inside listens", || user.within(name, own).code == 0);
}

/// Attack 37.
#[test]
fn sandboxes_do_not_reach_each_other() {
    for user in TestNet::users() {
        user.lasting("one", &["-p", "8000"]);
        user.lasting("two", &[]);
        let _server = Server::inside(&user, "one");
        listens(&user, "one");
        let port = user.run(["port", "ls", "one"]).line();
        let port = port.split(':').nth(1).unwrap().to_owned();
        let probes = [
            "name one".to_owned(),
            "name one.msb.internal".to_owned(),
            "tcp 198.18.0.3 8000".to_owned(),
            "tcp 198.18.1.1 8000".to_owned(),
            "tcp 198.18.1.2 8000".to_owned(),
            // Its own address is its own, and no server listens there.
            "tcp 198.18.0.2 8000".to_owned(),
            "tcp fd6d:7362::2 8000".to_owned(),
            // Nor by the port that the host has for it.
            format!("tcp 198.18.0.1 {port}"),
            format!("tcp 198.51.100.2 {port}"),
            format!("tcp host.msb.internal {port}"),
        ];
        let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
        let outcomes = user.probe_in("two", &probes);
        assert_eq!(outcomes[..2], ["unknown"; 2]);
        assert_eq!(outcomes[2..9], ["refused"; 7]);
        assert_eq!(outcomes[9], "unknown");
    }
}

#[test]
fn joined_sandboxes_reach_each_other_by_name() {
    for user in TestNet::users() {
        user.lasting("one", &["--join", "team"]);
        user.lasting("two", &["--join", "team"]);
        user.lasting("three", &["--join", "others"]);
        user.lasting("four", &[]);
        let _server = Server::inside(&user, "one");
        listens(&user, "one");
        let script = "curl -sS -o /dev/null -w '%{http_code}' http://one:8000/";
        assert_eq!(user.within("two", script).line(), "200");
        // The internet can still be reached; other sandboxes do not reach the network.
        assert_eq!(user.probe_in("two", &["tcp 203.0.113.10 80"]), ["open"]);
        for stranger in ["three", "four"] {
            assert_eq!(user.probe_in(stranger, &["name one"]), ["unknown"], "{stranger}");
            let probes = ["tcp 198.18.1.1 8000", "tcp 198.18.1.2 8000"];
            assert_eq!(user.probe_in(stranger, &probes), ["refused"; 2], "{stranger}");
        }
        user.run(["stop", "one"]).ok();
        let gone = user.probe_in("two", &["tcp one 8000"]);
        assert!(gone == ["unknown"] || gone == ["refused"], "{gone:?}");
        user.run(["rm", "-f", "three"]).ok();
        user.run(["ls"]).ok();
        let networks = user.home().join("networks");
        let left = |network: &str| -> Vec<String> {
            let entries = std::fs::read_dir(networks.join(network)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(left("team"), ["two.gateway"]);
        assert!(!networks.join("others").exists());
    }
}
