//! The value of `MSB_LOG`: a level for everything, and levels for single parts of msb.

use msb_spec::{Error, Result};
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// The parts that log, each one crate.
const PARTS: &[&str] =
    &["cli", "client", "engine", "gateway", "image", "jail", "review", "server", "ssh", "worker"];

const LEVELS: &[(&str, LevelFilter)] = &[
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Which events are logged: `debug`, `worker=trace,gateway=debug` or `info,gateway=trace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter {
    default: LevelFilter,
    parts: Vec<(&'static str, LevelFilter)>,
}

impl LogFilter {
    /// Parses a list of `LEVEL` and `PART=LEVEL`. What is not listed is off.
    pub fn parse(text: &str) -> Result<Self> {
        let mut filter = Self { default: LevelFilter::OFF, parts: Vec::new() };
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match item.split_once('=') {
                None => filter.default = level(item)?,
                Some((name, value)) => {
                    let part =
                        PARTS.iter().find(|part| **part == name.trim()).ok_or_else(|| {
                            Error::invalid(format!("no part of msb is called `{}`", name.trim()))
                                .hint(format!("there are {}", PARTS.join(", ")))
                        })?;
                    let value = level(value.trim())?;
                    filter.parts.retain(|(listed, _)| listed != part);
                    filter.parts.push((part, value));
                }
            }
        }
        Ok(filter)
    }

    /// Whether nothing is logged.
    pub fn is_off(&self) -> bool {
        self.most_verbose() == LevelFilter::OFF
    }

    /// The most verbose level of any part.
    pub(crate) fn most_verbose(&self) -> LevelFilter {
        self.parts.iter().map(|(_, level)| *level).fold(self.default, Ord::max)
    }

    /// Whether events of a module at a level are logged.
    pub(crate) fn allows(&self, module: &str, level: Level) -> bool {
        part_of(module).is_some_and(|part| {
            let listed = self.parts.iter().find(|(name, _)| *name == part);
            level <= listed.map_or(self.default, |(_, level)| *level)
        })
    }
}

/// The part of msb that a module belongs to; none for modules of libraries.
pub(crate) fn part_of(module: &str) -> Option<&str> {
    let name = module.split("::").next().unwrap_or(module);
    match name.strip_prefix("msb_") {
        Some(part) => Some(part),
        None => (name == "msb").then_some("cli"),
    }
}

fn level(text: &str) -> Result<LevelFilter> {
    let found = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|(_, level)| *level).ok_or_else(|| {
        let names: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
        Error::invalid(format!("no level is called `{text}`"))
            .hint(format!("there are {}; one part: `gateway=debug`", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_their_own_levels() {
        for (text, module, level, allowed) in [
            ("debug", "msb_worker::exec", Level::DEBUG, true),
            ("debug", "msb_worker::exec", Level::TRACE, false),
            ("DEBUG", "msb::verbs::run", Level::DEBUG, true),
            ("worker=trace,gateway=debug", "msb_worker", Level::TRACE, true),
            ("worker=trace,gateway=debug", "msb_gateway::tcp::flow", Level::TRACE, false),
            ("worker=trace,gateway=debug", "msb_engine::launch", Level::ERROR, false),
            ("info, gateway = off", "msb_gateway", Level::ERROR, false),
            ("info,worker=warn,worker=trace", "msb_worker", Level::TRACE, true),
            ("trace", "h2::codec", Level::ERROR, false),
            ("trace", "msbx::codec", Level::ERROR, false),
            ("", "msb_worker", Level::ERROR, false),
        ] {
            let filter = LogFilter::parse(text).unwrap();
            assert_eq!(filter.allows(module, level), allowed, "{text} {module} {level}");
        }
    }

    #[test]
    fn nothing_enabled_is_off() {
        for text in ["", "off", " ,", "worker=off"] {
            assert!(LogFilter::parse(text).unwrap().is_off(), "{text}");
        }
        assert!(!LogFilter::parse("off,worker=error").unwrap().is_off());
    }

    #[test]
    fn unknown_levels_and_parts_are_errors() {
        let said = |text: &str| LogFilter::parse(text).unwrap_err().to_string();
        assert_eq!(said("verbose"), "no level is called `verbose`");
        assert_eq!(said("worker=2"), "no level is called `2`");
        assert_eq!(said("debug,netwrok=debug"), "no part of msb is called `netwrok`");
    }
}
