//! Lays out a microVM: the mounts of the VMM process, the VMM's configuration, and the boot message
//! for the guest.

use msb_jail::{VmmMount, VmmMountIds};
use msb_spec::{
    Error, ImageRef, MachineBase, Plan, Profile, Result, Stage, Upper, UserRef, VolumeStorage,
};
use msb_vm::{Disk, Share};
use msb_wire::{
    Boot, MACHINE_PORT, MachineMount, MachineRoot, MachineTmpfs, ShareOverlay, WrittenDisk,
};
use std::path::{Path, PathBuf};

/// Mounts of the VMM process, configuration of the VMM, and boot message for the guest.
pub(crate) struct VmLayout {
    pub(crate) mounts: Vec<VmmMount>,
    pub(crate) vm: msb_vm::Machine,
    pub(crate) boot: Boot,
}

impl VmLayout {
    pub(crate) fn new(plan: &Plan, directory: &Path) -> Result<Self> {
        let Some(planned) = &plan.machine else {
            return Err(Error::invalid("this Plan has no microVM").at(Stage::Boot));
        };
        let mut kernel = planned.kernel.clone();
        let file = |host: &Path, name: &str, read_only: bool| VmmMount {
            host: host.to_owned(),
            name: name.to_owned(),
            user_path: false,
            file: true,
            read_only,
            ids: VmmMountIds::Owner,
            workspace: None,
            volume: None,
        };
        let mut vmm_mounts =
            vec![file(&kernel.path, "kernel", true), file(&boot_disk(directory)?, "guest", true)];
        kernel.path = PathBuf::from("/kernel");
        let mut vm = msb_vm::Machine {
            kernel,
            cpus: planned.cpus,
            memory_mib: planned.memory_mib,
            port: MACHINE_PORT,
            disks: vec![Disk { path: "/guest".into(), read_only: true, lasting: false }],
            shares: Vec::new(),
            network: false,
        };
        let lasting = !plan.ephemeral;
        let mut upper = None;
        if let MachineBase::Image { path, .. } = &planned.base {
            let user_path = is_user_path(plan, path);
            vmm_mounts.push(VmmMount { user_path, ..file(path, "image", true) });
            vm.disks.push(Disk { path: "/image".into(), read_only: true, lasting: false });
        }
        if let Upper::Disk { path } = &plan.rootfs.upper {
            vmm_mounts.push(file(path, "disk", false));
            upper = Some(device(vm.disks.len()));
            vm.disks.push(Disk { path: "/disk".into(), read_only: false, lasting });
        }
        let mut written = Vec::new();
        for (index, path) in planned.written.iter().enumerate() {
            let name = format!("written{index}");
            vmm_mounts.push(file(path, &name, true));
            let fstype = msb_spec::Machine::fstype_of(path).to_owned();
            written.push(WrittenDisk { device: device(vm.disks.len()), fstype });
            let path = Path::new("/").join(name);
            vm.disks.push(Disk { path, read_only: true, lasting: false });
        }
        let root = match &planned.base {
            MachineBase::Image { fstype, .. } => {
                MachineRoot::Image { device: device(1), fstype: fstype.clone(), upper }
            }
            MachineBase::Shares => {
                MachineRoot::Shares { overlays: lowers(plan, &mut vmm_mounts, &mut vm), upper }
            }
        };
        let mounts = mounts(plan, &mut vmm_mounts, &mut vm);
        let mut seed = [0; 32];
        let mut token = [0; 16];
        for bytes in [&mut seed[..], &mut token[..]] {
            rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
                .map_err(|error| Error::host("cannot get random bytes", error).at(Stage::Boot))?;
        }
        let boot = Boot {
            version: msb_wire::VERSION,
            hostname: plan.hostname.clone(),
            time_ns: 0,
            seed,
            token,
            root,
            written,
            tmpfs: plan
                .tmpfs
                .iter()
                .map(|tmpfs| MachineTmpfs {
                    guest: tmpfs.guest.as_str().to_owned(),
                    size: tmpfs.size,
                    read_only: tmpfs.read_only,
                    no_exec: tmpfs.no_exec,
                })
                .collect(),
            mounts,
            pids: plan.limits.pids.map(|limit| limit.value),
            restricted: plan.security.profile == Profile::Restricted,
            ephemeral: plan.ephemeral,
            network: None,
            ctl: plan.spawn.is_some(),
            init: plan.init.is_some(),
        };
        Ok(Self { mounts: vmm_mounts, vm, boot })
    }
}

/// Device name of the disk with this index: `vda`, `vdb` and so on.
fn device(index: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(index).unwrap_or(25).min(25));
    format!("vd{letter}")
}

/// Whether the user named this path as the image, so that it is not in our store.
fn is_user_path(plan: &Plan, path: &Path) -> bool {
    matches!(&plan.image, ImageRef::Path(image) if image == path)
}

/// Lower directories of the root, one virtio-fs share each.
fn lowers(
    plan: &Plan,
    vmm_mounts: &mut Vec<VmmMount>,
    vm: &mut msb_vm::Machine,
) -> Vec<ShareOverlay> {
    let mut count = 0;
    let mut share = |lower: &msb_spec::Lower| {
        let tag = format!("lower{count}");
        count += 1;
        let ids = if lower.owned { VmmMountIds::Sandbox } else { VmmMountIds::Host };
        let host = lower.path.clone();
        let name = tag.clone();
        let (volume, workspace) = (None, None);
        let (user_path, file) = (is_user_path(plan, &host), false);
        vmm_mounts.push(VmmMount {
            host,
            name,
            user_path,
            file,
            read_only: true,
            ids,
            volume,
            workspace,
        });
        let path = Path::new("/").join(&tag);
        vm.shares.push(Share { tag: tag.clone(), path, read_only: true, owner: None });
        tag
    };
    let overlay = |overlay: &msb_spec::Overlay| ShareOverlay {
        at: overlay.at.clone(),
        tags: overlay.lowers.iter().map(&mut share).collect(),
    };
    plan.rootfs.overlays.iter().map(overlay).collect()
}

/// Host paths and volumes, one share or disk each.
fn mounts(
    plan: &Plan,
    vmm_mounts: &mut Vec<VmmMount>,
    vm: &mut msb_vm::Machine,
) -> Vec<MachineMount> {
    let mut mounts = Vec::new();
    let owner = mount_owner(plan);
    for (index, mount) in plan.mounts.iter().enumerate() {
        let tag = format!("mount{index}");
        let (guest, read_only, no_exec) = (mount.guest.clone(), mount.read_only, mount.no_exec);
        if mount.volume.as_ref().is_some_and(|volume| volume.stored == VolumeStorage::Disk) {
            let host = mount.host.clone();
            let path = Path::new("/").join(&tag);
            let ids = VmmMountIds::Owner;
            let (volume, workspace) = (None, None);
            vmm_mounts.push(VmmMount {
                host,
                name: tag,
                user_path: false,
                file: true,
                read_only,
                ids,
                volume,
                workspace,
            });
            let tag = device(vm.disks.len());
            vm.disks.push(Disk { path, read_only, lasting: true });
            mounts.push(MachineMount { tag, disk: true, guest, read_only, no_exec, file: None });
            continue;
        }
        // A share is a directory, so a single file gets a directory of its own.
        let file = mount.file.then(|| "file".to_owned());
        let name = file.as_ref().map_or_else(|| tag.clone(), |file| format!("{tag}/{file}"));
        let (host, volume) = (mount.host.clone(), mount.volume.clone());
        // The VMM process sees its files as root's, because it can write no others. The share maps
        // them to the user inside.
        let ids = VmmMountIds::Owner;
        let workspace = None;
        let (user_path, file_alone) = (volume.is_none(), mount.file);
        vmm_mounts.push(VmmMount {
            host,
            name,
            user_path,
            file: file_alone,
            read_only,
            ids,
            volume,
            workspace,
        });
        let path = Path::new("/").join(&tag);
        vm.shares.push(Share { tag: tag.clone(), path, read_only, owner: Some(owner) });
        mounts.push(MachineMount { tag, disk: false, guest, read_only, no_exec, file });
    }
    if let Some(workspace) = &plan.workspace {
        let tag = "workspace".to_owned();
        vmm_mounts.push(VmmMount {
            host: workspace.host.clone(),
            name: tag.clone(),
            user_path: true,
            file: false,
            read_only: false,
            ids: VmmMountIds::Owner,
            volume: None,
            workspace: Some(workspace.clone()),
        });
        let path = Path::new("/").join(&tag);
        vm.shares.push(Share { tag: tag.clone(), path, read_only: false, owner: Some(owner) });
        mounts.push(MachineMount {
            tag,
            disk: false,
            guest: workspace.guest.clone(),
            read_only: false,
            no_exec: false,
            file: None,
        });
        // A mount point below another comes after it.
        mounts.sort_by(|one, other| Path::new(&one.guest).cmp(Path::new(&other.guest)));
    }
    mounts
}

/// Uid and gid of the default user. A user name can only be resolved inside, so such a mount
/// belongs to root.
fn mount_owner(plan: &Plan) -> (u32, u32) {
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
    let user = plan.user.as_ref();
    (number(user.map(UserRef::user)), number(user.and_then(UserRef::group)))
}

/// Path of the boot disk on the host. The file is written once for all microVMs.
fn boot_disk(directory: &Path) -> Result<PathBuf> {
    let about = |error: std::io::Error| Error::host("cannot write the boot disk", error);
    let home = directory.parent().and_then(Path::parent).unwrap_or(directory);
    let guest_dir = home.join("guest");
    let path = guest_dir.join(format!("{}.img", crate::boot_disk::boot_disk_name()));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(&guest_dir).map_err(about)?;
    let temporary = guest_dir.join(format!(".{}", std::process::id()));
    std::fs::write(&temporary, crate::boot_disk::boot_disk()).map_err(about)?;
    std::fs::rename(&temporary, &path).map_err(about)?;
    Ok(path)
}
