//! The dialect of microsandbox-mcp: 70 tools with one JSON envelope, and restricted host paths.
//!
//! It keeps the contract of that server without its faults: every failure is in the envelope, every
//! limit is enforced, base64 is truncated like text, and one failed item of a list does not hide
//! the others.

mod archives;
mod copy;
mod create;
mod envelope;
mod exec;
mod exec_sessions;
mod files;
mod images;
mod labels;
mod lifecycle;
mod logs;
mod metrics;
mod mounts;
mod networks;
mod patches;
mod resources;
mod restore;
mod rootfs;
mod runtime;
mod selector;
mod settings;
mod sftp;
mod snapshots;
mod ssh;
mod temp_dir;
mod volumes;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use super::{DialectName, ServerConfig};
use crate::content::ResourceContent;
use crate::dialect::{Caller, Dialect, DialectInfo, ResourceInfo, Tool, ToolCall, ToolResult};
use crate::{arguments, schema, tool_list};
use envelope::{Outcome, ToolFailure, answer};
use exec_sessions::ExecSessions;
use metrics::CpuSamples;
use msb_api::Api;
use msb_spec::{Error, Name};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
pub use settings::MicrosandboxSettings;
use std::sync::{Arc, Mutex, PoisonError};

/// The dialect `microsandbox`, with its tools.
#[derive(Clone)]
pub(super) struct Microsandbox {
    config: ServerConfig,
    settings: MicrosandboxSettings,
    tools: Arc<[Tool]>,
    sessions: Arc<ExecSessions>,
    measured: Arc<CpuSamples>,
    attached: Arc<AttachedSandboxes>,
}

/// Sandboxes that are stopped when this server ends.
struct AttachedSandboxes {
    api: Arc<dyn Api>,
    names: Mutex<Vec<Name>>,
}

/// Alternative names for older clients: the old name, and the current one.
const OLDER: [(&str, &str); 2] =
    [("snapshot_export", "snapshot_save"), ("snapshot_import", "snapshot_load")];

impl Microsandbox {
    pub(super) fn new(config: ServerConfig, settings: MicrosandboxSettings) -> Self {
        let mut tools = tool_list::tools(include_str!("microsandbox/tools.json"));
        if settings.older_names {
            let older = |(theirs, ours): (&str, &str)| {
                let tool = tools.iter().find(|tool| tool.name == ours)?;
                Some(Tool { name: theirs.to_owned(), ..tool.clone() })
            };
            let older: Vec<Tool> = OLDER.into_iter().filter_map(older).collect();
            tools.extend(older);
        }
        let api = Arc::clone(&config.api);
        let sessions = Arc::new(ExecSessions::new(Arc::clone(&api), settings.session_ttl));
        let attached = Arc::new(AttachedSandboxes { api, names: Mutex::default() });
        Self { config, settings, tools: tools.into(), sessions, measured: Arc::default(), attached }
    }

    /// Stops a sandbox when this server ends.
    fn ends_with_us(&self, name: &Name) {
        let mut names = self.attached.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.push(name.clone());
    }

    fn outcome(&self, call: &ToolCall) -> Outcome {
        let tool = call.tool.as_str();
        match tool {
            "runtime_check" => self.runtime_check(),
            "runtime_install" => self.runtime_install(),
            "sandbox_run" => self.sandbox_run(call),
            "sandbox_create" => self.sandbox_create(call),
            "sandbox_restore" => self.sandbox_restore(call),
            "sandbox_start" => self.sandbox_start(call),
            "sandbox_list" => self.sandbox_list(call),
            "sandbox_status" => self.sandbox_status(call),
            "sandbox_inspect" => self.sandbox_inspect(call),
            "sandbox_stop" => self.sandbox_stop(call),
            "sandbox_drain" => self.sandbox_drain(call),
            "sandbox_wait" => self.sandbox_wait(call),
            "sandbox_remove" => self.sandbox_remove(call),
            "sandbox_exec" | "sandbox_shell" => self.sandbox_exec(call),
            "sandbox_ssh_exec" => self.sandbox_ssh_exec(call),
            "sandbox_exec_start" => self.sandbox_exec_start(call),
            "sandbox_exec_poll" => self.sandbox_exec_poll(call),
            "sandbox_exec_write_stdin" => self.sandbox_exec_write_stdin(call),
            "sandbox_exec_signal" => self.sandbox_exec_signal(call),
            "sandbox_exec_close" => self.sandbox_exec_close(call),
            "sandbox_logs_read" => self.sandbox_logs_read(call),
            "sandbox_logs_stream" => self.sandbox_logs_stream(call),
            "sandbox_metrics" => self.sandbox_metrics(call),
            "sandbox_metrics_all" => self.sandbox_metrics_all(),
            "sandbox_metrics_stream" => self.sandbox_metrics_stream(call),
            "volume_create" => self.volume_create(call),
            "volume_list" => self.volume_list(),
            "volume_inspect" => self.volume_inspect(call),
            "volume_remove" => self.volume_remove(call),
            "image_list" => self.image_list(),
            "image_inspect" => self.image_inspect(call),
            "image_remove" => self.image_remove(call),
            "image_prune" => self.image_prune(call),
            "snapshot_create" => self.snapshot_create(call),
            "snapshot_list" => self.snapshot_list(),
            "snapshot_inspect" => self.snapshot_inspect(call),
            "snapshot_verify" => self.snapshot_verify(call),
            "snapshot_remove" => self.snapshot_remove(call),
            "snapshot_reindex" => self.snapshot_reindex(call),
            "snapshot_save" | "snapshot_export" => self.snapshot_save(call),
            "snapshot_load" | "snapshot_import" => self.snapshot_load(call),
            _ => self.file_outcome(call),
        }
    }

    /// The file tools, which exist for sandboxes and for volumes.
    fn file_outcome(&self, call: &ToolCall) -> Outcome {
        let tool = call.tool.as_str();
        let doing = tool.strip_prefix("sandbox_fs_").or_else(|| tool.strip_prefix("volume_fs_"));
        match doing {
            Some("read") => self.fs_read(call),
            Some("write") => self.fs_write(call),
            Some("list") => self.fs_list(call),
            Some("mkdir") => self.fs_mkdir(call),
            Some("remove") => self.fs_remove(call),
            Some("copy") => self.fs_copy(call),
            Some("rename") => self.fs_rename(call),
            Some("stat") => self.fs_stat(call),
            Some("exists") => self.fs_exists(call),
            Some("copy_from_host") => self.fs_copy_from_host(call),
            Some("copy_to_host") => self.fs_copy_to_host(call),
            _ => self.sftp_outcome(call).unwrap_or_else(|| {
                // Every listed tool has a handler; the caller refuses unlisted names before this.
                Err(ToolFailure::unsupported(
                    format!("no handler for the tool {tool}"),
                    "this is a bug of msb",
                ))
            }),
        }
    }
}

/// Deserializes arguments that have been checked against the schema.
fn read<T: DeserializeOwned>(call: &ToolCall) -> Result<T, ToolFailure> {
    arguments::read(&call.arguments).map_err(ToolFailure::new)
}

/// Removes nulls: many clients send `null` for arguments that they do not use.
fn without_nulls(arguments: &Map<String, Value>) -> Map<String, Value> {
    let said = arguments.iter().filter(|(_, value)| !value.is_null());
    said.map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl Dialect for Microsandbox {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "microsandbox",
            title: None,
            instructions: None,
            resources: true,
            prompts: false,
        }
    }

    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn refused(&self, error: &Error) -> ToolResult {
        answer(&Err(ToolFailure::from(error.clone()).retryable()))
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.tool) else {
            let shown = call.tool.chars().take(60).collect::<String>();
            return ToolResult::failed(format!("MCP error -32602: Tool {shown} not found"));
        };
        let mut arguments = without_nulls(&call.arguments);
        if self.settings.older_names
            && tool.name == "snapshot_create"
            && let Some(sandbox) = arguments.remove("sourceSandbox")
        {
            arguments.insert("fromSandbox".to_owned(), sandbox);
        }
        if let Err(wrong) = schema::check(&tool.input, &arguments) {
            return ToolResult::failed(format!(
                "MCP error -32602: Input validation error: Invalid arguments for tool {}: {wrong}",
                tool.name
            ));
        }
        let call = ToolCall { arguments, ..call.clone() };
        let config = self.config.for_call(DialectName::Microsandbox, &call);
        answer(&Self { config, ..self.clone() }.outcome(&call))
    }

    fn resources(&self) -> Vec<ResourceInfo> {
        resources::all()
    }

    fn read(&self, uri: &str, _: &Caller) -> Option<msb_spec::Result<ResourceContent>> {
        self.resource(uri)
    }
}

impl Drop for AttachedSandboxes {
    fn drop(&mut self) {
        for name in self.names.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = self.api.sandbox_stop(name, lifecycle::GRACE);
        }
    }
}
