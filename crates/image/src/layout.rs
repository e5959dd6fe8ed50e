//! What the `host` image takes from the host, as lists.

/// Version of everything in this file: raised when it changes, so that old layers are not used.
pub(crate) const VERSION: u32 = 2;

/// Trees of programs. Each is an overlay of its own over the host's, never with shifted ids, so
/// that only what everybody may read can be read.
pub(crate) const PROGRAMS: [&str; 2] = ["/usr", "/opt"];

/// Links into /usr, or directories beside it on hosts that have not merged them.
pub(crate) const BESIDE_USR: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Empty directories, with their permissions.
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

/// Files and trees of /etc that programs need and that say nothing of the user. A name that ends
/// in `*` stands for all that begin so. Only what everybody may read is taken.
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

/// Directories of /usr that installers write into: they belong to the sandbox, with every
/// directory below those that end in `**`.
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

/// Directories of /usr/lib whose names begin so, with what is below, are Python's.
pub(crate) const PYTHON: &str = "python3";
/// Debian's mark that only apt may install Python packages, which is not for a sandbox.
pub(crate) const EXTERNALLY_MANAGED: &str = "EXTERNALLY-MANAGED";

/// More directories than this are not made writable: a tree that large is nobody's install target.
pub(crate) const DIRECTORY_LIMIT: usize = 50_000;
