//! Files mounted over those of the image: /etc/hosts, /etc/resolv.conf and CA bundles.

use crate::addresses;

/// DNS configuration of C libraries: lists the servers to query.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Its content in a sandbox with a gateway, which is the only DNS server.
fn resolv_conf() -> String {
    format!("nameserver {}\noptions edns0\n", addresses::GATEWAY)
}

/// Static host names, read before DNS is queried.
const HOSTS: &str = "/etc/hosts";

/// Mount points in each sandbox with a gateway; the image need not have these files.
pub const PLACES: [&str; 2] = [HOSTS, RESOLV_CONF];

/// Longest file of an image that is read, in bytes: CA bundles of distributions are shorter.
pub const LIMIT: usize = 4 << 20;

/// Content and mount points of all these files; `read` returns the content of a file of the image.
pub fn files(
    hostname: &str,
    authority: Option<&str>,
    read: impl Fn(&str) -> Option<Vec<u8>>,
) -> Vec<(Vec<u8>, Vec<&'static str>)> {
    let mut files = vec![
        (hosts(hostname, &read), vec![HOSTS]),
        (resolv_conf().into_bytes(), vec![RESOLV_CONF]),
    ];
    if let Some(authority) = authority {
        let present: Vec<&str> =
            CA_BUNDLES.into_iter().filter(|store| read(store).is_some()).collect();
        let places = [addresses::TRUSTED].into_iter().chain(present).collect();
        files.push((ca_bundle(authority, &read), places));
    }
    files
}

/// The image's hosts file with the sandbox's own name.
fn hosts(hostname: &str, read: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<u8> {
    let present = read(HOSTS).unwrap_or_default();
    let mut hosts = match present.iter().all(u8::is_ascii_whitespace) {
        true => b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n".to_vec(),
        false => present,
    };
    if !hosts.ends_with(b"\n") {
        hosts.push(b'\n');
    }
    hosts.extend_from_slice(format!("{}\t{hostname}\n", addresses::GUEST).as_bytes());
    hosts
}

/// Paths of CA bundles in common distributions.
pub const CA_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The image's CA certificates and that of the gateway.
fn ca_bundle(authority: &str, read: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut ca_bundle = CA_BUNDLES.iter().find_map(|store| read(store)).unwrap_or_default();
    if !ca_bundle.is_empty() && !ca_bundle.ends_with(b"\n") {
        ca_bundle.push(b'\n');
    }
    ca_bundle.extend_from_slice(authority.as_bytes());
    ca_bundle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_has_the_name_of_the_sandbox() {
        let present = hosts("box", |_| Some(b"10.0.0.1 a".to_vec()));
        assert_eq!(present, b"10.0.0.1 a\n198.18.0.2\tbox\n");
        assert!(hosts("box", |_| None).starts_with(b"127.0.0.1\tlocalhost\n"));
    }

    #[test]
    fn the_gateways_ca_is_added_to_the_images_bundle() {
        let bundle =
            ca_bundle("OURS\n", |path| path.ends_with("cert.pem").then(|| b"THEIRS".to_vec()));
        assert_eq!(bundle, b"THEIRS\nOURS\n");
        assert_eq!(ca_bundle("OURS\n", |_| None), b"OURS\n");
    }
}
