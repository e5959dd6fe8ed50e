//! Creates images from the packages of the distribution of this host, without a registry.
//!
//! mmdebstrap runs as the user of msb, with the sources and keys of apt. Its tar output goes into
//! the image store like any other layer. Nothing of the host but its package sources gets into an
//! image.

mod apt_sources;
mod mmdebstrap;

use crate::Engine;
use crate::host::HostUser;
use apt_sources::HostDistro;
use mmdebstrap::MmdebstrapRun;
use msb_image::{History, Image, ImageConfig, RootfsIds, WireConfig};
use msb_spec::{Error, Platform, Reference, Result};

/// The kind of image to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The minimal distribution (mmdebstrap `minbase`).
    Debian,
    /// The distribution with Python and pip.
    Python,
    /// The distribution with Node.js and npm.
    Node,
}

impl Base {
    /// The name as it is typed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    /// The packages of this kind beyond the minimal ones. TLS clients need CA certificates.
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
            Error::invalid(format!("unknown kind of image: `{text}`"))
                .hint("it is `debian`, `python` or `node`; `--packages` adds to them")
        })
    }
}

/// The options of a bootstrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// The kind of image to create.
    pub base: Base,
    /// The release, such as `bookworm`; `None` is that of this host.
    pub suite: Option<String>,
    /// Further packages beyond those of `base`.
    pub packages: Vec<String>,
    /// The URL of a mirror; `None` uses the sources of apt.
    pub mirror: Option<String>,
    /// The name of the image; `None` is `BASE:SUITE` and `BASE:latest`.
    pub name: Option<Reference>,
    /// The creation time in RFC 3339 format.
    pub created: String,
}

/// The PATH variable of the image.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Engine {
    /// Creates an image from packages; `report` gets a line for each step.
    pub fn bootstrap(
        &self,
        asked: &Bootstrap,
        report: &(dyn Fn(&str) + Sync),
    ) -> Result<Vec<Image>> {
        let about = |error: Error| error.under(format!("cannot make `{}`", asked.base.as_str()));
        self.make(asked, report).map_err(about)
    }

    fn make(&self, asked: &Bootstrap, report: &(dyn Fn(&str) + Sync)) -> Result<Vec<Image>> {
        let user = HostUser::current();
        if !user.is_root() && user.subordinate_ids().is_none() {
            return Err(Error::unsupported("packages have files of several users")
                .cause("this user has no ids but its own")
                .hint(
                    "install `uidmap` (newuidmap) and have /etc/subuid grant ids, or run as root",
                ));
        }
        let system = HostDistro::read();
        let suite = system.suite(asked.suite.as_deref())?;
        let names = match &asked.name {
            Some(name) => vec![name.clone()],
            None => default_names(asked, &system, &suite)?,
        };
        let mut packages: Vec<String> =
            asked.base.packages().iter().map(|package| (*package).to_owned()).collect();
        packages.extend(asked.packages.iter().cloned());
        packages.iter().try_for_each(|package| check_package(package))?;
        let mmdebstrap = MmdebstrapRun {
            origin: system.origin(&suite, asked.mirror.as_deref())?,
            suite: &suite,
            packages: &packages,
            rootless: !user.is_root(),
        };
        let store = self.images()?;
        let _adding = store.adding()?;
        let layer = mmdebstrap.run(report, |tar| store.add_layer(tar))?;
        let config = config(asked, &suite, &layer);
        names
            .iter()
            .map(|name| store.add_image(name, &config, std::slice::from_ref(&layer)))
            .collect()
    }
}

/// The default names: suite and `latest`. Only Debian packages are called `debian`.
fn default_names(asked: &Bootstrap, system: &HostDistro, suite: &str) -> Result<Vec<Reference>> {
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

/// Checks a package name as apt takes it, with an optional version or release.
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
    fn package_names_with_special_characters_are_refused() {
        for good in ["git", "g++", "libc6:amd64", "git=1:2.39-1~deb12u1", "nodejs/bookworm"] {
            assert!(check_package(good).is_ok(), "{good}");
        }
        for bad in ["", "-o", "a b", "?essential", "a;b", "$(id)", "~x", "/etc/x.deb", "a\n"] {
            assert!(check_package(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_image_gets_its_suite_and_latest_as_tags() {
        let mut asked = Bootstrap {
            base: Base::Debian,
            suite: None,
            packages: Vec::new(),
            mirror: None,
            name: None,
            created: String::new(),
        };
        let names = |asked: &Bootstrap, id: &str| -> Vec<String> {
            let system = HostDistro::of(&format!("ID={id}\nVERSION_CODENAME=noble\n"), Vec::new());
            let names = default_names(asked, &system, "noble").unwrap();
            names.iter().map(Reference::short).collect()
        };
        assert_eq!(names(&asked, "debian"), ["debian:noble", "debian"]);
        assert_eq!(names(&asked, "ubuntu"), ["ubuntu:noble", "ubuntu"]);
        asked.base = Base::Node;
        assert_eq!(names(&asked, "ubuntu"), ["node:noble", "node"]);
    }
}
