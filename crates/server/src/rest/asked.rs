//! What a request asks for: members from its path, its query and its body.

use axum::body::Body;
use axum::http::request::Parts;
use msb_api::http::Route;
use msb_spec::{Error, Kind, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Specs, rules and what commands read travel in bodies.
const LARGEST: usize = 32 << 20;

/// The members that are outside of the body.
pub(super) struct Asked {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
    wrong: Option<Error>,
}

impl Asked {
    /// Takes a request to a path of this form.
    pub(super) fn of(parts: &Parts, template: &str) -> Self {
        let mut wrong = None;
        let mut path = Vec::new();
        for (part, given) in template.split('/').zip(parts.uri.path().split('/')) {
            if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                // One value, taken as a form: what is between slashes is written in the same way.
                match unescaped(given) {
                    Some(text) => path.push((name.to_owned(), text)),
                    None => wrong = Some(Error::invalid(format!("`{name}` is not UTF-8"))),
                }
            }
        }
        let query = serde_urlencoded::from_str(parts.uri.query().unwrap_or_default());
        let query = query.unwrap_or_else(|error| {
            wrong = Some(Error::invalid("the query cannot be read").cause(error));
            Vec::new()
        });
        Self { path, query, wrong }
    }

    /// What is asked for without a body.
    pub(super) fn alone<T: DeserializeOwned>(self) -> Result<T> {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        let pairs: Vec<_> = self.path.into_iter().chain(self.query).collect();
        let text = serde_urlencoded::to_string(&pairs).unwrap_or_default();
        let form = serde_urlencoded::Deserializer::new(form(&text));
        serde_path_to_error::deserialize(form).map_err(|error| named(&error))
    }

    /// What is asked for, with the body where the method has one.
    pub(super) async fn with_body<T: DeserializeOwned>(
        self,
        route: &Route,
        body: Body,
    ) -> Result<T> {
        if !route.method.has_body() {
            return self.alone();
        }
        self.with_object(route.in_path().collect(), body).await
    }

    /// What is asked for, with members of the path in the object of the body; some are numbers.
    pub(super) async fn with_object<T: DeserializeOwned>(
        self,
        in_path: Vec<(&str, bool)>,
        body: Body,
    ) -> Result<T> {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        if !self.query.is_empty() {
            return Err(Error::invalid("it has no query: everything is in the body"));
        }
        let mut object = object(body).await?;
        for (name, value) in self.path {
            if object.contains_key(&name) {
                return Err(Error::invalid(format!("`{name}` is in the path already")));
            }
            let is_number = in_path.iter().any(|(own, number)| *own == name && *number);
            let number = || value.parse::<u64>().map(Value::from);
            let value = match is_number {
                true => number().map_err(|_| Error::invalid(format!("not a number: `{name}`")))?,
                false => Value::from(value),
            };
            object.insert(name, value);
        }
        serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| named(&error))
    }
}

/// The object of a body; one that is empty is one without members.
pub(super) async fn object(body: Body) -> Result<Map<String, Value>> {
    let too_much = || Error::new(Kind::Limit, format!("more than {LARGEST} bytes at once"));
    let body = axum::body::to_bytes(body, LARGEST).await.map_err(|_| too_much())?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    serde_json::from_slice(&body)
        .map_err(|error| Error::invalid("the body is no JSON object").cause(error))
}

/// What is wrong, and with which member.
fn named<E: std::fmt::Display>(error: &serde_path_to_error::Error<E>) -> Error {
    let path = error.path().to_string();
    let mut text = error.inner().to_string();
    // A value of the wrong type is part of it, and may be as long as the body.
    if let Some((at, _)) = text.char_indices().nth(LONGEST_REASON) {
        text.truncate(at);
        text.push('…');
    }
    match path.as_str() {
        "." => Error::invalid(text),
        _ => Error::invalid(format!("`{path}`: {text}")),
    }
}

/// Letters of what a parser says.
const LONGEST_REASON: usize = 500;

fn unescaped(text: &str) -> Option<String> {
    // A plus is a plus in a path.
    let one = format!("v={}", text.replace('+', "%2B"));
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(&one).ok()?;
    let [(_, value)] = <[_; 1]>::try_from(pairs).ok()?;
    (!value.contains('\u{fffd}')).then_some(value)
}

fn form(text: &str) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(text.as_bytes())
}
