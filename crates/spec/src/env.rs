//! All environment variables that msb reads.

/// State directory of msb; default `~/.msb`.
pub const HOME: &str = "MSB_HOME";
/// Path of the `msb` executable, for programs that embed the SDK.
pub const PATH: &str = "MSB_PATH";
/// Default isolation tier: `auto`, `vm` or `process`. A flag overrides it.
pub const ISOLATION: &str = "MSB_ISOLATION";
/// Default network: `public`, `private`, `host`, `all` or `none`. A flag overrides it.
pub const NET: &str = "MSB_NET";
/// Kernel of microVMs: the directory of a flat image, or an ELF `vmlinux`.
pub const KERNEL: &str = "MSB_KERNEL";
/// Diagnostic log: a level (`debug`), levels of parts (`worker=trace,gateway=debug`), or both.
pub const LOG: &str = "MSB_LOG";
/// File to which that log is appended, in place of stderr and of `debug.log` of each sandbox.
pub const LOG_FILE: &str = "MSB_LOG_FILE";
/// For tests of jails: instead of running the microVM or serving the sandbox, the confined process
/// makes the calls of `msb_sys::intrusion` on this file and fails with what succeeded.
pub const TEST_COMPROMISED: &str = "MSB_TEST_COMPROMISED";

/// For tests of jails: a confined helper process makes the calls of `msb_sys::intrusion`.
pub const TEST_COMPROMISED_HELPER: &str = "MSB_TEST_COMPROMISED_HELPER";
/// URL of the msb server that the CLI uses instead of this host: `https://box.example:5555`.
pub const REMOTE: &str = "MSB_REMOTE";
/// API key for that server, from `msb server keygen`.
pub const API_KEY: &str = "MSB_API_KEY";
/// Secret that a server signs keys with, in place of the one in the state directory.
pub const SERVER_SECRET: &str = "MSB_SERVER_SECRET";
/// Key sequence that detaches from a terminal: `ctrl-p,ctrl-q`.
pub const DETACH_KEYS: &str = "MSB_DETACH_KEYS";
/// Set in each sandbox to its name, so that programs can tell where they run.
pub const SANDBOX: &str = "MSB_SANDBOX";
/// Home directory of the user.
pub const USER_HOME: &str = "HOME";
/// Configuration directory of the desktop, if not `~/.config`.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// Directory of Claude Code's settings and skills, if not in the home directory.
pub const CLAUDE_CONFIG_DIR: &str = "CLAUDE_CONFIG_DIR";
/// Directory of Docker's config.json. Its registry logins are used where msb has none.
pub const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// Podman's file of registry logins, used where neither msb nor Docker have one.
pub const REGISTRY_AUTH_FILE: &str = "REGISTRY_AUTH_FILE";
/// OpenTelemetry collector to which the server exports the usage of sandboxes.
pub const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Headers for the collector: `authorization=Bearer%20KEY,x-team=a`.
pub const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// Time stamp of reproducible builds, in seconds since 1970.
pub const SOURCE_DATE_EPOCH: &str = "SOURCE_DATE_EPOCH";
/// Usual names of an HTTP proxy; the first that is set is used.
pub const PROXIES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"];
/// Hosts that are reached without the proxy.
pub const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// `1` sends host names instead of checked addresses to the proxy, which resolves them itself: for
/// proxies that refuse addresses. It may then connect to private addresses.
pub const PROXY_RESOLVES: &str = "MSB_PROXY_RESOLVES";
/// CA certificates besides those of the system, as OpenSSL reads it.
pub const SSL_CERT_FILE: &str = "SSL_CERT_FILE";
/// Set in a sandbox with TLS interception to the file of its trusted CA certificates.
pub const TRUST: [&str; 5] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
];
/// API key of the server for the OpenSandbox dialect.
pub const OPEN_SANDBOX_API_KEY: &str = "OPEN_SANDBOX_API_KEY";
/// `HOST[:PORT]` of the server for the OpenSandbox dialect.
pub const OPEN_SANDBOX_DOMAIN: &str = "OPEN_SANDBOX_DOMAIN";
/// Host directories that clients of the microsandbox-mcp dialect may name, separated by colons.
pub const MCP_HOST_PATHS: &str = "MICROSANDBOX_MCP_HOST_PATHS";
/// Host path policy of the microsandbox-mcp dialect: `allowlist`, or `unrestricted` where dangerous
/// operations are enabled.
pub const MCP_HOST_PATH_POLICY: &str = "MICROSANDBOX_MCP_HOST_PATH_POLICY";
/// `1` enables dangerous operations of the microsandbox-mcp dialect.
pub const MCP_ENABLE_DANGEROUS: &str = "MICROSANDBOX_MCP_ENABLE_DANGEROUS";
/// Limit in bytes for output, a file or a line in an answer of the microsandbox-mcp dialect.
pub const MCP_MAX_OUTPUT_BYTES: &str = "MICROSANDBOX_MCP_MAX_OUTPUT_BYTES";
/// Milliseconds that a call of the microsandbox-mcp dialect waits for a command or a sandbox.
pub const MCP_DEFAULT_TIMEOUT_MS: &str = "MICROSANDBOX_MCP_DEFAULT_TIMEOUT_MS";
/// Milliseconds after which the microsandbox-mcp dialect drops a command that no client polls.
pub const MCP_SESSION_TTL_MS: &str = "MICROSANDBOX_MCP_SESSION_TTL_MS";
/// `1` also lists the tools of older clients of microsandbox-mcp.
pub const MCP_OLDER_NAMES: &str = "MSB_MCP_OLDER_NAMES";
