//! The path of a request as different servers may interpret it.
//!
//! A rule about a path holds only if no encoding bypasses it. The path is not rewritten, because
//! `%2F` means something to some servers. Instead it is normalised in every way that a server might
//! use: a rule that allows must match all of these views, a rule that denies matches if one does.

use crate::proxy::percent_decoded;

/// Levels of percent-encoding that are decoded; ordinary paths have fewer.
const MAX_DECODINGS: usize = 3;

/// All interpretations of one path.
#[derive(Debug)]
pub(crate) struct PathViews(Vec<Vec<u8>>);

impl PathViews {
    /// The views of a path; `None` if it is percent-encoded too many times.
    pub(crate) fn of(path: &str) -> Option<Self> {
        // `OPTIONS *` is for the whole server.
        let mut path = if path == "*" || path.is_empty() { b"/".to_vec() } else { path.into() };
        let mut views = Vec::new();
        for _ in 0..=MAX_DECODINGS {
            let slashes: Vec<u8> =
                path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
            views.extend([normalized(&path, false), normalized(&path, true)]);
            views.extend([normalized(&slashes, false), normalized(&slashes, true)]);
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

    /// Whether every view starts with `prefix`.
    pub(crate) fn all_start_with(&self, prefix: &str) -> bool {
        self.0.iter().all(|view| view.starts_with(prefix.as_bytes()))
    }

    /// Whether at least one view starts with `prefix`.
    pub(crate) fn any_starts_with(&self, prefix: &str) -> bool {
        self.0.iter().any(|view| view.starts_with(prefix.as_bytes()))
    }
}

/// Removes `.`, `..` and empty segments, and with `drop_parameters` what follows `;` in each
/// segment.
fn normalized(path: &[u8], drop_parameters: bool) -> Vec<u8> {
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut open = true;
    for segment in path.split(|byte| *byte == b'/') {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        let segment = if drop_parameters { name } else { segment };
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
    fn no_encoding_bypasses_a_prefix() {
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
            let views = PathViews::of(path).unwrap();
            assert!(views.any_starts_with("/admin"), "{path}");
            assert!(!views.all_start_with("/v1/"), "{path}");
        }
    }

    #[test]
    fn ordinary_paths_keep_their_prefix() {
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
            let views = PathViews::of(path).unwrap();
            assert!(views.all_start_with("/v1/"), "{path}");
            assert!(!views.any_starts_with("/admin"), "{path}");
        }
        assert!(PathViews::of("*").unwrap().all_start_with("/"));
        assert!(!PathViews::of("*").unwrap().any_starts_with("/v1"));
        assert!(PathViews::of("/%25252525252e").is_none());
    }
}
