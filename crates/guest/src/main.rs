//! The program that a microVM boots: PID 1 and nothing else.

fn main() {
    msb_guest::machine::run()
}
