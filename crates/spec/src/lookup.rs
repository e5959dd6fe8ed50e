//! The files by which programs in a sandbox find names, and whom they trust.

use crate::addresses;

/// Where C libraries look whom to ask for names.
pub const RESOLVERS: &str = "/etc/resolv.conf";

/// Its text in a sandbox with a gateway: nobody else is asked.
pub fn resolvers() -> String {
    format!("nameserver {}\noptions edns0\n", addresses::GATEWAY)
}

/// Where names are looked up before anybody is asked.
pub const HOSTS: &str = "/etc/hosts";

/// More is not a file for people.
const HOSTS_LIMIT: usize = 1 << 20;

/// What the image has there, as `read` finds it, and the sandbox's own name.
pub fn hosts(hostname: &str, read: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<u8> {
    let present = read(HOSTS).filter(|bytes| bytes.len() <= HOSTS_LIMIT).unwrap_or_default();
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

/// Where distributions keep the authorities that they trust, in one file.
pub const STORES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// More is not the store of a distribution.
const STORE_LIMIT: usize = 4 << 20;

/// Those that the image trusts, as `read` finds them, and the gateway's own.
pub fn trusted(authority: &str, read: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<u8> {
    let known = STORES.iter().find_map(|store| read(store));
    let mut trusted = known.filter(|bytes| bytes.len() <= STORE_LIMIT).unwrap_or_default();
    if !trusted.is_empty() && !trusted.ends_with(b"\n") {
        trusted.push(b'\n');
    }
    trusted.extend_from_slice(authority.as_bytes());
    trusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_knows_its_own_name() {
        let known = hosts("box", |_| Some(b"10.0.0.1 a".to_vec()));
        assert_eq!(known, b"10.0.0.1 a\n198.18.0.2\tbox\n");
        assert!(hosts("box", |_| None).starts_with(b"127.0.0.1\tlocalhost\n"));
    }

    #[test]
    fn the_gateway_is_trusted_beside_those_of_the_image() {
        let bundle =
            trusted("OURS\n", |path| path.ends_with("cert.pem").then(|| b"THEIRS".to_vec()));
        assert_eq!(bundle, b"THEIRS\nOURS\n");
        assert_eq!(trusted("OURS\n", |_| None), b"OURS\n");
        assert_eq!(trusted("OURS\n", |_| Some(vec![0; STORE_LIMIT + 1])), b"OURS\n");
    }
}
