//! Every environment variable that msb reads, in one place.

/// State directory; default `~/.msb`.
pub const HOME: &str = "MSB_HOME";
/// The `msb` executable for programs that embed the SDK.
pub const PATH: &str = "MSB_PATH";
/// The isolation tier where no flag says otherwise: `auto`, `vm` or `process`.
pub const ISOLATION: &str = "MSB_ISOLATION";
/// The network where no flag says otherwise: `public`, `private`, `host`, `all` or `none`.
pub const NET: &str = "MSB_NET";
/// The kernel of microVMs: the directory of a flat image, or an ELF `vmlinux`.
pub const KERNEL: &str = "MSB_KERNEL";
/// For the tests of the jails of microVMs and workers: instead of being the machine, or of serving the
/// sandbox, the confined process tries to reach this file and much else, and fails with what it reached.
pub const TEST_COMPROMISED: &str = "MSB_TEST_COMPROMISED";
/// The msb server that the CLI asks instead of this machine, as in `https://box.example:5555`.
pub const REMOTE: &str = "MSB_REMOTE";
/// The key for it, as `msb server keygen` makes them.
pub const API_KEY: &str = "MSB_API_KEY";
/// The secret that a server signs keys with, in place of that of the state directory.
pub const SERVER_SECRET: &str = "MSB_SERVER_SECRET";
/// The keys that leave an attached terminal, as in `ctrl-p,ctrl-q`.
pub const DETACH_KEYS: &str = "MSB_DETACH_KEYS";
/// Set in every sandbox to its name, so that programs can tell where they run.
pub const SANDBOX: &str = "MSB_SANDBOX";
/// Everybody's own: the user's home directory.
pub const USER_HOME: &str = "HOME";
/// The desktop's own: where programs keep their settings, if not in `~/.config`.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// Claude Code's own: where it keeps its settings and skills, if not in the home directory.
pub const CLAUDE_CONFIG_DIR: &str = "CLAUDE_CONFIG_DIR";
/// Docker's own: the directory of its config.json, whose logins are used where we have none.
pub const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// Podman's own: its file of logins, used where neither we nor Docker have one.
pub const REGISTRY_AUTH_FILE: &str = "REGISTRY_AUTH_FILE";
/// OpenTelemetry's own: the collector that the server tells how much sandboxes use.
pub const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// OpenTelemetry's own: headers for it, as in `authorization=Bearer%20KEY,x-team=a`.
pub const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// Reproducible builds' own: the time that what is built bears, in seconds since 1970.
pub const SOURCE_DATE_EPOCH: &str = "SOURCE_DATE_EPOCH";
/// The usual names of an HTTP proxy, the first that is set.
pub const PROXIES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"];
/// Who is reached without it.
pub const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// `1` sends names instead of judged addresses to that proxy, which then resolves them itself: for
/// proxies that refuse addresses. Private addresses that it finds are reached, too.
pub const PROXY_RESOLVES: &str = "MSB_PROXY_RESOLVES";
/// OpenSSL's own: certificates of authorities beside the system's.
pub const SSL_CERT_FILE: &str = "SSL_CERT_FILE";
/// Set in a sandbox whose gateway looks into something, to the certificates that are trusted there.
pub const TRUST: [&str; 5] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
];
/// OpenSandbox's own: the key for the server that its dialect is pointed at.
pub const OPEN_SANDBOX_API_KEY: &str = "OPEN_SANDBOX_API_KEY";
/// OpenSandbox's own: `HOST[:PORT]` of that server.
pub const OPEN_SANDBOX_DOMAIN: &str = "OPEN_SANDBOX_DOMAIN";
/// microsandbox-mcp's own: directories of the host that its clients may name, between colons.
pub const MCP_HOST_PATHS: &str = "MICROSANDBOX_MCP_HOST_PATHS";
/// microsandbox-mcp's own: `allowlist`, or `unrestricted` where dangerous operations are enabled.
pub const MCP_HOST_PATH_POLICY: &str = "MICROSANDBOX_MCP_HOST_PATH_POLICY";
/// microsandbox-mcp's own: `1` enables dangerous operations.
pub const MCP_ENABLE_DANGEROUS: &str = "MICROSANDBOX_MCP_ENABLE_DANGEROUS";
/// microsandbox-mcp's own: bytes of output, of a file or of a line that an answer holds.
pub const MCP_MAX_OUTPUT_BYTES: &str = "MICROSANDBOX_MCP_MAX_OUTPUT_BYTES";
/// microsandbox-mcp's own: milliseconds that a call waits for a command or a sandbox.
pub const MCP_DEFAULT_TIMEOUT_MS: &str = "MICROSANDBOX_MCP_DEFAULT_TIMEOUT_MS";
/// microsandbox-mcp's own: milliseconds after which a command that nobody polls is forgotten.
pub const MCP_SESSION_TTL_MS: &str = "MICROSANDBOX_MCP_SESSION_TTL_MS";
/// `1` shows the tools of older clients of microsandbox-mcp as well.
pub const MCP_OLDER_NAMES: &str = "MSB_MCP_OLDER_NAMES";
