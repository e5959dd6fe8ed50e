//! Tests of the table, most with a small one of their own.

use super::*;

/// A small table with a family, whatever families the real one has.
const SMALL: Table = Table {
    families: &[
        Family { name: "box", group: LOOK, about: "Look at boxes", names: false },
        Family { name: "lid", group: LOOK, about: "Lift the lid", names: false },
    ],
    verbs: &[
        any_target::<verbs::ps::PsArgs>(LOOK, "lid", "Lift the lid"),
        any_target::<verbs::ls::LsArgs>(LOOK, "lid ls", "List lids"),
        any_target::<verbs::ps::PsArgs>(LOOK, "ps", "Show what runs"),
        any_target::<verbs::ls::LsArgs>(LOOK, "box ls", "List boxes"),
        any_target::<verbs::pull::PullArgs>(IMAGES, "pull", "Fetch images from a registry"),
        local_only::<verbs::archive::PushArgs>(IMAGES, "push", "Send an image to a registry"),
        local_only::<verbs::archive::LoadArgs>(IMAGES, "load", "Read images from a file"),
        local_only::<verbs::archive::SaveArgs>(IMAGES, "save", "Write images to a file"),
        any_target::<verbs::image::ImageLsArgs>(IMAGES, "image ls", "List images"),
        any_target::<verbs::image::ImageInspectArgs>(
            IMAGES,
            "image inspect",
            "Show everything about an image",
        ),
        any_target::<verbs::image::ImageRmArgs>(IMAGES, "image rm", "Remove images"),
        any_target::<verbs::image::ImagePruneArgs>(
            IMAGES,
            "image prune",
            "Remove what nothing needs",
        ),
        any_target::<verbs::disk::DfArgs>(MORE, "df", "Show what uses the disk"),
        local_only::<verbs::disk::PruneArgs>(MORE, "prune", "Give back what nothing needs"),
        local_only::<verbs::doctor::DoctorArgs>(LOOK, "box heal", "Mend boxes"),
    ],
};

fn found(first: &str, second: &str) -> Result<&'static str, String> {
    match SMALL.find(first, second) {
        Ok(VerbMatch::Verb(verb)) => Ok(verb.name),
        Ok(VerbMatch::Family(family)) => Ok(family.name),
        Err(error) => Err(error.advice().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_command_is_consistent() {
    whole().debug_assert();
    SMALL.whole().debug_assert();
    TABLE.verbs.iter().for_each(|verb| verb.dressed().debug_assert());
}

#[test]
fn a_name_of_two_words_belongs_to_a_family() {
    for verb in TABLE.verbs {
        let family = verb.name.split_once(' ').map(|(family, _)| family);
        let known = |name| TABLE.families.iter().any(|family| family.name == name);
        assert!(family.is_none_or(known), "{}", verb.name);
    }
    for family in TABLE.families {
        assert!(TABLE.members(family).count() > 0, "{}", family.name);
    }
}

#[test]
fn a_member_of_a_family_is_found_by_both_words() {
    assert_eq!(found("ps", "box"), Ok("ps"));
    assert_eq!(found("box", "ls"), Ok("box ls"));
    for asked in ["", "-h", "--help"] {
        assert_eq!(found("box", asked), Ok("box"), "{asked}");
    }
}

#[test]
fn the_first_word_of_a_family_may_be_a_verb_itself() {
    for asked in ["", "-q", "--help"] {
        assert_eq!(found("lid", asked), Ok("lid"), "{asked}");
    }
    assert_eq!(found("lid", "ls"), Ok("lid ls"));
    assert_eq!(found("lid", "sl"), Err("did you mean `msb lid ls`?".to_owned()));
    assert!(SMALL.help().contains("\n  lid         Lift the lid: ls\n"));
    assert_eq!(SMALL.help().matches("Lift the lid").count(), 1);
    let Ok(VerbMatch::Verb(lid)) = SMALL.find("lid", "") else { panic!("no verb") };
    assert_eq!(SMALL.below(lid).unwrap(), "Commands:\n  ls          List lids\n");
}

#[test]
fn a_typing_mistake_is_met_with_the_whole_command() {
    for (first, second, hint) in [
        ("bxo", "ls", "did you mean `msb box`?"),
        ("box", "lst", "did you mean `msb box ls`?"),
        ("heal", "", "did you mean `msb box heal`?"),
        ("box", "nonsense", "`msb box --help` lists the commands"),
        ("nonsense", "", "`msb --help` lists the commands"),
    ] {
        assert_eq!(found(first, second), Err(hint.to_owned()), "{first} {second}");
    }
}

#[test]
fn a_server_is_named_before_the_verb_or_after() {
    let leading = |words: &[&str]| {
        let mut rest: Vec<OsString> = words.iter().map(OsString::from).collect();
        let url = super::leading(&mut rest).map_err(|error| error.message().to_owned());
        (url, rest.len())
    };
    let there = || Ok(Some("http://x".to_owned()));
    assert_eq!(leading(&["--remote", "http://x", "ls"]), (there(), 1));
    assert_eq!(leading(&["--remote=http://x", "ls"]), (there(), 1));
    assert_eq!(leading(&["ls", "--remote", "http://x"]), (Ok(None), 3));
    assert_eq!(leading(&["--remotely", "ls"]), (Ok(None), 2));
    for nothing in [&["--remote"][..], &["--remote="], &["--remote", "", "ls"]] {
        assert!(leading(nothing).0.is_err(), "{nothing:?}");
    }
    for verb in TABLE.verbs {
        let flag = verb.dressed();
        let flag = flag.get_arguments().find(|argument| argument.get_id() == target::FLAG);
        let hidden = flag.expect("each has it").is_hide_set();
        assert_eq!(hidden, verb.scope != VerbScope::AnyTarget, "{}", verb.name);
    }
}

#[test]
fn a_family_is_in_the_help_and_the_tree() {
    assert!(SMALL.help().contains("\n  box         Look at boxes: ls, heal\n"));
    assert!(SMALL.family_help(&SMALL.families[0]).contains("\n  heal        Mend boxes\n"));
    assert!(SMALL.tree().contains("\n  box ls  List boxes\n    --label KEY=VALUE"));
}
