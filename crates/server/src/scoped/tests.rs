//! That no Operation reaches another namespace, whatever name it is given.

use super::*;
use crate::fake::{Fake, name};
use msb_api::{
    Attributes, Changes, ChildSpec, Children, Create, Depth, Execs, Files, Images, Links,
    LogFilter, Networks, Place, Registry, Sandboxes, Selection, Snapshots, SyncSpec, Syncs, Target,
    Unwatched, Volumes, Workspaces,
};
use msb_spec::{
    Command, ImageRef, Mount, MountSource, NetworkSpec, Patch, Prune, Published, Reference, Secret,
    SecretSource, Spec, VolumeSpec, Workspace,
};
use std::time::Duration;

type Operation = (&'static str, fn(&Scoped, &Name));

fn socket() -> Target {
    Target::Unix { path: b"/socket".to_vec() }
}

fn volume(name: &Name) -> VolumeName {
    VolumeName::parse(name.as_str()).unwrap()
}

/// A Spec that names something in every field that can.
fn spec(name: &Name) -> Spec {
    let mount = format!("{name}:/data");
    let network = NetworkSpec { join: Some(name.clone()), ..NetworkSpec::default() };
    Spec {
        name: Some(name.clone()),
        mounts: vec![Mount::parse(&mount).unwrap()],
        network: Some(network),
        ..Spec::default()
    }
}

fn from_snapshot(name: &Name) -> Spec {
    Spec { image: ImageRef::Snapshot(name.clone()), ..Spec::default() }
}

/// Every Operation of the Api, given a name wherever it takes one.
const OPERATIONS: &[Operation] = &[
    ("for_client", |api, name| {
        let scope = msb_api::ClientScope::AllNamespaces;
        drop(Arc::new(api.clone()).for_client(scope).sandbox_start(name));
    }),
    ("giving", |api, name| drop(api.giving(Vec::new()).sandbox_start(name))),
    ("sandbox_renew", |api, name| drop(api.sandbox_renew(name, None))),
    ("sandbox_plan", |api, name| drop(api.sandbox_plan(&spec(name), &Unwatched))),
    ("sandbox_plan", |api, name| drop(api.sandbox_plan(&from_snapshot(name), &Unwatched))),
    ("sandbox_create", |api, name| {
        let ask = Create { spec: spec(name), replace: true, ..Create::default() };
        drop(api.sandbox_create(&ask, &Unwatched));
    }),
    ("sandbox_create", |api, name| {
        let ask = Create { spec: from_snapshot(name), replace: true, ..Create::default() };
        drop(api.sandbox_create(&ask, &Unwatched));
    }),
    ("sandbox_list", |api, _| drop(api.sandbox_list())),
    ("sandbox_inspect", |api, name| drop(api.sandbox_inspect(name))),
    ("sandbox_summary", |api, name| drop(api.sandbox_summary(name))),
    ("sandbox_start", |api, name| drop(api.sandbox_start(name))),
    ("sandbox_stop", |api, name| drop(api.sandbox_stop(name, Duration::ZERO))),
    ("sandbox_remove", |api, name| drop(api.sandbox_remove(name, true))),
    ("sandbox_drain", |api, name| drop(api.sandbox_drain(name))),
    ("sandbox_pause", |api, name| drop(api.sandbox_pause(name))),
    ("sandbox_resume", |api, name| drop(api.sandbox_resume(name))),
    ("sandbox_renew", |api, name| drop(api.sandbox_renew(name, None))),
    ("sandbox_modify", |api, name| drop(api.sandbox_modify(name, &msb_spec::Modify::default()))),
    ("sandbox_rename", |api, name| drop(api.sandbox_rename(name, name))),
    ("sandbox_wait", |api, name| drop(api.sandbox_wait(name, None))),
    ("sandbox_metrics", |api, name| drop(api.sandbox_metrics(name))),
    ("sandbox_logs", |api, name| drop(api.sandbox_logs(name, &LogFilter::default()))),
    ("sandbox_events", |api, name| drop(api.sandbox_events(name))),
    ("sandbox_history", |api, name| drop(api.sandbox_history(name))),
    ("sandbox_audit", |api, name| drop(api.sandbox_audit(name))),
    ("exec_start", |api, name| drop(api.exec_start(name, &Command::default()))),
    ("exec_attach", |api, name| drop(api.exec_attach(name, 1))),
    ("exec_run", |api, name| drop(api.exec_run(&spec(name), &Unwatched))),
    ("exec_signal", |api, name| drop(api.exec_signal(name, 1, 9))),
    ("exec_wait", |api, name| drop(api.exec_wait(name, 1, Duration::ZERO))),
    ("exec_list", |api, name| drop(api.exec_list(name))),
    ("file_read", |api, name| both(name, |at| api.file_read(at, b"/", 0, None, &mut |_| Ok(())))),
    ("file_write", |api, name| {
        both(name, |at| api.file_write(at, b"/", 0, false, &mut std::io::empty()).map(drop));
    }),
    ("file_stat", |api, name| both(name, |at| api.file_stat(at, b"/", true).map(drop))),
    ("file_real", |api, name| both(name, |at| api.file_real(at, b"/").map(drop))),
    ("file_list", |api, name| both(name, |at| api.file_list(at, b"/").map(drop))),
    ("file_mkdir", |api, name| both(name, |at| api.file_mkdir(at, b"/", true))),
    ("file_remove", |api, name| both(name, |at| api.file_remove(at, b"/", true))),
    ("file_rename", |api, name| both(name, |at| api.file_rename(at, b"/", b"/"))),
    ("file_copy", |api, name| both(name, |at| api.file_copy(at, b"/", b"/"))),
    ("file_symlink", |api, name| both(name, |at| api.file_symlink(at, b"/", b"/"))),
    ("file_set", |api, name| both(name, |at| api.file_set(at, b"/", &Attributes::default()))),
    ("file_push", |api, name| {
        both(name, |at| api.file_push(at, Path::new("/etc"), b"/").map(drop));
    }),
    ("file_pull", |api, name| {
        both(name, |at| api.file_pull(at, b"/", Path::new("/etc")).map(drop));
    }),
    ("image_list", |api, _| drop(api.image_list())),
    ("image_inspect", |api, _| drop(api.image_inspect(&Reference::parse("alpine").unwrap()))),
    ("image_pull", |api, _| {
        drop(api.image_pull(&Reference::parse("alpine").unwrap(), &Unwatched));
    }),
    ("image_pull_from", |api, _| {
        let alpine = Reference::parse("alpine").unwrap();
        drop(api.image_pull_from(&alpine, &Registry::default(), &Unwatched));
    }),
    ("image_build", |api, _| {
        let alpine = Reference::parse("alpine").unwrap();
        drop(api.image_build(&alpine, "FROM alpine", &Unwatched));
    }),
    ("image_remove", |api, _| {
        drop(api.image_remove(&Reference::parse("alpine").unwrap(), true));
    }),
    ("image_prune", |api, _| drop(api.image_prune(&Prune::default()))),
    ("disk_usage", |api, _| drop(api.disk_usage())),
    ("volume_create", |api, name| drop(api.volume_create(&VolumeSpec::new(volume(name))))),
    ("volume_list", |api, _| drop(api.volume_list())),
    ("volume_inspect", |api, name| drop(api.volume_inspect(&volume(name)))),
    ("volume_remove", |api, name| drop(api.volume_remove(&volume(name), true))),
    ("volume_prune", |api, _| drop(api.volume_prune(false))),
    ("snapshot_create", |api, name| drop(api.snapshot_create(name, name, None))),
    ("snapshot_list", |api, _| drop(api.snapshot_list())),
    ("snapshot_inspect", |api, name| drop(api.snapshot_inspect(name))),
    ("snapshot_verify", |api, name| drop(api.snapshot_verify(name))),
    ("snapshot_tag", |api, name| drop(api.snapshot_tag(name, name))),
    ("snapshot_remove", |api, name| drop(api.snapshot_remove(name, true))),
    ("snapshot_save", |api, name| drop(api.snapshot_save(name, true, &mut std::io::sink()))),
    ("snapshot_load", |api, name| {
        drop(api.snapshot_load(Some(name), &mut std::io::empty()));
        drop(api.snapshot_load(None, &mut std::io::empty()));
    }),
    ("snapshot_restore", |api, name| drop(api.snapshot_restore(name, name))),
    ("snapshot_restore_with", |api, name| {
        let mounts = vec![Mount::new(MountSource::Volume(volume(name)), "/mnt", false).unwrap()];
        let changes = Changes { mounts, ..Changes::default() };
        drop(api.snapshot_restore_with(name, name, &changes));
    }),
    ("sandbox_clone", |api, name| drop(api.sandbox_clone(name, name))),
    ("sandbox_rollback", |api, name| drop(api.sandbox_rollback(name, name))),
    ("sandbox_reset", |api, name| drop(api.sandbox_reset(name, true))),
    ("network_table", |api, name| drop(api.network_table(name))),
    ("network_allow", |api, name| drop(api.network_allow(name, &[]))),
    ("port_publish", |api, name| {
        drop(api.port_publish(name, &Published::parse("80").unwrap()));
    }),
    ("port_withdraw", |api, name| {
        drop(api.port_withdraw(name, &Published::parse("80").unwrap()));
    }),
    ("network_events", |api, name| drop(api.network_events(name))),
    ("workspace_diff", |api, name| drop(api.workspace_diff(name, &[], Depth::default()))),
    ("workspace_apply", |api, name| {
        drop(api.workspace_apply(name, &Selection::default(), false));
    }),
    ("workspace_discard", |api, name| drop(api.workspace_discard(name, &[]))),
    ("sync_start", |api, name| {
        let (source, target) = ("/etc".into(), b"/x".to_vec());
        let excludes = Vec::new();
        let sandbox = name.clone();
        let spec = SyncSpec { source, sandbox, target, excludes, default_excludes: true };
        drop(api.sync_start(&spec, &Unwatched));
    }),
    ("child_spawn", |api, name| {
        let ask = ChildSpec { name: Some(name.clone()), ..ChildSpec::default() };
        drop(api.child_spawn(name, &ask, &Unwatched));
    }),
    ("child_list", |api, name| drop(api.child_list(name))),
    ("child_remove", |api, name| drop(api.child_remove(name, name))),
    ("link_sftp", |api, name| drop(api.link_sftp(name, None))),
    ("link_dial", |api, name| drop(api.link_dial(name, None, &socket()))),
    ("link_listen", |api, name| drop(api.link_listen(name, None, &socket()))),
    ("sync_list", |api, _| drop(api.sync_list())),
    ("sync_inspect", |api, name| drop(api.sync_inspect(name.as_str()))),
    ("sync_stop", |api, name| drop(api.sync_stop(name.as_str()))),
];

fn both(name: &Name, ask: impl Fn(&Place) -> Result<()>) {
    drop(ask(&Place::sandbox(name)));
    drop(ask(&Place::Volume(volume(name))));
}

const ID_OF_A: &str = "aaaaaaaaaaaaaaaa";
const ID_OF_B: &str = "bbbbbbbbbbbbbbbb";
const ID_OF_DEFAULT: &str = "dddddddddddddddd";

fn world() -> Arc<Fake> {
    let fake = Fake::with_sandboxes(&["web", "a--web", "b--web", "a-b--web"]);
    let names = |text: &str| vec![name(text)];
    *fake.volumes.lock().unwrap() =
        ["web", "a--web", "b--web"].map(|text| VolumeName::parse(text).unwrap()).into();
    *fake.snapshots.lock().unwrap() = vec![
        (ID_OF_A.to_owned(), names("a--web")),
        (ID_OF_B.to_owned(), names("b--web")),
        (ID_OF_DEFAULT.to_owned(), names("web")),
    ];
    Arc::new(fake)
}

fn scoped(fake: &Arc<Fake>, namespace: &str) -> Scoped {
    Scoped::new(Arc::clone(fake) as Arc<dyn Api>, Namespace::parse(namespace).unwrap())
}

/// The words of a call that are names in the state directory.
fn names_in(call: &str) -> Vec<&str> {
    let words = call.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    words
        .filter(|word| word.ends_with("web") || [ID_OF_A, ID_OF_B, ID_OF_DEFAULT].contains(word))
        .collect()
}

#[test]
fn who_asks_is_said_by_the_server_alone() {
    let fake = world();
    let asker = msb_spec::Asker::new(msb_spec::Surface::Rest).with_key("0123").in_namespace("a");
    let api = scoped(&fake, "a").asked_by(asker);
    let pretended = Some(msb_spec::Asker::cli());
    let command = Command { argv: vec!["true".to_owned()], asker: pretended, ..Command::default() };
    let _ = api.exec_start(&name("web"), &command);
    let calls = fake.calls();
    assert!(calls.iter().any(|call| call.contains("rest key:0123 in a")), "{calls:?}");
}

#[test]
fn the_table_has_every_operation() {
    let traits = [
        include_str!("../../../api/src/sandboxes.rs"),
        include_str!("../../../api/src/execs.rs"),
        include_str!("../../../api/src/files.rs"),
        include_str!("../../../api/src/images.rs"),
        include_str!("../../../api/src/volumes.rs"),
        include_str!("../../../api/src/snapshots.rs"),
        include_str!("../../../api/src/networks.rs"),
    ];
    for text in traits {
        // The first trait of each file is its Operations.
        let start = text.find("pub trait ").unwrap();
        let body = &text[start..start + text[start..].find("\n}").unwrap()];
        for line in body.lines().filter_map(|line| line.trim().strip_prefix("fn ")) {
            let operation = line.split('(').next().unwrap();
            assert!(OPERATIONS.iter().any(|(name, _)| *name == operation), "{operation}");
        }
    }
}

#[test]
fn no_operation_reaches_another_namespace() {
    for namespace in ["a", "b", "default"] {
        let fake = world();
        let api = scoped(&fake, namespace);
        let tried = [
            "web",
            "a--web",
            "b--web",
            "a-b--web",
            "default--web",
            ID_OF_A,
            ID_OF_B,
            ID_OF_DEFAULT,
        ];
        for tried in tried {
            for (operation, run) in OPERATIONS {
                fake.calls();
                run(&api, &name(tried));
                for call in fake.calls() {
                    // To look whose it is, it has to be looked at; nothing of it is told.
                    if call.starts_with("snapshot_inspect") || call.starts_with("image_") {
                        continue;
                    }
                    for seen in names_in(&call) {
                        let finds_snapshots = ["snapshot", "Snapshot(", "rollback"];
                        let owned = match seen {
                            // A sandbox may be called that, too.
                            ID_OF_A | ID_OF_B | ID_OF_DEFAULT
                                if !finds_snapshots.iter().any(|it| call.contains(it)) =>
                            {
                                true
                            }
                            ID_OF_A => namespace == "a",
                            ID_OF_B => namespace == "b",
                            ID_OF_DEFAULT => namespace == "default",
                            seen => crate::namespace::split(seen).0 == namespace,
                        };
                        // The host name inside is not a name of the state directory.
                        let inside = call.contains("Hostname") && seen == tried;
                        assert!(owned || inside, "{namespace} {operation} {tried}: {call}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_concerns_everybody_is_refused() {
    let fake = world();
    let api = scoped(&fake, "a");
    let alpine = Reference::parse("alpine").unwrap();
    let denied = |kind: Kind| assert_eq!(kind, Kind::Denied);
    denied(api.image_remove(&alpine, false).unwrap_err().kind());
    denied(api.image_prune(&Prune::default()).unwrap_err().kind());
    denied(api.disk_usage().unwrap_err().kind());
    denied(api.snapshot_load(None, &mut std::io::empty()).unwrap_err().kind());
    assert_eq!(fake.calls(), [""; 0]);
    api.volume_prune(false).unwrap();
    assert!(!fake.calls().iter().any(|call| call.starts_with("volume_prune")));
}

#[test]
fn lists_show_what_is_ours_by_the_names_we_know() {
    let fake = world();
    for namespace in ["a", "b", "default"] {
        let api = scoped(&fake, namespace);
        let sandboxes: Vec<Name> =
            api.sandbox_list().unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(sandboxes, [name("web")], "{namespace}");
        let volumes = api.volume_list().unwrap();
        assert_eq!(volumes.len(), 1);
        assert_eq!(volumes[0].name.as_str(), "web");
        assert_eq!(volumes[0].sandboxes, [name("web")]);
        let snapshots = api.snapshot_list().unwrap();
        assert_eq!(snapshots.len(), 1);
        assert_eq!(snapshots[0].names, [name("web")]);
        assert_eq!(snapshots[0].sandbox, name("web"));
        assert_eq!((&snapshots[0].parent, snapshots[0].children.len()), (&None, 0));
        assert_eq!(api.image_list().unwrap()[0].sandboxes, [name("web")]);
        assert_eq!(api.sandbox_inspect(&name("web")).unwrap().plan.name, name("web"));
        assert_eq!(api.sandbox_metrics(&name("web")).unwrap().name, "web");
    }
}

#[test]
fn a_snapshot_is_found_by_its_name_or_id_and_only_ours() {
    let fake = world();
    let a = scoped(&fake, "a");
    assert_eq!(a.snapshot_inspect(&name("web")).unwrap().id, ID_OF_A);
    assert_eq!(a.snapshot_inspect(&name(ID_OF_A)).unwrap().id, ID_OF_A);
    for (namespace, id) in [("a", ID_OF_B), ("a", ID_OF_DEFAULT), ("default", ID_OF_A)] {
        let error = scoped(&fake, namespace).snapshot_inspect(&name(id)).unwrap_err();
        assert_eq!((error.kind(), error.advice()), (Kind::NotFound, None));
    }
}

#[test]
fn errors_know_only_our_names() {
    let fake = world();
    let error = scoped(&fake, "a").sandbox_start(&name("wbe")).unwrap_err();
    assert_eq!(
        (error.message(), error.advice()),
        ("no sandbox `wbe`", Some("did you mean `web`?"))
    );
    let error = scoped(&fake, "b").sandbox_start(&name("wbe")).unwrap_err();
    // The nearest is of another namespace.
    assert_eq!((error.message(), error.advice()), ("no sandbox `wbe`", None));
    let text = scoped(&fake, "a").text("`a--web` and b--web, /x/a--web/y -- --flag a---b");
    assert_eq!(text, "`web` and (another), /x/web/y -- --flag a---b");
    let text = scoped(&fake, "default").text("`web`, `a--web`");
    assert_eq!(text, "`web`, `(another)`");
}

#[test]
fn what_is_made_bears_the_namespace() {
    let fake = world();
    let api = scoped(&fake, "team");
    let made =
        api.sandbox_create(&Create { spec: spec(&name("new")), ..Create::default() }, &Unwatched);
    assert_eq!(made.unwrap().name, name("new"));
    let call = fake.calls().remove(0);
    for part in ["team--new", r#""msb.namespace": "team""#, r#"Hostname("new")"#] {
        assert!(call.contains(part), "{part}: {call}");
    }
    let unnamed = Create::default();
    let made = api.sandbox_create(&unnamed, &Unwatched).unwrap();
    assert!(made.name.as_str().starts_with("sb-"), "{}", made.name);
    assert!(fake.calls()[0].contains("team--sb-"));
}

#[test]
fn nothing_of_the_host_is_named() {
    let fake = world();
    let api = scoped(&fake, "a");
    let secret = |source| Secret { source, ..Secret::parse("TOKEN@example.com").unwrap() };
    let with = |source| {
        let secrets = vec![secret(source)];
        Spec { network: Some(NetworkSpec { secrets, ..NetworkSpec::default() }), ..Spec::default() }
    };
    let specs = [
        Spec { image: ImageRef::Path("/etc".into()), ..Spec::default() },
        Spec { mounts: vec![Mount::parse("/etc:/x").unwrap()], ..Spec::default() },
        Spec { workspace: Some(Workspace::parse("/etc").unwrap()), ..Spec::default() },
        Spec { patches: vec![Patch::copy("/etc:/x").unwrap()], ..Spec::default() },
        with(SecretSource::Variable("HOME".to_owned())),
        with(SecretSource::File("/etc/shadow".into())),
        with(SecretSource::Command("id".to_owned())),
    ];
    for spec in specs {
        let made = api.sandbox_create(&Create { spec, ..Create::default() }, &Unwatched);
        assert_eq!(made.unwrap_err().kind(), Kind::Denied);
    }
    assert_eq!(fake.calls(), [""; 0]);
    assert!(api.exec_run(&with(SecretSource::Command("id".to_owned())), &Unwatched).is_err());
    assert_eq!(fake.calls(), [""; 0]);

    let paths = HostPaths::below(["/usr".into()], "--host-paths");
    let api = api.with_host_paths(Arc::new(paths));
    let make = |mount: &str| {
        let mounts = vec![Mount::parse(mount).unwrap()];
        let spec = Spec { mounts, ..Spec::default() };
        api.sandbox_create(&Create { spec, ..Create::default() }, &Unwatched).is_ok()
    };
    assert!(make("/usr/bin:/x"));
    assert!(!make("/usr/../etc:/x"));
}
