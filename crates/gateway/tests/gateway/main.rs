//! The gateway as a sandbox meets it: over its link, with servers on this machine outside.

#[cfg(test)]
mod datagrams;
#[cfg(test)]
mod guest;
#[cfg(test)]
mod joined;
#[cfg(test)]
mod names;
#[cfg(test)]
mod outside;
#[cfg(test)]
mod placeholders;
#[cfg(test)]
mod published;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod streams;
