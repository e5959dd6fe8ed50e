//! Compares the list with Docker's, and the compiler with libseccomp.

use super::*;
use crate::bpf_compiler::{ARCHITECTURE, RETURN_ALLOW, RETURN_ERRNO};
use crate::bpf_interpreter::interpret;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};

const ONE_ID: Ids = Ids::Single { uid: 1000, gid: 1000 };

/// Every combination of settings that changes the filter.
fn settings() -> Vec<Security> {
    let mut all = Vec::new();
    for profile in [Profile::Default, Profile::Restricted] {
        for allow_userns in [false, true] {
            for allow_setid in [false, true] {
                all.push(Security { profile, allow_userns, allow_setid });
            }
        }
    }
    all
}

#[test]
fn the_program_stays_small() {
    for security in settings() {
        let program = program(&security, &ONE_ID);
        assert!(program.len() < 600, "{} instructions for {security:?}", program.len());
    }
}

#[test]
fn ranges_cover_every_number_once() {
    let actions =
        [(3, SyscallAction::Allow), (4, SyscallAction::Allow), (9, SyscallAction::Errno(1))];
    let unknown = SyscallAction::Errno(ENOSYS as u16);
    assert_eq!(
        ranges(actions.into()),
        vec![
            (0, unknown.clone()),
            (3, SyscallAction::Allow),
            (5, unknown.clone()),
            (9, SyscallAction::Errno(1)),
            (10, unknown),
        ]
    );
}

#[test]
fn every_call_is_listed_once_and_with_a_reason() {
    let mut seen = std::collections::BTreeSet::new();
    for (reason, calls) in ALLOWED.iter().chain(ALLOWED_ON_ARCH).chain(WITH_USERNS) {
        assert!(reason.split(' ').count() > 1, "{reason}");
        for (name, number) in *calls {
            assert!(seen.insert(*number), "{name} is listed twice");
            let known = |(first, last): &(u32, u32)| (*first..=*last).contains(&(*number as u32));
            assert!(KNOWN.iter().any(known), "{name} is not among the known numbers");
        }
    }
}

/// Calls of Docker's default profile (moby/profiles, 2026) for a container without added
/// capabilities, on x86-64 and a kernel since 4.8, with any arguments.
#[cfg(target_arch = "x86_64")]
const DOCKER: &str = "
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod
    chown chroot clock_adjtime clock_getres clock_gettime clock_nanosleep clone close close_range
    connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old
    epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit
    exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat
    fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr
    fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat
    get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid
    getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
    getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
    getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
    io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set kill
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat
    listen listmount listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise
    map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock
    mlock2 mlockall mmap modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive
    mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
    name_to_handle_at nanosleep newfstatat open openat openat2 pause personality pidfd_open
    pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv
    preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64
    pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg
    remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select
    semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area
    set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid
    setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat shmctl
    shmdt shmget shutdown sigaltstack signalfd signalfd4 socket socketpair splice stat statfs
    statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
    timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat uretprobe utime
    utimensat utimes vfork vmsplice wait4 waitid write writev";

#[cfg(target_arch = "x86_64")]
#[test]
fn the_default_profile_allows_nothing_that_docker_refuses() {
    let docker: Vec<&str> = DOCKER.split_whitespace().collect();
    let beyond: Vec<&str> = ALLOWED
        .iter()
        .chain(ALLOWED_ON_ARCH)
        .flat_map(|(_, calls)| *calls)
        .map(|(name, _)| name.strip_prefix("SYS_").expect("a constant of libc"))
        .filter(|name| !docker.contains(name))
        .collect();
    assert_eq!(beyond, [""; 0]);
    assert!(PERSONALITIES.iter().all(|one| [0, 8, 131_072, 131_080, u32::MAX].contains(one)));
    // Flags of clone that Docker refuses without CAP_SYS_ADMIN.
    assert_eq!(2_114_060_288 & !NEW_NAMESPACES, 0);
}

#[test]
fn numbers_of_another_abi_do_not_exist() {
    let security = Security { profile: Profile::Default, allow_userns: false, allow_setid: false };
    let program = program(&security, &ONE_ID);
    // The bit of x32 calls.
    for number in (0..600).map(|number| number | 0x4000_0000) {
        let gave = interpret(&program, ARCHITECTURE, number, [0; 6]);
        assert_eq!(gave, RETURN_ERRNO | ENOSYS as u32);
    }
}

/// Both programs must decide every call alike.
#[test]
fn the_compiler_decides_as_libseccomp_does() {
    const HINT: &str = "install the Debian package python3-seccomp";
    let has_it = Command::new("/usr/bin/python3")
        .args(["-c", "import seccomp"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has_it {
        assert!(std::env::var_os("CI").is_none(), "libseccomp is needed: {HINT}");
        let _ = writeln!(std::io::stdout(), "SKIP: libseccomp is not here: {HINT}");
        return;
    }
    let range = msb_spec::IdRange { start: 100_000, count: 65_536 };
    let many = Ids::Subordinate { uid: 1000, gid: 1000, uids: range, gids: range };
    for security in settings() {
        for ids in [&ONE_ID, &many] {
            compare_with_libseccomp(&security, ids);
        }
    }
}

fn compare_with_libseccomp(security: &Security, ids: &Ids) {
    let actions = actions(security, ids);
    let ours = program(security, ids);
    let reference = reference(&actions);
    let whole = instructions(reference["whole"].as_str().expect("a program"));
    for number in 0..600 {
        let tested = match actions.get(&number) {
            Some(SyscallAction::Depends(tests)) => tests,
            _ => {
                let decide = |program| interpret(program, ARCHITECTURE, number, [7; 6]);
                assert_eq!(decide(&ours), decide(&whole), "call {number} for {security:?}");
                continue;
            }
        };
        let key = number.to_string();
        let theirs = instructions(reference["tested"][&key].as_str().expect("a program"));
        let mut allowed = 0;
        let cases = interesting(tested);
        for arguments in &cases {
            let decide = |program| interpret(program, ARCHITECTURE, number, *arguments);
            assert_eq!(decide(&ours), decide(&theirs), "call {number} with {arguments:x?}");
            allowed += usize::from(decide(&ours) == RETURN_ALLOW);
        }
        assert!(allowed > 0 && allowed < cases.len(), "call {number}: no test of its arguments");
    }
}

/// Has libseccomp compile these decisions.
fn reference(actions: &BTreeMap<u32, SyscallAction>) -> Value {
    let calls: Vec<Value> = actions
        .iter()
        .map(|(number, action)| match action {
            SyscallAction::Allow => json!({ "number": number, "errno": null, "tests": [] }),
            SyscallAction::Errno(errno) => json!({ "number": number, "errno": errno, "tests": [] }),
            SyscallAction::Depends(tests) => {
                let tests: Vec<Value> = tests.iter().map(described).collect();
                json!({ "number": number, "errno": null, "tests": tests })
            }
        })
        .collect();
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", include_str!("libseccomp_reference.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let request = json!({ "default": ENOSYS, "calls": calls }).to_string();
    child.stdin.take().expect("a pipe").write_all(request.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "libseccomp refused the decisions");
    serde_json::from_slice(&output.stdout).expect("its answer")
}

fn described(test: &ArgTest) -> Value {
    match test {
        ArgTest::AnyBit { argument, bits, errno } => {
            json!({ "kind": "any_bit", "argument": argument, "bits": bits, "errno": errno })
        }
        ArgTest::Is { argument, value, errno } => {
            json!({ "kind": "is", "argument": argument, "value": value, "errno": errno })
        }
        ArgTest::IsNot { argument, values, errno } => {
            json!({ "kind": "is_not", "argument": argument, "values": values, "errno": errno })
        }
        ArgTest::PassWithout { argument, bits } => {
            json!({ "kind": "pass_without", "argument": argument, "bits": bits })
        }
        ArgTest::PassUnless { argument, value } => {
            json!({ "kind": "pass_unless", "argument": argument, "value": value })
        }
    }
}

/// Parses the output of `seccomp_export_bpf`: eight bytes per instruction.
fn instructions(hex: &str) -> Vec<Instruction> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    bytes
        .chunks_exact(8)
        .map(|raw| Instruction {
            code: u16::from_le_bytes([raw[0], raw[1]]),
            jump_true: raw[2],
            jump_false: raw[3],
            operand: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        })
        .collect()
}

/// All combinations of argument values around those that the tests use.
fn interesting(tests: &[ArgTest]) -> Vec<[u64; 6]> {
    let mut values: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
    for test in tests {
        let (argument, seeds) = match test {
            ArgTest::AnyBit { argument, bits, .. } | ArgTest::PassWithout { argument, bits } => {
                let one_by_one = (0..32).map(|bit| 1 << bit).filter(|bit| bits & bit != 0);
                (argument, one_by_one.chain([*bits, !*bits]).collect())
            }
            ArgTest::Is { argument, value, .. } | ArgTest::PassUnless { argument, value } => {
                (argument, vec![*value])
            }
            ArgTest::IsNot { argument, values, .. } => (argument, values.clone()),
        };
        let all = values.entry(*argument).or_insert_with(|| vec![0, 1, u32::MAX]);
        for seed in seeds {
            all.extend([seed, seed.wrapping_add(1), seed.wrapping_sub(1)]);
        }
    }
    let mut cases = vec![[0u64; 6]];
    for (argument, values) in values {
        cases = cases
            .iter()
            .flat_map(|case| {
                values.iter().map(move |value| {
                    let mut next = *case;
                    next[usize::from(argument)] = u64::from(*value);
                    next
                })
            })
            .collect();
    }
    cases
}
