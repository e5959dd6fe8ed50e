//! SSH into sandboxes as clients see it that nobody here wrote: OpenSSH, rsync, git and paramiko.

mod desk;
mod ends;
mod files;
mod forwards;
mod keys;
mod paramiko;
mod sessions;
