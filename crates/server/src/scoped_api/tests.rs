//! Tests that no Operation reaches another namespace, whatever name it gets.

use super::*;
use crate::recorder::{FakeSandboxes, NO_CALLS, RecordedCall, name};
use msb_api::operation_types::*;
use msb_api::{
    Children, Execs, Files, Images, Links, LogFilter, Networks, NoProgress, Param, Sandboxes,
    Snapshots, Syncs, Target, Volumes, Workspaces, operations,
};
use msb_spec::{
    CallOrigin, Command, ImageRef, Mount, MountSource, NetworkSpec, Patch, Secret, SecretSource,
    Workspace,
};
use serde_json::json;

/// Calls an Operation with a name wherever it takes one.
type OperationCall = (&'static str, fn(&ScopedApi, &Name));

fn socket() -> Target {
    Target::Unix { path: b"/socket".to_vec() }
}

fn volume(name: &Name) -> VolumeName {
    VolumeName::parse(name.as_str()).unwrap()
}

/// A Spec with a name in every field that takes one.
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

/// The type of an argument, with a name in every field that takes one.
trait Named: Sized {
    /// Every form that a request can have with this name.
    fn forms(name: &Name) -> Vec<Self>;
}

macro_rules! named {
    ($($type:ty: |$name:pat_param| $forms:expr;)*) => {$(
        impl Named for $type {
            fn forms($name: &Name) -> Vec<Self> {
                $forms.into_iter().collect()
            }
        }
    )*};
}

named! {
    bool: |_| [true];
    i32: |_| [9];
    u64: |_| [1];
    Attributes: |_| [Attributes::default()];
    ChildSpec: |name| [ChildSpec { name: Some(name.clone()), ..ChildSpec::default() }];
    Changes: |name| {
        let mounts = vec![Mount::new(MountSource::Volume(volume(name)), "/mnt", false).unwrap()];
        [Changes { mounts, ..Changes::default() }]
    };
    Create: |name| [spec(name), from_snapshot(name)].map(|spec| {
        Create { spec, replace: true, ..Create::default() }
    });
    Depth: |_| [Depth::default()];
    InsidePath: |_| [InsidePath(b"/".to_vec())];
    Millis: |_| [Millis(0)];
    Modify: |_| [Modify::default()];
    Name: |name| [name.clone()];
    NewSnapshotName: |name| [NewSnapshotName(name.clone())];
    PathBuf: |_| [PathBuf::from("/etc")];
    Place: |name| [Place::sandbox(name), Place::Volume(volume(name))];
    PublishedPort: |_| [PublishedPort::parse("80").unwrap()];
    Reference: |_| [Reference::parse("alpine").unwrap()];
    Registry: |_| [Registry::default()];
    Selection: |_| [Selection::default()];
    SnapshotName: |name| [SnapshotName(name.clone())];
    Spec: |name| [spec(name), from_snapshot(name)];
    String: |_| ["FROM alpine".to_owned()];
    SyncId: |name| [SyncId(name.to_string())];
    SyncSpec: |name| [SyncSpec {
        source: "/etc".into(),
        sandbox: name.clone(),
        target: b"/x".to_vec(),
        excludes: Vec::new(),
        default_excludes: true,
    }];
    VolumeName: |name| [volume(name)];
    VolumeSpec: |name| [VolumeSpec::new(volume(name))];
}

impl<T: Named> Named for Option<T> {
    fn forms(name: &Name) -> Vec<Self> {
        T::forms(name).into_iter().map(Some).chain([None]).collect()
    }
}

impl<T> Named for Vec<T> {
    fn forms(_: &Name) -> Vec<Self> {
        vec![Vec::new()]
    }
}

/// One form of an argument; the last ones again if it has fewer.
fn form<T: Named>(name: &Name, number: usize) -> T {
    let mut forms = T::forms(name);
    forms.swap_remove(number % forms.len())
}

/// The most forms of one argument.
const FORMS: usize = 2;

/// Every Operation: those of the table, and the streams.
fn all_operations() -> Vec<OperationCall> {
    let mut all = STREAMS.to_vec();
    macro_rules! call {
        (
            $method:ident($($arg:ident: $type:ty),*) [$($watch:ident)?]
            -> $value:ty = $request:ident $($rest:tt)*
        ) => {
            all.push((stringify!($method), |api, name| {
                for number in 0..FORMS {
                    let _ = (name, number);
                    $( let $arg = form::<$type>(name, number); )*
                    $( let $watch = &NoProgress; )?
                    drop(api.$method($($arg.arg(),)* $($watch)?));
                }
            }));
        };
    }
    operations!(all call);
    all
}

const STREAMS: &[OperationCall] = &[
    ("for_client", |api, name| {
        let scope = msb_api::ClientScope::AllNamespaces;
        drop(Arc::new(api.clone()).for_client(scope).sandbox_start(name));
    }),
    ("with_secrets", |api, name| drop(api.with_secrets(Vec::new()).sandbox_start(name))),
    ("with_origin", |api, name| drop(api.with_origin(CallOrigin::cli()).sandbox_start(name))),
    ("sandbox_logs", |api, name| drop(api.sandbox_logs(name, &LogFilter::default()))),
    ("sandbox_events", |api, name| drop(api.sandbox_events(name))),
    ("exec_start", |api, name| drop(api.exec_start(name, &Command::default()))),
    ("exec_attach", |api, name| drop(api.exec_attach(name, 1))),
    ("exec_run", |api, name| drop(api.exec_run(&spec(name), &NoProgress))),
    ("file_read", |api, name| both(name, |at| api.file_read(at, b"/", 0, None, &mut |_| Ok(())))),
    ("file_write", |api, name| {
        both(name, |at| api.file_write(at, b"/", 0, false, &mut std::io::empty()).map(drop));
    }),
    ("snapshot_save", |api, name| drop(api.snapshot_save(name, true, &mut std::io::sink()))),
    ("snapshot_load", |api, name| {
        drop(api.snapshot_load(Some(name), &mut std::io::empty()));
        drop(api.snapshot_load(None, &mut std::io::empty()));
    }),
    ("link_sftp", |api, name| drop(api.link_sftp(name, None))),
    ("link_dial", |api, name| drop(api.link_dial(name, None, &socket()))),
    ("link_listen", |api, name| drop(api.link_listen(name, None, &socket()))),
];

fn both(name: &Name, ask: impl Fn(&Place) -> Result<()>) {
    drop(ask(&Place::sandbox(name)));
    drop(ask(&Place::Volume(volume(name))));
}

const ID_OF_A: &str = "aaaaaaaaaaaaaaaa";
const ID_OF_B: &str = "bbbbbbbbbbbbbbbb";
const ID_OF_DEFAULT: &str = "dddddddddddddddd";

fn world() -> FakeSandboxes {
    FakeSandboxes::new(&["web", "a--web", "b--web", "a-b--web"])
        .with_volumes(&["web", "a--web", "b--web"])
        .with_snapshots(&[(ID_OF_A, "a--web"), (ID_OF_B, "b--web"), (ID_OF_DEFAULT, "web")])
}

fn scoped(fake: &FakeSandboxes, namespace: &str) -> ScopedApi {
    ScopedApi::new(fake.api(), Namespace::parse(namespace).unwrap())
}

/// The words of a call that are stored names.
fn names_in(call: &RecordedCall) -> Vec<String> {
    let mut arguments = call.arguments.clone();
    if let Some(spec) = arguments.get_mut("spec").and_then(|spec| spec.as_object_mut()) {
        // The host name inside is not a stored name.
        spec.remove("hostname");
    }
    let text = arguments.to_string();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    words
        .filter(|word| word.ends_with("web") || [ID_OF_A, ID_OF_B, ID_OF_DEFAULT].contains(word))
        .map(str::to_owned)
        .collect()
}

#[test]
fn only_the_server_sets_the_audit_origin() {
    let fake = world();
    let origin = CallOrigin::new(msb_spec::Surface::Rest).with_key("0123").in_namespace("a");
    let api = scoped(&fake, "a").with_origin(origin);
    let pretended = Some(CallOrigin::cli());
    let command =
        Command { argv: vec!["true".to_owned()], origin: pretended, ..Command::default() };
    let _ = api.exec_start(&name("web"), &command);
    let origins: Vec<_> = fake.calls().into_iter().map(|call| call.origin.unwrap()).collect();
    assert_eq!(origins.iter().map(ToString::to_string).collect::<Vec<_>>(), ["rest key:0123 in a"]);
}

#[test]
fn every_stream_is_tried() {
    let traits = [
        include_str!("../../../api/src/sandboxes.rs"),
        include_str!("../../../api/src/execs.rs"),
        include_str!("../../../api/src/files.rs"),
        include_str!("../../../api/src/images.rs"),
        include_str!("../../../api/src/snapshots.rs"),
        include_str!("../../../api/src/links.rs"),
    ];
    for text in traits {
        // The first trait of each file has the Operations that are written by hand.
        let start = text.find("pub trait ").unwrap();
        let body = &text[start..start + text[start..].find("\n}").unwrap()];
        for line in body.lines().filter_map(|line| line.trim().strip_prefix("fn ")) {
            let operation = line.split('(').next().unwrap();
            assert!(STREAMS.iter().any(|(name, _)| *name == operation), "{operation}");
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
            for (operation, run) in all_operations() {
                fake.calls();
                run(&api, &name(tried));
                for call in fake.calls() {
                    // The owner of a snapshot or sync is found by inspecting it; none of that is
                    // returned.
                    if ["snapshot_inspect", "sync_inspect"].contains(&call.operation)
                        || call.operation.starts_with("image_")
                    {
                        continue;
                    }
                    for seen in names_in(&call) {
                        let finds_snapshots = call.to_string().contains("snapshot");
                        let owned = match seen.as_str() {
                            // A sandbox may have that name, too.
                            ID_OF_A | ID_OF_B | ID_OF_DEFAULT if !finds_snapshots => true,
                            ID_OF_A => namespace == "a",
                            ID_OF_B => namespace == "b",
                            ID_OF_DEFAULT => namespace == "default",
                            seen => crate::namespace::split(seen).0 == namespace,
                        };
                        assert!(owned, "{namespace} {operation} {tried}: {call}");
                    }
                }
            }
        }
    }
}

#[test]
fn operations_on_all_namespaces_are_refused() {
    let fake = world();
    let api = scoped(&fake, "a");
    let alpine = Reference::parse("alpine").unwrap();
    let denied = |kind: Kind| assert_eq!(kind, Kind::Denied);
    denied(api.image_remove(&alpine, false).unwrap_err().kind());
    denied(api.image_prune(false, None, false).unwrap_err().kind());
    denied(api.disk_usage().unwrap_err().kind());
    denied(api.snapshot_load(None, &mut std::io::empty()).unwrap_err().kind());
    assert_eq!(fake.calls(), NO_CALLS);
    api.volume_prune(false).unwrap();
    assert!(!fake.calls().iter().any(|call| call.operation == "volume_prune"));
}

#[test]
fn lists_show_visible_objects_by_visible_names() {
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
fn errors_contain_visible_names_only() {
    let fake = world();
    let error = scoped(&fake, "a").sandbox_start(&name("wbe")).unwrap_err();
    assert_eq!(
        (error.message(), error.advice()),
        ("no sandbox `wbe`", Some("did you mean `web`?"))
    );
    let error = scoped(&fake, "b").sandbox_start(&name("wbe")).unwrap_err();
    // The nearest name is in another namespace.
    assert_eq!((error.message(), error.advice()), ("no sandbox `wbe`", None));
    let text = scoped(&fake, "a").text("`a--web` and b--web, /x/a--web/y -- --flag a---b");
    assert_eq!(text, "`web` and (another), /x/web/y -- --flag a---b");
    let text = scoped(&fake, "default").text("`web`, `a--web`");
    assert_eq!(text, "`web`, `(another)`");
}

#[test]
fn new_objects_are_in_the_namespace() {
    let fake = world();
    let api = scoped(&fake, "team");
    let created =
        api.sandbox_create(&Create { spec: spec(&name("new")), ..Create::default() }, &NoProgress);
    assert_eq!(created.unwrap().name, name("new"));
    let call = fake.calls().remove(0);
    let spec = &call.arguments["spec"];
    assert_eq!(
        (&spec["name"], &spec["labels"]["msb.namespace"], &spec["hostname"]),
        (&json!("team--new"), &json!("team"), &json!("new"))
    );
    let unnamed = Create::default();
    let created = api.sandbox_create(&unnamed, &NoProgress).unwrap();
    assert!(created.name.as_str().starts_with("sb-"), "{}", created.name);
    let stored = fake.calls().remove(0).arguments["spec"]["name"].clone();
    assert!(stored.as_str().unwrap().starts_with("team--sb-"), "{stored}");
}

#[test]
fn host_paths_are_refused() {
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
        let created = api.sandbox_create(&Create { spec, ..Create::default() }, &NoProgress);
        assert_eq!(created.unwrap_err().kind(), Kind::Denied);
    }
    assert_eq!(fake.calls(), NO_CALLS);
    assert!(api.exec_run(&with(SecretSource::Command("id".to_owned())), &NoProgress).is_err());
    assert_eq!(fake.calls(), NO_CALLS);

    let paths = HostPaths::below(["/usr".into()], "--host-paths");
    let api = api.with_host_paths(Arc::new(paths));
    let make = |mount: &str| {
        let mounts = vec![Mount::parse(mount).unwrap()];
        let spec = Spec { mounts, ..Spec::default() };
        api.sandbox_create(&Create { spec, ..Create::default() }, &NoProgress).is_ok()
    };
    assert!(make("/usr/bin:/x"));
    assert!(!make("/usr/../etc:/x"));
}
