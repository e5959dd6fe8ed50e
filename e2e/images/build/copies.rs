//! COPY and ADD: targets, owners, and files that cannot be reached.

use super::Project;
use msb_e2e::Msb;
use msb_e2e::images::Image;
use msb_e2e::tar::{Entry, Tar};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn files_land_where_docker_puts_them() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        for (name, content) in
            [("a.txt", "a"), ("b.txt", "b"), ("c.md", "c"), ("d/x", "x"), ("d/e/y", "y")]
        {
            project.file(name, content);
        }
        project.build(
            "FROM base\nWORKDIR /w\nCOPY a.txt renamed\nCOPY a.txt into/\nCOPY *.txt all/\n\
            COPY d d2\n\
             COPY [\"a.txt\", \"/with space/\"]\nCOPY d/e ./c.md ./\n\
             COPY --chown=web:7 --chmod=0640 a.txt /own\n\
             COPY --chown=33 d /owned\nCOPY --link a.txt /etc\nCOPY <<one <<'two' /docs/\n\
             1 $PATH\none\n2 $PATH\ntwo\n\
             COPY <<EOF /doc\nalone\nEOF\n",
        );
        assert_eq!(
            project.says("cd /w; find . -type f | sort; cat renamed"),
            "./all/a.txt\n./all/b.txt\n./c.md\n./d2/e/y\n./d2/x\n./into/a.txt\n./renamed\n./y\na"
        );
        assert_eq!(
            project.says("cat '/with space/a.txt' /etc/a.txt; cat /docs/one /docs/two /doc"),
            "aa1 /bin:/usr/bin\n2 $PATH\nalone"
        );
        assert_eq!(
            project.says("stat -c '%n %a %u:%g' /own /owned /owned/e /owned/e/y /w/d2/x"),
            "/own 640 33:7\n/owned 755 33:33\n/owned/e 755 33:33\n/owned/e/y 644 33:33\n\
            /w/d2/x 644 0:0"
        );
        // A directory that was there stays what it is.
        assert_eq!(
            project.says("stat -c '%a %u:%g' /tmp /root /home/web"),
            "1777 0:0\n700 0:0\n755 33:33"
        );
    }
}

#[test]
fn what_is_left_out_is_not_there() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        for name in [
            "keep",
            "secret.key",
            "node_modules/m",
            "src/a.o",
            "src/a.c",
            "docs/x.md",
            "docs/README.md",
        ] {
            project.file(name, "x");
        }
        let text = "FROM base\nCOPY . /all\n";
        project.file(
            ".dockerignore",
            "# not these\n*.key\nnode_modules\n**/*.o\ndocs/*\n\
        !docs/README.md\nContainerfile\n.dockerignore\n",
        );
        project.build(text);
        assert_eq!(
            project.says("cd /all; find . -type f | sort"),
            "./docs/README.md\n./keep\n./src/a.c"
        );
        let gave = project.build_with("FROM base\nCOPY secret.key /\n", &[]);
        assert!(
            gave.stderr.contains("hint: the file exists, but `.dockerignore` excludes it"),
            "{gave:#?}"
        );
        // The one beside the Containerfile comes first.
        project.file("Containerfile.dockerignore", "*\n!keep\n");
        project.build(text);
        assert_eq!(project.says("find /all -type f"), "/all/keep");
        project.file("Containerfile.dockerignore", "ok\n[broken\n");
        let gave = project.build_with(text, &[]);
        assert!(gave.stderr.starts_with("error: Containerfile.dockerignore:2: "), "{gave:#?}");
    }
}

#[test]
fn archives_are_unpacked_by_add() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        let tar = Tar::default().with([
            Entry::directory("d").mode(0o750).owner(33, 33),
            Entry::file("d/f", "packed").owner(33, 33),
            Entry::symlink("l", "d/f"),
            Entry::hard_link("h", "d/f"),
        ]);
        let plain = project.file("a.tar", tar.bytes());
        for (program, name) in
            [("gzip", "a.tgz"), ("zstd", "a.tar.zst"), ("xz", "a.tar.xz"), ("bzip2", "a.tar.bz2")]
        {
            let packed = Command::new(program).arg("-c").arg(&plain).output().unwrap();
            project.file(name, packed.stdout);
        }
        project.build(
            "FROM base\nADD a.tar /one/\nADD a.tgz /two\nADD a.tar.zst three/\n\
        COPY a.tar /four/\nADD --chown=5:6 a.tar /five\n",
        );
        for place in ["/one", "/two", "/three"] {
            let script = format!("cd {place}; cat l h; stat -c '%a %u:%g %h' d d/f");
            assert_eq!(project.says(&script), "packedpacked750 33:33 2\n644 33:33 2", "{place}");
        }
        assert_eq!(project.says("ls /four; stat -c %u:%g /five/d/f"), "a.tar\n5:6");
        for name in ["a.tar.xz", "a.tar.bz2"] {
            let gave = project.build_with(&format!("FROM base\n\nADD {name} /x/\n"), &[]);
            assert!(
                gave.stderr.contains("error: Containerfile:3: ADD does not unpack "),
                "{gave:#?}"
            );
        }
    }
}

#[test]
fn stages_and_images_can_be_copied_from() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        project.build(
            "FROM base AS made\n\
            RUN mkdir -p /out/sub && echo 1 > /out/a && chown 33:33 /out/a && chmod 4711 /out/a \
             && ln /out/a /out/b && ln -s a /out/l && rm /bin/vi && mkdir /bin/vi && echo v > /bin/vi/v\n\
             FROM base\nCOPY --from=made /out /in\nCOPY --from=made /out/l /followed\n\
             COPY --from=base /etc/passwd /p\n\
             COPY --from=made --chown=5 /bin/vi /vi\n",
        );
        assert_eq!(
            project.says(
                "cd /in; ls; stat -c '%a %u:%g' a; readlink l; test a -ef b && echo same; \
                 cat /followed"
            ),
            "a\nb\nl\nsub\n4711 33:33\na\nsame\n1"
        );
        assert_eq!(project.says("grep -c . /p; cat /vi/v; stat -c %u /vi/v"), "2\nv\n5");
    }
}

#[test]
fn links_of_an_image_are_followed_within_it() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "outside");
        let outside = canary.parent().unwrap().to_str().unwrap().to_owned();
        let layout = Image::busybox()
            .entries([
                Entry::symlink("usr/sbin", "../bin"),
                Entry::symlink("out", &outside),
                Entry::symlink("up", "../../../../../../../../tmp"),
                Entry::symlink("file", canary.to_str().unwrap()),
            ])
            .layout();
        let project = Project::new(&msb);
        msb.run(["load", "-i", layout.path().to_str().unwrap(), "-t", "base"]).ok();
        project.file("mine", "inside");
        project.build(
            "FROM base\nCOPY mine /usr/sbin/\nCOPY mine /out/canary\nCOPY mine /up/\n\
        COPY mine /file\n",
        );
        assert_eq!(project.says("cat /bin/mine /tmp/mine"), "insideinside");
        assert_eq!(project.says(&format!("cat {outside}/canary")), "inside");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "outside");
        // What a link of an image names is not read outside either.
        let gave = project.build_with("FROM scratch\nCOPY --from=base /file /x\n", &[]);
        assert!(gave.stderr.contains("Containerfile:2: nothing to copy at `/file`"), "{gave:#?}");
        let gave = project.build_with("FROM scratch\nCOPY --from=base /out/canary /x\n", &[]);
        assert_eq!(gave.code, 125, "{gave:#?}");
    }
}

#[test]
fn links_of_a_directory_do_not_lead_to_the_host() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "outside");
        let project = Project::new(&msb);
        project.file("Containerfile", "");
        symlink(&canary, msb.scratch().join("project/absolute")).unwrap();
        symlink("../canary", msb.scratch().join("project/relative")).unwrap();
        symlink("..", msb.scratch().join("project/parent")).unwrap();
        for source in ["absolute", "relative", "parent/canary", "../canary", "a*"] {
            let gave = project.build_with(&format!("FROM base\nCOPY {source} /x\n"), &[]);
            assert!(
                gave.stderr.contains("error: Containerfile:2: nothing to copy at "),
                "{source}: {gave:#?}"
            );
        }
        // Within a directory they are copied as what they are.
        project.build("FROM base\nCOPY . /all/\n");
        assert_eq!(
            project.says("readlink /all/relative; cat /all/absolute 2>/dev/null || echo nothing"),
            "../canary\nnothing"
        );
    }
}

#[test]
fn a_hostile_archive_changes_nothing_outside() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "outside");
        let outside = canary.parent().unwrap().to_str().unwrap().to_owned();
        let project = Project::new(&msb);
        let long = "../".repeat(12);
        for entries in [
            vec![Entry::file(
                &format!("{long}{}", canary.to_str().unwrap().trim_start_matches('/')),
                "x",
            )],
            vec![Entry::file(canary.to_str().unwrap(), "x")],
            vec![Entry::hard_link("h", canary.to_str().unwrap())],
            vec![Entry::file(".wh.etc", "")],
        ] {
            project.file("a.tar", Tar::default().with(entries).bytes());
            let gave = project.build_with("FROM base\nADD a.tar /\n", &[]);
            assert!(
                gave.stderr.starts_with("[1/2] FROM base\nerror: Containerfile:2: "),
                "{gave:#?}"
            );
        }
        let link = [Entry::symlink("l", &outside), Entry::file("l/canary", "inside")];
        project.file("a.tar", Tar::default().with(link).bytes());
        project.build("FROM base\nADD a.tar /\n");
        assert_eq!(project.says(&format!("cat {outside}/canary")), "inside");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "outside");
    }
}
