//! Images and root filesystems for the pages, made once for a run of the tests.
//!
//! They hold programs of this host, so that nothing is fetched: busybox, python3, nginx.

use msb_e2e::images::{Image, Layer, Packing};
use msb_e2e::{Msb, copy_program, gives, shared};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names of images that have busybox and nothing else.
const SMALL: [&str; 4] = ["alpine", "debian", "node", "ubuntu"];

/// Parts of Python's library that no page uses, and that are half of it.
const UNUSED: [&str; 6] = ["test", "idlelib", "ensurepip", "lib2to3", "tkinter", "config-*"];

const NGINX_CONF: &str = "user root;\nerror_log stderr;\npid /tmp/nginx.pid;\nevents { }\n\
    http { access_log off; server { listen 80; location / { return 200 well; } } }\n";

/// A directory with `python`, `alpine` and other images as OCI layouts, and with `rootfs` and `s6`.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        // Never dropped: the pages copy from its directories as long as the tests run.
        let msb = Box::leak(Box::new(Msb::with_own_layers()));
        let directory = shared().join("fixtures");
        fs::create_dir(&directory).expect("a directory");
        let link = |target: &Path, name: &str| {
            symlink(target, directory.join(name)).expect("a link");
        };
        let base = Image::busybox();
        for name in SMALL {
            link(base.layout().path(), name);
        }
        let python = base.clone().layer(&python()).config(&json!({"Cmd": ["python3"]}));
        link(python.layout().path(), "python");
        link(base.layer(&nginx()).layout().path(), "nginx");
        link(&msb.rootfs(), "rootfs");
        link(&msb.s6_rootfs(), "s6");
        directory
    })
}

fn python() -> Layer {
    let root = shared().join("python-root");
    copy_program(&root, Path::new("/usr/bin/python3"));
    let which = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let library = gives(Command::new("/usr/bin/python3").args(["-c", which])).line();
    let mut copy = Command::new("tar");
    copy.args(UNUSED.map(|name| format!("--exclude={library}/{name}")));
    let archive = shared().join("python-library.tar");
    gives(copy.arg("-P").arg("-cf").arg(&archive).arg(&library)).ok();
    gives(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&root)).ok();
    layer(&root)
}

fn nginx() -> Layer {
    let root = shared().join("nginx-root");
    for program in ["/usr/sbin/nginx", "/usr/bin/curl"] {
        copy_program(&root, Path::new(program));
    }
    for directory in ["etc/nginx", "var/lib/nginx", "var/log/nginx"] {
        fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    fs::write(root.join("etc/nginx/nginx.conf"), NGINX_CONF).expect("a file");
    // The PATH of the image has no sbin.
    symlink("../sbin/nginx", root.join("usr/bin/nginx")).expect("a link");
    layer(&root)
}

/// A layer of a directory's content; not packed, since it never leaves this machine.
fn layer(root: &Path) -> Layer {
    let archive = root.with_extension("tar");
    gives(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&archive).arg(".")).ok();
    Layer::of_file(&archive, Packing::Plain)
}
