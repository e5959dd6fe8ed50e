//! Owners of workspace files, inside and outside.

use super::{described, inside, keep, project};
use msb_e2e::{Msb, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

#[test]
fn what_others_inside_have_written_is_brought_as_the_users_own() {
    for msb in Msb::each() {
        let root = project(&msb, &[("shared/x", "x")]);
        fs::set_permissions(root.join("shared"), Permissions::from_mode(0o777)).unwrap();
        keep(&msb);
        let script = "chmod 777 .; umask 077; echo mine > shared/own; mkdir shared/d; \
                      echo deep > shared/d/e; echo '#!/bin/sh' > shared/s; chmod 4711 shared/s";
        msb.run(["exec", "--user", "33", "box", "--", "sh", "-c", script]);
        msb.run(["exec", "--user", "33", "box", "--", "sh", "-c", "umask 077; cd shared; echo mine > own; mkdir d; echo deep > d/e; echo s > s; chmod 4711 s"]).ok();
        msb.words("apply box --include ** --include s").ok();
        let owner = fs::metadata(&root).unwrap().uid();
        for path in ["shared/own", "shared/d", "shared/d/e", "shared/s"] {
            assert_eq!(fs::metadata(root.join(path)).unwrap().uid(), owner, "{path}");
        }
        let mode = fs::metadata(root.join("shared/s")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o711);
        msb.words("rm -f box").ok();
    }
}

/// Root applies changes to the tree of another user: new files belong to that user.
#[test]
fn root_gives_applied_files_to_the_owner_of_the_directory() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can give files away");
    }
    let root = project(&msb, &[("a", "1"), ("b", "1")]);
    for path in ["", "a", "b"] {
        chown(root.join(path), Some(1234), Some(2345)).unwrap();
    }
    chown(root.join("b"), Some(1234), Some(77)).unwrap();
    keep(&msb);
    assert_eq!(inside(&msb, "stat -c %u:%g a").line(), "0:0");
    inside(&msb, "echo 2 > a; mkdir n; echo n > n/n; ln -s a l").ok();
    // A file of another group has an unmapped owner inside, and cannot be written.
    assert_ne!(inside(&msb, "echo 2 > b").code, 0);
    msb.words("apply box").ok();
    for path in ["a", "n", "n/n", "l"] {
        let meta = fs::symlink_metadata(root.join(path)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1234, 2345), "{path}");
    }
}

/// With one id, root inside may close files even to their owner.
#[test]
fn with_one_id_a_review_reads_what_is_closed() {
    let Some(msb) = Msb::with_one_id() else {
        return skip("root is needed to become a user without granted ids");
    };
    let root = project(&msb, &[("a", "1")]);
    let script = "echo 2 > a; chmod 0 a; mkdir d; echo x > d/x; chmod 0 d";
    msb.run(["run", "--workspace", "project", "--", "sh", "-c", script]).ok();
    let name = msb.json(["ls", "--json"])[0]["name"].as_str().unwrap().to_owned();
    assert_eq!(msb.run(["diff", &name]).line(), "M  a  (mode 644 -> 000)\nA  d/x");
    msb.run(["apply", &name]).ok();
    assert_eq!(described(&root), ["/ 755", "a 0 2\\n", "d/ 0", "d/x 644 x\\n"]);
    assert_eq!(fs::read_dir(msb.home().join("sandboxes")).unwrap().count(), 0);
}
