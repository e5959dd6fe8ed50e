//! Common HTTPS clients, through a gateway that intercepts TLS.
//!
//! None is configured for its CA: the trust store of the sandbox has it.

use crate::testnet::TestNet;
use msb_e2e::skip;

fn looked_into(name: &str) -> [String; 2] {
    ["--net-rule".to_owned(), format!("allow@{name}:http")]
}

#[test]
fn curl_speaks_both_versions_of_http() {
    for user in TestNet::users() {
        let flags = ["--net-rule", "allow@*.example.com:http"];
        let script = "curl='curl -sS -o /tmp/out -w %{http_code},%{http_version}\\n'; \
                      $curl https://api.example.com/x; $curl --http1.1 https://h2.example.com/x; \
                      $curl --http2 https://h2.example.com/x; grep -o HTTP/2.0 /tmp/out; \
                      $curl http://web.example.com/; $curl -I https://web.example.com/";
        let gave = user.inside(&flags, script).line();
        assert_eq!(gave, "200,1.1\n200,1.1\n200,2\nHTTP/2.0\n200,1.1\n200,1.1");
    }
}

#[test]
fn python_requests_trusts_the_gateway() {
    for user in TestNet::users() {
        let [flag, rule] = looked_into("api.example.com");
        let script = "/usr/bin/python3 - <<'PYTHON'
import json, requests, urllib.request
session = requests.Session()
for number in range(20):
    answer = session.post('https://api.example.com/requests', json={'number': number})
    assert json.loads(answer.json()['body']) == {'number': number}
print('requests')
print(urllib.request.urlopen('https://api.example.com/urllib').status)
PYTHON";
        assert_eq!(user.inside(&[&flag, &rule], script).line(), "requests\n200");
    }
}

#[test]
fn node_fetch_trusts_the_gateway() {
    for user in TestNet::users() {
        let [flag, rule] = looked_into("api.example.com");
        let script = "/usr/bin/node -e \"(async () => { \
                      const one = await fetch('https://api.example.com/node', \
                      {method: 'POST', body: 'hello'}); \
                      console.log(one.status, (await one.json()).body); })()\"";
        let gave = user.inside(&[&flag, &rule], script);
        if gave.stderr.contains("fetch is not defined") {
            return skip("this node is older than fetch");
        }
        assert_eq!(gave.line(), "200 hello");
    }
}

#[test]
fn git_clones_and_pushes_through_the_gateway() {
    for user in TestNet::users() {
        let [flag, rule] = looked_into("git.example.com");
        let branch = format!("branch-{}", user.msb.uid());
        let script = format!(
            "set -e; cd /tmp; export HOME=/tmp; \
             git clone -q https://git.example.com/project.git; cd project; cat README; \
             head -c 3000000 /dev/urandom >large; git add large; \
             git -c user.name=a -c user.email=a@example.com commit -q -m large; \
             git push -q origin HEAD:{branch}; git ls-remote origin {branch} | wc -l"
        );
        let gave = user.inside(&[&flag, &rule], &script);
        assert_eq!(gave.line(), "hello from git\n1");
        // Read, and not write, by two rules.
        let flags = [
            "--net-rule",
            "deny@git.example.com:http:POST:/project.git/git-receive-pack",
            "--net-rule",
            "allow@git.example.com:http",
        ];
        let gave = user.inside(&flags, &script.replace(&branch, "other"));
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stdout.starts_with("hello from git\n"), "{gave:#?}");
        assert!(gave.stderr.contains("403"), "{gave:#?}");
    }
}

#[test]
fn pip_installs_through_the_gateway() {
    for user in TestNet::users() {
        let [flag, rule] = looked_into("pypi.example.com");
        let script = "export HOME=/tmp; /usr/bin/python3 -m pip install -q \
                      --disable-pip-version-check --root-user-action=ignore --target /tmp/got \
                      --index-url https://pypi.example.com/simple/ tiny-world && \
                      PYTHONPATH=/tmp/got /usr/bin/python3 -c 'import tiny_world; \
                      print(tiny_world.WORDS)'";
        let gave = user.inside(&[&flag, &rule], script);
        assert_eq!(gave.line(), "hello from the index");
        // And where nothing is looked into, as with any other index.
        let script = script.replace("pip install", "pip --cert /world/ca.pem install");
        assert_eq!(user.inside(&[], &script).line(), "hello from the index");
    }
}

#[test]
fn openssl_and_what_uses_its_files_trust_the_gateway() {
    for user in TestNet::users() {
        let [flag, rule] = looked_into("api.example.com");
        let script = "openssl s_client -connect api.example.com:443 -servername api.example.com \
                      -verify_return_error </dev/null 2>/dev/null | grep 'Verify return code'; \
                      env -u SSL_CERT_FILE -u CURL_CA_BUNDLE curl -sS -o /dev/null \
                      -w '%{http_code}\\n' https://api.example.com/; \
                      curl -sS -o /dev/null --cacert /world/ca.pem https://api.example.com/ 2>&1 \
                      | grep -c 'SSL certificate problem'";
        let gave = user.inside(&[&flag, &rule], script).ok();
        let lines: Vec<&str> = gave.stdout.lines().map(str::trim).collect();
        assert!(lines.contains(&"Verify return code: 0 (ok)"), "{gave:#?}");
        // The default trust store is enough, and the CA of the test network is not.
        assert!(gave.stdout.ends_with("200\n1\n"), "{gave:#?}");
    }
}

/// The CA of one sandbox is not trusted in another.
#[test]
fn every_sandbox_has_an_authority_of_its_own() {
    for user in TestNet::users() {
        let [flag, rule] = looked_into("api.example.com");
        let script = "cat \"$SSL_CERT_FILE\"";
        let first = user.inside(&[&flag, &rule], script).line();
        let second = user.inside(&[&flag, &rule], script).line();
        assert!(first.contains("BEGIN CERTIFICATE"), "{first}");
        assert_ne!(first, second);
        // Without interception there is no new CA in the trust store.
        let gave = user.inside(&[], "echo \"${SSL_CERT_FILE-none}\"");
        assert_eq!(gave.line(), "none");
    }
}
