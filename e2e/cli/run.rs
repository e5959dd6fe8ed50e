//! `msb run`: one command, its exit code, its name, and what is left of it.

use msb_e2e::{CmdOutput, Msb, Process, ends, eventually};

#[test]
fn the_first_command_of_the_readme_works() {
    for msb in Msb::each() {
        let mut command = msb.command(["run", "--", "python3", "-c", "print(sum(range(1000)))"]);
        command.env("MSB_HOME", msb.scratch().join("made/by/msb"));
        let gave = CmdOutput::from(command.output().unwrap());
        assert_eq!(gave.line(), "499500");
    }
}

#[test]
fn exit_codes_are_the_commands_own_or_say_what_went_wrong() {
    for msb in Msb::each() {
        let code = |args: &[&str]| msb.run([&["run"], args].concat()).code;
        assert_eq!(code(&["--", "true"]), 0);
        assert_eq!(code(&["--", "sh", "-c", "exit 7"]), 7);
        assert_eq!(code(&["--", "sh", "-c", "exit 255"]), 255);
        assert_eq!(code(&["--", "no-such-program"]), 127);
        assert_eq!(code(&["--", "/no/such/program"]), 127);
        assert_eq!(code(&["--", "/etc/passwd"]), 126);
        assert_eq!(code(&["--", "/usr"]), 126);
        assert_eq!(code(&["--", "sh", "-c", "kill -9 $$"]), 137);
        assert_eq!(code(&["--", "sh", "-c", "kill -TERM $$"]), 143);
        assert_eq!(code(&["--timeout", "200ms", "--", "sleep", "60"]), 124);
        assert_eq!(code(&["--isolation", "vm", "--", "true"]), 125);
        assert_eq!(code(&["--no-such-flag", "--", "true"]), 125);
        assert_eq!(code(&["/no/such/rootfs", "--", "true"]), 125);
    }
}

#[test]
fn arguments_arrive_as_they_were_given() {
    for msb in Msb::each() {
        let script = "import sys, json; print(json.dumps(sys.argv[1:]))";
        let words = ["", " ", "a b", "$HOME", "*", "--name", "-q", "\"'\\", "two\nlines", "äöü"];
        let args = ["run", "--", "python3", "-c", script].into_iter().chain(words);
        let given: Vec<String> = serde_json::from_str(&msb.run(args).line()).unwrap();
        assert_eq!(given, words);
    }
}

#[test]
fn a_directory_is_a_root_filesystem() {
    for msb in Msb::each() {
        let root = msb.rootfs();
        msb.file("rootfs/etc/motd", "from the directory\n");
        let shell = "cat /etc/motd; echo changed > /etc/motd; cat /etc/motd; ls /usr/lib";
        let gave = msb.run(["run", "./rootfs", "--", "/bin/sh", "-c", shell]);
        assert_eq!(gave.stdout, "from the directory\nchanged\n");
        let after = std::fs::read_to_string(root.join("etc/motd")).unwrap();
        assert_eq!(after, "from the directory\n", "the image must not change");
    }
}

#[test]
fn without_a_command_a_shell_reads_stdin() {
    for msb in Msb::each() {
        assert_eq!(msb.run_with(["run"], b"echo $((6 * 7)); exit 3").stdout, "42\n");
        assert_eq!(msb.run_with(["run"], b"exit 3").code, 3);
    }
}

#[test]
fn an_unnamed_run_leaves_nothing() {
    for msb in Msb::each() {
        msb.run(["run", "--", "sh", "-c", "echo x > /root-file; true"]).ok();
        assert_eq!(msb.json(["ls", "--json"]), serde_json::json!([]));
        eventually("no directory is left", || {
            std::fs::read_dir(msb.home().join("sandboxes")).unwrap().next().is_none()
        });
    }
}

#[test]
fn a_named_run_stays_with_its_files_and_logs_until_rm() {
    for msb in Msb::each() {
        let script = "echo run >> /runs; cat /runs";
        msb.run(["run", "-n", "job", "--", "sh", "-c", script]).ok();
        assert_eq!(msb.run(["ls", "-q"]).line(), "job");
        assert_eq!(msb.run(["logs", "job"]).line(), "run");
        msb.run(["start", "job"]).ok();
        assert_eq!(msb.run(["exec", "job", "--", "cat", "/runs"]).line(), "run");
        msb.run(["rm", "-f", "job"]).ok();
        assert_eq!(msb.run(["ls", "-q"]).line(), "");
    }
}

#[test]
fn a_named_run_with_rm_leaves_nothing() {
    for msb in Msb::each() {
        assert_eq!(msb.run(["run", "--rm", "-n", "job", "--", "sh", "-c", "exit 4"]).code, 4);
        assert_eq!(msb.run(["ls", "-q"]).line(), "");
    }
}

#[test]
fn a_detached_run_prints_its_name_and_goes_on_until_its_command_ends() {
    for msb in Msb::each() {
        let args = ["run", "-d", "-n", "back", "--", "sh", "-c", "echo up; sleep 1000"];
        assert_eq!(msb.run(args).line(), "back");
        eventually("the command speaks", || msb.run(["logs", "back"]).stdout == "up\n");
        assert_eq!(msb.json(["inspect", "back"])["status"], "running");
        msb.run(["stop", "-f", "back"]).ok();
        assert_eq!(msb.json(["inspect", "back"])["status"], "stopped");

        let name = msb.run(["run", "-d", "--", "sh", "-c", "exit 5"]).line();
        assert_eq!(msb.run(["wait", &name]).code, 5);
    }
}

#[test]
fn processes_left_behind_end_with_the_command() {
    for msb in Msb::each() {
        let script = "sleep 1234 & sleep 1234 & echo started; read line";
        let mut child = msb
            .command(["run", "-n", "left", "--", "sh", "-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        eventually("it started", || msb.run(["logs", "left"]).stdout == "started\n");
        let sleeps = || {
            let processes = msb.processes("left");
            processes.iter().filter(|process| process.name == "sleep").count()
        };
        // A child of the shell is the shell's copy until it has become `sleep`.
        eventually("both are there", || sleeps() == 2);
        let before = msb.processes("left");
        drop(stdin);
        assert_eq!(ends(child).stdout, "started\n");
        eventually("no process is left", || !before.iter().any(Process::is_alive));
    }
}

#[test]
fn the_environment_of_the_caller_stays_outside() {
    for msb in Msb::each() {
        let mut command = msb.command(["run", "-e", "GIVEN", "-e", "SET=1 2", "--", "env"]);
        command.env("SECRET_TOKEN", "s3cret").env("GIVEN", "yes");
        let output = command.output().unwrap();
        let seen = String::from_utf8(output.stdout).unwrap();
        assert!(!seen.contains("s3cret"), "{seen}");
        assert!(seen.lines().any(|line| line == "GIVEN=yes"), "{seen}");
        assert!(seen.lines().any(|line| line == "SET=1 2"), "{seen}");
    }
}

#[test]
fn without_vm_auto_says_once_that_it_took_process() {
    for msb in Msb::each() {
        let mut command = msb.command(["run", "--", "true"]);
        let gave = CmdOutput::from(command.env("MSB_ISOLATION", "auto").output().unwrap());
        assert_eq!((gave.code, gave.stdout.as_str()), (0, ""));
        let notes: Vec<&str> = gave.stderr.lines().collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("note:") && notes[0].contains("process"), "{notes:?}");

        let mut command = msb.command(["run", "-q", "--", "true"]);
        let gave = CmdOutput::from(command.env("MSB_ISOLATION", "auto").output().unwrap());
        assert_eq!(gave, CmdOutput { code: 0, stdout: String::new(), stderr: String::new() });
    }
}

#[test]
fn only_loopback_is_there() {
    for msb in Msb::each() {
        let script = "import os, socket
print(sorted(os.listdir('/sys/class/net')) if os.path.isdir('/sys/class/net') else ['lo'])
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname()).close()
try:
    socket.create_connection(('192.0.2.1', 80), timeout=5)
except OSError as error:
    print(error.strerror)";
        for flags in [&["run"][..], &["run", "--no-net"]] {
            let gave = msb.run([flags, &["--", "python3", "-c", script]].concat());
            assert_eq!(gave.line(), "['lo']\nNetwork is unreachable");
        }
    }
}

#[test]
fn a_dry_run_does_nothing() {
    for msb in Msb::each() {
        let plan =
            msb.json(["run", "--dry-run", "--json", "-n", "planned", "-e", "A=1", "--", "true"]);
        assert_eq!(plan["name"], "planned");
        assert_eq!(plan["isolation"], "process");
        assert_eq!(plan["env"]["A"], "1");
        assert_eq!(plan["command"]["argv"], serde_json::json!(["true"]));
        assert_eq!(msb.run(["ls", "-q"]).line(), "");
    }
}
