//! Host directories and files shown inside through virtio-fs.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::lab;

#[test]
fn a_directory_is_the_same_on_both_sides() {
    for msb in lab::each() {
        lab::with_inside(&msb);
        msb.file("shared/from-host", "host");
        let shared = msb.scratch().join("shared");
        let volume = format!("{}:/data", shared.display());
        let script = "cd /data && cat from-host && echo && stat -c %u:%g from-host && \
             echo guest > from-guest && chmod 640 from-guest && ln -s from-guest link && \
             cat link && mkdir dir && echo x > dir/old && mv dir/old dir/new && \
             mv dir renamed && echo y > renamed/over && mv renamed/over renamed/new && \
             cat renamed/new && ln from-guest hard && stat -c %h hard && inside map mapped && \
             dd if=/dev/zero of=synced bs=4096 count=8 conv=fsync 2>/dev/null && \
             truncate -s 10 synced && rm from-host && ls";
        let gave = msb.shell_with(["-v", &volume], script);
        let wanted = "host\n0:0\nguest\ny\n2\nread typed mapped written\n\
                      from-guest\nhard\nlink\nmapped\nrenamed\nsynced";
        assert_eq!(gave.line(), wanted);

        let found = fs::metadata(shared.join("from-guest")).unwrap();
        assert_eq!((found.uid(), found.permissions().mode() & 0o7777), (msb.uid(), 0o640));
        assert_eq!(fs::read_to_string(shared.join("link")).unwrap(), "guest\n");
        assert_eq!(fs::read_to_string(shared.join("renamed/new")).unwrap(), "y\n");
        assert_eq!(&fs::read(shared.join("mapped")).unwrap()[4096..4101], b"typed");
        assert_eq!(&fs::read(shared.join("mapped")).unwrap()[..7], b"written");
        assert_eq!(fs::metadata(shared.join("synced")).unwrap().len(), 10);
        assert!(!shared.join("from-host").exists());
    }
}

/// Attack 24.
#[test]
fn a_read_only_mount_is_refused_by_the_host_whatever_the_guest_does() {
    for msb in lab::each() {
        msb.file("fixed/file", "untouched");
        let fixed = msb.scratch().join("fixed");
        let volume = format!("{}:/fixed:ro", fixed.display());
        let script = "cat /fixed/file; echo; echo bad > /fixed/file; rm /fixed/file; \
             mount -o remount,rw /fixed; mount -o remount,rw,bind /fixed; \
             mkdir /again; mount -t virtiofs -o rw mount0 /again; \
             for dir in /fixed /again; do \
             echo bad > $dir/file; echo bad > $dir/new; rm -f $dir/file; mv $dir/file $dir/moved; \
             chmod 777 $dir/file; mkdir $dir/dir; ln -s x $dir/link; done; echo over";
        let gave = msb.shell_with(["-v", &volume], script);
        assert_eq!(gave.stdout, "untouched\nover\n", "{gave:#?}");
        assert_eq!(fs::read_to_string(fixed.join("file")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(&fixed).unwrap().count(), 1);
        let mode = fs::metadata(fixed.join("file")).unwrap().permissions().mode() & 0o777;
        assert_ne!(mode, 0o777);
    }
}

#[test]
fn a_race_of_names_does_not_leave_the_tree() {
    for msb in lab::each() {
        lab::with_inside(&msb);
        let canary = msb.file("outside/canary", "untouched");
        msb.file("shared/file", "");
        let volume = format!("{}:/data", msb.scratch().join("shared").display());
        let outside = canary.parent().unwrap();
        let script = format!(
            "inside race /data {0} 300; cd /data; mkdir swing; cd swing; mv /data/swing /data/swung; \
             ls ../.. >/dev/null; cat ../../outside/canary; cat {0}/canary; \
             ln -s {0} way; cat way/canary; echo intruder > way/canary; true",
            outside.display()
        );
        let gave = msb.shell_with(["-v", &volume], &script).ok();
        assert_eq!(gave.stdout, "raced\n", "{gave:#?}");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert_eq!(fs::read_dir(outside).unwrap().count(), 1);
    }
}

/// Attack 5: what the sandbox's root makes set-id or a device is none for the host.
#[test]
fn set_id_files_and_devices_do_not_reach_the_host_through_a_mount() {
    for msb in lab::each() {
        msb.file("shared/file", "");
        let shared = msb.scratch().join("shared");
        let volume = format!("{}:/data", shared.display());
        let script = "cd /data; cp /bin/busybox suid; chown 0:0 suid; chmod 6755 suid; \
             mknod null c 1 3; mknod disk b 259 0; mkfifo fifo; true";
        msb.shell_with(["-v", &volume], script).ok();
        for entry in fs::read_dir(&shared).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let set_id_root = found.uid() == 0 && found.mode() & 0o4000 != 0;
            assert!(!set_id_root, "{} is {:o}", path.display(), found.mode());
            assert_eq!(found.rdev(), 0, "{} is a device", path.display());
        }
    }
}

#[test]
fn a_single_file_is_shown_and_nothing_beside_it() {
    let Some(msb) = lab::user() else { return };
    let file = msb.file("beside/settings", "one");
    msb.file("beside/secret", "beside-secret");
    let flag = format!("{}:/etc/settings", file.display());
    let script = "cat /etc/settings; echo two > /etc/settings; \
                  grep -r beside-secret /etc /srv /mnt 2>/dev/null; true";
    assert_eq!(msb.shell_with(["--mount-file", &flag], script).line(), "one");
    assert_eq!(fs::read_to_string(file).unwrap(), "two\n");
}
