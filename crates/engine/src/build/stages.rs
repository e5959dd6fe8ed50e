//! Builds the stages of a Containerfile in order, only those that are needed.

use super::context::BuildContext;
use super::run_step::{RunResult, RunStep};
use super::{Build, BuildEvent, Watcher};
use crate::Engine;
use crate::images::Fetching;
use msb_image::build::{
    BuildStage, BuildStep, CachedStep, Containerfile, CopyArgs, CopyOrigin, CopyRequest, Globals,
    Instruction, RunCommand, RunJob, StageBuilder, StepAction, StepKey, scratch, time,
};
use msb_image::{EnsureOptions, History, ImageConfig, Layer, Store};
use msb_spec::{Error, ImageRef, Kind, Platform, Reference, Result};

/// A finished stage: config and layers.
#[derive(Debug, Clone)]
pub(crate) struct BuiltStage {
    pub(crate) image: ImageConfig,
    /// The layers, the lowest first.
    pub(crate) layers: Vec<Layer>,
}

/// The state of a build.
pub(crate) struct Stages<'a> {
    engine: &'a Engine,
    store: &'a Store,
    build: &'a Build,
    context: &'a BuildContext,
    file: &'a Containerfile,
    fetching: &'a Fetching<'a>,
    globals: Globals,
    epoch: Option<i64>,
    finished: Vec<Option<BuiltStage>>,
}

/// A stage in progress.
struct StageBuild {
    position: StepPosition,
    assembly: StageBuilder,
    layers: Vec<Layer>,
    platform: Platform,
}

/// The position of a step.
#[derive(Clone, Copy)]
struct StepPosition {
    stage: usize,
    number: usize,
    count: usize,
}

impl<'a> Stages<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        store: &'a Store,
        build: &'a Build,
        context: &'a BuildContext,
        file: &'a Containerfile,
        fetching: &'a Fetching<'a>,
    ) -> Result<Self> {
        let host = Platform::host().to_string();
        let target = build.platform.as_ref().map_or_else(|| host.clone(), ToString::to_string);
        let globals = Globals::new(file, build.arguments.clone(), &target, &host)?;
        let finished = vec![None; file.stages.len()];
        let epoch = build.epoch;
        Ok(Self { engine, store, build, context, file, fetching, globals, epoch, finished })
    }

    /// Builds the target stage and those that it needs.
    pub(crate) fn build(&mut self, watcher: &mut dyn Watcher) -> Result<BuiltStage> {
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
            watcher.told(BuildEvent::Note(text));
        }
        if finished.layers.is_empty() {
            return Err(Error::invalid("the image would hold no files")
                .hint("COPY or RUN something, or build on an image that has some"));
        }
        let now = || time::written(self.epoch.unwrap_or_else(time::now));
        finished.image.created = Some(finished.image.created.take().unwrap_or_else(now));
        Ok(finished)
    }

    /// Finds an earlier stage by name or number.
    fn find(&self, name: &str, before: usize) -> Option<usize> {
        let name = name.to_ascii_lowercase();
        let stages = self.file.stages.iter().take(before);
        let by_name = stages.clone().position(|stage| stage.name.as_deref() == Some(&name));
        by_name.or_else(|| name.parse::<usize>().ok().filter(|number| *number < before))
    }

    /// Builds a stage, unless it is finished.
    fn stage(&mut self, index: usize, watcher: &mut dyn Watcher) -> Result<BuiltStage> {
        if let Some(finished) = &self.finished[index] {
            return Ok(finished.clone());
        }
        let stage = &self.file.stages[index];
        // Needed stages come first, so that the steps of a stage are shown together.
        for step in &stage.steps {
            if let Instruction::Copy(copy) = &step.instruction
                && let Some(needed) = copy.from.as_ref().and_then(|from| self.find(from, index))
            {
                self.stage(needed, watcher)?;
            }
        }
        let mut current = self.begin(index, stage, watcher)?;
        let triggers = self.triggers(&mut current, stage)?;
        current.position.count += triggers.len();
        for step in triggers.iter().chain(&stage.steps) {
            current.position.number += 1;
            self.step(&mut current, step, watcher)?;
        }
        let finished = BuiltStage { image: current.assembly.image, layers: current.layers };
        self.finished[index] = Some(finished.clone());
        Ok(finished)
    }

    /// FROM: an earlier stage, scratch, or an image.
    fn begin(
        &mut self,
        index: usize,
        stage: &BuildStage,
        watcher: &mut dyn Watcher,
    ) -> Result<StageBuild> {
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
        let position = StepPosition { stage: index, number: 1, count: stage.steps.len() + 1 };
        watcher.told(self.told(position, &format!("FROM {from}"), false));
        let (image, layers) = match below {
            Some(BuiltStage { image, layers }) => (image, layers),
            None if from == "scratch" => {
                (scratch(&asked.unwrap_or_else(Platform::host)), Vec::new())
            }
            None => self.image(&from, asked).map_err(|error| self.at(stage.line, &error))?,
        };
        let platform = image.platform();
        let assembly = StageBuilder::new(image, &self.file.file, self.file.escape);
        Ok(StageBuild { position, assembly, layers, platform })
    }

    /// The config and the layers of an image, the lowest first.
    fn image(&self, name: &str, platform: Option<Platform>) -> Result<(ImageConfig, Vec<Layer>)> {
        let reference = named(name)?;
        let reach = self.engine.reach(&self.fetching.reach);
        let wish = EnsureOptions { when: self.build.pull, platform, reach };
        let (image, _) = self.store.ensure(&reference, &wish, self.fetching.progress)?;
        self.store.touch(&image.reference);
        Ok((self.store.config(&image)?, image.layers))
    }

    /// The ONBUILD steps of the base image.
    fn triggers(&self, current: &mut StageBuild, stage: &BuildStage) -> Result<Vec<BuildStep>> {
        let mut steps = Vec::new();
        for trigger in current.assembly.take_triggers() {
            let parsed = Containerfile::parse_trigger(&stage.from, &trigger)
                .map_err(|error| self.at(stage.line, &error))?;
            // Errors refer to the line of the FROM.
            steps.extend(parsed.into_iter().map(|step| BuildStep { line: stage.line, ..step }));
        }
        Ok(steps)
    }

    fn told<'t>(&self, position: StepPosition, text: &'t str, cached: bool) -> BuildEvent<'t> {
        let StepPosition { stage, number, count } = position;
        let name = || self.file.stages[stage].name.clone().unwrap_or_else(|| stage.to_string());
        let stage = (self.file.stages.len() > 1).then(name);
        BuildEvent::Step { stage, number, count, text, cached }
    }

    fn step(
        &mut self,
        current: &mut StageBuild,
        step: &BuildStep,
        watcher: &mut dyn Watcher,
    ) -> Result<()> {
        let made = match current.assembly.step(&self.globals, step)? {
            StepAction::Settings => {
                watcher.told(self.told(current.position, &step.text, false));
                None
            }
            StepAction::Directory(path) => {
                let putting = self.putting(current, directory(path), CopyOrigin::Nowhere)?;
                Some(self.put(current, step, &putting, watcher)?)
            }
            StepAction::Copy(copying) => {
                let from = self.origin(current, step, &copying, watcher)?;
                let putting = self.putting(current, copying, from)?;
                Some(self.put(current, step, &putting, watcher)?)
            }
            StepAction::Run(job) => Some(self.run(current, step, &job, watcher)?),
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

    fn putting(
        &self,
        current: &StageBuild,
        copying: CopyArgs,
        from: CopyOrigin,
    ) -> Result<CopyRequest> {
        let created = current.assembly.image.created.as_deref().and_then(time::read);
        let time = self.epoch.or(created).unwrap_or(0);
        let below = self.store.trees(&current.layers)?;
        Ok(CopyRequest { copying, below, from, time, latest: self.epoch })
    }

    /// The source of COPY: the context, a stage or an image.
    fn origin(
        &mut self,
        current: &StageBuild,
        step: &BuildStep,
        copying: &CopyArgs,
        watcher: &mut dyn Watcher,
    ) -> Result<CopyOrigin> {
        let Some(from) = &copying.from else {
            return Ok(CopyOrigin::Folder {
                path: self.context.directory.clone(),
                ignore: self.context.ignore.clone(),
            });
        };
        let layers = match self.find(from, current.position.stage) {
            Some(stage) => self.stage(stage, watcher)?.layers,
            None => {
                let platform = Some(current.platform.clone());
                let image = self.image(from, platform.filter(|_| self.build.platform.is_some()));
                image.map_err(|error| self.at(step.line, &error))?.1
            }
        };
        self.store.trees(&layers).map(CopyOrigin::Layers)
    }

    /// The part of a cache key that all steps share: layers, platform and epoch.
    fn key(&self, sort: &str, current: &StageBuild) -> StepKey {
        let mut key = StepKey::new(sort);
        for layer in &current.layers {
            key.add(layer.diff_id.hex());
        }
        key.add(current.platform.to_string());
        key.add(format!("{:?}", self.epoch));
        key
    }

    /// The cached result of a step.
    fn cached(&self, key: &StepKey) -> Option<CachedStep> {
        if self.build.no_cache { None } else { self.store.made(key) }
    }

    fn remember(&self, key: &StepKey, layer: Option<Layer>) -> Result<CachedStep> {
        let created = time::written(self.epoch.unwrap_or_else(time::now));
        let made = CachedStep { layer, created };
        self.store.remember(key, &made)?;
        Ok(made)
    }

    /// Runs COPY or ADD, or takes it from the cache.
    fn put(
        &self,
        current: &StageBuild,
        step: &BuildStep,
        putting: &CopyRequest,
        watcher: &mut dyn Watcher,
    ) -> Result<CachedStep> {
        let key = |contents: [u8; 32]| {
            let mut key = self.key("copy", current);
            key.add(contents);
            key
        };
        let about = |error: Error| self.at(step.line, &error);
        let looked = self.store.look(putting).map_err(about)?;
        if let Some(made) = self.cached(&key(looked.contents)) {
            watcher.told(self.told(current.position, &step.text, true));
            return Ok(made);
        }
        watcher.told(self.told(current.position, &step.text, false));
        // The mtime of directories is that of the newest file, so that equal files make an equal
        // layer.
        let time =
            if looked.newest > 0 && self.epoch.is_none() { looked.newest } else { putting.time };
        let putting = CopyRequest { time, ..putting.clone() };
        let (layer, copied) = self.store.put(&putting).map_err(about)?;
        // The key is computed from what was copied, which may have changed since.
        self.remember(&key(copied.contents), layer)
    }

    /// Runs RUN, or takes it from the cache.
    fn run(
        &self,
        current: &StageBuild,
        step: &BuildStep,
        job: &RunJob,
        watcher: &mut dyn Watcher,
    ) -> Result<CachedStep> {
        let mut key = self.key("run", current);
        match &job.command {
            RunCommand::Words(words) => words.iter().for_each(|word| key.add(word)),
            RunCommand::Script(text) => {
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
        if let Some(made) = self.cached(&key) {
            watcher.told(self.told(current.position, &step.text, true));
            return Ok(made);
        }
        watcher.told(self.told(current.position, &step.text, false));
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
        let step_sandbox = RunStep {
            engine: self.engine,
            store: self.store,
            names: &self.build.names,
            below: self.store.trees(&current.layers)?,
            network,
            latest: self.epoch,
            until: self.build.until,
        };
        let ran = step_sandbox.run(job, watcher).map_err(|error| self.at(step.line, &error))?;
        match ran {
            RunResult::Layer(layer) => self.remember(&key, layer),
            RunResult::Failed(exit) => {
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

    /// An error with file and line of the Containerfile.
    fn at(&self, line: usize, error: &Error) -> Error {
        let position = format!("{}:{line}: {}", self.file.file, error.message());
        // A failed command is an error of the build, unlike in `msb run`.
        let kind = match error.kind() {
            Kind::CommandNotFound | Kind::NotExecutable => Kind::Invalid,
            kind => kind,
        };
        let located = error.causes().iter().fold(Error::new(kind, position), Error::cause);
        match error.advice() {
            Some(hint) => located.hint(hint),
            None => located,
        }
    }
}

/// Creates the directory of WORKDIR.
fn directory(target: String) -> CopyArgs {
    let (sources, into) = (Vec::new(), true);
    CopyArgs { add: false, sources, target, into, from: None, owner: None, mode: None }
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
