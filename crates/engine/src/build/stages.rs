//! The stages of a Containerfile, one after the other, only those that are needed.

use super::running::{Ran, Sandboxed};
use super::sources::Sources;
use super::{Build, Told, Watcher};
use crate::Engine;
use crate::images::Fetching;
use msb_image::build::{
    Assembly, Containerfile, Copying, Globals, Instruction, Job, Key, Launch, Made, Origin,
    Putting, Stage, Step, Work, scratch, time,
};
use msb_image::{History, ImageConfig, Layer, Store, Wish};
use msb_spec::{Error, ImageRef, Kind, Platform, Reference, Result};

/// A stage that was built.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    pub(crate) image: ImageConfig,
    /// From the lowest up.
    pub(crate) layers: Vec<Layer>,
}

/// All stages of a build.
pub(crate) struct Stages<'a> {
    engine: &'a Engine,
    store: &'a Store,
    build: &'a Build,
    sources: &'a Sources,
    file: &'a Containerfile,
    fetching: &'a Fetching<'a>,
    globals: Globals,
    epoch: Option<i64>,
    finished: Vec<Option<Finished>>,
}

/// A stage while it is built.
struct Current {
    place: Place,
    assembly: Assembly,
    layers: Vec<Layer>,
    platform: Platform,
}

/// Which step of which stage.
#[derive(Clone, Copy)]
struct Place {
    stage: usize,
    number: usize,
    count: usize,
}

impl<'a> Stages<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        store: &'a Store,
        build: &'a Build,
        sources: &'a Sources,
        file: &'a Containerfile,
        fetching: &'a Fetching<'a>,
    ) -> Result<Self> {
        let host = Platform::host().to_string();
        let target = build.platform.as_ref().map_or_else(|| host.clone(), ToString::to_string);
        let globals = Globals::new(file, build.arguments.clone(), &target, &host)?;
        let finished = vec![None; file.stages.len()];
        let epoch = build.epoch;
        Ok(Self { engine, store, build, sources, file, fetching, globals, epoch, finished })
    }

    /// Builds the stage that is wanted and those that it needs.
    pub(crate) fn build(&mut self, watcher: &mut dyn Watcher) -> Result<Finished> {
        let last = self.file.stages.len() - 1;
        let target = match &self.build.target {
            None => last,
            Some(name) => self.find(name, last + 1).ok_or_else(|| {
                let error = Error::new(Kind::NotFound, format!("no stage is called `{name}`"));
                let names = self.file.stages.iter().filter_map(|stage| stage.name.as_deref());
                match msb_spec::nearest(name, names) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error,
                }
            })?,
        };
        let mut finished = self.stage(target, watcher)?;
        for name in self.globals.unused() {
            let text = format!("nothing uses the build argument `{name}`: no ARG declares it");
            watcher.told(Told::Note(text));
        }
        if finished.layers.is_empty() {
            return Err(Error::invalid("the image would hold no files")
                .hint("COPY or RUN something, or build on an image that has some"));
        }
        let now = || time::written(self.epoch.unwrap_or_else(time::now));
        finished.image.created = Some(finished.image.created.take().unwrap_or_else(now));
        Ok(finished)
    }

    /// A stage before another, by name or number.
    fn find(&self, name: &str, before: usize) -> Option<usize> {
        let name = name.to_ascii_lowercase();
        let stages = self.file.stages.iter().take(before);
        let by_name = stages.clone().position(|stage| stage.name.as_deref() == Some(&name));
        by_name.or_else(|| name.parse::<usize>().ok().filter(|number| *number < before))
    }

    /// Builds a stage, unless it was.
    fn stage(&mut self, index: usize, watcher: &mut dyn Watcher) -> Result<Finished> {
        if let Some(finished) = &self.finished[index] {
            return Ok(finished.clone());
        }
        let stage = &self.file.stages[index];
        // What it needs comes first, so that its own steps stand together.
        for step in &stage.steps {
            if let Instruction::Copy(copy) = &step.instruction
                && let Some(needed) = copy.from.as_ref().and_then(|from| self.find(from, index))
            {
                self.stage(needed, watcher)?;
            }
        }
        let mut current = self.begin(index, stage, watcher)?;
        let triggers = self.triggers(&mut current, stage)?;
        current.place.count += triggers.len();
        for step in triggers.iter().chain(&stage.steps) {
            current.place.number += 1;
            self.step(&mut current, step, watcher)?;
        }
        let finished = Finished { image: current.assembly.image, layers: current.layers };
        self.finished[index] = Some(finished.clone());
        Ok(finished)
    }

    /// FROM: a stage before, nothing, or an image.
    fn begin(&mut self, index: usize, stage: &Stage, watcher: &mut dyn Watcher) -> Result<Current> {
        let from = self.globals.from(stage)?;
        let asked = match self.globals.platform(stage)? {
            Some(text) => {
                Some(Platform::parse(&text).map_err(|error| self.at(stage.line, &error))?)
            }
            None => self.build.platform.clone(),
        };
        let below = match self.find(&from, index) {
            Some(below) => Some(self.stage(below, watcher)?),
            None => None,
        };
        let place = Place { stage: index, number: 1, count: stage.steps.len() + 1 };
        watcher.told(self.told(place, &format!("FROM {from}"), false));
        let (image, layers) = match below {
            Some(Finished { image, layers }) => (image, layers),
            None if from == "scratch" => {
                (scratch(&asked.unwrap_or_else(Platform::host)), Vec::new())
            }
            None => self.image(&from, asked).map_err(|error| self.at(stage.line, &error))?,
        };
        let platform = image.platform();
        let assembly = Assembly::new(image, &self.file.file, self.file.escape);
        Ok(Current { place, assembly, layers, platform })
    }

    /// An image by its name: its config and its layers, the lowest first.
    fn image(&self, name: &str, platform: Option<Platform>) -> Result<(ImageConfig, Vec<Layer>)> {
        let reference = named(name)?;
        let reach = self.engine.reach(&self.fetching.reach);
        let wish = Wish { when: self.build.pull, platform, reach };
        let (image, _) = self.store.ensure(&reference, &wish, self.fetching.progress)?;
        self.store.touch(&image.reference);
        Ok((self.store.config(&image)?, image.layers))
    }

    /// The steps that the image below has kept for whoever builds on it.
    fn triggers(&self, current: &mut Current, stage: &Stage) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for trigger in current.assembly.take_triggers() {
            let parsed = Containerfile::parse_trigger(&stage.from, &trigger)
                .map_err(|error| self.at(stage.line, &error))?;
            // They belong to the line that asked for the image.
            steps.extend(parsed.into_iter().map(|step| Step { line: stage.line, ..step }));
        }
        Ok(steps)
    }

    fn told<'t>(&self, place: Place, text: &'t str, cached: bool) -> Told<'t> {
        let Place { stage, number, count } = place;
        let name = || self.file.stages[stage].name.clone().unwrap_or_else(|| stage.to_string());
        let stage = (self.file.stages.len() > 1).then(name);
        Told::Step { stage, number, count, text, cached }
    }

    fn step(
        &mut self,
        current: &mut Current,
        step: &Step,
        watcher: &mut dyn Watcher,
    ) -> Result<()> {
        let made = match current.assembly.step(&self.globals, step)? {
            Work::Settings => {
                watcher.told(self.told(current.place, &step.text, false));
                None
            }
            Work::Directory(path) => {
                let putting = self.putting(current, directory(path), Origin::Nowhere)?;
                Some(self.put(current, step, &putting, watcher)?)
            }
            Work::Copy(copying) => {
                let from = self.origin(current, step, &copying, watcher)?;
                let putting = self.putting(current, copying, from)?;
                Some(self.put(current, step, &putting, watcher)?)
            }
            Work::Run(job) => Some(self.run(current, step, &job, watcher)?),
        };
        let image = &mut current.assembly.image;
        let layer = made.as_ref().and_then(|made| made.layer.clone());
        if let Some(made) = made {
            image.created = Some(made.created);
        }
        image.history.push(History {
            created: image.created.clone(),
            created_by: Some(step.text.clone()),
            comment: None,
            author: image.author.clone(),
            empty_layer: layer.is_none(),
        });
        if let Some(layer) = layer {
            image.rootfs.diff_ids.push(layer.diff_id.clone());
            current.layers.push(layer);
            let most = self.store.settings().image_limits.layers.get();
            if current.layers.len() as u64 > most {
                let error =
                    Error::new(Kind::Limit, format!("the image has more than {most} layers"))
                        .hint("join steps, or raise `image_limits.layers` in config.toml");
                return Err(self.at(step.line, &error));
            }
        }
        Ok(())
    }

    fn putting(&self, current: &Current, copying: Copying, from: Origin) -> Result<Putting> {
        let created = current.assembly.image.created.as_deref().and_then(time::read);
        let time = self.epoch.or(created).unwrap_or(0);
        let below = self.store.trees(&current.layers)?;
        Ok(Putting { copying, below, from, time, latest: self.epoch })
    }

    /// Where COPY takes files from.
    fn origin(
        &mut self,
        current: &Current,
        step: &Step,
        copying: &Copying,
        watcher: &mut dyn Watcher,
    ) -> Result<Origin> {
        let Some(from) = &copying.from else {
            return Ok(Origin::Folder {
                path: self.sources.directory.clone(),
                ignore: self.sources.ignore.clone(),
            });
        };
        let layers = match self.find(from, current.place.stage) {
            Some(stage) => self.stage(stage, watcher)?.layers,
            None => {
                let platform = Some(current.platform.clone());
                let image = self.image(from, platform.filter(|_| self.build.platform.is_some()));
                image.map_err(|error| self.at(step.line, &error))?.1
            }
        };
        self.store.trees(&layers).map(Origin::Layers)
    }

    /// Everything below a step that decides what it makes.
    fn key(&self, sort: &str, current: &Current) -> Key {
        let mut key = Key::new(sort);
        for layer in &current.layers {
            key.add(layer.diff_id.hex());
        }
        key.add(current.platform.to_string());
        key.add(format!("{:?}", self.epoch));
        key
    }

    /// What a step made when it was last done.
    fn remembered(&self, key: &Key) -> Option<Made> {
        if self.build.no_cache { None } else { self.store.made(key) }
    }

    fn remember(&self, key: &Key, layer: Option<Layer>) -> Result<Made> {
        let created = time::written(self.epoch.unwrap_or_else(time::now));
        let made = Made { layer, created };
        self.store.remember(key, &made)?;
        Ok(made)
    }

    /// Copies, or finds that it was done.
    fn put(
        &self,
        current: &Current,
        step: &Step,
        putting: &Putting,
        watcher: &mut dyn Watcher,
    ) -> Result<Made> {
        let key = |contents: [u8; 32]| {
            let mut key = self.key("copy", current);
            key.add(contents);
            key
        };
        let about = |error: Error| self.at(step.line, &error);
        let looked = self.store.look(putting).map_err(about)?;
        if let Some(made) = self.remembered(&key(looked.contents)) {
            watcher.told(self.told(current.place, &step.text, true));
            return Ok(made);
        }
        watcher.told(self.told(current.place, &step.text, false));
        // As new as what is copied, so that the same files make the same layer.
        let time =
            if looked.newest > 0 && self.epoch.is_none() { looked.newest } else { putting.time };
        let putting = Putting { time, ..putting.clone() };
        let (layer, copied) = self.store.put(&putting).map_err(about)?;
        // What was copied, should it have changed since it was looked at.
        self.remember(&key(copied.contents), layer)
    }

    /// Runs a command, or finds that it was run.
    fn run(
        &self,
        current: &Current,
        step: &Step,
        job: &Job,
        watcher: &mut dyn Watcher,
    ) -> Result<Made> {
        let mut key = self.key("run", current);
        match &job.command {
            Launch::Words(words) => words.iter().for_each(|word| key.add(word)),
            Launch::Script(text) => {
                key.add("script");
                key.add(text);
            }
        }
        for (name, value) in &job.env {
            key.add(name);
            key.add(value);
        }
        key.add(&job.workdir);
        key.add(job.user.as_ref().map(ToString::to_string).unwrap_or_default());
        if let Some(made) = self.remembered(&key) {
            watcher.told(self.told(current.place, &step.text, true));
            return Ok(made);
        }
        watcher.told(self.told(current.place, &step.text, false));
        if !current.platform.runs_here() {
            let error = Error::unsupported(format!(
                "this machine runs {}, not {}",
                Platform::host(),
                current.platform
            ));
            return Err(self.at(step.line, &error.hint("only COPY and settings work for another")));
        }
        let network =
            self.build.network.clone().filter(|network| job.network && network.is_wanted());
        let closed = network.is_none();
        let sandboxed = Sandboxed {
            engine: self.engine,
            store: self.store,
            names: &self.build.names,
            below: self.store.trees(&current.layers)?,
            network,
            latest: self.epoch,
            until: self.build.until,
        };
        let ran = sandboxed.run(job, watcher).map_err(|error| self.at(step.line, &error))?;
        match ran {
            Ran::Layer(layer) => self.remember(&key, layer),
            Ran::Failed(exit) => {
                let how = match (exit.code, exit.signal) {
                    (Some(code), _) => format!("exit code {code}"),
                    (None, Some(signal)) => format!("signal {signal}"),
                    (None, None) => "no exit code".to_owned(),
                };
                let error =
                    Error::invalid(format!("the command ended with {how}: `{}`", step.text));
                let error = exit.reason().into_iter().fold(error, Error::cause);
                let error = match (closed, job.network) {
                    (false, _) => error,
                    (true, true) => error.hint(
                        "it had no network: `--net` gives it one, or COPY brings in what it needs",
                    ),
                    (true, false) => error
                        .hint("`RUN --network=none` has no network; COPY brings in what it needs"),
                };
                Err(self.at(step.line, &error))
            }
        }
    }

    /// An error with its place in the Containerfile.
    fn at(&self, line: usize, error: &Error) -> Error {
        let place = format!("{}:{line}: {}", self.file.file, error.message());
        // Whatever a command's end means for `run`, a build that fails is a failure of ours.
        let kind = match error.kind() {
            Kind::CommandNotFound | Kind::NotExecutable => Kind::Invalid,
            kind => kind,
        };
        let told = error.causes().iter().fold(Error::new(kind, place), Error::cause);
        match error.advice() {
            Some(hint) => told.hint(hint),
            None => told,
        }
    }
}

/// The target of WORKDIR, which has to be there.
fn directory(target: String) -> Copying {
    let (sources, into) = (Vec::new(), true);
    Copying { add: false, sources, target, into, from: None, owner: None, mode: None }
}

fn named(name: &str) -> Result<Reference> {
    match ImageRef::parse(name)? {
        ImageRef::Name(reference) => Ok(reference),
        ImageRef::Host => Err(Error::unsupported("nothing can be built on `host`")
            .cause("its files are this machine's")
            .hint("`msb image bootstrap debian` makes an image of Debian that can be built on")),
        ImageRef::Path(_) => Err(Error::unsupported(format!("not the name of an image: `{name}`"))
            .hint("`FROM scratch` and `COPY rootfs/ /` make an image of a directory")),
        ImageRef::Snapshot(_) => {
            Err(Error::unsupported(format!("not the name of an image: `{name}`"))
                .hint("`msb snapshot save` and `msb load` make an image of a snapshot"))
        }
    }
}
