//! Puts values where placeholders stand, and finds placeholders where none may stand.

use super::patterns::{Patterns, json_escaped, percent_encoded};
use super::value_search::ValueSearch;
use crate::proxy::percent_decoded;
use crate::secret_value::SecretValue;
use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{PathAndQuery, Uri};
use msb_spec::{DomainName, PlannedSecret, SecretPlace};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The usual headers of API keys, beside `Authorization`.
const KEY_HEADERS: [&str; 3] = ["x-api-key", "api-key", "x-goog-api-key"];

/// Headers by which servers know their clients: where a Secret is required, none may hold another.
const CREDENTIALS: [&str; 20] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "apikey",
    "x-apikey",
    "x-auth-key",
    "x-auth-token",
    "x-access-token",
    "x-authorization",
    "x-forwarded-authorization",
    "x-original-authorization",
    "authentication",
    "private-token",
    "job-token",
    "deploy-token",
    "x-token",
    "x-vault-token",
    "x-amz-security-token",
    "x-shopify-access-token",
];

/// Shorter values are in everything, so taking them out of answers would leave nothing of them.
const SHORTEST_SCRUBBED: usize = 4;

/// How often a text is percent-decoded in search of a placeholder.
const DECODINGS: usize = 3;

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// All Secrets of a sandbox.
pub(crate) struct Secrets {
    list: Vec<(PlannedSecret, SecretValue)>,
    /// Placeholders as they stand where they are replaced.
    plain: Patterns,
    /// Placeholders in every way they can be written.
    hidden: Patterns,
}

impl Secrets {
    pub(crate) fn new(list: Vec<(PlannedSecret, SecretValue)>) -> Self {
        let texts = || {
            list.iter().enumerate().map(|(of, (planned, _))| (of, planned.placeholder.as_bytes()))
        };
        let (plain, hidden) = (Patterns::literal(texts()), Patterns::of(texts()));
        Self { list, plain, hidden }
    }

    /// What may be put into requests to `name`.
    pub(crate) fn towards(self: &Arc<Self>, name: &DomainName, tls: bool) -> Scope {
        let here: Vec<bool> = self
            .list
            .iter()
            .map(|(planned, _)| planned.secret.hosts.iter().any(|host| host.matches(name)))
            .collect();
        let values = self.list.iter().enumerate().filter_map(|(of, (_, value))| {
            let long = value.bytes().len() >= SHORTEST_SCRUBBED;
            (here[of] && tls && long).then_some(value.bytes())
        });
        let values = Arc::new(ValueSearch::of(values));
        Scope { secrets: Arc::clone(self), here, tls, values }
    }
}

/// Why a request with a placeholder, or without one, is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its hosts are others.
    OtherHost,
    /// The value goes out in TLS only.
    NotEncrypted,
    /// It stands where nothing is replaced.
    Place(Cow<'static, str>),
    /// It has to be there and is not.
    Missing,
    /// It has to be there, and another credential is as well, in this header.
    Rival(&'static str),
    /// The value has bytes that cannot stand there.
    Unfit,
}

/// A request that is refused because of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misplaced {
    /// Its name.
    pub(crate) secret: String,
    pub(crate) why: Why,
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Plainly,
    Percent,
    Json,
}

/// The Secrets as one host meets them.
#[derive(Clone)]
pub(crate) struct Scope {
    secrets: Arc<Secrets>,
    /// For each Secret, whether it is for this host.
    here: Vec<bool>,
    tls: bool,
    values: Arc<ValueSearch>,
}

/// Which Secrets were put into a request, by number.
pub(crate) type Used = BTreeSet<usize>;

impl Scope {
    /// The values that answers are scrubbed of.
    pub(crate) fn values(&self) -> &Arc<ValueSearch> {
        &self.values
    }

    /// Whether answers have to be readable.
    pub(crate) fn is_scrubbing(&self) -> bool {
        !self.values.is_empty()
    }

    /// Has answers scrubbed of these instead.
    pub(crate) fn hiding(self, values: ValueSearch) -> Self {
        Self { values: Arc::new(values), ..self }
    }

    /// Whether there are Secrets at all, for this host or another.
    pub(crate) fn is_watching(&self) -> bool {
        !self.secrets.hidden.is_empty()
    }

    /// Whose placeholder is in `bytes`, the next of a stream.
    pub(crate) fn watched(
        &self,
        watch: &mut super::patterns::Watch,
        bytes: &[u8],
    ) -> Option<usize> {
        watch.find(&self.secrets.hidden, bytes)
    }

    /// Whether bodies are replaced in, and so have to be read whole.
    pub(crate) fn wants_body(&self) -> bool {
        let body = |of: usize| self.secrets.list[of].0.secret.places.contains(&SecretPlace::Body);
        self.tls && (0..self.here.len()).any(|of| self.here[of] && body(of))
    }

    /// The names of what was put in.
    pub(crate) fn names(&self, used: &Used) -> Vec<String> {
        used.iter().map(|of| self.name(*of)).collect()
    }

    fn name(&self, of: usize) -> String {
        self.secrets.list[of].0.secret.name.clone()
    }

    /// The refusal of a placeholder that stands where nothing is replaced.
    pub(crate) fn misplaced(&self, of: usize, place: impl Into<Cow<'static, str>>) -> Misplaced {
        let why = match (self.here[of], self.tls) {
            (false, _) => Why::OtherHost,
            (true, false) => Why::NotEncrypted,
            (true, true) => Why::Place(place.into()),
        };
        Misplaced { secret: self.name(of), why }
    }

    /// Replaces in the head of a request. On an error the head must not be used.
    pub(crate) fn put_in(&self, head: &mut Parts, used: &mut Used) -> Result<(), Misplaced> {
        if !self.is_watching() {
            return Ok(());
        }
        if let Some(of) = self.hidden_in(head.method.as_str().as_bytes()) {
            return Err(self.misplaced(of, "the method"));
        }
        if let Some(of) = self.hidden_in(head.uri.path().as_bytes()) {
            return Err(self.misplaced(of, "the path"));
        }
        if let Some(query) = head.uri.query() {
            let place = ("the query", Some(SecretPlace::Query));
            if let Some(query) = self.replaced(query.as_bytes(), place, Written::Percent, used)? {
                let path = head.uri.path().as_bytes();
                let whole = Zeroizing::new([path, b"?", &*query].concat());
                head.uri = with_path(&head.uri, &whole).ok_or_else(|| self.unfit(used))?;
            }
        }
        self.put_in_headers(&mut head.headers, used)
    }

    fn put_in_headers(&self, headers: &mut HeaderMap, used: &mut Used) -> Result<(), Misplaced> {
        for (name, value) in headers.iter_mut() {
            if let Some(of) = self.hidden_in_name(name) {
                return Err(self.misplaced(of, "the name of a header"));
            }
            let text = Cow::Owned(format!("the header `{name}`"));
            let replaced = match place_of(name) {
                Some(place) if name == AUTHORIZATION => {
                    match self.in_basic(value.as_bytes(), used)? {
                        None => {
                            let place = (text, Some(place));
                            self.replaced(value.as_bytes(), place, Written::Plainly, used)?
                        }
                        basic => basic,
                    }
                }
                place => self.replaced(value.as_bytes(), (text, place), Written::Plainly, used)?,
            };
            if let Some(bytes) = replaced {
                *value = HeaderValue::from_bytes(&bytes).map_err(|_| self.unfit(used))?;
                // Kept out of the tables of HTTP/2, which outlive the request on both sides.
                value.set_sensitive(true);
            }
        }
        Ok(())
    }

    /// Refuses placeholders in trailers, where nothing is replaced, and other credentials, which
    /// some servers take from there.
    pub(crate) fn check_trailers(&self, trailers: &HeaderMap) -> Option<usize> {
        let credential = CREDENTIALS.iter().any(|name| trailers.contains_key(*name));
        if let Some(of) = self.required().filter(|_| credential) {
            return Some(of);
        }
        trailers.iter().find_map(|(name, value)| {
            self.hidden_in_name(name).or_else(|| self.hidden_in(value.as_bytes()))
        })
    }

    /// Replaces in a body; nothing if it stays as it is.
    pub(crate) fn put_in_body(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        used: &mut Used,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Misplaced> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let written = match kind.as_str() {
            "application/x-www-form-urlencoded" => Written::Percent,
            kind if kind == "application/json" || kind.ends_with("+json") => Written::Json,
            _ => Written::Plainly,
        };
        self.replaced(body, ("the body", Some(SecretPlace::Body)), written, used)
    }

    /// The Secret that has to be in a request to this host and was not put in.
    pub(crate) fn missing(&self, used: &Used) -> Option<Misplaced> {
        let required = |of: &usize| self.here[*of] && self.secrets.list[*of].0.secret.require;
        let of = (0..self.here.len()).find(|of| required(of) && !used.contains(of))?;
        let why = if self.tls { Why::Missing } else { Why::NotEncrypted };
        Some(Misplaced { secret: self.name(of), why })
    }

    /// The first Secret that requests to this host must have.
    fn required(&self) -> Option<usize> {
        (0..self.here.len()).find(|of| self.here[*of] && self.secrets.list[*of].0.secret.require)
    }

    /// Another credential in a request that must have a Secret: the server could take that one.
    /// Asked before values are put in.
    pub(crate) fn rival(&self, headers: &HeaderMap) -> Option<Misplaced> {
        let of = self.required()?;
        let name = CREDENTIALS.into_iter().find(|name| {
            let mut values = headers.get_all(*name).iter();
            let own = values.next().is_none_or(|value| self.is_own(value.as_bytes()));
            !own || values.next().is_some()
        })?;
        Some(Misplaced { secret: self.name(of), why: Why::Rival(name) })
    }

    /// Whether a credential is the placeholder of a Secret for this host and nothing else: alone,
    /// behind its scheme, or as user or password of `Basic`.
    fn is_own(&self, value: &[u8]) -> bool {
        let (scheme, token) = match value.iter().position(|byte| *byte == b' ') {
            Some(at) => (&value[..at], value[at..].trim_ascii()),
            None => (&b""[..], value.trim_ascii()),
        };
        let placeholders = self.secrets.list.iter().zip(&self.here).filter(|(_, here)| **here);
        let is_one = |text: &[u8]| {
            let mut own =
                placeholders.clone().map(|((planned, _), _)| planned.placeholder.as_bytes());
            own.any(|placeholder| placeholder == text)
        };
        if scheme.eq_ignore_ascii_case(b"basic") {
            let Ok(decoded) = LENIENT.decode(token) else { return false };
            let colon = decoded.iter().position(|byte| *byte == b':').unwrap_or(decoded.len());
            let (user, password) = decoded.split_at(colon);
            return is_one(user) || is_one(password.get(1..).unwrap_or_default());
        }
        // `Token token="…"` and its like.
        let equals = token.iter().position(|byte| *byte == b'=').map_or(0, |at| at + 1);
        let quoted = token[equals..].strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        is_one(token) || is_one(&token[equals..]) || quoted.is_some_and(is_one)
    }

    /// Whose placeholder is in a header of `before` that is not in `after`.
    pub(crate) fn lost(&self, before: &HeaderMap, after: &HeaderMap) -> Option<Misplaced> {
        let gone = before.iter().filter(|(name, _)| !after.contains_key(*name));
        let mut gone =
            gone.filter_map(|(name, value)| Some((name, self.hidden_in(value.as_bytes())?)));
        gone.next().map(|(name, of)| self.misplaced(of, format!("the header `{name}`")))
    }

    fn unfit(&self, used: &Used) -> Misplaced {
        let secret = used.last().map(|of| self.name(*of)).unwrap_or_default();
        Misplaced { secret, why: Why::Unfit }
    }

    /// `Basic` hides name and password in base64.
    fn in_basic(
        &self,
        value: &[u8],
        used: &mut Used,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Misplaced> {
        let split = value.iter().position(|byte| *byte == b' ');
        let Some((scheme, token)) = split.map(|at| value.split_at(at)) else { return Ok(None) };
        if !scheme.eq_ignore_ascii_case(b"basic") {
            return Ok(None);
        }
        let Ok(decoded) = LENIENT.decode(token.trim_ascii()) else { return Ok(None) };
        let place = ("the header `authorization`", Some(SecretPlace::Header));
        let replaced = self.replaced(&decoded, place, Written::Plainly, used)?;
        Ok(replaced.map(|plain| {
            let encoded = Zeroizing::new(STANDARD.encode(&*plain));
            Zeroizing::new([b"Basic ", encoded.as_bytes()].concat())
        }))
    }

    /// `text` with values in place of placeholders; nothing if there are none.
    fn replaced(
        &self,
        text: &[u8],
        (described, place): (impl Into<Cow<'static, str>>, Option<SecretPlace>),
        written: Written,
        used: &mut Used,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Misplaced> {
        let described = described.into();
        let mut out: Option<Zeroizing<Vec<u8>>> = None;
        let mut done = 0;
        let rest = |piece: &[u8]| match self.hidden_in(piece) {
            Some(of) => Err(self.misplaced(of, described.clone())),
            None => Ok(()),
        };
        while let Some(found) = self.secrets.plain.find(text, done) {
            let (planned, value) = &self.secrets.list[found.of];
            let named = |place: SecretPlace| {
                place == SecretPlace::Header || planned.secret.places.contains(&place)
            };
            if !self.here[found.of] || !self.tls || !place.is_some_and(named) {
                return Err(self.misplaced(found.of, described));
            }
            let value = match written {
                Written::Plainly => Zeroizing::new(value.bytes().to_vec()),
                Written::Percent => percent_encoded(value.bytes()),
                Written::Json => json_escaped(value.bytes()),
            };
            rest(&text[done..found.start])?;
            // As much as can be needed for most, so that growing leaves few copies behind.
            let out = out.get_or_insert_with(|| {
                Zeroizing::new(Vec::with_capacity(text.len() + 2 * value.len()))
            });
            out.extend_from_slice(&text[done..found.start]);
            out.extend_from_slice(&value);
            used.insert(found.of);
            done = found.end;
        }
        rest(&text[done..])?;
        if let Some(out) = &mut out {
            out.extend_from_slice(&text[done..]);
        }
        Ok(out)
    }

    /// Whose placeholder stands in `text`, however it is written.
    fn hidden_in(&self, text: &[u8]) -> Option<usize> {
        let find = |text: &[u8]| self.secrets.hidden.find(text, 0).map(|found| found.of);
        if let Some(of) = find(text) {
            return Some(of);
        }
        if !text.contains(&b'%') {
            return None;
        }
        let mut text = Zeroizing::new(text.to_vec());
        for _ in 0..DECODINGS {
            text = percent_decoded(&*text);
            if let Some(of) = find(&text) {
                return Some(of);
            }
        }
        None
    }

    /// Names of headers have lost their capitals.
    fn hidden_in_name(&self, name: &HeaderName) -> Option<usize> {
        self.secrets.list.iter().position(|(planned, _)| {
            let placeholder = planned.placeholder.as_bytes();
            !placeholder.is_empty()
                && name.as_str().len() >= placeholder.len()
                && name
                    .as_str()
                    .as_bytes()
                    .windows(placeholder.len())
                    .any(|part| part.eq_ignore_ascii_case(placeholder))
        })
    }
}

fn place_of(name: &HeaderName) -> Option<SecretPlace> {
    if name == AUTHORIZATION || KEY_HEADERS.contains(&name.as_str()) {
        return Some(SecretPlace::Header);
    }
    (name == COOKIE).then_some(SecretPlace::Cookie)
}

fn with_path(uri: &Uri, path: &[u8]) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(parts).ok()
}
