//! A minimal Plan for a Spec.

use msb_spec::{
    Hostname, Ids, Isolation, Limits, MountSource, Name, Network, PLAN_VERSION, Plan, PlannedMount,
    PlannedVolume, Rootfs, Security, Spec, Upper, VolumeStorage,
};

pub(crate) fn of(spec: &Spec) -> Plan {
    let name = spec.name.clone().unwrap_or_else(|| Name::parse("sb-1234").expect("a name"));
    let mounts = spec.mounts.iter().map(|mount| PlannedMount {
        host: "/".into(),
        guest: mount.guest.to_string(),
        read_only: mount.read_only,
        no_exec: mount.no_exec,
        file: false,
        volume: match &mount.source {
            MountSource::Volume(name) => Some(PlannedVolume {
                name: name.clone(),
                stored: VolumeStorage::Directory,
                range: None,
            }),
            MountSource::Path(_) => None,
        },
    });
    let network = spec.network.as_ref().map(|network| Network {
        policy: network.policy(),
        dns: Vec::new(),
        dns_timeout: None,
        dns_private: false,
        ports: network.ports.clone(),
        secrets: Vec::new(),
        bypass: Vec::new(),
        max_connections: 1,
        gateway_memory: msb_spec::GATEWAY_MEMORY,
        egress_rate: None,
        join: network.join.clone(),
        trust_host_cas: network.trust_host_cas,
    });
    let snapshot = match &spec.image {
        msb_spec::ImageRef::Snapshot(name) => Some(name.clone()),
        _ => None,
    };
    Plan {
        version: PLAN_VERSION,
        hostname: spec.hostname.clone().unwrap_or_else(|| Hostname::of(&name)),
        name,
        created: 0,
        isolation: Isolation::Process,
        isolation_reason: None,
        image: spec.image.clone(),
        snapshot,
        image_digest: None,
        rootfs: Rootfs { overlays: Vec::new(), own: 0, upper: Upper::Memory { size: 0 } },
        machine: None,
        ids: Ids::Single { uid: 0, gid: 0 },
        labels: spec.labels.clone(),
        env: spec.env.clone(),
        workdir: "/".to_owned(),
        user: None,
        shell: "/bin/sh".to_owned(),
        init: None,
        network,
        mounts: mounts.collect(),
        workspace: None,
        tmpfs: Vec::new(),
        limits: Limits::default(),
        rlimits: Vec::new(),
        security: Security { profile: spec.security, allow_userns: false, allow_setid: false },
        max_duration: None,
        idle_timeout: None,
        idle_pause: None,
        restart: msb_spec::Restart::No,
        health: None,
        ephemeral: false,
        spawn: None,
        family: None,
        patches: Vec::new(),
        command: None,
    }
}
