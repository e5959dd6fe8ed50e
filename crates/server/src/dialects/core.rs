//! Our own dialect: the few tools that an agent needs most, small in a model's context.

use super::World;
use crate::dialect::{About, Answer, Call, Dialect, Tool};

/// The dialect `core`.
pub(super) struct Core {
    #[expect(dead_code, reason = "soon")]
    world: World,
}

impl Core {
    pub(super) fn new(world: World) -> Self {
        Self { world }
    }
}

impl Dialect for Core {
    fn about(&self) -> About {
        About { name: "msb", title: None, instructions: None, resources: false, prompts: false }
    }

    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn call(&self, call: &Call) -> Answer {
        Answer::failed(format!("no tool `{}`", call.tool))
    }
}
