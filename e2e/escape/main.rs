//! Attacks, each through the real binary, each proven by looking at the host.

mod process;
