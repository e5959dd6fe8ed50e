//! Which of `rollback`, `reset`, `clone` and `restore` stops or starts a sandbox.

use msb_e2e::Msb;

#[test]
fn with_force_a_running_sandbox_goes_back_and_runs_again() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        let write = |text: &str| {
            let script = format!("echo {text} > /root/x");
            msb.run(["exec", "box", "--", "sh", "-c", &script]).ok();
        };
        let status = || msb.json(["ls", "--json"])[0]["status"].clone();
        write("good");
        msb.words("snapshot create base --from box").ok();
        write("bad");
        let gave = msb.words("rollback box base");
        assert!(gave.stderr.contains("hint: `-f` stops it and starts it again"), "{gave:#?}");
        assert_eq!(msb.words("rollback -f box base").line(), "box");
        assert_eq!(msb.words("exec box -- cat /root/x").line(), "good");
        // What fails leaves it running, with its files.
        write("newer");
        let gave = msb.words("rollback -f box nothing");
        assert!(gave.code == 125 && gave.stderr.contains("no snapshot `nothing`"), "{gave:#?}");
        assert_eq!(msb.words("exec box -- cat /root/x").line(), "newer");
        assert_eq!(msb.words("reset -f box").line(), "box");
        assert_eq!(msb.words("exec box -- ls /root").line(), "");
        // One that did not run stays as it is.
        msb.words("stop -f box").ok();
        for line in ["rollback -f box base", "reset -f box"] {
            msb.words(line).ok();
            assert_eq!(status(), "stopped", "{line}");
        }
        assert_eq!(msb.words("reset -t 1s box").code, 125, "a time needs --force");
    }
}

#[test]
fn a_copy_runs_unless_it_is_to_stay_stopped() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        msb.words("snapshot create base --from box").ok();
        for (line, status) in [
            ("clone box a", "running"),
            ("clone --stopped box b", "stopped"),
            ("restore base --name c", "running"),
            ("restore --stopped base --name d", "stopped"),
        ] {
            let name = msb.words(line).line();
            assert_eq!(msb.json(["inspect", &name])["status"], status, "{line}");
        }
        assert_eq!(msb.words("exec a -- hostname").line(), "a");
        assert_eq!(msb.words("clone --start --stopped box e").code, 125);
    }
}
