//! The arguments of the tools, as clients send them.

use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
pub(super) struct CreateArgs {
    pub(super) image: String,
    pub(super) auth_username: Option<String>,
    pub(super) auth_password: Option<String>,
    #[serde(default = "ten_minutes")]
    pub(super) timeout_seconds: f64,
    #[serde(default = "half_a_minute")]
    pub(super) ready_timeout_seconds: f64,
    #[serde(default = "a_fifth")]
    pub(super) health_check_polling_interval_ms: u64,
    #[serde(default)]
    pub(super) skip_health_check: bool,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) resource: Option<BTreeMap<String, String>>,
    pub(super) network_policy: Option<NetworkPolicy>,
    pub(super) extensions: Option<BTreeMap<String, String>>,
    pub(super) entrypoint: Option<Vec<String>>,
}

fn ten_minutes() -> f64 {
    600.0
}

fn half_a_minute() -> f64 {
    30.0
}

fn a_fifth() -> u64 {
    200
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkPolicy {
    pub(super) default_action: Option<RuleAction>,
    pub(super) egress: Option<Vec<NetworkRule>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RuleAction {
    Allow,
    Deny,
}

impl RuleAction {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct NetworkRule {
    pub(super) action: RuleAction,
    pub(super) target: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConnectArgs {
    pub(super) sandbox_id: String,
    #[serde(default = "half_a_minute")]
    pub(super) connect_timeout_seconds: f64,
    #[serde(default = "a_fifth")]
    pub(super) health_check_polling_interval_ms: u64,
    #[serde(default)]
    pub(super) skip_health_check: bool,
}

/// The id of a sandbox, without other arguments.
#[derive(Debug, Deserialize)]
pub(super) struct SandboxIdArgs {
    pub(super) sandbox_id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ListArgs {
    pub(super) filter: Option<ListFilter>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ListFilter {
    pub(super) states: Option<Vec<String>>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) page_size: Option<u64>,
    pub(super) page: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RenewArgs {
    pub(super) sandbox_id: String,
    pub(super) timeout_seconds: f64,
}

/// Arguments with a sandbox id and `connect_if_missing`.
pub(super) trait SandboxTarget {
    fn id(&self) -> &str;
    fn connects(&self) -> bool;
}

/// Declares arguments with these two fields. They are not a flattened struct, because serde would
/// no longer name the wrong argument in errors.
macro_rules! located {
    (struct $name:ident { $($rest:tt)* }) => {
        #[derive(Debug, Deserialize)]
        pub(super) struct $name {
            sandbox_id: String,
            #[serde(default)]
            connect_if_missing: bool,
            $($rest)*
        }
        impl SandboxTarget for $name {
            fn id(&self) -> &str {
                &self.sandbox_id
            }
            fn connects(&self) -> bool {
                self.connect_if_missing
            }
        }
    };
}

located! {
    struct TargetArgs {}
}

located! {
    struct EndpointArgs {
        pub(super) port: u16,
    }
}

located! {
    struct RunArgs {
        pub(super) command: String,
        #[serde(default)]
        pub(super) background: bool,
        pub(super) working_directory: Option<String>,
    }
}

located! {
    struct InterruptArgs {
        pub(super) execution_id: String,
    }
}

located! {
    struct ReadArgs {
        pub(super) path: String,
        #[serde(default = "utf_8")]
        pub(super) encoding: String,
        pub(super) range_header: Option<String>,
    }
}

fn utf_8() -> String {
    "utf-8".to_owned()
}

located! {
    struct WriteArgs {
        pub(super) path: String,
        pub(super) content: String,
        #[serde(default = "utf_8")]
        pub(super) encoding: String,
        #[serde(default = "for_all")]
        pub(super) mode: u32,
        pub(super) owner: Option<String>,
        pub(super) group: Option<String>,
    }
}

/// Default permissions: decimal digits that are read as octal.
fn for_all() -> u32 {
    755
}

located! {
    struct PathsArgs {
        pub(super) paths: Vec<String>,
    }
}

located! {
    struct SearchArgs {
        pub(super) path: String,
        pub(super) pattern: String,
    }
}

located! {
    struct MkdirArgs {
        pub(super) entries: Vec<NewDirectory>,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct NewDirectory {
    pub(super) path: String,
    #[serde(default = "for_all")]
    pub(super) mode: u32,
    pub(super) owner: Option<String>,
    pub(super) group: Option<String>,
}

located! {
    struct MoveArgs {
        pub(super) entries: Vec<FileMove>,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct FileMove {
    #[serde(alias = "src")]
    pub(super) source: String,
    #[serde(alias = "dest")]
    pub(super) destination: String,
}

located! {
    struct ReplaceArgs {
        pub(super) entries: Vec<TextReplacement>,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct TextReplacement {
    pub(super) path: String,
    pub(super) old_content: String,
    pub(super) new_content: String,
}
