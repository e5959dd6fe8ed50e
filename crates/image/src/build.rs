//! Containerfiles: what they ask for and what becomes of an image.
//!
//! Nothing here runs anything; the engine does, in sandboxes. What is read from a directory that
//! is built from, or from the layers of a stage, is read as something that anybody wrote.

mod archive;
mod assembly;
mod containerfile;
pub(crate) mod errand;
mod folder;
mod glob;
mod heredoc;
mod ignore;
mod layer;
mod making;
mod overlaid;
mod scope;
mod stack;
mod step;
mod tape;
pub mod time;
mod tree;
mod upper;
mod words;

pub use assembly::{Assembly, Copying, Job, Launch, Work, scratch};
pub use containerfile::CONTAINERFILE_LIMIT;
pub use errand::Copied;
pub(crate) use folder::{chosen_attributes, names, open_directory};
pub use ignore::Ignore;
pub use making::{Key, Made, Origin, Putting, Scratch, Written, has_scratches};
pub use scope::{Globals, Scope};
pub(crate) use stack::{OPAQUE, is_opaque};
pub(crate) use tree::Attributes;
pub(crate) use upper::Packer;

pub use step::{
    Argument, Containerfile, Copy, Form, Healthcheck, Instruction, Program, Run, Source, Stage,
    Step,
};
