//! What a user does with the command line, through the real binary.

mod run;
