//! `msb setup vm`: kernels that are named, found or refused. The build itself is what
//! `cargo xtask kernel` does.

use msb_e2e::{CmdOutput, Msb, ends};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[track_caller]
fn setup(msb: &Msb, variables: &[(&str, &str)], args: &[&str]) -> CmdOutput {
    let mut command = msb.command([&["setup", "vm"], args].concat());
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ends(command.spawn().expect("msb can be executed"))
}

fn named(msb: &Msb, kernel: &Path) -> CmdOutput {
    setup(msb, &[("MSB_KERNEL", &kernel.display().to_string())], &[])
}

/// The smallest ELF file that is a kernel: one segment, which says that it is Linux.
fn vmlinux() -> Vec<u8> {
    let mut bytes = vec![0; 0x2000];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    for (at, value) in [(16, 2), (18, machine), (54, 56), (56, 1)] {
        put(at, &value.to_le_bytes());
    }
    let load: u64 = 0x100_0000;
    put(64, &1u32.to_le_bytes());
    for (at, value) in
        [(24, load), (32, 64), (72, 0x1000), (80, load), (88, load), (96, 0x1000), (104, 0x2_0000)]
    {
        put(at, &value.to_le_bytes());
    }
    put(0x1000, b"Linux version 6.12.1-test (a@b)");
    bytes
}

#[test]
fn a_vmlinux_of_ones_own_is_laid_out_flat_and_used_from_then_on() {
    for msb in Msb::each() {
        let path = msb.file("vmlinux", vmlinux());
        let directory = named(&msb, &path).line();
        assert!(directory.starts_with(&msb.home().display().to_string()), "{directory}");
        let image = fs::metadata(Path::new(&directory).join("kernel.img")).expect("an image");
        assert_eq!(image.len(), 0x2_0000);
        assert_eq!(named(&msb, &path).line(), directory);
        // By its directory it is the same.
        assert_eq!(named(&msb, Path::new(&directory)).line(), directory);
        let gave = setup(&msb, &[("MSB_KERNEL", &directory)], &["--json"]).ok();
        let told: Value = serde_json::from_str(&gave.stdout).expect("JSON");
        assert_eq!(told["version"], "6.12.1-test");
        assert_eq!((&told["load"], &told["entry"]), (&0x100_0000.into(), &0x100_0000.into()));
        assert_eq!((&told["origin"], &told["built"]), (&"elf".into(), &false.into()));
        assert_eq!(gave.stderr, "", "silent without a terminal");
    }
}

#[test]
fn what_is_no_kernel_is_refused_with_a_reason_and_a_hint() {
    let msb = Msb::new();
    let mut other_machine = vmlinux();
    other_machine[18] = 3;
    let whole = vmlinux();
    for (kernel, told) in [
        (msb.scratch().join("none"), "no such file"),
        (msb.file("text", "not a kernel\n"), "not an ELF file"),
        (msb.file("empty", ""), "not an ELF file"),
        (msb.file("short", &whole[..0x1800]), "cut short"),
        (msb.file("other", other_machine), "another kind of machine"),
        (msb.file("directory/x", "").with_file_name(""), "kernel.json cannot be read"),
        ("/dev/null".into(), "not a file"),
        (msb.file("nonsense/kernel.json", "{}").with_file_name(""), "kernel.json makes no sense"),
    ] {
        let gave = named(&msb, &kernel);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        let first = gave.stderr.lines().next().unwrap_or_default();
        assert!(first.starts_with("error: cannot use the kernel `"), "{gave:?}");
        assert!(gave.stderr.contains(told), "{told}: {gave:?}");
        assert!(gave.stderr.contains("hint: MSB_KERNEL names"), "{gave:?}");
    }
    let kept = fs::read_dir(msb.home().join("kernel")).map_or(0, Iterator::count);
    assert_eq!(kept, 0, "nothing is left of what was refused");
}

#[test]
fn nothing_is_built_where_a_kernel_was_named() {
    let msb = Msb::new();
    let path = msb.file("vmlinux", vmlinux()).display().to_string();
    let gave = setup(&msb, &[("MSB_KERNEL", &path)], &["--force"]);
    assert_eq!(gave.code, 125);
    assert_eq!(
        gave.stderr,
        "error: MSB_KERNEL names a kernel, so none is built\n\
         hint: unset MSB_KERNEL to have one built and used\n"
    );
}

#[test]
fn an_ordinary_user_is_told_which_packages_are_missing() {
    let Some(msb) = Msb::as_user() else {
        return msb_e2e::skip("no ordinary user: MSB_TEST_USER is not set");
    };
    let empty = msb.file("bin/none", "").with_file_name("").display().to_string();
    let gave = setup(&msb, &[("PATH", &empty)], &["--force"]);
    assert_eq!(gave.code, 125);
    let first = gave.stderr.lines().next().unwrap_or_default();
    assert!(first.starts_with("error: a kernel cannot be built without `make gcc"), "{gave:?}");
    assert!(gave.stderr.contains("\nhint: install them"), "{gave:?}");
    let apt = msb.file("bin/apt-get", "").with_file_name("").display().to_string();
    let gave = setup(&msb, &[("PATH", &apt)], &["--force"]);
    let line = "hint: `sudo apt-get install --no-install-recommends make gcc";
    assert!(gave.stderr.contains(line), "{gave:?}");
}

/// Programs that pretend to make a kernel, and note how often they were called.
struct FakeKernelBuild {
    msb: Msb,
    path: String,
}

/// What every program does: it notes its call, and leaves what the real one would.
const PROGRAM: &str = r#"
PATH=/usr/bin:/bin; name=${0##*/}; echo "$name $*" >>"$NOTES/calls"
case "$name $*" in
    "gcc --version") echo "gcc (Test) 1.2.3";;
    "apt-cache show --no-all-versions linux-source-6.12") cat "$NOTES/offered";;
    "apt-get "*download*) : >source.deb;;
    "dpkg-query "*) exit 1;;
    "make "*tinyconfig) echo CONFIG_SLUB_TINY=y >"$2/.config";;
    "make "*olddefconfig) sed -i -e '/CONFIG_SLUB_TINY=y/d' -f "$NOTES/dropping" "$2/.config";;
    "make "*vmlinux)
        [ ! -e "$NOTES/broken" ] || { echo 'a.c:1: error: broken' >&2; exit 2; }
        echo '  CC      a.o'; cp "$NOTES/vmlinux" "$2/vmlinux";;
esac
"#;

impl FakeKernelBuild {
    /// None where the headers are missing that no pretence can replace.
    fn new(msb: Msb) -> Option<Self> {
        if !Path::new("/usr/include/gelf.h").exists() {
            msb_e2e::skip("no /usr/include/gelf.h: libelf-dev is not installed");
            return None;
        }
        let notes = msb.file("notes/calls", "").with_file_name("");
        msb.file("notes/vmlinux", vmlinux());
        msb.file("notes/dropping", "");
        let text = format!("#!/bin/sh\nNOTES={}\n{PROGRAM}", notes.display());
        let text = msb.file("program.sh", text);
        let directory = msb.file("bin/none", "").with_file_name("");
        for name in [
            "make",
            "gcc",
            "ld",
            "flex",
            "bison",
            "bc",
            "xz",
            "tar",
            "apt-get",
            "apt-cache",
            "dpkg-deb",
            "dpkg-query",
        ] {
            // Another process writes it: one that is open for writing cannot be executed.
            let target = directory.join(name);
            let installed = Command::new("install").arg("-m755").args([&text, &target]).status();
            assert!(installed.is_ok_and(|status| status.success()), "install");
        }
        let path = directory.display().to_string();
        let workshop = Self { msb, path };
        workshop.offer("6.12.9-1");
        Some(workshop)
    }

    fn each() -> impl Iterator<Item = Self> {
        Msb::each().into_iter().filter_map(Self::new)
    }

    fn offer(&self, version: &str) {
        self.msb.file("notes/offered", format!("Package: x\nVersion: {version}\n"));
    }

    #[track_caller]
    fn setup(&self, args: &[&str]) -> CmdOutput {
        setup(&self.msb, &[("PATH", &self.path)], args)
    }

    /// How often a program was called with this word.
    fn calls(&self, word: &str) -> usize {
        let calls = fs::read_to_string(self.msb.scratch().join("notes/calls")).expect("notes");
        calls.lines().filter(|line| line.contains(word)).count()
    }
}

#[test]
fn a_kernel_is_built_once_for_the_same_inputs() {
    for workshop in FakeKernelBuild::each() {
        let first = workshop.setup(&["--json"]).ok();
        assert_eq!(first.stderr, "", "silent without a terminal");
        let told: Value = serde_json::from_str(&first.stdout).expect("JSON");
        assert_eq!((&told["origin"], &told["built"]), (&"built".into(), &true.into()));
        let directory = told["directory"].as_str().expect("a path");
        assert_eq!(workshop.setup(&[]).line(), directory);
        assert_eq!(workshop.calls(" vmlinux"), 1);
        // Nothing of the work is left.
        let work = workshop.msb.home().join("kernel/.build");
        assert_eq!(fs::read_dir(work).expect("it was used").count(), 0);
        // Asked for, it is built again, in the same place.
        assert_eq!(workshop.setup(&["--force"]).line(), directory);
        assert_eq!(workshop.calls(" vmlinux"), 2);
        // A newer source is another kernel, and the older one stays.
        workshop.offer("6.12.10-1");
        assert_ne!(workshop.setup(&[]).line(), directory);
        assert_eq!(workshop.calls(" vmlinux"), 3);
        assert!(Path::new(directory).join("kernel.img").exists());
    }
}

#[test]
fn a_build_that_failed_goes_on_where_it_stopped() {
    for workshop in FakeKernelBuild::each() {
        let broken = workshop.msb.file("notes/broken", "");
        let gave = workshop.setup(&[]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""));
        assert!(gave.stderr.starts_with("error: the kernel cannot be built\n"), "{gave:?}");
        assert!(gave.stderr.contains("  cause: a.c:1: error: broken\n"), "{gave:?}");
        assert!(gave.stderr.contains("\nhint: the complete log is in `"), "{gave:?}");
        fs::remove_file(broken).expect("it is there");
        workshop.setup(&[]).ok();
        let calls = ["tar ", "download", "tinyconfig", " vmlinux"].map(|word| workshop.calls(word));
        assert_eq!(calls, [1, 1, 1, 2]);
    }
}

#[test]
fn an_option_that_the_source_does_not_take_is_named() {
    for workshop in FakeKernelBuild::each() {
        workshop.msb.file("notes/dropping", "/CONFIG_VIRTIO_FS=/d\n");
        let gave = workshop.setup(&[]);
        assert_eq!(gave.code, 125);
        assert_eq!(
            gave.stderr,
            "error: this version of Linux does not accept our options\n  \
             cause: it dropped `CONFIG_VIRTIO_FS`\n"
        );
        assert_eq!(workshop.calls(" vmlinux"), 0);
    }
}

#[test]
fn without_a_source_of_linux_it_is_said_what_was_looked_for() {
    for workshop in FakeKernelBuild::each() {
        workshop.msb.file("notes/offered", "");
        let gave = workshop.setup(&[]);
        assert_eq!(gave.code, 125);
        let told = "error: apt offers no source of Linux\n  \
                    cause: looked for `linux-source-6.12` and `linux-source-6.1`\n";
        assert!(gave.stderr.starts_with(told), "{gave:?}");
        // Only root can fetch the lists of packages.
        assert_eq!(workshop.calls(" update"), usize::from(workshop.msb.is_root()));
    }
}
