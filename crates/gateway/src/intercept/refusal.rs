//! Texts for clients about refused requests.

use hyper::StatusCode;
use msb_spec::{DomainName, Rule};

/// The longest part of a path that is shown or recorded, in bytes.
const MAX_SHOWN_PATH: usize = 512;

/// The request as it is shown and recorded: method and path, without the query.
pub(crate) fn shown_request(method: &str, path: &str) -> String {
    let end = path.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_SHOWN_PATH);
    let method: String = method.chars().take(32).collect();
    match end {
        Some(end) => format!("{method} {}…", &path[..end]),
        None => format!("{method} {path}"),
    }
}

/// The text of a refusal by a rule, with a rule that would allow it.
pub(crate) fn by_rule(method: &str, name: &DomainName, path: &str, rule: &str) -> String {
    let request = shown_request(method, path);
    let exact = format!("allow@{name}:http:{method}:{path}");
    // The suggestion may be pasted into a shell.
    let suggested =
        match path.len() <= MAX_SHOWN_PATH && !path.contains('\'') && Rule::parse(&exact).is_ok() {
            true => exact,
            false => format!("allow@{name}"),
        };
    format!(
        "msb: the network policy of this sandbox refused `{request}` at {name}\n\
         rule: {rule}\n\
         to allow it, on the host: `msb run --net-rule '{suggested}' …`, before other rules, or \
         `msb net NAME --allow '{suggested}'` while it runs\n"
    )
}

/// The text of a refusal that no rule can lift.
pub(crate) fn because(name: &impl std::fmt::Display, why: &str, hint: Option<&str>) -> String {
    let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    format!("msb: the gateway of this sandbox refused a request to {name}\ncause: {why}\n{hint}")
}

/// A refusal as an HTTP/1.1 response in bytes, for flows without a server. It closes the
/// connection.
pub(crate) fn http_page(status: StatusCode, text: &str) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or("Refused");
    let code = status.as_u16();
    let length = text.len();
    format!(
        "HTTP/1.1 {code} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {length}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n{text}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_rule_and_one_that_would_allow_it() {
        let name = DomainName::parse("api.example").unwrap();
        let text = by_rule("DELETE", &name, "/v1/x", "deny@api.example:http:DELETE:/");
        assert!(text.contains("refused `DELETE /v1/x` at api.example"), "{text}");
        assert!(text.contains("rule: deny@api.example:http:DELETE:/\n"), "{text}");
        assert!(text.contains("'allow@api.example:http:DELETE:/v1/x'"), "{text}");
        // A path that a rule cannot hold is not suggested, least of all a quote.
        for path in ["/a%27b", "/a/../b", "/'; rm"] {
            let text = by_rule("GET", &name, path, "default");
            assert!(text.contains("'allow@api.example' "), "{text}");
        }
        let http_page = String::from_utf8(http_page(StatusCode::FORBIDDEN, "text\n")).unwrap();
        assert!(http_page.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{http_page}");
        assert!(http_page.ends_with(
            "content-length: 5\r\ncache-control: no-store\r\nconnection: close\r\n\r\ntext\n"
        ));
    }

    #[test]
    fn long_paths_are_cut() {
        let shown = shown_request("GET", &format!("/{}", "\u{fc}".repeat(4000)));
        assert!(shown.len() < MAX_SHOWN_PATH + 16, "{}", shown.len());
    }
}
