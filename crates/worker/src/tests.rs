//! Tests of the worker's loop, with a guest and a clock that tests control. No sandbox is started
//! and no test waits.

mod execs;
mod gateway;
mod lifetime;
mod pauses;
mod rig;
mod schedules;

pub(crate) use rig::plan;
