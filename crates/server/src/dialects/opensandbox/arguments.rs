//! The arguments of the tools, as clients write them.

use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
pub(super) struct Create {
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
    pub(super) default_action: Option<Action>,
    pub(super) egress: Option<Vec<NetworkRule>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Allow,
    Deny,
}

impl Action {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct NetworkRule {
    pub(super) action: Action,
    pub(super) target: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Connect {
    pub(super) sandbox_id: String,
    #[serde(default = "half_a_minute")]
    pub(super) connect_timeout_seconds: f64,
    #[serde(default = "a_fifth")]
    pub(super) health_check_polling_interval_ms: u64,
    #[serde(default)]
    pub(super) skip_health_check: bool,
}

/// Only which sandbox.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    pub(super) sandbox_id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct List {
    pub(super) filter: Option<Filter>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Filter {
    pub(super) states: Option<Vec<String>>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) page_size: Option<u64>,
    pub(super) page: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Renew {
    pub(super) sandbox_id: String,
    pub(super) timeout_seconds: f64,
}

/// Which sandbox, and whether it is connected first.
pub(super) trait Located {
    fn id(&self) -> &str;
    fn connects(&self) -> bool;
}

/// Arguments that begin with those two. Not a field of its own: then serde could not tell any more
/// which argument is wrong.
macro_rules! located {
    (struct $name:ident { $($rest:tt)* }) => {
        #[derive(Debug, Deserialize)]
        pub(super) struct $name {
            sandbox_id: String,
            #[serde(default)]
            connect_if_missing: bool,
            $($rest)*
        }
        impl Located for $name {
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
    struct At {}
}

located! {
    struct Endpoint {
        pub(super) port: u16,
    }
}

located! {
    struct Run {
        pub(super) command: String,
        #[serde(default)]
        pub(super) background: bool,
        pub(super) working_directory: Option<String>,
    }
}

located! {
    struct Interrupt {
        pub(super) execution_id: String,
    }
}

located! {
    struct Read {
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
    struct Write {
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

/// Permissions, in digits that are meant as octal.
fn for_all() -> u32 {
    755
}

located! {
    struct Paths {
        pub(super) paths: Vec<String>,
    }
}

located! {
    struct Search {
        pub(super) path: String,
        pub(super) pattern: String,
    }
}

located! {
    struct Directories {
        pub(super) entries: Vec<Directory>,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Directory {
    pub(super) path: String,
    #[serde(default = "for_all")]
    pub(super) mode: u32,
    pub(super) owner: Option<String>,
    pub(super) group: Option<String>,
}

located! {
    struct Moves {
        pub(super) entries: Vec<Move>,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Move {
    #[serde(alias = "src")]
    pub(super) source: String,
    #[serde(alias = "dest")]
    pub(super) destination: String,
}

located! {
    struct Replacements {
        pub(super) entries: Vec<Replacement>,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Replacement {
    pub(super) path: String,
    pub(super) old_content: String,
    pub(super) new_content: String,
}
