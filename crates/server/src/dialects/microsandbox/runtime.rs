//! Version, platform and settings of this server.

use super::Microsandbox;
use super::envelope::{Outcome, ToolSuccess};
use serde_json::{Value, json};

impl Microsandbox {
    pub(super) fn runtime_check(&self) -> Outcome {
        let mut data = self.about_runtime();
        data["serverVersion"] = json!(env!("CARGO_PKG_VERSION"));
        let policy = self.settings.public_view(&self.config.paths);
        for key in ["hostPathPolicy", "hostPaths", "dangerousEnabled"] {
            data[key] = policy[key].clone();
        }
        let wish = self.settings.unrestricted && !self.settings.dangerous;
        let warning = wish.then(|| {
            let [policy, dangerous] =
                [msb_spec::env::MCP_HOST_PATH_POLICY, msb_spec::env::MCP_ENABLE_DANGEROUS];
            format!("{policy}=unrestricted has no effect without {dangerous}=1")
        });
        Ok(ToolSuccess::new(data).warning(warning))
    }

    pub(super) fn runtime_install(&self) -> Outcome {
        let message = "Runtime dependencies are installed.";
        Ok(ToolSuccess::new(json!({"installed": true, "message": message})))
    }

    /// The content of the resource.
    pub(super) fn runtime(&self) -> Value {
        let mut data = self.about_runtime();
        data["policy"] = self.settings.public_view(&self.config.paths);
        data
    }

    fn about_runtime(&self) -> Value {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "x64",
            "aarch64" => "arm64",
            other => other,
        };
        json!({
            "installed": true,
            // This server does not run on Node.js.
            "nodeVersion": null,
            "platform": std::env::consts::OS,
            "arch": arch,
            "msbPath": self.settings.program,
            "libkrunfwPath": self.settings.kernel,
        })
    }
}
