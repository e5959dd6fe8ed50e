//! Substitutes values for placeholders in requests, and refuses placeholders in other places.

use crate::proxy::percent_decoded;
use crate::secrets::patterns::{PatternSet, StreamSearch, json_escaped, percent_encoded};
use crate::secrets::secret_value::SecretValue;
use crate::secrets::value_search::ValueSearch;
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

/// Common headers of API keys, besides `Authorization`.
const KEY_HEADERS: [&str; 3] = ["x-api-key", "api-key", "x-goog-api-key"];

/// Headers that authenticate clients: where a Secret is required, none may hold another credential.
const CREDENTIAL_HEADERS: [&str; 20] = [
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

/// Shorter values, in bytes, are not masked: they occur in unrelated data.
const MIN_SCRUBBED_LEN: usize = 4;

/// Levels of percent-encoding that are decoded in search of a placeholder.
const MAX_DECODINGS: usize = 3;

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// All Secrets of a sandbox, with their values.
pub(crate) struct SecretSet {
    list: Vec<(PlannedSecret, SecretValue)>,
    /// Placeholders, plain and percent-encoded, as they are substituted.
    plain: PatternSet,
    /// Placeholders in all encodings, as they are refused.
    encoded: PatternSet,
}

impl SecretSet {
    pub(crate) fn new(list: Vec<(PlannedSecret, SecretValue)>) -> Self {
        let texts = || {
            list.iter()
                .enumerate()
                .map(|(index, (planned, _))| (index, planned.placeholder.as_bytes()))
        };
        let (plain, encoded) = (PatternSet::plain(texts()), PatternSet::encoded(texts()));
        Self { list, plain, encoded }
    }

    /// The Secrets as they apply to requests to `name`.
    pub(crate) fn for_host(self: &Arc<Self>, name: &DomainName, tls: bool) -> HostSecrets {
        let allowed: Vec<bool> = self
            .list
            .iter()
            .map(|(planned, _)| planned.secret.hosts.iter().any(|host| host.matches(name)))
            .collect();
        let values = self.list.iter().enumerate().filter_map(|(index, (_, value))| {
            let long = value.bytes().len() >= MIN_SCRUBBED_LEN;
            (allowed[index] && tls && long).then_some(value.bytes())
        });
        let values = Arc::new(ValueSearch::of(values));
        HostSecrets { secrets: Arc::clone(self), allowed, tls, values }
    }
}

/// Why a request is refused because of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// The Secret is for other hosts.
    OtherHost,
    /// The flow does not use TLS, and values are sent over TLS only.
    NotEncrypted,
    /// The placeholder is in a place where it is not substituted.
    Place(Cow<'static, str>),
    /// The Secret is required and its placeholder is missing.
    Missing,
    /// The Secret is required, and this header holds another credential.
    OtherCredential(&'static str),
    /// The value has bytes that are invalid in that place.
    InvalidBytes,
}

/// The refusal of a request because of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedSecret {
    /// The name of the Secret.
    pub(crate) secret: String,
    pub(crate) reason: RefusalReason,
}

/// How a value is encoded in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueEncoding {
    Plain,
    Percent,
    Json,
}

/// The Secrets as they apply to one host.
#[derive(Clone)]
pub(crate) struct HostSecrets {
    secrets: Arc<SecretSet>,
    /// For each Secret, whether it is for this host.
    allowed: Vec<bool>,
    tls: bool,
    values: Arc<ValueSearch>,
}

/// The indexes of the Secrets that were substituted in a request.
pub(crate) type UsedSecrets = BTreeSet<usize>;

impl HostSecrets {
    /// The values that are masked in responses.
    pub(crate) fn values(&self) -> &Arc<ValueSearch> {
        &self.values
    }

    /// Whether responses are scrubbed, so that they must not be compressed.
    pub(crate) fn is_scrubbing(&self) -> bool {
        !self.values.is_empty()
    }

    /// Masks these values in responses instead.
    pub(crate) fn scrubbing(self, values: ValueSearch) -> Self {
        Self { values: Arc::new(values), ..self }
    }

    /// Whether there are any Secrets, for this host or another.
    pub(crate) fn has_secrets(&self) -> bool {
        !self.secrets.encoded.is_empty()
    }

    /// The index of the Secret with a placeholder that ends in `bytes`, the next chunk of a stream.
    pub(crate) fn search(&self, search: &mut StreamSearch, bytes: &[u8]) -> Option<usize> {
        search.find(&self.secrets.encoded, bytes)
    }

    /// Whether values are substituted in bodies, which then have to be buffered.
    pub(crate) fn substitutes_body(&self) -> bool {
        let body =
            |index: usize| self.secrets.list[index].0.secret.places.contains(&SecretPlace::Body);
        self.tls && (0..self.allowed.len()).any(|index| self.allowed[index] && body(index))
    }

    /// The names of the Secrets that were substituted.
    pub(crate) fn names(&self, used: &UsedSecrets) -> Vec<String> {
        used.iter().map(|index| self.name(*index)).collect()
    }

    fn name(&self, index: usize) -> String {
        self.secrets.list[index].0.secret.name.clone()
    }

    /// The refusal of a placeholder in a place where it is not substituted.
    pub(crate) fn refuse_place(
        &self,
        index: usize,
        place: impl Into<Cow<'static, str>>,
    ) -> RefusedSecret {
        let reason = match (self.allowed[index], self.tls) {
            (false, _) => RefusalReason::OtherHost,
            (true, false) => RefusalReason::NotEncrypted,
            (true, true) => RefusalReason::Place(place.into()),
        };
        RefusedSecret { secret: self.name(index), reason }
    }

    /// Substitutes values in the head of a request. After an error the head must not be used.
    pub(crate) fn substitute(
        &self,
        head: &mut Parts,
        used: &mut UsedSecrets,
    ) -> Result<(), RefusedSecret> {
        if !self.has_secrets() {
            return Ok(());
        }
        if let Some(index) = self.find_encoded(head.method.as_str().as_bytes()) {
            return Err(self.refuse_place(index, "the method"));
        }
        if let Some(index) = self.find_encoded(head.uri.path().as_bytes()) {
            return Err(self.refuse_place(index, "the path"));
        }
        if let Some(query) = head.uri.query() {
            let place = ("the query", Some(SecretPlace::Query));
            if let Some(query) =
                self.substitute_text(query.as_bytes(), place, ValueEncoding::Percent, used)?
            {
                let path = head.uri.path().as_bytes();
                let whole = Zeroizing::new([path, b"?", &*query].concat());
                head.uri = with_path(&head.uri, &whole).ok_or_else(|| self.invalid_bytes(used))?;
            }
        }
        self.substitute_headers(&mut head.headers, used)
    }

    fn substitute_headers(
        &self,
        headers: &mut HeaderMap,
        used: &mut UsedSecrets,
    ) -> Result<(), RefusedSecret> {
        for (name, value) in headers.iter_mut() {
            if let Some(index) = self.find_in_name(name) {
                return Err(self.refuse_place(index, "the name of a header"));
            }
            let text = Cow::Owned(format!("the header `{name}`"));
            let substituted = match header_place(name) {
                Some(place) if name == AUTHORIZATION => {
                    match self.substitute_basic(value.as_bytes(), used)? {
                        None => {
                            let place = (text, Some(place));
                            self.substitute_text(
                                value.as_bytes(),
                                place,
                                ValueEncoding::Plain,
                                used,
                            )?
                        }
                        basic => basic,
                    }
                }
                place => self.substitute_text(
                    value.as_bytes(),
                    (text, place),
                    ValueEncoding::Plain,
                    used,
                )?,
            };
            if let Some(bytes) = substituted {
                *value = HeaderValue::from_bytes(&bytes).map_err(|_| self.invalid_bytes(used))?;
                // Kept out of the header tables of HTTP/2, which outlive the request on both sides.
                value.set_sensitive(true);
            }
        }
        Ok(())
    }

    /// Finds placeholders in trailers, where they are not substituted, and other credentials, which
    /// some servers accept there.
    pub(crate) fn check_trailers(&self, trailers: &HeaderMap) -> Option<usize> {
        let credential = CREDENTIAL_HEADERS.iter().any(|name| trailers.contains_key(*name));
        if let Some(index) = self.required().filter(|_| credential) {
            return Some(index);
        }
        trailers.iter().find_map(|(name, value)| {
            self.find_in_name(name).or_else(|| self.find_encoded(value.as_bytes()))
        })
    }

    /// Substitutes values in a body; `None` if it is unchanged.
    pub(crate) fn substitute_body(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        used: &mut UsedSecrets,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, RefusedSecret> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let encoding = match kind.as_str() {
            "application/x-www-form-urlencoded" => ValueEncoding::Percent,
            kind if kind == "application/json" || kind.ends_with("+json") => ValueEncoding::Json,
            _ => ValueEncoding::Plain,
        };
        self.substitute_text(body, ("the body", Some(SecretPlace::Body)), encoding, used)
    }

    /// The refusal if a required Secret was not substituted.
    pub(crate) fn missing(&self, used: &UsedSecrets) -> Option<RefusedSecret> {
        let required =
            |index: &usize| self.allowed[*index] && self.secrets.list[*index].0.secret.require;
        let index =
            (0..self.allowed.len()).find(|index| required(index) && !used.contains(index))?;
        let reason = if self.tls { RefusalReason::Missing } else { RefusalReason::NotEncrypted };
        Some(RefusedSecret { secret: self.name(index), reason })
    }

    /// The first Secret that requests to this host require.
    fn required(&self) -> Option<usize> {
        (0..self.allowed.len())
            .find(|index| self.allowed[*index] && self.secrets.list[*index].0.secret.require)
    }

    /// The refusal of another credential beside a required Secret: the server could use that one.
    /// Called before values are substituted.
    pub(crate) fn other_credential(&self, headers: &HeaderMap) -> Option<RefusedSecret> {
        let index = self.required()?;
        let name = CREDENTIAL_HEADERS.into_iter().find(|name| {
            let mut values = headers.get_all(*name).iter();
            let own = values.next().is_none_or(|value| self.is_placeholder_only(value.as_bytes()));
            !own || values.next().is_some()
        })?;
        Some(RefusedSecret {
            secret: self.name(index),
            reason: RefusalReason::OtherCredential(name),
        })
    }

    /// Whether a credential is just the placeholder of a Secret for this host: alone, after its
    /// scheme, or as user or password of `Basic`.
    fn is_placeholder_only(&self, value: &[u8]) -> bool {
        let (scheme, token) = match value.iter().position(|byte| *byte == b' ') {
            Some(at) => (&value[..at], value[at..].trim_ascii()),
            None => (&b""[..], value.trim_ascii()),
        };
        let placeholders =
            self.secrets.list.iter().zip(&self.allowed).filter(|(_, allowed)| **allowed);
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
        // `Token token="…"` and similar schemes.
        let equals = token.iter().position(|byte| *byte == b'=').map_or(0, |at| at + 1);
        let quoted = token[equals..].strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        is_one(token) || is_one(&token[equals..]) || quoted.is_some_and(is_one)
    }

    /// The refusal of a placeholder in a header of `before` that is missing in `after`.
    pub(crate) fn dropped_placeholder(
        &self,
        before: &HeaderMap,
        after: &HeaderMap,
    ) -> Option<RefusedSecret> {
        let gone = before.iter().filter(|(name, _)| !after.contains_key(*name));
        let mut gone =
            gone.filter_map(|(name, value)| Some((name, self.find_encoded(value.as_bytes())?)));
        gone.next().map(|(name, index)| self.refuse_place(index, format!("the header `{name}`")))
    }

    fn invalid_bytes(&self, used: &UsedSecrets) -> RefusedSecret {
        let secret = used.last().map(|index| self.name(*index)).unwrap_or_default();
        RefusedSecret { secret, reason: RefusalReason::InvalidBytes }
    }

    /// Substitutes inside the base64 of `Basic` credentials.
    fn substitute_basic(
        &self,
        value: &[u8],
        used: &mut UsedSecrets,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, RefusedSecret> {
        let split = value.iter().position(|byte| *byte == b' ');
        let Some((scheme, token)) = split.map(|at| value.split_at(at)) else { return Ok(None) };
        if !scheme.eq_ignore_ascii_case(b"basic") {
            return Ok(None);
        }
        let Ok(decoded) = LENIENT.decode(token.trim_ascii()) else { return Ok(None) };
        let place = ("the header `authorization`", Some(SecretPlace::Header));
        let substituted = self.substitute_text(&decoded, place, ValueEncoding::Plain, used)?;
        Ok(substituted.map(|plain| {
            let encoded = Zeroizing::new(STANDARD.encode(&*plain));
            Zeroizing::new([b"Basic ", encoded.as_bytes()].concat())
        }))
    }

    /// `text` with values substituted; `None` if it has no placeholders.
    fn substitute_text(
        &self,
        text: &[u8],
        (place_text, place): (impl Into<Cow<'static, str>>, Option<SecretPlace>),
        encoding: ValueEncoding,
        used: &mut UsedSecrets,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, RefusedSecret> {
        let place_text = place_text.into();
        let mut out: Option<Zeroizing<Vec<u8>>> = None;
        let mut done = 0;
        let rest = |piece: &[u8]| match self.find_encoded(piece) {
            Some(index) => Err(self.refuse_place(index, place_text.clone())),
            None => Ok(()),
        };
        while let Some(found) = self.secrets.plain.find(text, done) {
            let (planned, value) = &self.secrets.list[found.owner];
            let named = |place: SecretPlace| {
                place == SecretPlace::Header || planned.secret.places.contains(&place)
            };
            if !self.allowed[found.owner] || !self.tls || !place.is_some_and(named) {
                return Err(self.refuse_place(found.owner, place_text));
            }
            let value = match encoding {
                ValueEncoding::Plain => Zeroizing::new(value.bytes().to_vec()),
                ValueEncoding::Percent => percent_encoded(value.bytes()),
                ValueEncoding::Json => json_escaped(value.bytes()),
            };
            rest(&text[done..found.start])?;
            // Usually large enough, so that growing leaves few copies of the value behind.
            let out = out.get_or_insert_with(|| {
                Zeroizing::new(Vec::with_capacity(text.len() + 2 * value.len()))
            });
            out.extend_from_slice(&text[done..found.start]);
            out.extend_from_slice(&value);
            used.insert(found.owner);
            done = found.end;
        }
        rest(&text[done..])?;
        if let Some(out) = &mut out {
            out.extend_from_slice(&text[done..]);
        }
        Ok(out)
    }

    /// The index of the Secret with a placeholder in `text`, in any encoding.
    fn find_encoded(&self, text: &[u8]) -> Option<usize> {
        let find = |text: &[u8]| self.secrets.encoded.find(text, 0).map(|found| found.owner);
        if let Some(index) = find(text) {
            return Some(index);
        }
        if !text.contains(&b'%') {
            return None;
        }
        let mut text = Zeroizing::new(text.to_vec());
        for _ in 0..MAX_DECODINGS {
            text = percent_decoded(&*text);
            if let Some(index) = find(&text) {
                return Some(index);
            }
        }
        None
    }

    /// As [`Self::find_encoded`], ignoring case: header names are lower-cased.
    fn find_in_name(&self, name: &HeaderName) -> Option<usize> {
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

fn header_place(name: &HeaderName) -> Option<SecretPlace> {
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
