//! Images made on this machine from the packages of its distribution, for where no registry can
//! be reached.
//!
//! mmdebstrap makes them, as whoever runs msb, from apt's own sources and keys; what it packs
//! goes straight into the store and is treated there as any other layer. Nothing of the host but
//! its sources of packages gets into an image.

mod mmdebstrap;
mod sources;

use crate::Engine;
use crate::host::User;
use mmdebstrap::Recipe;
use msb_image::{History, Image, ImageConfig, RootfsIds, WireConfig};
use msb_spec::{Error, Platform, Reference, Result};
use sources::System;

/// What an image is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The distribution itself, as small as is useful.
    Debian,
    /// With Python and pip.
    Python,
    /// With Node.js and npm.
    Node,
}

impl Base {
    /// As it is typed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    /// What it needs beyond the distribution's own base. Whatever fetches over TLS needs to know
    /// whom to trust.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Debian => &[],
            Self::Python => {
                &["python3", "python3-pip", "python3-venv", "python-is-python3", "ca-certificates"]
            }
            Self::Node => &["nodejs", "npm", "ca-certificates"],
        }
    }

    fn command(self) -> &'static str {
        match self {
            Self::Debian => "bash",
            Self::Python => "python3",
            Self::Node => "node",
        }
    }
}

impl std::str::FromStr for Base {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Debian, Self::Python, Self::Node];
        all.into_iter().find(|base| base.as_str() == text).ok_or_else(|| {
            let text = msb_spec::shown(text);
            Error::invalid(format!("no such image to make: `{text}`"))
                .hint("it is `debian`, `python` or `node`; `--packages` adds to them")
        })
    }
}

/// What is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// What it is for.
    pub base: Base,
    /// Release of the distribution; this host's if it is not said.
    pub suite: Option<String>,
    /// Packages beyond those of its base.
    pub packages: Vec<String>,
    /// Where packages come from; where apt gets this host's if it is not said.
    pub mirror: Option<String>,
    /// Its name; the base with the suite, and with `latest`, if it is not said.
    pub name: Option<Reference>,
    /// When it is made, as RFC 3339 has it.
    pub created: String,
}

/// Where programs are looked for.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Engine {
    /// Makes an image from the packages of a distribution; `said` hears what is being done.
    pub fn bootstrap(&self, asked: &Bootstrap, said: &(dyn Fn(&str) + Sync)) -> Result<Vec<Image>> {
        let about = |error: Error| error.under(format!("cannot make `{}`", asked.base.as_str()));
        self.make(asked, said).map_err(about)
    }

    fn make(&self, asked: &Bootstrap, said: &(dyn Fn(&str) + Sync)) -> Result<Vec<Image>> {
        let user = User::current();
        if !user.is_root() && user.granted().is_none() {
            return Err(Error::unsupported("packages have files of several users")
                .cause("this user has no ids but its own")
                .hint(
                    "install `uidmap` (newuidmap) and have /etc/subuid grant ids, or run as root",
                ));
        }
        let system = System::read();
        let suite = system.suite(asked.suite.as_deref())?;
        let names = match &asked.name {
            Some(name) => vec![name.clone()],
            None => default_names(asked, &system, &suite)?,
        };
        let mut packages: Vec<String> =
            asked.base.packages().iter().map(|package| (*package).to_owned()).collect();
        packages.extend(asked.packages.iter().cloned());
        packages.iter().try_for_each(|package| check_package(package))?;
        let recipe = Recipe {
            origin: system.origin(&suite, asked.mirror.as_deref())?,
            suite: &suite,
            packages: &packages,
            rootless: !user.is_root(),
        };
        let store = self.images()?;
        let _adding = store.adding()?;
        let layer = recipe.run(said, |tar| store.add_layer(tar))?;
        let config = config(asked, &suite, &layer);
        names
            .iter()
            .map(|name| store.add_image(name, &config, std::slice::from_ref(&layer)))
            .collect()
    }
}

/// By its suite and as the latest. What comes from another distribution is not called Debian.
fn default_names(asked: &Bootstrap, system: &System, suite: &str) -> Result<Vec<Reference>> {
    let name = match asked.base {
        Base::Debian if asked.mirror.is_none() => system.distribution(),
        other => other.as_str(),
    };
    [suite, "latest"].map(|tag| Reference::parse(&format!("{name}:{tag}"))).into_iter().collect()
}

fn config(asked: &Bootstrap, suite: &str, layer: &msb_image::Layer) -> ImageConfig {
    let platform = Platform::host();
    let mut words = vec!["msb image bootstrap", asked.base.as_str(), "--suite", suite];
    let packages = asked.packages.join(",");
    if !packages.is_empty() {
        words.extend(["--packages", &packages]);
    }
    ImageConfig {
        created: Some(asked.created.clone()),
        author: None,
        architecture: platform.architecture,
        os: platform.os,
        variant: platform.variant,
        config: WireConfig {
            env: Some(vec![PATH.to_owned()]),
            cmd: Some(vec![asked.base.command().to_owned()]),
            ..WireConfig::default()
        },
        rootfs: RootfsIds { kind: "layers".to_owned(), diff_ids: vec![layer.diff_id.clone()] },
        history: vec![History {
            created: Some(asked.created.clone()),
            created_by: Some(words.join(" ")),
            ..History::default()
        }],
    }
}

/// What apt takes for a package, with a version or a release if need be.
fn check_package(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+.:=~/_-".contains(&byte);
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts && name.bytes().all(plain) && name.len() <= 200 {
        return Ok(());
    }
    Err(Error::invalid(format!("not the name of a package: `{}`", msb_spec::shown(name)))
        .hint("several are separated by commas: `--packages git,curl`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_or_a_shell_would_read_otherwise_is_no_package() {
        for good in ["git", "g++", "libc6:amd64", "git=1:2.39-1~deb12u1", "nodejs/bookworm"] {
            assert!(check_package(good).is_ok(), "{good}");
        }
        for bad in ["", "-o", "a b", "?essential", "a;b", "$(id)", "~x", "/etc/x.deb", "a\n"] {
            assert!(check_package(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_image_is_known_by_its_suite_and_as_the_latest() {
        let mut asked = Bootstrap {
            base: Base::Debian,
            suite: None,
            packages: Vec::new(),
            mirror: None,
            name: None,
            created: String::new(),
        };
        let names = |asked: &Bootstrap, id: &str| -> Vec<String> {
            let system = System::of(&format!("ID={id}\nVERSION_CODENAME=noble\n"), Vec::new());
            let names = default_names(asked, &system, "noble").unwrap();
            names.iter().map(Reference::short).collect()
        };
        assert_eq!(names(&asked, "debian"), ["debian:noble", "debian"]);
        assert_eq!(names(&asked, "ubuntu"), ["ubuntu:noble", "ubuntu"]);
        asked.base = Base::Node;
        assert_eq!(names(&asked, "ubuntu"), ["node:noble", "node"]);
    }
}
