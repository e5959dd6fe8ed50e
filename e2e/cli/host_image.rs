//! The built-in `host` image: this machine's programs, and no files of its users.

use msb_e2e::{Msb, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

#[test]
fn the_usual_languages_and_tools_work() {
    for msb in Msb::each() {
        let line = |args: &[&str]| msb.run([&["run", "--"], args].concat()).line();
        assert_eq!(line(&["python3", "-c", "import ssl, json, sqlite3; print(6 * 7)"]), "42");
        assert_eq!(line(&["node", "-e", "console.log(6 * 7)"]), "42");
        assert_eq!(line(&["perl", "-e", "print 6 * 7"]), "42");
        assert_eq!(line(&["bash", "-c", "echo $((6 * 7))"]), "42");
        assert!(line(&["git", "--version"]).starts_with("git version"));
    }
}

#[test]
fn a_c_program_can_be_compiled_and_run() {
    for msb in Msb::each() {
        let program = "#include <stdio.h>\n#include <math.h>\n#include <pthread.h>\n\
                       int main(void) { printf(\"%.0f\\n\", sqrt(1764)); return 3; }\n";
        msb.file("main.c", program);
        let script = "gcc -O1 -o /usr/local/bin/answer main.c -lm && answer";
        let args = ["run", "-w", "/build", "--copy", "main.c:/build/main.c", "--", "sh", "-c"];
        let gave = msb.run(args.into_iter().chain([script]));
        assert_eq!((gave.code, gave.stdout.as_str()), (3, "42\n"), "{gave:?}");
    }
}

#[test]
fn git_commits_in_a_repository_of_its_own() {
    for msb in Msb::each() {
        let script = "set -e; cd /root; git init -q repo; cd repo; echo x > x; git add x; \
                      git -c user.name=a -c user.email=a@b commit -q -m first; \
                      git log --format=%s";
        assert_eq!(msb.run(["run", "--", "sh", "-c", script]).line(), "first");
    }
}

#[test]
fn pip_installs_a_package_that_python_then_finds() {
    let has_pip = ["pip/__init__.py", "setuptools/__init__.py"]
        .iter()
        .all(|file| fs::exists(format!("/usr/lib/python3/dist-packages/{file}")).unwrap());
    if !has_pip {
        return skip("pip: python3-pip and python3-setuptools are not installed");
    }
    for msb in Msb::each() {
        msb.file("pkg/setup.py", "from setuptools import setup\nsetup(name='tinypkg', version='1', py_modules=['tinypkg'])\n");
        msb.file("pkg/tinypkg.py", "answer = 42\n");
        let script = "/usr/bin/python3 -m pip install -q --no-build-isolation --no-deps --no-index ./pkg 2>&1 \
                      && cd / && /usr/bin/python3 -c 'import tinypkg; print(tinypkg.answer)'";
        let args = ["run", "-w", "/work", "--copy", "pkg:/work/pkg", "--", "sh", "-c", script];
        let gave = msb.run(args);
        assert_eq!((gave.code, gave.stdout.lines().last()), (0, Some("42")), "{gave:?}");
        assert!(!fs::exists("/usr/local/lib/python3.11/dist-packages/tinypkg.py").unwrap());
    }
}

#[test]
fn npm_installs_a_program_that_is_then_on_the_path() {
    if !fs::exists("/usr/bin/npm").unwrap() {
        return skip("npm is not installed");
    }
    for msb in Msb::each() {
        msb.file(
            "pkg/package.json",
            "{\"name\": \"tiny\", \"version\": \"1.0.0\", \"bin\": {\"tiny\": \"tiny.js\"}}",
        );
        msb.file("pkg/tiny.js", "#!/usr/bin/env node\nconsole.log(6 * 7)\n");
        let script = "npm install -g --offline --no-audit --no-fund ./pkg >/tmp/npm.log 2>&1 \
                      || cat /tmp/npm.log; tiny";
        let args = ["run", "-w", "/work", "--copy", "pkg:/work/pkg", "--", "sh", "-c", script];
        assert_eq!(msb.run(args).line(), "42");
    }
}

#[test]
fn the_users_files_are_not_there() {
    for msb in Msb::each() {
        let secret = msb.file("secret", "s3cret");
        let script = format!(
            "cat {secret} 2>/dev/null; cat /etc/shadow 2>/dev/null; \
             ls /home /root /var/log /run 2>/dev/null | grep -v : | sort -u",
            secret = secret.display()
        );
        let gave = msb.run(["run", "--", "sh", "-c", &script]);
        assert_eq!(gave.stdout.trim(), "", "{gave:?}");
    }
}

#[test]
fn a_file_that_is_not_world_readable_cannot_be_read() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can put a private file under /usr/local");
    }
    let private = format!("/usr/local/msb-e2e-private-{}", std::process::id());
    fs::write(&private, "s3cret").unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o600)).unwrap();
    let gave: Vec<_> =
        Msb::each().iter().map(|msb| msb.run(["run", "--", "cat", &private])).collect();
    fs::remove_file(&private).unwrap();
    for one in gave {
        assert_eq!((one.code, one.stdout.as_str()), (1, ""), "{one:?}");
    }
}

#[test]
fn what_is_under_usr_local_and_opt_is_there() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can put programs under /usr/local and /opt");
    }
    let name = format!("msb-e2e-{}", std::process::id());
    let programs = [format!("/usr/local/bin/{name}"), format!("/opt/{name}")];
    for program in &programs {
        fs::write(program, "#!/bin/sh\necho found\n").unwrap();
        fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
    }
    let gave: Vec<_> = Msb::each()
        .iter()
        .flat_map(|msb| programs.each_ref().map(|program| msb.run(["run", "--", program])))
        .collect();
    programs.iter().for_each(|program| fs::remove_file(program).unwrap());
    for one in gave {
        assert_eq!(one.line(), "found");
    }
}

#[test]
fn installing_inside_does_not_change_the_host() {
    for msb in Msb::each() {
        let name = format!("msb-e2e-inside-{}", std::process::id());
        let script = format!(
            "echo x > /usr/local/bin/{name} && echo x > /usr/bin/{name}; ls /usr/local/bin/{name}"
        );
        assert_eq!(
            msb.run(["run", "--", "sh", "-c", &script]).line(),
            format!("/usr/local/bin/{name}")
        );
        for directory in ["/usr/local/bin", "/usr/bin"] {
            assert!(!fs::exists(format!("{directory}/{name}")).unwrap());
        }
    }
}

#[test]
fn temporary_places_and_devices_work() {
    for msb in Msb::each() {
        let script = "set -e; for d in /tmp /dev/shm /var/tmp; do echo x > $d/x; done; \
                      head -c 4 /dev/urandom | wc -c; head -c 4 /dev/zero | wc -c; \
                      echo gone > /dev/null; ls /proc/self/status; \
                      python3 -c 'import pty, multiprocessing; pty.openpty(); multiprocessing.Lock()'";
        assert_eq!(msb.run(["run", "--", "sh", "-c", script]).line(), "4\n4\n/proc/self/status");
    }
}
