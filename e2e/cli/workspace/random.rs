//! Random changes inside: an apply gives the tree that a plain copy would have become.

use super::{described, inside, keep, project};
use msb_e2e::{Msb, gives};
use std::fs;
use std::process::Command;

/// Numbers that are the same in every run.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// A path of few names, so that many steps meet.
    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "d"];
        let depth = 1 + self.below(3);
        let parts: Vec<&str> = (0..depth).map(|_| names[self.below(4) as usize]).collect();
        parts.join("/")
    }

    fn step(&mut self) -> String {
        let (one, two, number) = (self.path(), self.path(), self.below(1000));
        match self.below(12) {
            0 | 1 => format!("mkdir -p {one}"),
            2 | 3 => format!("mkdir -p $(dirname {one}); echo {number} > {one}"),
            4 => format!("echo {number} >> {one}"),
            5 => format!("rm -rf {one}"),
            6 => format!("rm -f {one}"),
            7 | 8 => format!("mv -T {one} {two}"),
            9 => format!("rm -rf {one}; mkdir {one}; echo {number} > {one}/x"),
            10 => format!("rm -rf {one}; ln -s a {one}"),
            _ => format!(
                "test -L {one} || chmod {} {one}",
                ["700", "755", "777", "711"][(number % 4) as usize]
            ),
        }
    }
}

#[test]
fn random_changes_come_to_the_host_as_they_are() {
    const ROUNDS: u32 = 4;
    const STEPS: u32 = 60;
    for (seed, msb) in (1u64..).zip([Msb::each(), Msb::each()].into_iter().flatten()) {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let files = [("a/a", "1"), ("a/b/c", "2"), ("b/a/d", "3"), ("c", "4"), ("d/d/d", "5")];
        let root = project(&msb, &files);
        let copy = msb.scratch().join("copy");
        let copied = gives(Command::new("cp").arg("-a").arg(&root).arg(&copy));
        copied.ok();
        keep(&msb);
        for round in 0..ROUNDS {
            let steps: Vec<String> = (0..STEPS).map(|_| dice.step()).collect();
            let lines: String = steps.iter().map(|step| format!("{step}\n")).collect();
            // What cannot be done fails in both.
            let script = format!("umask 022\nexec 2>/dev/null\n{lines}true\n");
            inside(&msb, &script).ok();
            let mut plain = msb.user_command("sh");
            gives(plain.arg("-c").arg(&script).current_dir(&copy)).ok();
            msb.words("stop box").ok();
            // By name, since what became executable has to be named.
            msb.words("apply box --include [a-dx]").ok();
            assert_eq!(described(&root), described(&copy), "seed {seed}, round {round}:\n{lines}");
            assert_eq!(msb.words("diff box").line(), "", "seed {seed}, round {round}");
            msb.words("start box").ok();
            assert_eq!(fs::read_dir(&root).unwrap().count(), fs::read_dir(&copy).unwrap().count());
        }
    }
}
