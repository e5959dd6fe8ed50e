//! An image as people read it; `--json` has every field.

use crate::clock;
use msb_engine::images::ImageInspection;
use msb_spec::Bytes;
use std::fmt::Write;

/// The image, a line for each thing about it, then its layers, then how it was made.
pub(crate) fn written(image: &ImageInspection) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{what:<11} {}", msb_spec::shown(value));
        }
    };
    line("image", &image.reference.to_string());
    line("digest", &image.digest.to_string());
    line("index", &image.index.as_ref().map_or_else(String::new, ToString::to_string));
    line("platform", &image.platform);
    line("size", &format!("{}, {} of it its own", Bytes(image.size), Bytes(image.own)));
    line("made", &image.created.map_or_else(String::new, clock::written));
    line("pulled", &clock::written(image.pulled));
    line("used", &image.used.map_or_else(String::new, clock::written));
    let sandboxes: Vec<&str> = image.sandboxes.iter().map(msb_spec::Name::as_str).collect();
    line("sandboxes", &sandboxes.join(", "));
    let config = &image.config;
    line("entrypoint", &config.entrypoint.join(" "));
    line("command", &config.cmd.join(" "));
    line("workdir", &config.workdir);
    line("user", &config.user);
    line("stop signal", &config.stop_signal);
    line("ports", &config.exposed_ports.join(", "));
    line("volumes", &config.volumes.join(", "));
    for variable in &config.env {
        line("env", variable);
    }
    for (key, value) in &config.labels {
        line("label", &format!("{key}={value}"));
    }
    for layer in &image.layers {
        let shared = match layer.shared_with.len() {
            0 => String::new(),
            n => format!(", in {n} other images"),
        };
        let sizes = format!("{}, {} packed{shared}", Bytes(layer.unpacked), Bytes(layer.size));
        line("layer", &format!("{}  {sizes}", layer.digest.short()));
    }
    for step in &image.history {
        line("step", step.created_by.as_deref().unwrap_or_default());
    }
    text
}
