//! Numbers as small pictures of text.

/// A letter for each number, the highest for the largest of them or for `most`, if that is larger.
pub(crate) fn line(values: &[f64], most: f64) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(most, f64::max);
    let step = |value: &f64| {
        let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
        #[expect(
            clippy::cast_sign_loss,
            clippy::cast_possible_truncation,
            reason = "it is in 0..=7"
        )]
        let at = (share * 7.0).round() as usize;
        STEPS[at.min(7)]
    };
    values.iter().map(step).collect()
}

/// A bar so many letters wide, filled by a share of one.
pub(crate) fn bar(share: f64, width: usize) -> String {
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "it is in 0..=1")]
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(width - full))
}

/// As many numbers as there is room for: of several the largest, so that no peak is lost.
pub(crate) fn squeezed(values: &[f64], room: usize) -> Vec<f64> {
    if values.len() <= room || room == 0 {
        return values.to_vec();
    }
    let size = values.len().div_ceil(room);
    values.chunks(size).map(|some| some.iter().copied().fold(0.0, f64::max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_show_what_the_numbers_are() {
        assert_eq!(line(&[0.0, 50.0, 100.0], 0.0), "▁▅█");
        assert_eq!(line(&[0.0, 50.0], 100.0), "▁▅");
        assert_eq!(line(&[0.0, 0.0], 0.0), "▁▁");
        assert_eq!(bar(0.5, 4), "[##..]");
        assert_eq!(bar(7.0, 4), "[####]");
        assert_eq!(squeezed(&[1.0, 5.0, 2.0, 3.0, 4.0], 3), [5.0, 3.0, 4.0]);
    }
}
