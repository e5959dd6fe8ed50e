//! `msb run`: one command, its streams and its exit code.

use msb_e2e::Msb;

#[test]
fn the_first_command_of_the_readme_works() {
    for msb in Msb::each() {
        let gave = msb.run(["run", "--", "python3", "-c", "print(sum(range(1000)))"]);
        assert_eq!(gave.line(), "499500");
    }
}

#[test]
fn stdin_is_the_commands_own() {
    for msb in Msb::each() {
        assert_eq!(msb.run_with(["run", "--", "wc", "-c"], b"data\n").line(), "5");
    }
}

#[test]
fn exit_codes_are_the_commands_own_or_say_what_went_wrong() {
    for msb in Msb::each() {
        let code = |args: &[&str]| msb.run([&["run"], args].concat()).code;
        assert_eq!(code(&["--", "sh", "-c", "exit 7"]), 7);
        assert_eq!(code(&["--", "no-such-program"]), 127);
        assert_eq!(code(&["--", "/etc/passwd"]), 126);
        assert_eq!(code(&["--", "sh", "-c", "kill -9 $$"]), 137);
        assert_eq!(code(&["--timeout", "200ms", "--", "sleep", "60"]), 124);
        assert_eq!(code(&["--isolation", "vm", "--", "true"]), 125);
    }
}
