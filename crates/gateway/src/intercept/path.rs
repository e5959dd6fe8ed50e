//! The path of a request as different servers read it.
//!
//! A rule about a path is worth something only if no spelling leads round it. Nothing is
//! rewritten (`%2F` means something to some servers); instead a path is seen in every way that a
//! server might: a rule that allows has to fit all of them, a rule that denies one of them.

use crate::proxy::percent_decoded;

/// Nobody encodes an honest path more often.
const DECODINGS: usize = 3;

/// The ways to read one path.
pub(crate) struct Views(Vec<Vec<u8>>);

impl Views {
    /// Nothing if there is no end to the ways.
    pub(crate) fn of(path: &str) -> Option<Self> {
        // `OPTIONS *` is about the whole server.
        let mut path = if path == "*" || path.is_empty() { b"/".to_vec() } else { path.into() };
        let mut views = Vec::new();
        for _ in 0..=DECODINGS {
            let slashes: Vec<u8> =
                path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
            views.extend([resolved(&path, false), resolved(&path, true)]);
            views.extend([resolved(&slashes, false), resolved(&slashes, true)]);
            let decoded = percent_decoded(&path).to_vec();
            views.push(path);
            if views.last() == Some(&decoded) {
                views.sort();
                views.dedup();
                return Some(Self(views));
            }
            path = decoded;
        }
        None
    }

    /// Whether it begins with `prefix`, whoever reads it.
    pub(crate) fn all_begin_with(&self, prefix: &str) -> bool {
        self.0.iter().all(|view| view.starts_with(prefix.as_bytes()))
    }

    /// Whether it begins with `prefix` for somebody.
    pub(crate) fn some_begin_with(&self, prefix: &str) -> bool {
        self.0.iter().any(|view| view.starts_with(prefix.as_bytes()))
    }
}

/// Without `.`, `..` and empty segments; some servers also leave out what follows `;` in each.
fn resolved(path: &[u8], parameters_go: bool) -> Vec<u8> {
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut open = true;
    for segment in path.split(|byte| *byte == b'/') {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        let segment = if parameters_go { name } else { segment };
        open = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    let mut whole = vec![b'/'];
    whole.extend(segments.join(&b"/"[..]));
    if open && !segments.is_empty() {
        whole.push(b'/');
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_leads_round_a_prefix() {
        for path in [
            "/admin",
            "/admin/",
            "/admin/x",
            "/%61dmin",
            "/%2561dmin",
            "//admin",
            "/./admin",
            "/v1/../admin",
            "/v1/%2e%2e/admin",
            "/v1/%2E./admin",
            "/v1/..%2fadmin",
            "/v1/..%252fadmin",
            "/v1/..;/admin",
            "/v1/..;x=y/admin",
            "/v1/..\\admin",
            "/v1/..%5cadmin",
            "/v1/x/../../admin",
            "/v1//..//../admin",
            "/../admin",
            "/;/admin",
            "/admin;x",
        ] {
            let views = Views::of(path).unwrap();
            assert!(views.some_begin_with("/admin"), "{path}");
            assert!(!views.all_begin_with("/v1/"), "{path}");
        }
    }

    #[test]
    fn honest_paths_are_what_they_are() {
        for path in [
            "/v1/",
            "/v1/models",
            "/v1/projects/group%2Fname",
            "/v1/a/../b",
            "/v1/a%20b",
            "/v1/files/.hidden",
            "/v1/a..b",
            "/v1/x;y=z",
            "/v1/100%",
            "/v1//x",
        ] {
            let views = Views::of(path).unwrap();
            assert!(views.all_begin_with("/v1/"), "{path}");
            assert!(!views.some_begin_with("/admin"), "{path}");
        }
        assert!(Views::of("*").unwrap().all_begin_with("/"));
        assert!(!Views::of("*").unwrap().some_begin_with("/v1"));
        assert!(Views::of("/%25252525252e").is_none());
    }
}
