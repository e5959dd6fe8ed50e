//! The large image: 300 MB in 30,000 files and three layers, of which nothing is random but looks
//! it, so that every machine pulls the same.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};

use super::archive::{Archive, Noise, Vocabulary};
use super::layout::{self, Layer, Packing};

/// Files in each layer: of ten thousand bytes in the mean, that is 180, 90 and 30 MB.
const LAYERS: [usize; 3] = [18_000, 9_000, 3_000];

/// What the image calls inside.
const PROGRAMS: &[&str] = &["true", "sh", "find", "wc"];

/// Succeeds in a sandbox where all files of the image are.
pub(super) const CHECK: &str = "test \"$(find /srv -type f | wc -l)\" = 30000";

pub(super) struct Large {
    dir: PathBuf,
    archives: Vec<PathBuf>,
}

impl Large {
    pub(super) fn make(dir: &str) -> Result<Self> {
        let dir = PathBuf::from(dir);
        fs::create_dir(&dir)?;
        let words = &Vocabulary::new();
        let dir_of = dir.as_path();
        let archives = thread::scope(|scope| {
            let start = |layer| scope.spawn(move || write(dir_of, layer, words));
            let at_work: Vec<_> = (0..LAYERS.len()).map(start).collect();
            at_work.into_iter().map(|one| one.join().expect("no thread of ours panics")).collect()
        });
        let archives: io::Result<Vec<PathBuf>> = archives;
        let archives = archives.context("cannot write the layers of an image")?;
        Ok(Large { dir, archives })
    }

    /// Makes a layout of it; where that is, and the largest layer.
    pub(super) fn layout(&self, packing: Packing) -> Result<(PathBuf, Layer)> {
        let layout = self.dir.join(packing.name());
        let mut layers = layout::pack(&self.archives, packing)?;
        layout::write(&layout, &layers)?;
        Ok((layout, layers.swap_remove(0)))
    }
}

fn write(dir: &Path, layer: usize, words: &Vocabulary) -> io::Result<PathBuf> {
    let path = dir.join(format!("{layer}.tar"));
    let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, File::create(&path)?));
    if layer == 0 {
        root(&mut archive, PROGRAMS)?;
        archive.directory("srv", 0)?;
    }
    let mut noise = Noise::new(layer as u64);
    let top = format!("srv/{layer}");
    archive.directory(&top, 0)?;
    for number in 0..LAYERS[layer] {
        // A hundred a directory, as in the trees that packages bring.
        let below = format!("{top}/{}", number / 100);
        if number % 100 == 0 {
            archive.directory(&below, 0)?;
        }
        let size = size(&mut noise);
        // One of five is as a picture or an archive: it does not get smaller.
        let content = if number % 5 == 0 { noise.bytes(size) } else { noise.text(words, size) };
        archive.file(&format!("{below}/{number}"), 0, &content)?;
    }
    archive.finish()?;
    Ok(path)
}

/// What every root has, with a static busybox.
pub(super) fn root(archive: &mut Archive<impl io::Write>, programs: &[&str]) -> io::Result<()> {
    for name in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        archive.directory(name, 0)?;
    }
    archive.program("bin/busybox", &fs::read("/bin/busybox")?)?;
    for name in programs {
        archive.link(&format!("bin/{name}"), "busybox")?;
    }
    archive.file("etc/passwd", 0, b"root:x:0:0:root:/root:/bin/sh\n")?;
    archive.file("etc/group", 0, b"root:x:0:\n")
}

/// Most files are small and most bytes are in large ones; ten thousand bytes in the mean.
fn size(noise: &mut Noise) -> usize {
    let (least, spread) = match noise.below(100) {
        0..60 => (500, 3_000),
        60..90 => (4_000, 8_000),
        90..99 => (16_000, 32_000),
        _ => (252_000, 200_000),
    };
    least + noise.below(spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_ten_thousand_bytes_in_the_mean() {
        let mut noise = Noise::new(0);
        let total: usize = (0..30_000).map(|_| size(&mut noise)).sum();
        assert!((290_000_000..310_000_000).contains(&total), "{total}");
    }
}
