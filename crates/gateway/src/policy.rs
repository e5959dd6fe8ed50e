//! The network policy: the evaluator of rules, what an address stands for, and which names are intercepted.

pub(crate) mod address_class;
pub(crate) mod evaluator;
pub(crate) mod intercept_set;
pub(crate) mod rules;
