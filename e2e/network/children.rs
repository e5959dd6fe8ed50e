//! Parents and children: which sandboxes reach each other, egress and ingress.

use crate::testnet::{TestNet, TestUser, WEB, WITHOUT_TUN, changed};
use msb_e2e::{CmdOutput, ends, eventually, gives, skip};
use serde_json::{Value, json};
use std::process::{Child, Stdio};

/// Enough for a server in Python.
const SMALL: &str = "cpus=9,child-cpus=1,child-memory=128M,ttl=none";

fn policy(more: &str) -> String {
    format!("{SMALL},{more}")
}

/// A server inside at port 8000, which ends with the test.
struct Server(Child);

impl Server {
    fn inside(user: &TestUser, name: &str) -> Self {
        let args = ["exec", name, "--", "/usr/bin/python3", "-m", "http.server", "8000"];
        let mut command = user.command(args);
        let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(silent.spawn().expect("msb can be executed"));
        let own = "curl -s -o /dev/null http://127.0.0.1:8000/";
        eventually("the server inside listens", || user.within(name, own).code == 0);
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Probes in a child, which has no directory of the host's to find them in.
#[track_caller]
fn probe(user: &TestUser, name: &str, probes: &[&str]) -> Vec<String> {
    let head = ["exec", name, "--", "/usr/bin/python3", "-c", include_str!("inside/probe.py")];
    let gave = user.run(head.iter().chain(probes)).ok();
    gave.stdout.lines().map(str::to_owned).collect()
}

#[track_caller]
fn spawn(user: &TestUser, parent: &str, name: &str) -> Value {
    user.json(["spawn", "-q", "--json", "-n", name, parent])
}

fn plan(user: &TestUser, name: &str) -> Value {
    let path = user.home().join("sandboxes").join(name).join("plan.json");
    serde_json::from_slice(&std::fs::read(path).expect("it is there")).expect("JSON")
}

#[track_caller]
fn refused(gave: &CmdOutput, why: &str) {
    let hinted = gave.stderr.contains("hint: ");
    assert!(gave.code == 125 && gave.stderr.contains(why) && hinted, "{gave:#?}");
}

#[test]
fn parent_and_children_reach_each_other_and_no_other_sandbox_reaches_them() {
    for user in TestNet::users() {
        user.lasting("lead", &["--spawn", &policy("nested")]);
        user.lasting("other", &["--spawn", &policy("nested")]);
        user.lasting("plain", &[]);
        user.lasting("typed", &["--join", "lead"]);
        assert_eq!(spawn(&user, "lead", "child")["peers"], "family");
        spawn(&user, "child", "grand");
        spawn(&user, "other", "stranger");
        user.run(["clone", "lead", "twin"]).ok();
        user.run(["start", "twin"]).ok();
        let family = ["lead", "child", "grand"];
        let _servers = family.map(|name| Server::inside(&user, name));
        for from in family {
            for to in family {
                let script = format!("curl -sS -o /dev/null -w '%{{http_code}}' http://{to}:8000/");
                assert_eq!(user.within(from, &script).line(), "200", "{from} to {to}");
            }
        }
        for outsider in ["other", "stranger", "plain", "typed", "twin"] {
            let probes = ["name lead", "name child", "name grand.msb.internal"];
            assert_eq!(probe(&user, outsider, &probes), ["unknown"; 3], "{outsider}");
            let probes = ["tcp 198.18.1.0 8000", "tcp 198.18.1.1 8000", "tcp 198.18.1.2 8000"];
            assert_eq!(probe(&user, outsider, &probes), ["refused"; 3], "{outsider}");
        }
        // Of their parent's way out, children have nothing.
        let away = format!("tcp {WEB} 80");
        assert_eq!(probe(&user, "lead", &[&away, "name nobody"]), ["open", "unknown"]);
        for name in ["child", "grand"] {
            let probes = [away.as_str(), "name web.example.com", "tcp host.msb.internal 22"];
            let outcomes = probe(&user, name, &probes);
            assert_eq!(outcomes, ["refused", "unknown", "unknown"], "{name}");
        }
        refused(&user.run(["net", "child", "--allow", "public"]), "is a child");
        // Less is always given.
        user.run(["net", "child", "--deny", "grand"]).ok();
        assert_eq!(probe(&user, "child", &["tcp grand 8000"]), ["refused"]);
        user.run(["rm", "-f", "lead"]).ok();
        user.run(["ls"]).ok();
        let networks = gives(user.at_home("ls").arg("-AR").arg(user.home().join("networks")));
        assert!(!networks.stdout.contains(".lead-"), "{networks:#?}");
    }
}

#[test]
fn a_child_has_its_parents_rules_and_nothing_that_was_given_to_it_alone() {
    for user in TestNet::users() {
        let flags = ["--net-default", "deny", "--net-rule", "allow@web.example.com", "-p", "8000"];
        let looked = ["--net-rule", "allow@www.example.com:http:GET:/", "--net-egress-rate", "9M"];
        let secret = ["--secret", "API_KEY@api.example.com", "--net-bypass", "six.example.com"];
        let policy = policy("nested,net=parent");
        let flags = [&flags[..], &looked, &secret, &["--spawn", &policy]].concat();
        let mut command = user.lasting_command("lead", &flags);
        ends(command.env("API_KEY", "sk-0815-4711").spawn().expect("msb can be executed")).ok();
        // What its parent is given later is not for its children.
        user.run(["net", "lead", "--allow", "dual.example.com"]).ok();
        assert_eq!(spawn(&user, "lead", "child")["net"], "parent");
        spawn(&user, "child", "grand");
        let own = &plan(&user, "lead")["network"];
        for name in ["child", "grand"] {
            let web = "curl -sS http://web.example.com/; curl -sS https://www.example.com/";
            let said = ["hello from the web"; 2].join("\n");
            assert_eq!(user.within(name, web).line(), said, "{name}");
            let post = "curl -sS -o /dev/null -w '%{http_code}' -X POST https://www.example.com/";
            assert_eq!(user.within(name, post).line(), "403", "{name}");
            assert_eq!(probe(&user, name, &["name dual.example.com"]), ["unknown"], "{name}");
            assert_eq!(user.within(name, "env").line().find("API_KEY"), None, "{name}");
            let network = &plan(&user, name)["network"];
            assert_eq!(network["policy"], own["policy"], "{name}");
            assert_eq!(network["egress_rate"], json!(9 << 20), "{name}");
            for none in ["secrets", "ports", "bypass"] {
                assert_eq!(network[none], json!([]), "{name}: {none}");
                assert_ne!(own[none], json!([]), "{none}");
            }
        }
        assert_eq!(probe(&user, "lead", &["name dual.example.com"]).len(), 1);
        refused(&user.run(["net", "child", "--allow", "dual.example.com"]), "is a child");
    }
}

#[test]
fn ports_of_children_are_published_only_if_their_parents_policy_says_so() {
    for user in TestNet::users() {
        user.lasting("closed", &["--spawn", &policy("net=parent")]);
        spawn(&user, "closed", "shut");
        let why = "ports of children of `closed` are not published";
        refused(&user.run(["port", "add", "shut", "8000"]), why);
        assert_eq!(user.run(["port", "ls", "shut"]).line(), "");
        user.lasting("open", &["--spawn", &policy("peers=none,ports")]);
        let child = spawn(&user, "open", "web");
        assert_eq!((&child["peers"], &child["ports"]), (&json!("none"), &json!(true)));
        let _server = Server::inside(&user, "web");
        let opened = user.run(["port", "add", "web", "8000"]).line();
        let url = format!("http://{}/", opened.strip_suffix(":8000").expect("a port"));
        let mut curl = user.at_home("curl");
        let gave = gives(curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", &url]));
        assert_eq!(gave.line(), "200");
        // A way in is neither one out nor one to the others.
        let probes = [&format!("tcp {WEB} 80"), "name open"];
        assert_eq!(probe(&user, "web", &probes), ["refused", "unknown"]);
    }
}

#[test]
fn a_child_has_no_network_where_its_family_shares_none() {
    for user in TestNet::users() {
        user.lasting("mate", &["--join", "team"]);
        user.lasting("joined", &["--join", "team", "--spawn", &policy("default")]);
        user.lasting("alone", &["--no-net", "--spawn", &policy("net=parent")]);
        user.lasting("apart", &["--spawn", &policy("peers=none")]);
        let parents = ["joined", "alone", "apart"];
        for parent in parents {
            let child = spawn(&user, parent, &format!("of-{parent}"));
            assert_eq!((&child["peers"], &child["net"]), (&json!("none"), &json!("none")));
            assert_eq!(plan(&user, &format!("of-{parent}"))["network"], json!(null), "{parent}");
        }
        assert_eq!(probe(&user, "joined", &["name mate"]).len(), 1);
        // Egress of a parent that has joined a network reaches no peer of it.
        user.lasting("guide", &["--join", "team", "--spawn", &policy("net=parent")]);
        let child = spawn(&user, "guide", "of-guide");
        assert_eq!((&child["peers"], &child["net"]), (&json!("none"), &json!("parent")));
        let probes = [&format!("tcp {WEB} 80"), "name mate", "name guide"];
        assert_eq!(probe(&user, "of-guide", &probes), ["open", "unknown", "unknown"]);
        assert_eq!(probe(&user, "mate", &["name of-guide"]), ["unknown"]);
    }
}

/// Names of children may be chosen inside.
#[test]
fn no_child_stands_for_a_host() {
    for user in TestNet::users() {
        user.lasting("lead", &["--net", "host", "--spawn", &policy("default")]);
        assert_eq!(spawn(&user, "lead", "web.example.com")["peers"], "none");
        let web = "curl -sS http://web.example.com/";
        assert_eq!(user.within("lead", web).line(), "hello from the web");
        assert_eq!(spawn(&user, "lead", "host")["peers"], "family");
        let found = probe(&user, "lead", &["name host", "name host.msb.internal"]);
        assert!(found[0].starts_with("198.18.1."), "{found:?}");
        assert!(found[1].contains("198.18.0.1"), "{found:?}");
    }
}

/// Peers are usual, so a host without devices does without; a way out was asked for.
#[test]
fn a_host_without_a_tun_device_spawns_children_with_a_network() {
    for user in TestNet::users() {
        user.lasting("lead", &["--spawn", &policy("default")]);
        user.lasting("guide", &["--spawn", &policy("net=parent")]);
        let without = |args: &[&str]| changed(&user.command(args), WITHOUT_TUN[0]);
        let Some(mut command) = without(&["spawn", "-q", "-n", "child", "lead"]) else {
            return skip("msb is not run in the test network");
        };
        ends(command.spawn().expect("msb can be executed")).ok();
        let children = user.json(["children", "--json", "lead"])["children"].clone();
        assert_eq!(children[0]["peers"], "family", "{children}");
        assert_eq!(user.within("child", "cat /proc/net/dev | grep -c :").line(), "2");
        let mut command = without(&["spawn", "-q", "guide"]).expect("as above");
        ends(command.spawn().expect("msb can be executed")).ok();
    }
}

/// Children of a parent that joined a named network are in it only if its policy says so.
#[test]
fn children_of_one_that_joined_a_network_are_in_it_if_they_may() {
    for user in TestNet::users() {
        user.lasting("friend", &["--join", "team"]);
        for (lead, more, reached) in [("open", "peers=all", true), ("shut", "peers=family", false)]
        {
            user.lasting(lead, &["--join", "team", "--spawn", &policy(more)]);
            let name = format!("{lead}-child");
            let peers = spawn(&user, lead, &name)["peers"].clone();
            assert_eq!(peers, if reached { "all" } else { "none" });
            let _server = Server::inside(&user, "friend");
            let look = "curl -s -m 5 -o /dev/null http://friend:8000/";
            assert_eq!(user.within(&name, look).code == 0, reached, "{lead}");
        }
        // A name that may be a host of the internet is no name of a peer.
        let gave = spawn(&user, "open", "pypi.org");
        assert_eq!(gave["peers"], "none");
    }
}
