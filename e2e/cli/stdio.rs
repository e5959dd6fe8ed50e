//! stdin, stdout and stderr of a command: every byte arrives, and nothing hangs.

use msb_e2e::{Msb, ends};
use std::io::{Read, Write};
use std::process::Stdio;

/// What a plain file of this size hashes to, by a program that is not under test.
fn sha256(bytes: &[u8]) -> String {
    let mut child = std::process::Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum of coreutils");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("it reads");
    ends(child).line()
}

#[test]
fn stdin_is_the_commands_own() {
    for msb in Msb::each() {
        assert_eq!(msb.run_with(["run", "--", "wc", "-c"], b"data\n").line(), "5");
    }
}

#[test]
fn stdout_and_stderr_stay_separate() {
    for msb in Msb::each() {
        let gave = msb.run(["run", "--", "sh", "-c", "echo out; echo err >&2"]).ok();
        assert_eq!((gave.stdout.as_str(), gave.stderr.as_str()), ("out\n", "err\n"));
    }
}

#[test]
fn every_byte_passes_both_ways_unchanged() {
    let bytes: Vec<u8> = (0..=255u8).cycle().take(256 * 257).collect();
    for msb in Msb::each() {
        msb.run(["create", "-n", "box"]).ok();
        for verb in [&["run"][..], &["exec", "box"]] {
            let mut child = msb
                .command([verb, &["--", "cat"]].concat())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let sent = bytes.clone();
            let writer = std::thread::spawn(move || stdin.write_all(&sent));
            let output = child.wait_with_output().unwrap();
            writer.join().unwrap().unwrap();
            assert!(output.stdout == bytes, "{} of {}", output.stdout.len(), bytes.len());
        }
    }
}

#[test]
fn a_hundred_megabytes_of_output_arrive_whole() {
    const SIZE: usize = 100 << 20;
    let script = "import sys
block = bytes(range(256)) * 4096
for _ in range(100):
    sys.stdout.buffer.write(block)";
    let expected = sha256(&(0..=255u8).cycle().take(SIZE).collect::<Vec<u8>>());
    for msb in Msb::each() {
        let mut child = msb
            .command(["run", "--", "python3", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut bytes = Vec::with_capacity(SIZE);
        child.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), SIZE);
        assert_eq!(sha256(&bytes), expected);
        assert_eq!(ends(child).code, 0);
    }
}

#[test]
fn sixty_four_megabytes_of_stdin_arrive_whole() {
    let bytes: Vec<u8> = (0..=255u8).cycle().take(64 << 20).collect();
    let expected = sha256(&bytes);
    for msb in Msb::each() {
        msb.run(["create", "-n", "box"]).ok();
        assert_eq!(msb.run_with(["run", "--", "sha256sum"], &bytes).line(), expected);
        assert_eq!(msb.run_with(["exec", "box", "--", "sha256sum"], &bytes).line(), expected);
    }
}

#[test]
fn a_file_as_stdin_is_read_to_its_end() {
    for msb in Msb::each() {
        let path = msb.file("input", "one\ntwo\n");
        let mut command = msb.command(["run", "--", "cat"]);
        command.stdin(std::fs::File::open(path).unwrap()).stdout(Stdio::piped());
        assert_eq!(ends(command.spawn().unwrap()).stdout, "one\ntwo\n");
    }
}

#[test]
fn a_command_that_ends_does_not_wait_for_an_open_stdin() {
    for msb in Msb::each() {
        msb.run(["create", "-n", "box"]).ok();
        for verb in [&["run"][..], &["exec", "box"]] {
            let mut child = msb
                .command([verb, &["--", "sh", "-c", "echo done; exit 9"]].concat())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let held_open = child.stdin.take().unwrap();
            let gave = ends(child);
            assert_eq!((gave.code, gave.stdout.as_str()), (9, "done\n"));
            drop(held_open);
        }
    }
}

#[test]
fn a_command_that_ends_does_not_wait_for_a_child_that_holds_its_stdout() {
    for msb in Msb::each() {
        msb.run(["create", "-n", "box"]).ok();
        for verb in [&["run"][..], &["exec", "box"]] {
            let gave = msb.run([verb, &["--", "sh", "-c", "sleep 1000 & echo done"]].concat());
            assert_eq!((gave.code, gave.stdout.as_str()), (0, "done\n"));
        }
    }
}

#[test]
fn a_stdin_that_the_command_does_not_read_does_not_hold_it_up() {
    let megabytes = vec![b'x'; 8 << 20];
    for msb in Msb::each() {
        assert_eq!(msb.run_with(["run", "--", "sh", "-c", "echo done"], &megabytes).line(), "done");
    }
}

#[test]
fn no_stdin_is_an_end_of_file_at_once() {
    for msb in Msb::each() {
        msb.run(["create", "-n", "box"]).ok();
        for verb in [&["run"][..], &["exec", "box"]] {
            let gave = msb.run_with([verb, &["--no-stdin", "--", "wc", "-c"]].concat(), b"data");
            assert_eq!(gave.line(), "0");
        }
    }
}

#[test]
fn a_reader_that_leaves_early_is_not_an_error() {
    for msb in Msb::each() {
        let mut child = msb
            .command(["run", "--", "sh", "-c", "yes | head -c 50000000; echo ended >&2"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut some = [0u8; 10];
        child.stdout.take().unwrap().read_exact(&mut some).unwrap();
        assert_eq!(&some, b"y\ny\ny\ny\ny\n");
        let gave = ends(child);
        assert_eq!((gave.code, gave.stderr.as_str()), (0, "ended\n"));
    }
}

#[test]
fn endless_output_into_a_closed_pipe_ends() {
    for msb in Msb::each() {
        let mut child = msb.command(["run", "--", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut some = [0u8; 2];
        child.stdout.take().unwrap().read_exact(&mut some).unwrap();
        ends(child);
    }
}

#[test]
fn a_command_may_close_its_stdout_and_go_on() {
    for msb in Msb::each() {
        let script = "echo before; exec >&-; echo after >&2; exit 6";
        let gave = msb.run(["run", "--", "sh", "-c", script]);
        assert_eq!(
            (gave.code, gave.stdout.as_str(), gave.stderr.as_str()),
            (6, "before\n", "after\n")
        );
    }
}

#[test]
fn a_listing_into_a_closed_pipe_is_not_an_error() {
    for msb in Msb::each() {
        let mut child =
            msb.command(["--tree"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let gave = ends(child);
        assert_eq!((gave.code, gave.stderr.as_str()), (0, ""));
    }
}

#[test]
fn without_a_terminal_nothing_is_coloured() {
    for msb in Msb::each() {
        let gave = msb.run(["exec", "nobody", "--", "true"]);
        assert!(!gave.stderr.contains('\x1b'), "{gave:?}");
    }
}
