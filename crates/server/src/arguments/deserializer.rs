//! A deserializer of JSON values and of form fields that records which member was wrong.
//!
//! It is one type for both inputs, so each of about three hundred types is compiled for it once.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Map, Value};
use std::cell::OnceCell;
use std::fmt::{self, Display};

/// How the leaves of a value are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeafEncoding {
    /// With their JSON types.
    Typed,
    /// As text, whatever their type: members of a URL path or query.
    Text,
}

/// The path of the innermost member that failed.
pub(super) type FailedPath = OnceCell<String>;

/// The value that is read.
#[derive(Clone, Copy)]
pub(super) enum InputValue<'a> {
    Object(&'a Map<String, Value>),
    Array(&'a [Value]),
    Leaf(&'a Value),
}

impl<'a> From<&'a Value> for InputValue<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Object(members) => Self::Object(members),
            Value::Array(elements) => Self::Array(elements),
            leaf => Self::Leaf(leaf),
        }
    }
}

/// A value, with its path for errors.
pub(super) struct InputNode<'a> {
    pub(super) value: InputValue<'a>,
    pub(super) leaves: LeafEncoding,
    pub(super) path: ValuePath<'a>,
    pub(super) failed_path: &'a FailedPath,
}

/// The path of a value: a linked list of steps up to the root.
#[derive(Clone, Copy)]
pub(super) enum ValuePath<'a> {
    Root,
    Member(&'a ValuePath<'a>, &'a str),
    Element(&'a ValuePath<'a>, usize),
}

impl Display for ValuePath<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Self::Root, name) => write!(formatter, "{name}"),
            Self::Member(parent, name) => write!(formatter, "{parent}.{name}"),
            Self::Element(parent, index) => write!(formatter, "{parent}[{index}]"),
        }
    }
}

impl InputValue<'_> {
    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Self::Object(_) => Unexpected::Map,
            Self::Array(_) => Unexpected::Seq,
            Self::Leaf(Value::Bool(value)) => Unexpected::Bool(*value),
            Self::Leaf(Value::String(text)) => Unexpected::Str(text),
            Self::Leaf(Value::Number(number)) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => Unexpected::Unsigned(value),
                (_, Some(value)) => Unexpected::Signed(value),
                _ => Unexpected::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Self::Leaf(_) => Unexpected::Unit,
        }
    }
}

/// Records the path of a failure; the first one recorded is the innermost.
fn record_failure<T>(
    read: Result<T, Error>,
    path: &ValuePath<'_>,
    failed_path: &FailedPath,
) -> Result<T, Error> {
    if read.is_err() {
        failed_path.get_or_init(|| path.to_string());
    }
    read
}

/// Numbers and booleans: in forms they are text.
macro_rules! parsed {
    ($($method:ident => $visit:ident),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match (self.leaves, self.value) {
                (LeafEncoding::Text, InputValue::Leaf(Value::String(text))) => match text.parse() {
                    Ok(value) => visitor.$visit(value),
                    Err(error) => Err(Error::custom(error)),
                },
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for InputNode<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            InputValue::Leaf(Value::Bool(value)) => visitor.visit_bool(*value),
            InputValue::Leaf(Value::String(text)) => visitor.visit_str(text),
            InputValue::Leaf(Value::Number(number)) => {
                match (number.as_u64(), number.as_i64(), number.as_f64()) {
                    (Some(value), ..) => visitor.visit_u64(value),
                    (_, Some(value), _) => visitor.visit_i64(value),
                    (.., Some(value)) => visitor.visit_f64(value),
                    _ => Err(Error::custom("a number out of range")),
                }
            }
            InputValue::Leaf(_) => visitor.visit_unit(),
            InputValue::Array(elements) => {
                let Self { leaves, path, failed_path, .. } = self;
                let mut seq = ArrayElements { elements, next: 0, leaves, path: &path, failed_path };
                let read = visitor.visit_seq(&mut seq)?;
                match seq.next < elements.len() {
                    true => Err(Error::invalid_length(elements.len(), &"fewer elements in array")),
                    false => Ok(read),
                }
            }
            InputValue::Object(members) => {
                let Self { leaves, path, failed_path, .. } = self;
                let mut map = ObjectMembers {
                    members: members.iter(),
                    value: None,
                    leaves,
                    path: &path,
                    failed_path,
                };
                let read = visitor.visit_map(&mut map)?;
                match map.members.next() {
                    Some(_) => Err(Error::invalid_length(members.len(), &"fewer elements in map")),
                    None => Ok(read),
                }
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            InputValue::Leaf(Value::Null) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Self { value, leaves, path, failed_path } = self;
        let variant = |name, value| Variant { name, value, leaves, path: &path, failed_path };
        match value {
            InputValue::Leaf(Value::String(name)) => visitor.visit_enum(variant(name, None)),
            InputValue::Object(members) => match single(members) {
                Some((name, value)) => visitor.visit_enum(variant(name, Some(value))),
                None => Err(Error::invalid_value(Unexpected::Map, &"map with a single key")),
            },
            other => Err(Error::invalid_type(other.unexpected(), &"string or map")),
        }
    }

    parsed! {
        deserialize_bool => visit_bool,
        deserialize_u8 => visit_u8,
        deserialize_u16 => visit_u16,
        deserialize_u32 => visit_u32,
        deserialize_u64 => visit_u64,
        deserialize_i8 => visit_i8,
        deserialize_i16 => visit_i16,
        deserialize_i32 => visit_i32,
        deserialize_i64 => visit_i64,
        deserialize_f32 => visit_f32,
        deserialize_f64 => visit_f64,
    }

    forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

fn single(members: &Map<String, Value>) -> Option<(&String, &Value)> {
    let mut all = members.iter();
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

struct ArrayElements<'a> {
    elements: &'a [Value],
    next: usize,
    leaves: LeafEncoding,
    path: &'a ValuePath<'a>,
    failed_path: &'a FailedPath,
}

impl<'de> SeqAccess<'de> for &mut ArrayElements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(value) = self.elements.get(self.next) else { return Ok(None) };
        let path = ValuePath::Element(self.path, self.next);
        self.next += 1;
        let node = InputNode {
            value: value.into(),
            leaves: self.leaves,
            path,
            failed_path: self.failed_path,
        };
        record_failure(seed.deserialize(node).map(Some), &path, self.failed_path)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.elements.len() - self.next)
    }
}

struct ObjectMembers<'a> {
    members: serde_json::map::Iter<'a>,
    value: Option<(&'a str, &'a Value)>,
    leaves: LeafEncoding,
    path: &'a ValuePath<'a>,
    failed_path: &'a FailedPath,
}

impl<'de> MapAccess<'de> for &mut ObjectMembers<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((name, value)) = self.members.next() else { return Ok(None) };
        self.value = Some((name, value));
        let key: StrDeserializer<'_, Error> = name.as_str().into_deserializer();
        let path = ValuePath::Member(self.path, name);
        record_failure(seed.deserialize(key).map(Some), &path, self.failed_path)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, value) =
            self.value.take().ok_or_else(|| Error::custom("a value without its name"))?;
        let path = ValuePath::Member(self.path, name);
        let node = InputNode {
            value: value.into(),
            leaves: self.leaves,
            path,
            failed_path: self.failed_path,
        };
        record_failure(seed.deserialize(node), &path, self.failed_path)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.members.len())
    }
}

struct Variant<'a> {
    name: &'a str,
    value: Option<&'a Value>,
    leaves: LeafEncoding,
    path: &'a ValuePath<'a>,
    failed_path: &'a FailedPath,
}

impl<'a> Variant<'a> {
    fn content<T>(
        self,
        expected: &str,
        read: impl FnOnce(InputNode<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Self { name, value, leaves, path, failed_path } = self;
        let value = value.ok_or_else(|| Error::invalid_type(Unexpected::UnitVariant, &expected))?;
        let path = ValuePath::Member(path, name);
        record_failure(
            read(InputNode { value: value.into(), leaves, path, failed_path }),
            &path,
            failed_path,
        )
    }
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = Variant<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Variant<'a>), Error> {
        let name: StrDeserializer<'_, Error> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.value {
            None => Ok(()),
            Some(_) => self.content("unit variant", |node| serde::Deserialize::deserialize(node)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        self.content("newtype variant", |node| seed.deserialize(node))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.content("tuple variant", |node| node.deserialize_any(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.content("struct variant", |node| node.deserialize_any(visitor))
    }
}
