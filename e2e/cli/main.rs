//! What a user does with the command line, through the real binary.

mod bootstrap;
mod completion;
mod doctor;
mod errors;
mod execs;
mod files;
mod host_image;
mod install;
mod life;
mod limits;
mod logs;
mod many;
mod mcp_install;
mod patches;
mod registry;
mod repair;
mod run;
mod saving;
mod settings;
mod setup;
mod skill;
mod stdio;
mod sync;
mod terminal;
mod volumes;
mod workspace;
