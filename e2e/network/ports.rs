//! Published ports: which clients are let in, by which port.

use crate::testnet::{TestNet, TestUser};
use msb_e2e::{ends, eventually, gives};
use std::process::{Child, Command, Stdio};

/// A server inside a sandbox, which ends with the test.
struct InsideServer(Child);

impl InsideServer {
    fn serve(user: &TestUser, name: &str, port: u16) -> Self {
        let port = port.to_string();
        let server = "import http.server, sys, socket
class Says(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ('hello ' + self.client_address[0] + '\\n').encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
class Both(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
Both(('::', int(sys.argv[1])), Says).serve_forever()";
        let args = ["exec", name, "--", "/usr/bin/python3", "-c", server, &port];
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

impl Drop for InsideServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn curl(mut command: Command, url: &str) -> msb_e2e::CmdOutput {
    gives(command.args(["-sS", "--max-time", "60", url]).stderr(Stdio::piped()))
}

/// The port of the host that leads to a port inside.
fn host_port(user: &TestUser, name: &str, guest: &str) -> String {
    let ports = user.json(["port", "ls", "--json", name]);
    let ports: Vec<String> = ports
        .as_array()
        .expect("a list of texts")
        .iter()
        .map(|one| one.as_str().expect("a list of texts").to_owned())
        .collect();
    let end = format!(":{guest}");
    let found = ports.iter().find_map(|one| one.strip_suffix(&end));
    let found = found.unwrap_or_else(|| panic!("{ports:?}"));
    found.rsplit_once(':').expect("an address and a port").1.to_owned()
}

/// How curl tells of a connection that was refused, or was let go of at once, whichever it saw first.
const TURNED_AWAY: [i32; 4] = [7, 52, 55, 56];

#[test]
fn a_published_port_is_forwarded_inside() {
    for user in TestNet::users() {
        user.lasting("web", &["-p", "8000", "-p", "0.0.0.0:0:8000", "-p", "[::1]:0:8000"]);
        let _server = InsideServer::serve(&user, "web", 8000);
        let ports = user.json(["port", "ls", "--json", "web"]);
        let ports: Vec<&str> =
            ports.as_array().unwrap().iter().filter_map(|p| p.as_str()).collect();
        assert_eq!(ports.len(), 3, "{ports:?}");
        for published in ports {
            let (outside, _) = published.rsplit_once(':').unwrap();
            let url = format!("http://{}/", outside.replace("0.0.0.0", "198.51.100.2"));
            let mut gave = curl(user.at_home("curl"), &url);
            eventually("the server inside listens", || {
                gave = curl(user.at_home("curl"), &url);
                gave.code == 0
            });
            // Inside, all clients have the address of the gateway.
            assert!(gave.stdout.starts_with("hello "), "{url}: {gave:#?}");
            // The port on all addresses is open to the internet, and the others are not.
            let from_outside = curl(user.net.outside("curl"), &url);
            assert_eq!(from_outside.code == 0, url.contains("198.51.100.2"), "{from_outside:#?}");
        }
    }
}

#[test]
fn ports_are_opened_and_closed_while_it_runs() {
    for user in TestNet::users() {
        user.lasting("web", &[]);
        let _server = InsideServer::serve(&user, "web", 8000);
        let opened = user.run(["port", "add", "web", "8000"]).line();
        let outside = opened.strip_suffix(":8000").unwrap().to_owned();
        let url = format!("http://{outside}/");
        eventually("the server inside listens", || curl(user.at_home("curl"), &url).code == 0);
        assert_eq!(user.run(["port", "ls", "web"]).line(), opened);
        assert_eq!(user.json(["ls", "--json"])[0]["ports"], serde_json::json!([opened]));
        assert!(user.run(["ls"]).line().contains(&opened));
        let port = outside.rsplit_once(':').unwrap().1;
        user.run(["port", "rm", "web", port]).ok();
        assert_eq!(user.run(["port", "ls", "web"]).line(), "");
        assert_eq!(curl(user.at_home("curl"), &url).code, 7);
        let gave = user.run(["port", "rm", "web", port]);
        assert_ne!(gave.code, 0);
        assert!(gave.stderr.contains("no such port"), "{gave:#?}");
        // What was closed can be opened again, just so.
        assert_eq!(user.run(["port", "add", "web", &opened]).line(), opened);
        assert_eq!(curl(user.at_home("curl"), &url).code, 0);
    }
}

#[test]
fn datagrams_come_in_by_published_ports() {
    for user in TestNet::users() {
        user.lasting("web", &["-p", "127.0.0.1:0:5353/udp"]);
        let server = "import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(('0.0.0.0', 5353))
while True:
    data, peer = one.recvfrom(65536)
    one.sendto(b'got ' + data, peer)";
        let args = ["exec", "web", "--", "/usr/bin/python3", "-c", server];
        let server = InsideServer(user.command(args).spawn().unwrap());
        let port = host_port(&user, "web", "5353/udp");
        let client = "import socket, sys
two = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for number, one in enumerate(two):
    one.settimeout(0.2)
    one.connect(('127.0.0.1', int(sys.argv[1])))
    for attempt in range(300):
        try:
            one.send(b'hello %d' % number)
            print(one.recv(100).decode())
            break
        except OSError:
            pass";
        let mut command = user.at_home("/usr/bin/python3");
        let gave = gives(command.args(["-c", client, &port]));
        assert_eq!(gave.line(), "got hello 0\ngot hello 1");
        drop(server);
    }
}

#[test]
fn ingress_is_ruled_by_source_address() {
    for user in TestNet::users() {
        let flags = ["-p", "0.0.0.0:0:8000", "--net-rule", "deny:ingress@198.51.100.1"];
        user.lasting("web", &flags);
        let _server = InsideServer::serve(&user, "web", 8000);
        let url = format!("http://198.51.100.2:{}/", host_port(&user, "web", "8000"));
        eventually("the server inside listens", || curl(user.at_home("curl"), &url).code == 0);
        let refused = curl(user.net.outside("curl"), &url);
        assert!(TURNED_AWAY.contains(&refused.code), "{refused:#?}");
        let denied = user.told("web", "deny:ingress@198.51.100.1");
        assert_eq!(denied[0]["decided"]["direction"], "ingress", "{denied:?}");
        assert_eq!(denied[0]["decided"]["decision"], "deny", "{denied:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_with_a_hint() {
    for user in TestNet::users() {
        // In use by the proxy of the test network.
        let gave = user.inside(&["-p", "127.0.0.1:3128:80"], "echo ran");
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(!gave.stdout.contains("ran"), "{gave:#?}");
        assert!(gave.stderr.contains("127.0.0.1:3128"), "{gave:#?}");
        assert!(gave.stderr.contains("hint: "), "{gave:#?}");
        user.lasting("web", &[]);
        let gave = user.run(["port", "add", "web", "3128:80"]);
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stderr.contains("127.0.0.1:3128"), "{gave:#?}");
        assert_eq!(user.probe_in("web", &["tcp 203.0.113.10 80"]), ["open"]);
    }
}

#[test]
fn a_published_port_without_a_listener_refuses_connections() {
    for user in TestNet::users() {
        user.lasting("web", &["-p", "8000"]);
        let url = format!("http://127.0.0.1:{}/", host_port(&user, "web", "8000"));
        let gave = curl(user.at_home("curl"), &url);
        assert!(TURNED_AWAY.contains(&gave.code), "{gave:#?}");
        user.run(["stop", "web"]).ok();
        assert_eq!(curl(user.at_home("curl"), &url).code, 7);
        // It has them again when it runs again.
        user.run(["start", "web"]).ok();
        let _server = InsideServer::serve(&user, "web", 8000);
        let url = format!("http://127.0.0.1:{}/", host_port(&user, "web", "8000"));
        eventually("the server inside listens", || curl(user.at_home("curl"), &url).code == 0);
    }
}

/// A stopped sandbox has released its ports.
#[test]
fn a_restart_takes_the_same_port_again() {
    for user in TestNet::users() {
        user.lasting("web", &["-p", "8000"]);
        let port = host_port(&user, "web", "8000");
        user.run(["rm", "-f", "web"]).ok();
        user.lasting("web", &["-p", &format!("{port}:8000")]);
        for _ in 0..5 {
            user.run(["restart", "web"]).ok();
            assert_eq!(host_port(&user, "web", "8000"), port);
        }
        user.run(["stop", "web"]).ok();
        user.run(["start", "web"]).ok();
        user.run(["rm", "-f", "web"]).ok();
        user.lasting("web", &["-p", &format!("{port}:8000")]);
    }
}

/// Large answers go out by published ports as well.
#[test]
fn much_goes_out_by_a_published_port() {
    for user in TestNet::users() {
        user.lasting("web", &["-p", "8000"]);
        let script = "cd /tmp && head -c 30000000 /dev/urandom >bulk && sha256sum bulk && \
                      exec /usr/bin/python3 -m http.server 8000 >/dev/null 2>&1";
        let mut server = user.command(["exec", "web", "--", "sh", "-c", script]);
        let mut server = server.spawn().unwrap();
        let url = format!("http://127.0.0.1:{}/bulk", host_port(&user, "web", "8000"));
        let to = user.scratch().join("bulk");
        eventually("all of it came", || {
            let mut command = user.at_home("curl");
            command.args(["-sS", "--max-time", "60", "-o"]).arg(&to).arg(&url);
            ends(command.spawn().unwrap()).code == 0
        });
        server.kill().unwrap();
        let told = server.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let sum = gives(Command::new("sha256sum").arg(&to)).line();
        assert_eq!(told.split(' ').next(), sum.split(' ').next());
    }
}
