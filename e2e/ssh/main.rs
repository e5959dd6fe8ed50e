//! SSH into sandboxes, with third-party clients: OpenSSH, rsync, git and paramiko.

mod disconnects;
mod files;
mod fixture;
mod forwards;
mod keys;
mod paramiko;
mod sessions;
