//! Corporate networks: an HTTP proxy for all egress, and a private CA.

use crate::testnet::{TestNet, TestUser};
use msb_e2e::{CmdOutput, ends};

#[track_caller]
fn behind(user: &TestUser, variables: &[(&str, &str)], flags: &[&str], script: &str) -> CmdOutput {
    let mut command = user.inside_command(flags, script);
    ends(command.envs(variables.iter().copied()).spawn().expect("msb can be executed"))
}

#[test]
fn what_leaves_goes_through_the_proxy_of_the_host() {
    for user in TestNet::users() {
        let before = user.net.log("proxy").matches("CONNECT").count();
        let proxy = [("HTTPS_PROXY", "http://127.0.0.1:3128")];
        let script = "curl -sS --cacert /world/ca.pem https://web.example.com/";
        let gave = behind(&user, &proxy, &[], script);
        assert_eq!(gave.line(), "hello from the web");
        let log = user.net.log("proxy");
        assert!(log.matches("CONNECT").count() > before, "{log}");
        // Looked into, too.
        let flags = ["--net-rule", "allow@api.example.com:http"];
        let script = "curl -sS -o /dev/null -w '%{http_code}' https://api.example.com/";
        assert_eq!(behind(&user, &proxy, &flags, script).line(), "200");
        let log = user.net.log("proxy");
        assert!(log.contains("CONNECT 203.0.113.11:443"), "by its address: {log}");
        // Plain requests, too.
        let script = "curl -sS -o /dev/null -w '%{http_code}' http://api.example.com/";
        assert_eq!(behind(&user, &proxy, &flags, script).line(), "200");
        let log = user.net.log("proxy");
        assert!(log.contains("CONNECT 203.0.113.11:80"), "by its address: {log}");
        // Rules come before it.
        let flags = ["--net-rule", "deny@web.example.com"];
        let script = "curl -s --cacert /world/ca.pem https://web.example.com/; echo $?";
        assert_eq!(behind(&user, &proxy, &flags, script).line(), "6");
    }
}

/// A name that was judged is not resolved once more: the second answer could be another.
#[test]
fn the_proxy_connects_to_the_address_that_was_judged() {
    for user in TestNet::users() {
        for (number, rule) in
            ["allow@*.flip.example.net", "allow@*.flip.example.net:http"].into_iter().enumerate()
        {
            let name = format!("proxy{number}-{}.private.flip.example.net", user.msb.uid());
            let proxy = [("HTTPS_PROXY", "http://127.0.0.1:3128")];
            let flags = ["--net-default", "deny", "--net-rule", rule];
            let script = format!("curl -sS -o /dev/null -w '%{{http_code}}' http://{name}/");
            assert_eq!(behind(&user, &proxy, &flags, &script).line(), "200", "{rule}");
            let log = user.net.log("proxy");
            assert!(log.contains("CONNECT 203.0.113.10:80"), "{log}");
            assert!(!log.contains(&name), "{log}");
        }
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
        // `MSB_PROXY_RESOLVES` lets the proxy resolve names.
        let variables = [("HTTPS_PROXY", "http://127.0.0.1:3128"), ("MSB_PROXY_RESOLVES", "1")];
        let flags = ["--net-rule", "allow@api.example.com:http"];
        let script = "curl -sS -o /dev/null -w '%{http_code}' https://api.example.com/";
        assert_eq!(behind(&user, &variables, &flags, script).line(), "200");
        assert!(user.net.log("proxy").contains("CONNECT api.example.com:443"), "by its name");
    }
}

#[test]
fn the_proxy_gets_its_credentials_and_the_sandbox_does_not() {
    for user in TestNet::users() {
        let proxy = [("HTTPS_PROXY", "http://worker:pass%20word@127.0.0.1:3129")];
        let flags = ["--net-rule", "allow@api.example.com:http"];
        let script = "curl -sS -o /dev/null -w '%{http_code}\\n' https://api.example.com/; env";
        let gave = behind(&user, &proxy, &flags, script).ok();
        assert!(gave.stdout.starts_with("200\n"), "{gave:#?}");
        assert!(!gave.stdout.contains("3129") && !gave.stdout.contains("pass"), "{gave:#?}");
        let wrong = [("HTTPS_PROXY", "http://worker:wrong@127.0.0.1:3129")];
        let script = "curl -s -o /dev/null -w '%{http_code}\\n' https://api.example.com/; true";
        let gave = behind(&user, &wrong, &flags, script).ok();
        assert!(["502\n", "000\n"].contains(&gave.stdout.as_str()), "{gave:#?}");
    }
}

/// Servers that echo requests do not leak the credentials either.
#[test]
fn the_credentials_of_the_proxy_do_not_come_back() {
    for user in TestNet::users() {
        // Only a proxy that resolves names is handed plain requests, with its credentials.
        let proxy = [
            ("HTTPS_PROXY", "http://worker:pass%20word@127.0.0.1:3129"),
            ("MSB_PROXY_RESOLVES", "1"),
        ];
        let flags = ["--net-rule", "allow@web.example.com:http"];
        let script = "curl -sS -X TRACE http://web.example.com/trace; \
                      curl -sS http://web.example.com/heads";
        let gave = behind(&user, &proxy, &flags, script).ok();
        // worker:pass word
        assert!(!gave.stdout.contains("d29ya2VyOnBhc3Mgd29yZA"), "{gave:#?}");
        assert!(
            gave.stdout.to_lowercase().contains("proxy-authorization: basic ****"),
            "{gave:#?}"
        );
        assert!(!user.net.log("proxy").contains("TRACE"));
    }
}

/// Credentials for the proxy are sent over TLS where the proxy speaks TLS.
#[test]
fn a_proxy_may_be_spoken_to_in_tls() {
    for user in TestNet::users() {
        let proxy = [("HTTPS_PROXY", "https://worker:pass%20word@127.0.0.1:3130")];
        let before = user.net.log("tls-proxy").matches("CONNECT").count();
        let fetch = "curl -sS --cacert /world/ca.pem https://web.example.com/";
        assert_eq!(behind(&user, &proxy, &[], fetch).line(), "hello from the web");
        // More than all buffers on the way hold, both ways.
        let script = "/usr/bin/python3 /world/streams.py turns 203.0.113.10 7000 9000000";
        assert_eq!(behind(&user, &proxy, &[], script).line(), "same");
        let flags = ["--net-rule", "allow@api.example.com:http"];
        let script = "curl -sS -o /dev/null -w '%{http_code}' https://api.example.com/";
        assert_eq!(behind(&user, &proxy, &flags, script).line(), "200");
        let log = user.net.log("tls-proxy");
        assert!(log.matches("CONNECT").count() > before + 2, "{log}");
        // A proxy with an untrusted certificate does not get the credentials.
        let mut command = user.inside_command(&[], &format!("{fetch}; echo $?"));
        command.envs(proxy).env_remove("SSL_CERT_FILE");
        let gave = ends(command.spawn().expect("msb can be executed")).ok();
        assert!(!gave.stdout.contains("hello"), "{gave:#?}");
        assert_eq!(
            user.net.log("tls-proxy").matches("CONNECT").count(),
            log.matches("CONNECT").count()
        );
    }
}

#[test]
fn some_are_reached_without_the_proxy() {
    for user in TestNet::users() {
        let variables =
            [("HTTPS_PROXY", "http://127.0.0.1:3128"), ("NO_PROXY", "other.example.com")];
        let flags = ["--net-rule", "allow@other.example.com:http"];
        let script = "curl -sS -o /dev/null -w '%{http_code}' https://other.example.com/";
        assert_eq!(behind(&user, &variables, &flags, script).line(), "200");
        let log = user.net.log("proxy");
        assert!(!log.contains("CONNECT other.example.com"), "{log}");
        assert!(!log.contains("CONNECT 203.0.113.21"), "{log}");
    }
}

#[test]
fn a_proxy_that_cannot_be_understood_is_an_error() {
    for user in TestNet::users() {
        let variables = [("HTTPS_PROXY", "socks5://user:hidden@127.0.0.1:1080")];
        let gave = behind(&user, &variables, &[], "echo ran");
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stderr.contains("proxy") && gave.stderr.contains("hint: "), "{gave:#?}");
        assert!(!gave.stderr.contains("hidden"), "{gave:#?}");
    }
}

/// The gateway trusts only the CA certificates of the host.
#[test]
fn upstream_certificates_are_verified_with_the_authorities_of_the_host() {
    for user in TestNet::users() {
        let flags = ["--net-rule", "allow@api.example.com:http"];
        let script = "curl -s -o /dev/null -w '%{http_code}\\n' https://api.example.com/; true";
        assert_eq!(user.inside(&flags, script).line(), "200");
        let mut command = user.inside_command(&flags, script);
        command.env_remove("SSL_CERT_FILE");
        let gave = ends(command.spawn().unwrap()).ok();
        assert!(["502\n", "000\n"].contains(&gave.stdout.as_str()), "{gave:#?}");
    }
}
