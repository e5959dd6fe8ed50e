//! Images, as far as surfaces see them.

pub use msb_image::{
    APART_ARGUMENT, Image, ImageConfig, Layer, Mirror, Progress, Pull, Reach, RunConfig, Step,
    Store, Unwatched, Wish, serve,
};

/// How images are fetched while a sandbox is planned.
#[derive(Clone)]
pub struct Fetching<'a> {
    /// How registries are reached.
    pub reach: Reach,
    /// Who watches.
    pub progress: &'a dyn Progress,
}

impl Default for Fetching<'_> {
    fn default() -> Self {
        Self { reach: Reach::default(), progress: &Unwatched }
    }
}

impl std::fmt::Debug for Fetching<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetching").field("reach", &self.reach).finish_non_exhaustive()
    }
}
