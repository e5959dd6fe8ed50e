//! Lists of what the `host` image takes from the host.

/// Version of these lists. Raise it when they change, so that cached layers are rebuilt.
pub(crate) const VERSION: u32 = 2;

/// Trees with programs. Each gets an overlay over the host's tree, without id mapping, so only
/// world-readable files can be read.
pub(crate) const PROGRAMS: [&str; 2] = ["/usr", "/opt"];

/// Symlinks into /usr, or real directories on hosts without merged /usr.
pub(crate) const BESIDE_USR: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Empty directories and their modes.
pub(crate) const EMPTY: [(&str, u32); 17] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
];

/// Files and trees of /etc that programs need and that reveal nothing about the user. A trailing
/// `*` matches any suffix. Only world-readable files are copied.
pub(crate) const ETC: [&str; 28] = [
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "inputrc",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mailcap",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/tls",
    "pki/ca-trust",
    "profile",
    "protocols",
    "python3*",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
];

/// Directories of /usr that installers write into. They belong to the sandbox; `**` includes all
/// subdirectories.
pub(crate) const WRITABLE: [&str; 16] = [
    "",
    "bin",
    "include",
    "lib",
    "lib/node_modules/**",
    "lib/python3/**",
    "libexec",
    "local/**",
    "sbin",
    "share",
    "share/applications",
    "share/doc",
    "share/man",
    "share/man/man1",
    "share/man/man5",
    "src",
];

/// Prefix of the Python directories in /usr/lib, which are taken with all subdirectories.
pub(crate) const PYTHON: &str = "python3";
/// Marker of Debian that reserves Python packages to apt. It is hidden in a sandbox.
pub(crate) const EXTERNALLY_MANAGED: &str = "EXTERNALLY-MANAGED";

/// Most directories that are made writable. No install target has more.
pub(crate) const DIRECTORY_LIMIT: usize = 50_000;
