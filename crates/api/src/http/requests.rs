//! The HTTP request of each Operation: members, method, path and response.
//!
//! Most are generated from the table of Operations. Those of streams are written here: over HTTP they
//! have a short form that is answered once.

use super::place::Where;
use super::responses::{
    Changed, Count, Done, Ended, Executed, Expires, FileMeta, Logged, RealPath, ResponseOf, Waited,
};
use super::{HttpRequest, Method, Route, Visitor};
use crate::execs::{self, Exec};
use crate::operation_types::*;
use crate::params::{Arg, Param};
use crate::sandboxes::LogFilter;
use crate::{Api, NoProgress, Watch};
use msb_spec::{Bytes, Command, Result, Stdin, UserRef, VolumeKind};
use msb_wire::record::{Event, Source};
use std::collections::BTreeMap;

/// Values of secrets, by secret name.
pub type SecretValues = BTreeMap<String, String>;

/// Defines one request: members, method, path, response and implementation.
macro_rules! http_request {
    (
        $(#[doc = $about:literal])+
        $request:ident = $method:ident $http:ident $path:literal
        { $( $(#[$meta:meta])+ $field:ident: $type:ty, )* } [secrets]
        -> $response:ty = |$it:ident, $api:ident, $watch:ident| $done:expr
    ) => {
        http_request! {
            @type $(#[doc = $about])+
            $request = $method $http $path {
                $( $(#[$meta])+ $field: $type, )*
                /// Values of the secrets whose source is the client, by secret name. Default: none.
                #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
                secrets: SecretValues,
            } {
                fn secrets(&mut self) -> Option<&mut SecretValues> {
                    Some(&mut self.secrets)
                }
            } -> $response = |$it, $api, $watch| $done
        }
    };
    (
        $(#[doc = $about:literal])+
        $request:ident = $method:ident $http:ident $path:literal
        { $($members:tt)* } [$($other:tt)*]
        -> $response:ty = |$it:ident, $api:ident, $watch:ident| $done:expr
    ) => {
        http_request! {
            @type $(#[doc = $about])+
            $request = $method $http $path { $($members)* } {}
            -> $response = |$it, $api, $watch| $done
        }
    };
    (
        @type $(#[doc = $about:literal])+
        $request:ident = $method:ident $http:ident $path:literal
        { $( $(#[$meta:meta])+ $field:ident: $type:ty, )* } { $($item:item)* }
        -> $response:ty = |$it:ident, $api:ident, $watch:ident| $done:expr
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub struct $request { $( $(#[$meta])+ pub $field: $type ),* }

        impl HttpRequest for $request {
            type Response = $response;

            const ROUTE: Route = Route {
                name: stringify!($method),
                method: Method::$http,
                path: $path,
                about: concat!($($about),+),
            };

            $($item)*

            fn perform(&self, $api: &dyn Api, $watch: &dyn Watch) -> Result<$response> {
                let $it = self;
                let _ = ($it, $watch);
                $done
            }
        }
    };
}

/// The type of the response: that of the value, unless the table has another one.
macro_rules! response_type {
    ($value:ty) => {
        $value
    };
    ($value:ty, $response:ty) => {
        $response
    };
}

/// The request of a row whose members are the arguments, or are converted from the one argument.
macro_rules! request {
    (
        $method:ident($($arg:ident: $type:ty),*) [$($watch:ident)?]
        -> $value:ty = $request:ident [$($modifier:tt)*] {
            [$(#[doc = $about:literal])+]
            [$( $(#[$meta:meta])+ $field:ident: $member:ty ),*]
            [$($response:ty)?] [] $http:ident $path:literal
        }
    ) => {
        http_request! {
            $(#[doc = $about])+
            $request = $method $http $path { $( $(#[$meta])+ $field: $member, )* } [$($modifier)*]
            -> response_type!($value $(, $response)?) = |it, api, progress| {
                $( let $watch = progress; )?
                api.$method($( it.$arg.arg(), )* $($watch)?).map(ResponseOf::of)
            }
        }

        impl $request {
            /// The request for a call of the Operation.
            pub fn from_args($($arg: Arg<'_, $type>),*) -> Self {
                http_request_value!($request [$($modifier)*] $($arg: Param::of($arg),)*)
            }
        }
    };
    (
        $method:ident($arg:ident: $type:ty) [$($watch:ident)?]
        -> $value:ty = $request:ident [$($modifier:tt)*] {
            [$(#[doc = $about:literal])+]
            [$($args:tt)*] [$($response:ty)?] [{ $($members:tt)* }] $http:ident $path:literal
        }
    ) => {
        http_request! {
            $(#[doc = $about])+
            $request = $method $http $path { $($members)* } [$($modifier)*]
            -> response_type!($value $(, $response)?) = |it, api, progress| {
                $( let $watch = progress; )?
                let $arg = <$type>::from(it.clone());
                api.$method($arg.arg(), $($watch)?).map(ResponseOf::of)
            }
        }

        impl $request {
            /// The request for a call of the Operation.
            pub fn from_args($arg: Arg<'_, $type>) -> Self {
                $arg.clone().into()
            }
        }
    };
}

/// A request without values of secrets.
macro_rules! http_request_value {
    ($request:ident [secrets] $($fields:tt)*) => {
        $request { $($fields)* secrets: SecretValues::new() }
    };
    ($request:ident [$($modifier:tt)*] $($fields:tt)*) => {
        $request { $($fields)* }
    };
}

/// The request of a row on files: the members `sandbox`, `volume` and `user` say where they are.
macro_rules! file_request {
    (
        $method:ident($at:ident: $place:ty $(, $arg:ident: $type:ty)*) []
        -> $value:ty = $request:ident [$($modifier:tt)*] {
            [$(#[doc = $about:literal])+]
            [$first:ident: $first_type:ty $(, $(#[$meta:meta])+ $field:ident: $member:ty)*]
            [$($response:ty)?] [] $http:ident $path:literal
        }
    ) => {
        http_request! {
            $(#[doc = $about])+
            $request = $method $http $path {
                /// The name of a running sandbox. Required unless `volume` is given.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                sandbox: Option<Name>,
                /// The name of a volume. Required unless `sandbox` is given.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                volume: Option<VolumeName>,
                /// The user in the sandbox, and owner of new files. Default: root. Not for volumes.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                user: Option<UserRef>,
                $( $(#[$meta])+ $field: $member, )*
            } [] -> response_type!($value $(, $response)?) = |it, api, progress| {
                let (sandbox, volume) = (it.sandbox.clone(), it.volume.clone());
                let $at = Where { sandbox, volume, user: it.user.clone() }.place()?;
                api.$method(&$at, $( it.$arg.arg() ),*).map(ResponseOf::of)
            }
        }

        impl $request {
            /// The request for a call of the Operation.
            pub fn from_args($at: &$place, $($arg: Arg<'_, $type>),*) -> Self {
                let Where { sandbox, volume, user } = $at.into();
                Self { sandbox, volume, user, $( $arg: Param::of($arg) ),* }
            }
        }
    };
}

operations!(sandboxes request);
operations!(execs request);
operations!(files file_request);
operations!(images request);
operations!(volumes request);
operations!(snapshots request);
operations!(networks request);
operations!(workspaces request);
operations!(syncs request);
operations!(children request);

/// Visits all types of requests.
pub fn each(visitor: &mut impl Visitor) {
    macro_rules! visit {
        ($method:ident($($args:tt)*) $watch:tt -> $value:ty = $request:ident $($rest:tt)*) => {
            visitor.visit::<$request>();
        };
    }
    operations!(all visit);
    visitor.visit::<SandboxLogs>();
    visitor.visit::<SandboxEvents>();
    visitor.visit::<ExecStart>();
    visitor.visit::<ExecRun>();
}

impl From<Create> for SandboxCreate {
    fn from(create: Create) -> Self {
        let Create { spec, replace, registry } = create;
        Self { spec, replace, registry, secrets: SecretValues::new() }
    }
}

impl From<SandboxCreate> for Create {
    fn from(request: SandboxCreate) -> Self {
        let SandboxCreate { spec, replace, registry, secrets: _ } = request;
        Self { spec, replace, registry }
    }
}

impl From<VolumeSpec> for VolumeCreate {
    fn from(spec: VolumeSpec) -> Self {
        let VolumeSpec { name, kind, size, labels } = spec;
        Self { name, kind, size, labels }
    }
}

impl From<VolumeCreate> for VolumeSpec {
    fn from(request: VolumeCreate) -> Self {
        let VolumeCreate { name, kind, size, labels } = request;
        Self { name, kind, size, labels }
    }
}

http_request! {
    /// Lists the output lines of the commands of a sandbox.
    SandboxLogs = sandbox_logs Get "/api/v1/sandboxes/{name}/logs" {
        /// The name of the sandbox.
        name: Name,
        /// Only lines of the Exec with this id. Default: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exec: Option<u64>,
        /// Only lines of this stream. Default: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<Source>,
        /// Only lines at or after this time, in milliseconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
        /// Only lines at or before this time, in milliseconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
        /// Only lines that contain this text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grep: Option<String>,
    } [] -> Logged = |it, api, watch| {
        let mut logs = api.sandbox_logs(&it.name, &it.filter())?;
        Ok(Logged { lines: logs.more()?, rest: logs.rest() })
    }
}

http_request! {
    /// Lists the lifecycle events of a sandbox.
    SandboxEvents = sandbox_events Get "/api/v1/sandboxes/{name}/events" {
        /// The name of the sandbox.
        name: Name,
    } [] -> Vec<Event> = |it, api, watch| api.sandbox_events(&it.name)?.more()
}

http_request! {
    /// Runs a command in a running sandbox and waits for its end.
    ExecStart = exec_start Post "/api/v1/sandboxes/{name}/execs" {
        /// The name of a running sandbox.
        name: Name,
        /// The command to run.
        command: Command,
        /// Text for stdin. Default: empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stdin: Option<String>,
        /// Most bytes of stdout and of stderr in the response. Default 1048576 (1 MiB), at most
        /// 16777216 (16 MiB).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
    } [] -> Executed = |it, api, watch| {
        let command = Command { stdin: Stdin::Streamed, ..it.command.clone() };
        let watch = if command.detached { &NoProgress } else { watch };
        let mut exec = api.exec_start(&it.name, &command)?;
        executed(exec.as_mut(), it.stdin.as_deref(), it.limit, watch)
    }
}

http_request! {
    /// Creates a sandbox for one command, and removes it when the command has ended.
    ExecRun = exec_run Post "/api/v1/run" {
        /// The requested sandbox, with its command.
        spec: Spec,
        /// Text for stdin. Default: empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stdin: Option<String>,
        /// Most bytes of stdout and of stderr in the response. Default 1048576 (1 MiB), at most
        /// 16777216 (16 MiB).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
    } [secrets] -> Executed = |it, api, watch| {
        let (_, mut exec) = api.exec_run(&it.spec, watch)?;
        executed(exec.as_mut(), it.stdin.as_deref(), it.limit, watch)
    }
}

impl SandboxLogs {
    /// The filter for the log lines.
    pub fn filter(&self) -> LogFilter {
        LogFilter {
            exec: self.exec,
            source: self.source,
            since: self.since,
            until: self.until,
            grep: self.grep.clone(),
        }
    }
}

/// Bytes of each output stream in a response, by default.
const USUAL_OUTPUT: u64 = 1 << 20;
/// Most bytes of each output stream in a response.
const MOST_OUTPUT: u64 = 16 << 20;

/// Bytes of each output stream to keep, within the limits.
fn limit(asked: Option<u64>) -> usize {
    usize::try_from(asked.unwrap_or(USUAL_OUTPUT).min(MOST_OUTPUT)).unwrap_or(usize::MAX)
}

fn executed(
    exec: &mut dyn Exec,
    stdin: Option<&str>,
    kept: Option<u64>,
    watch: &dyn Watch,
) -> Result<Executed> {
    let input = exec.input();
    watch.running(&input);
    let id = exec.id();
    let captured = std::thread::scope(|scope| {
        // In a thread of its own: a command may write much before it reads.
        scope.spawn(move || {
            let text = stdin.unwrap_or_default();
            if text.is_empty() {
                input.close()
            } else {
                input.write(text.as_bytes()).and_then(|()| input.close())
            }
        });
        execs::capture(exec, limit(kept))
    })?;
    Ok(Executed::of(id, &captured))
}

/// Deserializes from a JSON object only. serde would also accept an array of the members, and an
/// empty one where all members are optional.
fn by_name<'de, D, T>(from: D) -> std::result::Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    struct Members<T>(std::marker::PhantomData<T>);
    impl<'de, T: serde::Deserialize<'de>> serde::de::Visitor<'de> for Members<T> {
        type Value = T;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            members: A,
        ) -> std::result::Result<T, A::Error> {
            T::deserialize(serde::de::value::MapAccessDeserializer::new(members))
        }
    }
    from.deserialize_map(Members(std::marker::PhantomData))
}
