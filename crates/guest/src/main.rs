//! The program that a microVM boots as PID 1.

fn main() {
    msb_guest::vm::run()
}
