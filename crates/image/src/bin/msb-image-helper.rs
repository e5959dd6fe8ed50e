//! The image helper without the rest of `msb`; for tests of the store.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(msb_image::IMAGE_HELPER_ARGUMENT) {
        return ExitCode::FAILURE;
    }
    let code = msb_image::serve(&arguments.next().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
