//! scp, sftp, rsync and git.

use crate::fixture::SshFixture;
use std::fs;

const SUMS: &str = "(cd $1 && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)";

/// Each program of OpenSSH carries a file there and back.
#[test]
fn a_file_goes_there_and_back() {
    for fixture in SshFixture::each() {
        let bytes: Vec<u8> = (0..3_000_001u32).flat_map(|n| n.to_le_bytes()).collect();
        let sent = fixture.msb.file("sent", &bytes);
        let scratch = fixture.msb.scratch().display();
        for how in ["scp -F $CONFIG", "scp -O -F $CONFIG", "rsync -a -e \"$SSH\""] {
            let line =
                format!("{how} {scratch}/sent box:/tmp/it && {how} box:/tmp/it {scratch}/back");
            fixture.shell(&line).ok();
            assert!(fs::read(fixture.msb.scratch().join("back")).unwrap() == bytes, "{how}");
            fixture.shell(&format!("rm {scratch}/back; $SSH box rm /tmp/it")).ok();
        }
        let commands = format!(
            "put {} /tmp/it\nsymlink it /tmp/link\nrename /tmp/it /tmp/that\nln /tmp/that /tmp/it\n\
             chmod 640 /tmp/it\nmkdir /tmp/d\nls -l /tmp/link\nget /tmp/link {scratch}/back\n",
            sent.display()
        );
        let batch = fixture.msb.file("batch", commands);
        fixture.shell(&format!("sftp -F $CONFIG -b {} box", batch.display())).ok();
        assert!(fs::read(fixture.msb.scratch().join("back")).unwrap() == bytes, "sftp");
        assert_eq!(
            fixture.ssh(["box", "stat -c %a /tmp/it; readlink /tmp/link"]).line(),
            "640\nit"
        );
    }
}

/// Five thousand small files, by rsync and by sftp, there and back.
#[test]
fn many_files_are_all_the_same() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let tree = fixture.msb.scratch().join("tree");
    for n in 0..5000 {
        let directory = tree.join(format!("d{}", n % 50));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("f{n}")), format!("file {n}\n").repeat(n % 97)).unwrap();
    }
    let scratch = fixture.msb.scratch().display();
    fixture.shell(&format!(
        "sums() {SUMS}; here=$(sums {scratch}/tree); \
         rsync -a -e \"$SSH\" {scratch}/tree/ box:/tmp/one/; \
         test \"$here\" = \"$($SSH box 'set -- /tmp/one; {SUMS}')\"; \
         rsync -a -e \"$SSH\" box:/tmp/one/ {scratch}/one/; test \"$here\" = \"$(sums {scratch}/one)\"; \
         echo \"put -r {scratch}/tree /tmp/two\" | sftp -q -F $CONFIG -b - box; \
         test \"$here\" = \"$($SSH box 'set -- /tmp/two; {SUMS}')\"; \
         echo \"get -r /tmp/two {scratch}/two\" | sftp -q -F $CONFIG -b - box; \
         test \"$here\" = \"$(sums {scratch}/two)\""
    ))
    .ok();
}

/// A repository inside is cloned, changed and pushed to.
#[test]
fn git_works_over_it() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let scratch = fixture.msb.scratch().display();
    let gave = fixture.shell(&format!(
        "export GIT_SSH_COMMAND=\"$SSH\" GIT_CONFIG_GLOBAL=/dev/null; \
         $SSH box 'git init -q --bare /tmp/repo'; cd {scratch}; git clone -q box:/tmp/repo work; cd work; \
         git config user.email a@b; git config user.name a; echo hello > file; git add file; \
         git commit -qm first; git push -q origin HEAD:main; \
         $SSH box 'git --git-dir /tmp/repo show main:file'"
    ));
    assert_eq!(gave.line(), "hello");
}
