//! Containerfiles: parser, build steps and the layers that they produce.
//!
//! No command runs here; the engine runs RUN steps in sandboxes. The build context and the layers
//! of a stage are untrusted input.

mod add_archive;
mod build_store;
mod containerfile;
mod context_dir;
pub(crate) mod copy_task;
mod file_tree;
mod glob;
mod heredoc;
mod ignore;
mod layer_stack;
mod lexer;
mod new_layer;
mod scope;
mod stage_builder;
mod step;
mod tar_writer;
pub mod time;
mod upper_disk;
mod upper_packer;

pub use build_store::{
    CachedStep, CopyOrigin, CopyRequest, ScratchDir, StepKey, UpperLayer, has_scratches,
};
pub use containerfile::CONTAINERFILE_LIMIT;
pub(crate) use context_dir::{chosen_attributes, names, open_directory};
pub use copy_task::CopyResult;
pub(crate) use file_tree::Attributes;
pub use ignore::Ignore;
pub(crate) use layer_stack::{OPAQUE, is_opaque};
pub use scope::{Globals, Scope};
pub use stage_builder::{CopyArgs, RunCommand, RunJob, StageBuilder, StepAction, scratch};
pub use step::{
    BuildArg, BuildStage, BuildStep, CommandForm, Containerfile, CopyInstruction, CopySource,
    Healthcheck, Instruction, RunInstruction, RunProgram,
};
pub(crate) use upper_packer::UpperPacker;
