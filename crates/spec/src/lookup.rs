//! The files by which programs in a sandbox find names, and whom they trust.

use crate::addresses;

/// Where C libraries look whom to ask for names.
const RESOLVERS: &str = "/etc/resolv.conf";

/// Its text in a sandbox with a gateway: nobody else is asked.
fn resolvers() -> String {
    format!("nameserver {}\noptions edns0\n", addresses::GATEWAY)
}

/// Where names are looked up before anybody is asked.
const HOSTS: &str = "/etc/hosts";

/// Where every sandbox with a gateway has a file shown over the image's own, which may have none.
pub const PLACES: [&str; 2] = [HOSTS, RESOLVERS];

/// More is neither a file for people nor the store of a distribution; none longer is read.
pub const LIMIT: usize = 4 << 20;

/// Every file that is shown over the image's own, and where; `read` gives what the image has there.
pub fn files(
    hostname: &str,
    authority: Option<&str>,
    read: impl Fn(&str) -> Option<Vec<u8>>,
) -> Vec<(Vec<u8>, Vec<&'static str>)> {
    let mut files =
        vec![(hosts(hostname, &read), vec![HOSTS]), (resolvers().into_bytes(), vec![RESOLVERS])];
    if let Some(authority) = authority {
        let known: Vec<&str> = STORES.into_iter().filter(|store| read(store).is_some()).collect();
        let places = [addresses::TRUSTED].into_iter().chain(known).collect();
        files.push((trusted(authority, &read), places));
    }
    files
}

/// What the image has there, and the sandbox's own name.
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

/// Where distributions keep the authorities that they trust, in one file.
const STORES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Those that the image trusts, and the gateway's own.
fn trusted(authority: &str, read: impl Fn(&str) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut trusted = STORES.iter().find_map(|store| read(store)).unwrap_or_default();
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
    }
}
