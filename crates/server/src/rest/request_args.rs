//! Parses requests: members from the path, the query and the body.

use crate::arguments::{self, ArgumentError};
use axum::body::Body;
use axum::http::request::Parts;
use msb_api::http::Route;
use msb_spec::{Error, Kind, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Largest body in bytes. Specs, rules and stdin are sent in bodies.
const LARGEST: usize = 32 << 20;

/// The members in the path and the query of a request.
pub(super) struct RequestArgs {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
    wrong: Option<Error>,
}

impl RequestArgs {
    /// Parses the path of a request by its template, and the query.
    pub(super) fn parse(parts: &Parts, template: &str) -> Self {
        let mut wrong = None;
        let mut path = Vec::new();
        for (part, given) in template.split('/').zip(parts.uri.path().split('/')) {
            if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                // Decoded like a form value: percent-encoding is the same in both.
                match percent_decoded(given) {
                    Some(text) => path.push((name.to_owned(), text)),
                    None => wrong = Some(Error::invalid(format!("`{name}` is not UTF-8"))),
                }
            }
        }
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let query = query.into_owned().collect();
        Self { path, query, wrong }
    }

    /// Deserializes a request without a body.
    pub(super) fn without_body<T: DeserializeOwned>(self) -> Result<T> {
        self.form()?.read()
    }

    fn form(self) -> Result<RequestMembers> {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        Ok(RequestMembers::Form(self.path.into_iter().chain(self.query).collect()))
    }

    /// All members, with those of the body if the method has one.
    pub(super) async fn with_body(self, route: &Route, body: Body) -> Result<RequestMembers> {
        if !route.method.has_body() {
            return self.form();
        }
        self.members(route.in_path().collect(), body).await
    }

    /// Deserializes a request with a JSON object as its body.
    pub(super) async fn with_object<T: DeserializeOwned>(self, body: Body) -> Result<T> {
        self.members(Vec::new(), body).await?.read()
    }

    /// The members of the body, plus those of the path; some of these are numbers.
    async fn members(self, in_path: Vec<(&str, bool)>, body: Body) -> Result<RequestMembers> {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        if !self.query.is_empty() {
            return Err(Error::invalid("this request takes no query; use the JSON body"));
        }
        let mut object = object(body).await?;
        for (name, value) in self.path {
            if object.contains_key(&name) {
                return Err(Error::invalid(format!(
                    "`{name}` is given twice: in the path and in the body"
                )));
            }
            let is_number = in_path.iter().any(|(own, number)| *own == name && *number);
            let number = || value.parse::<u64>().map(Value::from);
            let value = match is_number {
                true => number().map_err(|_| Error::invalid(format!("not a number: `{name}`")))?,
                false => Value::from(value),
            };
            object.insert(name, value);
        }
        Ok(RequestMembers::Object(object))
    }
}

/// All members of a request, before they are deserialized.
pub(super) enum RequestMembers {
    /// From path and query: all values are text.
    Form(Vec<(String, String)>),
    /// From path and JSON body.
    Object(Map<String, Value>),
}

impl RequestMembers {
    /// Deserializes the members as one type of request.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T> {
        let read = match self {
            Self::Form(pairs) => arguments::form(pairs),
            Self::Object(object) => arguments::object(&object),
        };
        read.map_err(member_error)
    }
}

/// The JSON object in a body; an empty body is an empty object.
pub(super) async fn object(body: Body) -> Result<Map<String, Value>> {
    let too_much = || Error::new(Kind::Limit, format!("a body has {LARGEST} bytes at most"));
    let body = axum::body::to_bytes(body, LARGEST).await.map_err(|_| too_much())?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    serde_json::from_slice(&body)
        .map_err(|error| Error::invalid("the body is not a JSON object").cause(error))
}

/// The error for a member that cannot be deserialized.
pub(crate) fn member_error(ArgumentError { path, reason: mut text }: ArgumentError) -> Error {
    // The reason may quote a value of the wrong type, which may be as long as the body.
    if let Some((at, _)) = text.char_indices().nth(LONGEST_REASON) {
        text.truncate(at);
        text.push('…');
    }
    match path {
        None => Error::invalid(text),
        Some(path) => Error::invalid(format!("`{path}`: {text}")),
    }
}

/// Most characters of a deserializer's message in an error.
const LONGEST_REASON: usize = 500;

fn percent_decoded(text: &str) -> Option<String> {
    // In a path, a plus is a plus, not a space.
    let one = format!("v={}", text.replace('+', "%2B"));
    let pairs: Vec<(String, String)> =
        form_urlencoded::parse(one.as_bytes()).into_owned().collect();
    let [(_, value)] = <[_; 1]>::try_from(pairs).ok()?;
    (!value.contains('\u{fffd}')).then_some(value)
}
